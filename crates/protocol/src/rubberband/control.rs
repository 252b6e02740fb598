//! Messages that change the configuration.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Range, Role};
use crate::{ecast::Position, id::ProcessId};

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
    },
    /// The sender stops being a member of its own will.
    Leave,
    /// A super believes that these have failed.
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
    /// A standby takes the ring id of a process that is dead, unreachable or in the way.
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
    /// A super hears of an unreachable process again: it is active as before.
    Reinstate {
        /// Who.
        process: ProcessId,
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
    },
}

impl Control {
    /// The byte form.
    pub fn encode(&self) -> Bytes {
        postcard::to_stdvec(self).expect("our own types always serialise").into()
    }

    /// From bytes; `None` when they are no control message.
    pub fn decode(body: &[u8]) -> Option<Control> {
        match postcard::take_from_bytes(body) {
            Ok((control, [])) => Some(control),
            _ => None,
        }
    }
}
