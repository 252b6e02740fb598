//! [`Place`]: the place of an update in its group. Senders learn the place of each update that they send, and
//! members learn the place of each update that they deliver.

use crate::ecast::Position;

/// The place of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The update's number in its sender's stream of the view, from 1.
    Soft(u64),
    /// The position of the update's pack in the order, and the update's index in the pack, from 0.
    Ordered(Position, u32),
}

impl Place {
    /// Returns the place of the update that comes `index` places after the update at this place.
    pub fn behind(self, index: u32) -> Place {
        match self {
            Place::Soft(number) => Place::Soft(number + u64::from(index)),
            Place::Ordered(at, first) => Place::Ordered(at, first + index),
        }
    }
}
