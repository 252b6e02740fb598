//! Requests of a service that completes them in any order.
//!
//! The requests wait here until a thread of the service takes them. When a reign ends, requests that no
//! thread has completed become void, and their callers call again at the next leader. So a thread may
//! complete a task only if the reign in which it took the task has not ended. It may not complete a task
//! while the service rests, that is, while the replica waits to take a checkpoint.

use std::collections::VecDeque;

use bytes::Bytes;
use quorate_protocol::service::{Command, Event};

use super::executor::{Executor, rejection};

/// Requests that no thread has taken yet, and the rules by which threads complete the requests that they
/// took.
#[derive(Debug)]
pub struct Tasks<R> {
    /// The requests in order of arrival; bounded by the requests that a leader has at its host.
    waiting: VecDeque<PendingTask<R>>,
    /// The number of the current reign. It rises when tasks become void.
    reign: u64,
    /// Whether completions must wait until a checkpoint was taken.
    rests: bool,
}

/// A request that waits for its completion.
#[derive(Debug)]
pub struct PendingTask<R> {
    /// The replica's number of the work.
    pub work: u64,
    /// Whether the request was sent as a read.
    pub read: bool,
    /// The request.
    pub request: R,
}

impl<R> Default for Tasks<R> {
    fn default() -> Tasks<R> {
        Tasks { waiting: VecDeque::new(), reign: 0, rests: false }
    }
}

impl<R> Tasks<R> {
    /// Takes an order of the replica if it concerns tasks. Otherwise returns the order, which the executor
    /// has to carry out.
    pub fn take<U, C>(
        &mut self,
        order: Event,
        executor: &Executor<U, C>,
        decode: impl FnOnce(&Bytes) -> Result<R, String>,
        put: &mut dyn FnMut(Command),
    ) -> Option<Event> {
        match order {
            Event::Execute { work, request, read, transaction } if !executor.is_restoring() => {
                let decoded = match transaction {
                    None => decode(&request),
                    Some(_) => Err(String::from("a service with threads of its own has no transactions")),
                };
                match decoded {
                    Ok(request) => self.waiting.push_back(PendingTask { work, read, request }),
                    Err(why) => put(rejection(work, &why)),
                }
                None
            }
            Event::Rest { rest } => {
                self.rests = true;
                put(Command::Rests { rest });
                None
            }
            Event::Checkpoint { .. } => {
                self.rests = false;
                Some(order)
            }
            Event::Revert => {
                (self.reign, self.rests) = (self.reign + 1, false);
                self.waiting.clear();
                Some(order)
            }
            order => Some(order),
        }
    }

    /// Returns the number of the current reign.
    pub fn reign(&self) -> u64 {
        self.reign
    }

    /// Whether completions must wait until a checkpoint was taken.
    pub fn rests(&self) -> bool {
        self.rests
    }

    /// Whether no request waits for a thread.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Removes the oldest request and returns it, for a thread.
    pub fn pop(&mut self) -> Option<PendingTask<R>> {
        self.waiting.pop_front()
    }
}
