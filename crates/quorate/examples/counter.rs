//! A counter, replicated three times (003 §IV.D.1).
//!
//! ```text
//! cargo run -p quorate --example counter -- --listen 127.0.0.1:7101 --found
//! cargo run -p quorate --example counter -- --listen 127.0.0.1:7102 --join 127.0.0.1:7101
//! cargo run -p quorate --example counter -- --listen 127.0.0.1:7103 --join 127.0.0.1:7101
//! cargo run -p quorate --example counter -- --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 add 1000
//! ```
//!
//! Kill one of the three meanwhile: the counter stands at a thousand in the end, for each call takes effect once.

mod program;

use quorate::{
    Error, Node, Wait,
    service::{Cx, Executed, Kind, Service, Stub},
};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Counter(u64);

#[derive(Serialize, Deserialize)]
enum Ask {
    Add(u64),
    Read,
}

impl Service for Counter {
    type Request = Ask;
    type Reply = u64;
    type Delta = u64;
    type Undo = u64;

    const SHORT: bool = true;

    fn execute(&self, ask: &Ask, _: &mut Cx<'_>) -> Executed<Self> {
        match ask {
            Ask::Read => Executed::Unchanged(self.0),
            Ask::Add(more) => match self.0.checked_add(*more) {
                Some(sum) => Executed::Changed(sum, *more),
                None => Executed::Rejected(format!("{} and {more} are too many", self.0)),
            },
        }
    }

    fn apply(&mut self, more: &u64) -> u64 {
        self.0 += more;
        *more
    }

    fn revert(&mut self, more: u64) {
        self.0 -= more;
    }

    fn kind(ask: &Ask) -> Kind {
        match ask {
            Ask::Add(_) => Kind::Write,
            Ask::Read => Kind::Read,
        }
    }
}

fn main() {
    let serve = |node: &Node, begin| node.serve("counter", Counter::default(), begin).wait();
    program::run("counter", serve, "add TIMES | read", |counter, words| match words {
        ["add", times] => Some(add(counter, times.parse().ok()?)),
        ["read"] => Some(counter.call(&Ask::Read).wait().map(|value| println!("{value}"))),
        _ => None,
    });
}

/// Adds one so often, one call after the other.
fn add(counter: &Stub<Counter>, times: u64) -> Result<(), Error> {
    for _ in 0..times {
        let value = counter.call(&Ask::Add(1)).wait()?;
        if value.is_multiple_of(100) {
            println!("{value}");
        }
    }
    Ok(())
}
