//! Messages that change the configuration.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Role, kept::KeptRows, message::TAG, range::Range};
use crate::{admission::Terms, ecast::Position, id::ProcessId};

/// A control message. The process that it concerns submits the message, or a super does, or (for tables) a
/// gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// The sender becomes a member. A storage process joins as a standby.
    Join {
        /// The sender's role.
        role: Role,
        /// The sender's name, for people.
        name: String,
        /// The address at which the sender listens, as `host:port`.
        address: String,
        /// The terms with which the sender assumes the domain was founded; `None` if it accepts any.
        terms: Option<Terms>,
        /// Rows that the sender's former life had when it was removed, and that the sender still has
        /// ([keeping](super::keeping)).
        keeps: Option<KeptRows>,
    },
    /// The sender leaves the domain of its own will.
    Leave,
    /// A super believes that these processes have failed ([suspicion](crate::suspicion)). They remain
    /// members, but no longer count as holders of a range when another process is to be removed.
    Suspect {
        /// The suspected processes.
        processes: Vec<ProcessId>,
    },
    /// Founds the ring: gives all keys to a set of storage processes.
    Place {
        /// The placement version that the super saw. If the version has changed, the message has no effect.
        expected: u64,
        /// Ring id and process of each place.
        ring: Vec<(u64, ProcessId)>,
    },
    /// A standby takes the ring id of a process that is dead or has to make way. A live process keeps its
    /// rows until the standby is complete ([keeping](super::keeping)).
    Replace {
        /// The placement version that the super saw. If the version has changed, the message has no effect.
        expected: u64,
        /// The process that loses its place.
        old: ProcessId,
        /// The standby.
        new: ProcessId,
        /// The process from which the standby copies each range. If a sender dies, the standby copies from
        /// another replica.
        copy: Vec<(Range, ProcessId)>,
    },
    /// The sender has imported all ranges that a placement change gave it.
    Complete {
        /// The position of the placement change.
        change: Position,
    },
    /// The sender, which is suspected, is alive. The suspicion ends, and an unreachable sender is active
    /// again.
    Refute {
        /// The position of the suspicion. The message does not end a later suspicion.
        suspected: Position,
    },
    /// An operator declares that an unreachable process will not return. Rows that only this process had are
    /// lost.
    DeclareLost {
        /// The lost process.
        process: ProcessId,
    },
    /// Creates a table.
    CreateTable {
        /// The name, unique among tables.
        name: String,
        /// The definition, opaque here.
        definition: Bytes,
    },
    /// Drops a table.
    DropTable {
        /// The table's number.
        table: u32,
    },
    /// The ranges forget their replies to a session's requests below a number, and refuse such requests (S6).
    /// The session's gateway submits the message. For a session whose gateway is gone, a super submits it;
    /// `below` is then `u64::MAX` and ends the session.
    Forget {
        /// The session.
        session: u128,
        /// The first number that is not forgotten.
        below: u64,
        /// Numbers below `below` that are remembered nevertheless, in ascending order, because their outcome
        /// is unknown. A number that was forgotten earlier stays forgotten.
        kept: Vec<u64>,
    },
    /// A super removes suspected processes. A process whose removal would lose rows becomes unreachable
    /// instead.
    Remove {
        /// The processes; each is removed or not, independently of the others.
        removals: Vec<Removal>,
    },
    /// Expires the made-up ids that were first used up to a position: repetitions are refused, and replies
    /// forgotten. Supers submit the message after a while; gateways submit it when they use many such ids.
    Expire {
        /// Last position of the ids that expire: all ids first used at or before it.
        through: Position,
    },
    /// Dismisses a keeper, because others have its rows: the keeper drops them and becomes a standby
    /// ([keeping](super::keeping)).
    Dismiss {
        /// The keeper.
        process: ProcessId,
    },
    /// The sender, a storage process with a disk, stops before a restart and comes back
    /// ([away](super::away)). Has no effect if a range would keep no other complete replica.
    Away,
    /// The sender, which is away, runs again. If `caught_up`, the sender has executed all that it missed, and
    /// serves again. If not, the message only marks the position up to which the sender has to catch up.
    Back {
        /// Whether the sender has caught up.
        caught_up: bool,
    },
    /// Drops, creates and alters several tables, all of them at one position. Nothing happens if one change
    /// is not possible. Routers of a domain of a version before
    /// [`DEFINITIONS_SINCE`](super::DEFINITIONS_SINCE) refuse the message, as earlier builds do, which cannot
    /// decode it.
    Define {
        /// The changes. All tables that are dropped or altered end before any table begins, so tables can
        /// exchange their names. The tables that begin are numbered in this order.
        changes: Vec<TableChange>,
    },
}

/// A change of the tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableChange {
    /// Creates a table.
    Create {
        /// The name, unique among tables.
        name: String,
        /// The definition, opaque here.
        definition: Bytes,
    },
    /// Drops a table.
    Drop {
        /// The table's number.
        table: u32,
    },
    /// Gives a table a new definition and a new number ([altering](super::altering)).
    Alter {
        /// The number of the table that ends.
        table: u32,
        /// The name of the table that begins.
        name: String,
        /// The definition of the table that begins, opaque here.
        definition: Bytes,
        /// The sources of its columns, opaque here.
        columns: Bytes,
    },
}

impl TableChange {
    /// Returns the table that ends.
    pub fn ends(&self) -> Option<u32> {
        match self {
            TableChange::Create { .. } => None,
            TableChange::Drop { table } | TableChange::Alter { table, .. } => Some(*table),
        }
    }
}

/// A process to be removed, with the evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// The suspected process.
    pub process: ProcessId,
    /// The position of the suspicion; the removal has no effect if that suspicion was refuted.
    pub suspected: Position,
    /// Routers and supers, except the submitter, that do not hear the process either, in id order; at least
    /// one.
    pub witnesses: Vec<ProcessId>,
}

impl Removal {
    /// Whether the removal has witnesses, and none of them is `accuser` or the accused.
    pub(super) fn is_witnessed(&self, accuser: ProcessId) -> bool {
        let other = |witness: &ProcessId| *witness != accuser && *witness != self.process;
        !self.witnesses.is_empty()
            && self.witnesses.iter().all(other)
            && self.witnesses.is_sorted_by(|a, b| a < b)
    }
}

impl Control {
    /// Encodes the message.
    pub fn encode(&self) -> Bytes {
        postcard::to_extend(self, vec![TAG]).expect("every type of this crate serialises").into()
    }

    /// Decodes a message; `None` if the bytes are no control message.
    pub fn decode(body: &[u8]) -> Option<Control> {
        let (&TAG, body) = body.split_first()? else { return None };
        match postcard::take_from_bytes(body) {
            Ok((control, [])) => Some(control),
            _ => None,
        }
    }
}
