//! A scheduler of jobs (003 ch. I): the next job is the one of the highest priority, and within a priority
//! the earliest.
//!
//! A worker's job depends on the time of its request, so replicas that decided by themselves would differ.
//! Here the leader decides, and notes the time by its clock.

use std::{cmp::Reverse, collections::BTreeMap, time::SystemTime};

use serde::{Deserialize, Serialize};

use crate::service::{Cx, Executed, Service};

/// Waiting jobs, by priority and arrival, and the jobs that workers have taken.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Scheduler {
    waiting: BTreeMap<QueuePlace, String>,
    taken: Vec<(QueuePlace, Taken)>,
    arrivals: u64,
}

/// The place of a job in the queue.
type QueuePlace = (Reverse<u8>, u64);

/// A job that a worker has taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The job.
    pub job: String,
    /// The name of the job's worker.
    pub worker: String,
    /// Time at which the worker took the job, by the leader's clock.
    pub at: SystemTime,
}

/// A request to a [`Scheduler`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleRequest {
    /// Queues a job for a worker.
    Submit {
        /// The job.
        job: String,
        /// The job's priority. Jobs with larger numbers come first.
        priority: u8,
    },
    /// Takes the next job for this worker.
    Work {
        /// The worker's name.
        worker: String,
    },
}

/// A change of a [`Scheduler`].
#[derive(Debug, Serialize, Deserialize)]
pub struct ScheduleChange(Changed);

#[derive(Debug, Serialize, Deserialize)]
enum Changed {
    Came(QueuePlace, String),
    Went(QueuePlace, Taken),
}

impl Service for Scheduler {
    type Request = ScheduleRequest;
    /// The job that the worker takes; `None` for a submission, and if no job waits.
    type Reply = Option<Taken>;
    type Delta = ScheduleChange;
    /// The place of a submitted job; `None` takes back the latest job that a worker took.
    type Undo = Option<(Reverse<u8>, u64)>;

    fn execute(&self, request: &ScheduleRequest, cx: &mut Cx<'_>) -> Executed<Self> {
        match request {
            ScheduleRequest::Submit { job, priority } => Executed::Changed(
                None,
                ScheduleChange(Changed::Came((Reverse(*priority), self.arrivals), job.clone())),
            ),
            ScheduleRequest::Work { worker } => match self.waiting.first_key_value() {
                Some((place, job)) => {
                    let taken = Taken { job: job.clone(), worker: worker.clone(), at: cx.clock() };
                    Executed::Changed(Some(taken.clone()), ScheduleChange(Changed::Went(*place, taken)))
                }
                None => Executed::Unchanged(None),
            },
        }
    }

    fn apply(&mut self, ScheduleChange(change): &ScheduleChange) -> Option<QueuePlace> {
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

    fn revert(&mut self, came: Option<QueuePlace>) {
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
