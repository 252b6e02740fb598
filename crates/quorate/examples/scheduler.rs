//! A scheduler of jobs, replicated three times (003 ch. I). A job of higher priority comes first, and an
//! older job within a priority.
//!
//! ```text
//! cargo run -p quorate --example scheduler -- --listen 127.0.0.1:7101 --found
//! cargo run -p quorate --example scheduler -- --listen 127.0.0.1:7102 --join 127.0.0.1:7101
//! cargo run -p quorate --example scheduler -- --listen 127.0.0.1:7103 --join 127.0.0.1:7101
//! cargo run -p quorate --example scheduler -- \
//!     --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 submit render 5
//! cargo run -p quorate --example scheduler -- \
//!     --call 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 work 127.0.0.1
//! ```
//!
//! The job that a worker gets depends on when the worker asks, so replicas that decided by themselves would
//! differ. Here the leader decides, and notes the time by its clock. `play COUNT` submits that many jobs, and
//! four workers take them. Kill one of the three meanwhile: each job is still taken once.
//!
//! The service itself is `src/service/ready/scheduler.rs`.

mod program;

use std::{collections::BTreeSet, sync::Mutex, thread, time::Duration};

use quorate::{
    Error, Node, Wait,
    service::{
        Stub,
        ready::scheduler::{ScheduleRequest, Scheduler},
    },
};

fn main() {
    let serve = |node: &Node, begin| node.serve("scheduler", Scheduler::default(), begin).wait();
    let words_of_calls = "submit JOB PRIORITY | work WORKER | play COUNT";
    program::run("scheduler", serve, words_of_calls, |scheduler, words| {
        let request = match *words {
            ["submit", job, priority] => {
                ScheduleRequest::Submit { job: job.to_owned(), priority: priority.parse().ok()? }
            }
            ["work", worker] => ScheduleRequest::Work { worker: worker.to_owned() },
            ["play", count] => return Some(play(scheduler, count.parse().ok()?)),
            _ => return None,
        };
        Some(scheduler.call(&request).wait().map(|taken| match (taken, request) {
            (Some(taken), _) => println!("{taken:?}"),
            (None, ScheduleRequest::Submit { .. }) => println!("submitted"),
            (None, ScheduleRequest::Work { .. }) => println!("no job"),
        }))
    });
}

/// Submits `count` jobs while four workers take them.
fn play(scheduler: &Stub<Scheduler>, count: usize) -> Result<(), Error> {
    let submit = || -> Result<(), Error> {
        for number in 0..count {
            let (job, priority) = (format!("job {number}"), (number % 3) as u8);
            scheduler.call(&ScheduleRequest::Submit { job, priority }).wait()?;
        }
        Ok(())
    };
    let taken = Mutex::new(Vec::new());
    let work = |worker: usize| -> Result<(), Error> {
        while taken.lock().expect("no worker panics").len() < count {
            match scheduler.call(&ScheduleRequest::Work { worker: format!("worker {worker}") }).wait()? {
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
