//! A store of keys and values, replicated three times.
//!
//! ```text
//! cargo run -p quorate --example key_value -- --listen 127.0.0.1:7101 --found
//! cargo run -p quorate --example key_value -- --listen 127.0.0.1:7102 --join 127.0.0.1:7101
//! cargo run -p quorate --example key_value -- --listen 127.0.0.1:7103 --join 127.0.0.1:7101
//! cargo run -p quorate --example key_value -- \
//!     --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 put colour blue
//! cargo run -p quorate --example key_value -- \
//!     --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 get colour
//! cargo run -p quorate --example key_value -- \
//!     --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 fill 1000
//! ```
//!
//! Kill one of the three while `fill` writes keys and reads each back. It finds all of them.
//!
//! The service itself is `src/service/ready/key_value.rs`.

mod program;

use quorate::{
    Error, Node, Wait,
    service::{
        Stub,
        ready::key_value::{KeyValue, KeyValueRequest},
    },
};

fn main() {
    let serve = |node: &Node, begin| node.serve("key_value", KeyValue::default(), begin).wait();
    let words_of_calls = "put KEY VALUE | get KEY | delete KEY | fill COUNT";
    program::run("key_value", serve, words_of_calls, |store, words| {
        let request = match *words {
            ["put", key, value] => KeyValueRequest::Put(key.to_owned(), value.to_owned()),
            ["get", key] => KeyValueRequest::Get(key.to_owned()),
            ["delete", key] => KeyValueRequest::Delete(key.to_owned()),
            ["fill", count] => return Some(fill(store, count.parse().ok()?)),
            _ => return None,
        };
        Some(store.call(&request).wait().map(|value| println!("{}", value.as_deref().unwrap_or("nothing"))))
    });
}

/// Writes `count` keys and reads each back.
fn fill(store: &Stub<KeyValue>, count: u64) -> Result<(), Error> {
    for number in 0..count {
        let (key, value) = (format!("key {number}"), number.to_string());
        store.call(&KeyValueRequest::Put(key.clone(), value.clone())).wait()?;
        let there = store.call(&KeyValueRequest::Get(key)).wait()?;
        assert_eq!(there, Some(value), "a store gives back what was put there");
        if number % 100 == 99 {
            println!("{} keys", number + 1);
        }
    }
    Ok(())
}
