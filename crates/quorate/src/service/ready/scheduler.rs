//! A scheduler of jobs (003 ch. I): the job of the highest priority is next, and of those the one that came first.
//!
//! Which job a worker is given depends on when it asks, so replicas that each decided would differ. Here the leader decides, and notes
//! by its clock when.

use std::{cmp::Reverse, collections::BTreeMap, time::SystemTime};

use serde::{Deserialize, Serialize};

use crate::service::{Cx, Executed, Service};

/// Jobs that wait, by priority and arrival, and those that were given out.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Scheduler {
    waiting: BTreeMap<Place, String>,
    taken: Vec<(Place, Taken)>,
    arrivals: u64,
}

/// The place of a job in the queue.
type Place = (Reverse<u8>, u64);

/// A job that was given to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The job.
    pub job: String,
    /// Who has it.
    pub worker: String,
    /// When it was given out, by the clock of the leader.
    pub at: SystemTime,
}

/// A request to a [`Scheduler`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Has a job wait for a worker.
    Submit {
        /// The job.
        job: String,
        /// More is sooner.
        priority: u8,
    },
    /// Asks for the next job, for this worker.
    Work {
        /// Who it is.
        worker: String,
    },
}

/// A change of a [`Scheduler`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Change(Changed);

#[derive(Debug, Serialize, Deserialize)]
enum Changed {
    Came(Place, String),
    Went(Place, Taken),
}

impl Service for Scheduler {
    type Request = Ask;
    /// The job that is given out; none to one that submits, and if no job waits.
    type Reply = Option<Taken>;
    type Delta = Change;
    /// The place of a job that came; none: the latest that was taken.
    type Undo = Option<(Reverse<u8>, u64)>;

    fn execute(&self, ask: &Ask, cx: &mut Cx<'_>) -> Executed<Self> {
        match ask {
            Ask::Submit { job, priority } => Executed::Changed(
                None,
                Change(Changed::Came((Reverse(*priority), self.arrivals), job.clone())),
            ),
            Ask::Work { worker } => match self.waiting.first_key_value() {
                Some((place, job)) => {
                    let taken = Taken { job: job.clone(), worker: worker.clone(), at: cx.clock() };
                    Executed::Changed(Some(taken.clone()), Change(Changed::Went(*place, taken)))
                }
                None => Executed::Unchanged(None),
            },
        }
    }

    fn apply(&mut self, Change(change): &Change) -> Option<Place> {
        match change {
            Changed::Came(place, job) => {
                self.waiting.insert(*place, job.clone());
                self.arrivals += 1;
                Some(*place)
            }
            Changed::Went(place, taken) => {
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
