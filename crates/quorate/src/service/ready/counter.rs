//! A counter (003 §IV.D.1).

use serde::{Deserialize, Serialize};

use crate::service::{Cx, Executed, Kind, Service};

/// A counter that only grows.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Counter(u64);

/// A request to a [`Counter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CounterRequest {
    /// Adds this number. The service rejects the request if the sum does not fit into 64 bits.
    Add(u64),
    /// Reads the number.
    Read,
}

impl Service for Counter {
    type Request = CounterRequest;
    /// The number, after the addition if there was one.
    type Reply = u64;
    type Delta = u64;
    type Undo = u64;

    const SHORT: bool = true;

    fn execute(&self, request: &CounterRequest, _: &mut Cx<'_>) -> Executed<Self> {
        match request {
            CounterRequest::Read => Executed::Unchanged(self.0),
            CounterRequest::Add(more) => match self.0.checked_add(*more) {
                Some(sum) => Executed::Changed(sum, *more),
                None => Executed::Rejected(format!(
                    "the sum of {} and {more} is too large for the counter",
                    self.0
                )),
            },
        }
    }

    fn apply(&mut self, more: &u64) -> u64 {
        self.0 += more;
        *more
    }

    fn revert(&mut self, more: u64) {
        self.0 -= more;
    }

    fn kind(request: &CounterRequest) -> Kind {
        match request {
            CounterRequest::Add(_) => Kind::Write,
            CounterRequest::Read => Kind::Read,
        }
    }
}
