//! The log entry with which a generation begins: the messages that were recovered from members
//! ([`reform`](super::reform)).

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Class, MessageId, Position};
use crate::id::{Generation, ProcessId};

/// Maximum number of positions by which a member may be ahead of a survivor. A member that is further ahead
/// is fenced off, because each position costs memory, whether or not its message is known.
pub(super) const POSITIONS_MAX: u64 = 1 << 22;

/// The log entry with which a generation begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Recovery {
    pub(super) generation: Generation,
    /// The survivor's last position.
    pub(super) behind: Position,
    /// The last position that a member has delivered.
    pub(super) through: Position,
    /// The known messages between `behind` and `through`, in order.
    pub(super) messages: Vec<(Position, MessageId, Class, Bytes)>,
    /// Processes that reported all their deliveries. The value is a number of the process's own messages: it
    /// knows the outcomes of all its messages up to that number.
    pub(super) reported: BTreeMap<ProcessId, u64>,
    /// The earlier history, if no router survived.
    pub(super) earlier_history: Option<EarlierHistory>,
}

/// The beginning of a history that continues from members alone ([`refound`](super::refound)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EarlierHistory {
    /// The generation whose history continues.
    pub(super) before: Generation,
    /// The configuration before the recovered messages, encoded.
    pub(super) config: Bytes,
    /// Number of each sender's first message after the ground.
    pub(super) firsts: BTreeMap<ProcessId, u64>,
    /// The last number that each process gave to a message of its own.
    pub(super) sent: BTreeMap<ProcessId, u64>,
}

impl Recovery {
    /// Whether a history whose last position is `last` may learn this entry.
    pub(super) fn fits(&self, last: Position) -> bool {
        let ahead = self.through.0.checked_sub(self.behind.0);
        let continues =
            if self.earlier_history.is_some() { last == Position(0) } else { self.behind == last };
        continues && ahead.is_some_and(|ahead| ahead <= POSITIONS_MAX)
    }
}
