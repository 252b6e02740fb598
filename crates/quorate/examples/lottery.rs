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
//!
//! The service itself is `src/service/ready/lottery.rs`.

mod program;

use std::{thread, time::Duration};

use quorate::{
    Error, Node, Wait,
    service::{
        Stub,
        ready::lottery::{Ask, Lottery},
    },
};

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
