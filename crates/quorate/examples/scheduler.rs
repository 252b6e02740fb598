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

mod program;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    thread,
    time::{Duration, SystemTime},
};

use quorate::{
    Error, Node, Wait,
    service::{Cx, Executed, Service, Stub},
};
use serde::{Deserialize, Serialize};

/// Jobs that wait, by priority and arrival, and those that were given out.
#[derive(Default, Serialize, Deserialize)]
struct Scheduler {
    waiting: BTreeMap<Place, String>,
    taken: Vec<(Place, Taken)>,
    arrivals: u64,
}

/// The place of a job in the queue.
type Place = (Reverse<u8>, u64);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Taken {
    job: String,
    worker: String,
    at: SystemTime,
}

#[derive(Serialize, Deserialize)]
enum Ask {
    Submit {
        job: String,
        priority: u8,
    },
    /// The next job, for this worker.
    Work {
        worker: String,
    },
}

/// The job that was given out.
type Answer = Option<Taken>;

#[derive(Serialize, Deserialize)]
enum Change {
    Came(Place, String),
    Went(Place, Taken),
}

impl Service for Scheduler {
    type Request = Ask;
    type Reply = Answer;
    type Delta = Change;
    /// The place of a job that came; none: the latest that was taken.
    type Undo = Option<Place>;

    fn execute(&self, ask: &Ask, cx: &mut Cx<'_>) -> Executed<Self> {
        match ask {
            Ask::Submit { job, priority } => {
                Executed::Changed(None, Change::Came((Reverse(*priority), self.arrivals), job.clone()))
            }
            Ask::Work { worker } => match self.waiting.first_key_value() {
                Some((place, job)) => {
                    let taken = Taken { job: job.clone(), worker: worker.clone(), at: cx.clock() };
                    Executed::Changed(Some(taken.clone()), Change::Went(*place, taken))
                }
                None => Executed::Unchanged(None),
            },
        }
    }

    fn apply(&mut self, change: &Change) -> Option<Place> {
        match change {
            Change::Came(place, job) => {
                self.waiting.insert(*place, job.clone());
                self.arrivals += 1;
                Some(*place)
            }
            Change::Went(place, taken) => {
                self.waiting.remove(place);
                self.taken.push((*place, taken.clone()));
                None
            }
        }
    }

    fn revert(&mut self, came: Option<Place>) {
        match came {
            Some(place) => {
                self.waiting.remove(&place);
                self.arrivals -= 1;
            }
            None => {
                let (place, taken) = self.taken.pop().expect("one was taken");
                self.waiting.insert(place, taken.job);
            }
        }
    }
}

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
