//! A lottery that draws by chance and by the clock, replicated three times.
//!
//! ```text
//! cargo run -p quorate --example lottery -- --listen 127.0.0.1:7101 --found
//! cargo run -p quorate --example lottery -- --listen 127.0.0.1:7102 --join 127.0.0.1:7101
//! cargo run -p quorate --example lottery -- --listen 127.0.0.1:7103 --join 127.0.0.1:7101
//! cargo run -p quorate --example lottery -- --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103
//! ```
//!
//! Kill one of the three while the last one draws, once a second: draws go on, and none is lost or drawn twice. A number behind the addresses has it
//! draw so often without a pause.

mod program;

use std::{
    thread,
    time::{Duration, SystemTime},
};

use quorate::{
    Error, Node, Wait,
    service::{Cx, Executed, Kind, Service, Stub},
};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Lottery(Vec<Draw>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Draw {
    at: SystemTime,
    number: u64,
}

#[derive(Serialize, Deserialize)]
enum Ask {
    Draw,
    Last,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    draws: usize,
    last: Option<Draw>,
}

impl Service for Lottery {
    type Request = Ask;
    type Reply = Answer;
    type Delta = Draw;
    type Undo = ();

    fn execute(&self, ask: &Ask, cx: &mut Cx<'_>) -> Executed<Self> {
        match ask {
            Ask::Draw => {
                let draw = Draw { at: cx.clock(), number: cx.below(100) };
                Executed::Changed(Answer { draws: self.0.len() + 1, last: Some(draw.clone()) }, draw)
            }
            Ask::Last => Executed::Unchanged(Answer { draws: self.0.len(), last: self.0.last().cloned() }),
        }
    }

    fn apply(&mut self, draw: &Draw) {
        self.0.push(draw.clone());
    }

    fn revert(&mut self, (): ()) {
        self.0.pop();
    }

    fn kind(ask: &Ask) -> Kind {
        match ask {
            Ask::Draw => Kind::Write,
            Ask::Last => Kind::Read,
        }
    }
}

fn main() {
    let serve = |node: &Node, begin| node.serve("lottery", Lottery::default(), begin).wait();
    program::run("lottery", serve, "[DRAWS]", |lottery, words| match words {
        [] => Some(draw(lottery, 10, Duration::from_secs(1))),
        [draws] => Some(draw(lottery, draws.parse().ok()?, Duration::ZERO)),
        _ => None,
    });
}

/// Draws so often, and looks at the last draw.
fn draw(lottery: &Stub<Lottery>, draws: usize, pause: Duration) -> Result<(), Error> {
    for _ in 0..draws {
        println!("{:?}", lottery.call(&Ask::Draw).wait()?);
        thread::sleep(pause);
    }
    println!("last: {:?}", lottery.call(&Ask::Last).wait()?);
    Ok(())
}
