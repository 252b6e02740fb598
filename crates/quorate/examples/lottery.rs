//! A lottery that draws at random and notes the time, replicated three times.
//!
//! ```text
//! cargo run -p quorate --example lottery -- --listen 127.0.0.1:7101 --found
//! cargo run -p quorate --example lottery -- --listen 127.0.0.1:7102 --join 127.0.0.1:7101
//! cargo run -p quorate --example lottery -- --listen 127.0.0.1:7103 --join 127.0.0.1:7101
//! cargo run -p quorate --example lottery -- --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103
//! ```
//!
//! The last command draws once a second. Kill one of the three meanwhile: draws go on, and none is lost or
//! drawn twice. If a number follows the addresses, the command draws that many times without pauses.
//!
//! The service itself is `src/service/ready/lottery.rs`.

mod program;

use std::{thread, time::Duration};

use quorate::{
    Error, Node, Wait,
    service::{
        Stub,
        ready::lottery::{Lottery, LotteryRequest},
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

/// Draws `draws` times, with this pause between two draws, and looks at the last draw.
fn draw(lottery: &Stub<Lottery>, draws: usize, pause: Duration) -> Result<(), Error> {
    for _ in 0..draws {
        println!("{:?}", lottery.call(&LotteryRequest::Draw).wait()?);
        thread::sleep(pause);
    }
    println!("last: {:?}", lottery.call(&LotteryRequest::Last).wait()?);
    Ok(())
}
