//! The sender of a message chooses what the group promises for it.

use serde::{Deserialize, Serialize};

/// The promise of a message to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strength {
    /// Delivered at once here, and elsewhere in this member's order.
    Soft,
    /// Delivered in one order at all members.
    Ordered,
    /// Delivered in one order, and nowhere before the given number of processes has it.
    Safe(Phi),
}

/// The number of processes of the view that must have a safe message, for all of their members, before any
/// delivers it (000 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Phi {
    /// Every process: right if nobody knows which machines fail together.
    #[default]
    All,
    /// More than half.
    Majority,
    /// The given number, or all if there are fewer.
    Count(u16),
}

impl Phi {
    /// Returns the number among `members`.
    pub(crate) fn of(self, members: usize) -> usize {
        match self {
            Phi::All => members,
            Phi::Majority => crate::quorum::majority(members),
            Phi::Count(count) => usize::from(count).clamp(1, members.max(1)),
        }
    }
}
