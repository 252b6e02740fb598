//! The strengths of a message, from which its sender chooses: they say what the group promises about the
//! message's order and safety.

use serde::{Deserialize, Serialize};

/// The promise of a message to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strength {
    /// The message is delivered at once at its sender, and at the other members in the order in which the
    /// sender sent.
    Soft,
    /// The message is delivered in one order at all members.
    Ordered,
    /// The message is delivered in one order at all members, and nowhere before the given number of processes
    /// has the message.
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
