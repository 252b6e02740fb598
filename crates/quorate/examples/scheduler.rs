//! A scheduler of jobs, replicated three times (003 ch. I): the job of the highest priority is next, and of those the one that came first.
//!
//! ```text
//! cargo run -p quorate --example scheduler -- --listen 127.0.0.1:7101 --found
//! cargo run -p quorate --example scheduler -- --listen 127.0.0.1:7102 --join 127.0.0.1:7101
//! cargo run -p quorate --example scheduler -- --listen 127.0.0.1:7103 --join 127.0.0.1:7101
//! cargo run -p quorate --example scheduler -- --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 submit render 5
//! cargo run -p quorate --example scheduler -- --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 work 127.0.0.1
//! ```
//!
//! Which job a worker is given depends on when it asks, so replicas that each decided would differ: here the leader decides, and notes by its
//! clock when. `play COUNT` submits so many jobs while four workers take them; kill one of the three meanwhile, and each job is
//! taken once all the same.
//!
//! The service itself is `src/service/ready/scheduler.rs`.

mod program;

use std::{collections::BTreeSet, sync::Mutex, thread, time::Duration};

use quorate::{
    Error, Node, Wait,
    service::{
        Stub,
        ready::scheduler::{Ask, Scheduler},
    },
};

fn main() {
    let serve = |node: &Node, begin| node.serve("scheduler", Scheduler::default(), begin).wait();
    let words_of_calls = "submit JOB PRIORITY | work WORKER | play COUNT";
    program::run("scheduler", serve, words_of_calls, |scheduler, words| {
        let ask = match *words {
            ["submit", job, priority] => {
                Ask::Submit { job: job.to_owned(), priority: priority.parse().ok()? }
            }
            ["work", worker] => Ask::Work { worker: worker.to_owned() },
            ["play", count] => return Some(play(scheduler, count.parse().ok()?)),
            _ => return None,
        };
        Some(scheduler.call(&ask).wait().map(|taken| match (taken, ask) {
            (Some(taken), _) => println!("{taken:?}"),
            (None, Ask::Submit { .. }) => println!("submitted"),
            (None, Ask::Work { .. }) => println!("no job"),
        }))
    });
}

/// Submits so many jobs while four workers take them.
fn play(scheduler: &Stub<Scheduler>, count: usize) -> Result<(), Error> {
    let submit = || -> Result<(), Error> {
        for number in 0..count {
            let (job, priority) = (format!("job {number}"), (number % 3) as u8);
            scheduler.call(&Ask::Submit { job, priority }).wait()?;
        }
        Ok(())
    };
    let taken = Mutex::new(Vec::new());
    let work = |worker: usize| -> Result<(), Error> {
        while taken.lock().expect("no worker panics").len() < count {
            match scheduler.call(&Ask::Work { worker: format!("worker {worker}") }).wait()? {
                Some(job) => {
                    let mut taken = taken.lock().expect("no worker panics");
                    taken.push(job);
                    if taken.len().is_multiple_of(100) {
                        println!("{} jobs are taken", taken.len());
                    }
                }
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
        Ok(())
    };
    thread::scope(|scope| -> Result<(), Error> {
        let workers = [0, 1, 2, 3].map(|worker| {
            scope.spawn({
                let work = &work;
                move || work(worker)
            })
        });
        submit()?;
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    let taken = taken.into_inner().expect("no worker panics");
    let different: BTreeSet<&str> = taken.iter().map(|taken| taken.job.as_str()).collect();
    assert!(taken.len() == count && different.len() == count, "each job is taken once");
    println!("{count} jobs, each taken once");
    Ok(())
}
