//! Messages that change the configuration.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Keeps, Range, Role, config::TAG};
use crate::{admission::Terms, ecast::Position, id::ProcessId};

/// A control message. Submitted by the process that it is about, by a super, or (tables) by a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// The sender becomes a member; a storage process joins as standby.
    Join {
        /// As what.
        role: Role,
        /// Its name, for people.
        name: String,
        /// Where it listens.
        address: String,
        /// What it takes the domain to be founded with; none if it does not say.
        terms: Option<Terms>,
        /// Rows that its former life was removed with, and that it has still ([keeping](super::keeping)).
        keeps: Option<Keeps>,
    },
    /// The sender stops being a member of its own will.
    Leave,
    /// A super believes that these have failed ([suspicion](crate::suspicion)). They stay, but nobody is removed on the
    /// ground that one of them has its rows.
    Suspect {
        /// Who.
        processes: Vec<ProcessId>,
    },
    /// The first ring: every key from nothing to a set of storage processes.
    Place {
        /// The placement version that the super saw; another one voids the message.
        expected: u64,
        /// Ring id and process.
        ring: Vec<(u64, ProcessId)>,
    },
    /// A standby takes the ring id of a process that is dead or in the way. One that lives keeps its rows until the standby is
    /// complete ([keeping](super::keeping)).
    Replace {
        /// The placement version that the super saw; another one voids the message.
        expected: u64,
        /// Who goes.
        old: ProcessId,
        /// The standby.
        new: ProcessId,
        /// Where the standby copies from, range by range; others may be asked when a sender dies.
        copy: Vec<(Range, ProcessId)>,
    },
    /// The sender has imported all that the placement change at this position gave it.
    Complete {
        /// Which change.
        change: Position,
    },
    /// The sender, which is suspected, lives: the suspicion is over, and if it was unreachable it is active as before.
    Refute {
        /// Where the suspicion was ordered; of no effect on another.
        suspected: Position,
    },
    /// An operator says that an unreachable process will not return: what only it held is gone.
    DeclareLost {
        /// Who.
        process: ProcessId,
    },
    /// A table begins to exist.
    CreateTable {
        /// Its name, unique.
        name: String,
        /// Its definition, opaque here.
        definition: Bytes,
    },
    /// A table ceases to exist.
    DropTable {
        /// Its number.
        table: u32,
    },
    /// Replies to a session's requests below a number are forgotten, and such requests refused (S6). Submitted by the
    /// session's gateway, or by a super for a session whose gateway is gone; then `below` may be `u64::MAX`: it is over.
    Forget {
        /// Which session.
        session: u128,
        /// Numbers below are forgotten.
        below: u64,
        /// But for these, in order: their fate is open. What was forgotten before is not given back.
        kept: Vec<u64>,
    },
    /// A super removes processes that are suspected, or, where rows would be lost, calls them unreachable.
    Remove {
        /// Whom; each is removed or not on its own.
        removals: Vec<Removal>,
    },
    /// Made-up ids first used up to a position are over: repetitions are refused, and replies forgotten. Submitted by supers
    /// after a while, and by gateways that use many.
    Expire {
        /// Up to where.
        through: Position,
    },
    /// Others have the rows of a keeper: it drops them, and is a standby ([keeping](super::keeping)).
    Dismiss {
        /// Which.
        process: ProcessId,
    },
    /// The sender, a storage process with a disk, stops for a moment and comes back ([away](super::away)). Of no effect where
    /// a range would be without another complete replica.
    Away,
    /// The sender, which is away, runs again. With `caught_up` it has all that was delivered before, and serves as before;
    /// without, this only tells it how far the order is.
    Back {
        /// Whether it has caught up.
        caught_up: bool,
    },
}

/// One process that is to be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Which.
    pub process: ProcessId,
    /// Where the suspicion was ordered; without effect once that was refuted.
    pub suspected: Position,
    /// Routers and other supers that do not hear it either, in id order; at least one.
    pub witnesses: Vec<ProcessId>,
}

impl Removal {
    /// Whether `accuser` has others on its side.
    pub(super) fn is_witnessed(&self, accuser: ProcessId) -> bool {
        let other = |witness: &ProcessId| *witness != accuser && *witness != self.process;
        !self.witnesses.is_empty()
            && self.witnesses.iter().all(other)
            && self.witnesses.is_sorted_by(|a, b| a < b)
    }
}

impl Control {
    /// The byte form.
    pub fn encode(&self) -> Bytes {
        postcard::to_extend(self, vec![TAG]).expect("our own types always serialise").into()
    }

    /// From bytes; `None` when they are no control message.
    pub fn decode(body: &[u8]) -> Option<Control> {
        let (&TAG, body) = body.split_first()? else { return None };
        match postcard::take_from_bytes(body) {
            Ok((control, [])) => Some(control),
            _ => None,
        }
    }
}
