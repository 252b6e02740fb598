//! A lottery, which draws by chance and by the clock.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::service::{Cx, Executed, Kind, Service};

/// All draws, in their order.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Lottery(Vec<Draw>);

/// A draw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draw {
    /// When it was drawn, by the clock of the leader.
    pub at: SystemTime,
    /// The number drawn, less than 100.
    pub number: u64,
}

/// A request to a [`Lottery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Draws.
    Draw,
    /// Asks for the last draw.
    Last,
}

/// The reply to both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// How many draws there were, this one included.
    pub draws: usize,
    /// The last of them.
    pub last: Option<Draw>,
}

impl Service for Lottery {
    type Request = Ask;
    type Reply = Answer;
    type Delta = Draw;
    type Undo = ();

    fn execute(&self, ask: &Ask, cx: &mut Cx<'_>) -> Executed<Self> {
        match ask {
            Ask::Draw => {
                let draw = Draw { at: cx.clock(), number: cx.below(100) };
                Executed::Changed(Answer { draws: self.0.len() + 1, last: Some(draw.clone()) }, draw)
            }
            Ask::Last => Executed::Unchanged(Answer { draws: self.0.len(), last: self.0.last().cloned() }),
        }
    }

    fn apply(&mut self, draw: &Draw) {
        self.0.push(draw.clone());
    }

    fn revert(&mut self, (): ()) {
        self.0.pop();
    }

    fn kind(ask: &Ask) -> Kind {
        match ask {
            Ask::Draw => Kind::Write,
            Ask::Last => Kind::Read,
        }
    }
}
