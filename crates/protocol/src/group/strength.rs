//! The strengths of a message, from which its sender chooses: they state what the group promises about the
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

/// Number of the view's processes that must have a safe message before any member delivers it (000 §6). A
/// process counts once, however many members it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Phi {
    /// Every process. The right choice if it is unknown which machines fail together.
    #[default]
    All,
    /// More than half of the processes.
    Majority,
    /// The given number of processes, or all if the view has fewer.
    Count(u16),
}

impl Phi {
    /// Returns the number of processes among `members`.
    pub(crate) fn of(self, members: usize) -> usize {
        match self {
            Phi::All => members,
            Phi::Majority => crate::quorum::majority(members),
            Phi::Count(count) => usize::from(count).clamp(1, members.max(1)),
        }
    }
}
