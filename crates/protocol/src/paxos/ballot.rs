//! Numbers with an order: slots of the log, and ballots of its leaders.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    id::{Incarnation, ProcessId},
    wire::Wire,
};

/// A place in the log, counted from 1; 0 means "before the first".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Slot(pub u64);

impl Slot {
    /// The place before the first slot.
    pub const ZERO: Slot = Slot(0);

    /// Returns the slot after this slot.
    pub fn next(self) -> Slot {
        Slot(self.0 + 1)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The number of a reign: a round, and the router that leads in it. No two routers share a ballot, and a
/// router uses each ballot at most once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Wire)]
pub struct Ballot {
    /// Number that grows with every candidacy.
    pub round: u64,
    /// The leader. Its id decides which of two ballots with the same round is higher.
    pub router: ProcessId,
}

impl Ballot {
    /// The ballot below every ballot of a leader.
    pub const ZERO: Ballot = Ballot { round: 0, router: ProcessId { node: 0, incarnation: Incarnation(0) } };
}

impl fmt::Debug for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}@{}", self.round, self.router)
    }
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
