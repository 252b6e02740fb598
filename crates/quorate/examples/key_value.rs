//! A store of keys and values, replicated three times.
//!
//! ```text
//! cargo run -p quorate --example key_value -- --listen 127.0.0.1:7101 --found
//! cargo run -p quorate --example key_value -- --listen 127.0.0.1:7102 --join 127.0.0.1:7101
//! cargo run -p quorate --example key_value -- --listen 127.0.0.1:7103 --join 127.0.0.1:7101
//! cargo run -p quorate --example key_value -- --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 put colour blue
//! cargo run -p quorate --example key_value -- --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 get colour
//! cargo run -p quorate --example key_value -- --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 fill 1000
//! ```
//!
//! Kill one of the three while the last one writes keys and reads each back: it finds all of them.

mod program;

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use quorate::{
    Error, Node, Wait,
    service::{Cx, Executed, Kind, Service, Stub},
};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Store(BTreeMap<String, String>);

#[derive(Serialize, Deserialize)]
enum Ask {
    Put(String, String),
    Get(String),
    Delete(String),
}

/// The value of a key; none: it is deleted.
type Put = (String, Option<String>);

impl Service for Store {
    type Request = Ask;
    /// The value of the key before.
    type Reply = Option<String>;
    type Delta = Put;
    type Undo = Put;

    const SHORT: bool = true;

    fn execute(&self, ask: &Ask, _: &mut Cx<'_>) -> Executed<Self> {
        let there = |key: &String| self.0.get(key).cloned();
        match ask {
            Ask::Get(key) => Executed::Unchanged(there(key)),
            Ask::Put(key, value) => Executed::Changed(there(key), (key.clone(), Some(value.clone()))),
            Ask::Delete(key) => Executed::Changed(there(key), (key.clone(), None)),
        }
    }

    fn apply(&mut self, (key, value): &Put) -> Put {
        let before = match value {
            Some(value) => self.0.insert(key.clone(), value.clone()),
            None => self.0.remove(key),
        };
        (key.clone(), before)
    }

    fn revert(&mut self, undo: Put) {
        self.apply(&undo);
    }

    fn kind(ask: &Ask) -> Kind {
        match ask {
            Ask::Get(_) => Kind::Read,
            Ask::Put(..) | Ask::Delete(_) => Kind::Write,
        }
    }

    fn keys(ask: &Ask) -> Vec<u64> {
        let (Ask::Put(key, _) | Ask::Get(key) | Ask::Delete(key)) = ask;
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        vec![hasher.finish()]
    }
}

fn main() {
    let serve = |node: &Node, begin| node.serve("key_value", Store::default(), begin).wait();
    let words_of_calls = "put KEY VALUE | get KEY | delete KEY | fill COUNT";
    program::run("key_value", serve, words_of_calls, |store, words| {
        let ask = match *words {
            ["put", key, value] => Ask::Put(key.to_owned(), value.to_owned()),
            ["get", key] => Ask::Get(key.to_owned()),
            ["delete", key] => Ask::Delete(key.to_owned()),
            ["fill", count] => return Some(fill(store, count.parse().ok()?)),
            _ => return None,
        };
        Some(store.call(&ask).wait().map(|value| println!("{}", value.as_deref().unwrap_or("nothing"))))
    });
}

/// Writes so many keys, and reads each back.
fn fill(store: &Stub<Store>, count: u64) -> Result<(), Error> {
    for number in 0..count {
        let (key, value) = (format!("key {number}"), number.to_string());
        store.call(&Ask::Put(key.clone(), value.clone())).wait()?;
        let there = store.call(&Ask::Get(key)).wait()?;
        assert_eq!(there, Some(value), "a store gives back what was put there");
        if number % 100 == 99 {
            println!("{} keys", number + 1);
        }
    }
    Ok(())
}
