//! A matchmaker, replicated three times (003 §III.C.1). Owners advertise machines, and users submit jobs that
//! each need a machine.
//!
//! ```text
//! cargo run -p quorate --example matchmaker -- --listen 127.0.0.1:7101 --found
//! cargo run -p quorate --example matchmaker -- --listen 127.0.0.1:7102 --join 127.0.0.1:7101
//! cargo run -p quorate --example matchmaker -- --listen 127.0.0.1:7103 --join 127.0.0.1:7101
//! cargo run -p quorate --example matchmaker -- \
//!     --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 advertise 10.0.0.5 3000 16 500
//! cargo run -p quorate --example matchmaker -- \
//!     --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 submit render 2000 8 100 5
//! ```
//!
//! The numbers are MHz, GB of memory and GB of disk of a machine or a job, and the priority of a job. Among
//! the machines that are good enough, the matchmaker picks one at random. One thread receives requests, and
//! another executes them: higher priorities first, and within a priority the oldest first. `play COUNT`
//! advertises that many machines and submits as many jobs. Kill one of the three meanwhile: each machine is
//! still given away once.
//!
//! The service itself is `src/service/ready/matchmaker.rs`.

mod program;

use std::{collections::BTreeSet, thread};

use quorate::{
    Error, Node, Wait,
    service::{
        Stub,
        ready::matchmaker::{Machine, MatchRequest, Matchmaker, Size},
    },
};

fn main() {
    let serve = |node: &Node, begin| node.serve_loop("matchmaker", Matchmaker::default(), begin).wait();
    let words_of_calls =
        "advertise ADDRESS MHZ MEMORY DISK | submit JOB MHZ MEMORY DISK PRIORITY | play COUNT";
    program::run("matchmaker", serve, words_of_calls, |matchmaker, words| {
        let request = match *words {
            ["advertise", address, megahertz, memory, disk] => {
                MatchRequest::Advertise(machine(address, size([megahertz, memory, disk])?))
            }
            ["submit", job, megahertz, memory, disk, priority] => MatchRequest::Submit {
                job: job.to_owned(),
                size: size([megahertz, memory, disk])?,
                priority: priority.parse().ok()?,
            },
            ["play", count] => return Some(play(matchmaker, count.parse().ok()?)),
            _ => return None,
        };
        Some(matchmaker.call(&request).wait().map(|machine| match (machine, request) {
            (Some(machine), _) => println!("{machine:?}"),
            (None, MatchRequest::Advertise(_)) => println!("it is known"),
            (None, MatchRequest::Submit { .. }) => println!("no free machine is good enough"),
        }))
    });
}

fn size(words: [&str; 3]) -> Option<Size> {
    let [megahertz, memory_gb, disk_gb] = words.map(|word| word.parse().ok());
    Some(Size { megahertz: megahertz?, memory_gb: memory_gb?, disk_gb: disk_gb? })
}

fn machine(address: &str, size: Size) -> Machine {
    Machine { address: address.to_owned(), size, capability: format!("for the holder of {address}") }
}

/// Advertises `count` machines. Four clients submit as many jobs.
fn play(matchmaker: &Stub<Matchmaker>, count: usize) -> Result<(), Error> {
    let size = Size { megahertz: 3000, memory_gb: 16, disk_gb: 500 };
    for number in 0..count {
        matchmaker.call(&MatchRequest::Advertise(machine(&format!("machine {number}"), size))).wait()?;
    }
    println!("{count} machines are free");
    let submit = |client: usize| -> Result<Vec<String>, Error> {
        let mut given = Vec::new();
        for number in (client..count).step_by(CLIENTS) {
            let (job, priority) = (format!("job {number}"), (number % 3) as u8);
            let machine = matchmaker.call(&MatchRequest::Submit { job, size, priority }).wait()?;
            given.push(machine.expect("there is one for each job").address);
            if given.len().is_multiple_of(25) {
                println!("client {client} was given {} machines", given.len());
            }
        }
        Ok(given)
    };
    let mut given = Vec::new();
    thread::scope(|scope| -> Result<(), Error> {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let submit = &submit;
                scope.spawn(move || submit(client))
            })
            .collect();
        for client in clients {
            given.extend(client.join().expect("no client panics")?);
        }
        Ok(())
    })?;
    let different: BTreeSet<&String> = given.iter().collect();
    assert!(given.len() == count && different.len() == count, "each machine is given away once");
    println!("{count} jobs on {count} machines, each given away once");
    Ok(())
}

const CLIENTS: usize = 4;
