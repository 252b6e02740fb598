//! A counter, replicated three times (003 §IV.D.1).
//!
//! ```text
//! cargo run -p quorate --example counter -- --listen 127.0.0.1:7101 --found
//! cargo run -p quorate --example counter -- --listen 127.0.0.1:7102 --join 127.0.0.1:7101
//! cargo run -p quorate --example counter -- --listen 127.0.0.1:7103 --join 127.0.0.1:7101
//! cargo run -p quorate --example counter -- --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 add 1000
//! ```
//!
//! Kill one of the three during the calls. The counter still ends at a thousand, because each call takes
//! effect once.
//!
//! The service itself is `src/service/ready/counter.rs`.

mod program;

use quorate::{
    Error, Node, Wait,
    service::{
        Stub,
        ready::counter::{Counter, CounterRequest},
    },
};

fn main() {
    let serve = |node: &Node, begin| node.serve("counter", Counter::default(), begin).wait();
    program::run("counter", serve, "add TIMES | read", |counter, words| match words {
        ["add", times] => Some(add(counter, times.parse().ok()?)),
        ["read"] => Some(counter.call(&CounterRequest::Read).wait().map(|value| println!("{value}"))),
        _ => None,
    });
}

/// Adds one to the counter `times` times, one call after the other.
fn add(counter: &Stub<Counter>, times: u64) -> Result<(), Error> {
    for _ in 0..times {
        let value = counter.call(&CounterRequest::Add(1)).wait()?;
        if value.is_multiple_of(100) {
            println!("{value}");
        }
    }
    Ok(())
}
