//! A lottery that draws by chance and by the clock, replicated three times.
//!
//! ```text
//! cargo run -p quorate --example lottery -- --listen 127.0.0.1:7101 --found
//! cargo run -p quorate --example lottery -- --listen 127.0.0.1:7102 --join 127.0.0.1:7101
//! cargo run -p quorate --example lottery -- --listen 127.0.0.1:7103 --join 127.0.0.1:7101
//! cargo run -p quorate --example lottery -- --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103
//! ```
//!
//! Kill one of the three while the last one calls: draws go on, and none is lost or drawn twice.

use std::{
    env, process, thread,
    time::{Duration, SystemTime},
};

use quorate::{
    Error, Node, Wait,
    service::{Begin, Cx, Executed, Kind, Service},
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
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["--listen", address, "--found"] => host(address, &[], Begin::Found { replicas: 3 }),
        ["--listen", address, "--join", seeds] => host(address, &addresses(seeds), Begin::Join),
        ["--call", hosts] => call(&addresses(hosts)),
        _ => {
            eprintln!(
                "usage: lottery --listen ADDRESS --found | --listen ADDRESS --join ADDRESSES | --call ADDRESSES"
            );
            process::exit(2);
        }
    };
    if let Err(error) = outcome {
        eprintln!("{error}");
        process::exit(1);
    }
}

fn addresses(list: &str) -> Vec<&str> {
    list.split(',').collect()
}

/// Hosts a replica, and tells how it stands, until it is one no more.
fn host(address: &str, seeds: &[&str], begin: Begin) -> Result<(), Error> {
    let node = Node::builder().listen(address).seeds(seeds.iter().copied()).start().wait()?;
    node.serve("lottery", Lottery::default(), begin).wait()?;
    let mut told = None;
    loop {
        let standing = node.standing("lottery").expect("it is served here");
        if let Some(why) = standing.ended {
            return Err(Error::Start { why });
        }
        let now = (standing.replicas.len(), standing.serving);
        if told.replace(now) != Some(now) {
            println!("{} replicas{}", now.0, if now.1 { ", led from here" } else { "" });
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Draws ten times, once a second, and looks at the last draw.
fn call(hosts: &[&str]) -> Result<(), Error> {
    let lottery = quorate::connect(hosts.iter().copied()).wait()?.service::<Lottery>("lottery")?;
    for _ in 0..10 {
        println!("{:?}", lottery.call(&Ask::Draw).wait()?);
        thread::sleep(Duration::from_secs(1));
    }
    println!("last: {:?}", lottery.call(&Ask::Last).wait()?);
    Ok(())
}
