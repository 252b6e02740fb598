//! A counter (003 §IV.D.1).

use serde::{Deserialize, Serialize};

use crate::service::{Cx, Executed, Kind, Service};

/// A number that is added to.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Counter(u64);

/// A request to a [`Counter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Adds this much; rejected if the sum would be more than 64 bits hold.
    Add(u64),
    /// Asks for the number.
    Read,
}

impl Service for Counter {
    type Request = Ask;
    /// The number, after what was added.
    type Reply = u64;
    type Delta = u64;
    type Undo = u64;

    const SHORT: bool = true;

    fn execute(&self, ask: &Ask, _: &mut Cx<'_>) -> Executed<Self> {
        match ask {
            Ask::Read => Executed::Unchanged(self.0),
            Ask::Add(more) => match self.0.checked_add(*more) {
                Some(sum) => Executed::Changed(sum, *more),
                None => Executed::Rejected(format!("{} and {more} are too many", self.0)),
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

    fn kind(ask: &Ask) -> Kind {
        match ask {
            Ask::Add(_) => Kind::Write,
            Ask::Read => Kind::Read,
        }
    }
}
