//! A lottery, whose draws depend on chance and the clock.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::service::{Cx, Executed, Kind, Service};

/// All draws, oldest first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Lottery(Vec<Draw>);

/// A draw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draw {
    /// Time of the draw, by the leader's clock.
    pub at: SystemTime,
    /// The number drawn, less than 100.
    pub number: u64,
}

/// A request to a [`Lottery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LotteryRequest {
    /// Draws a number.
    Draw,
    /// Reads the last draw.
    Last,
}

/// The reply to both requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LotteryReply {
    /// Number of draws so far, the present draw included.
    pub draws: usize,
    /// The last draw.
    pub last: Option<Draw>,
}

impl Service for Lottery {
    type Request = LotteryRequest;
    type Reply = LotteryReply;
    type Delta = Draw;
    type Undo = ();

    fn execute(&self, request: &LotteryRequest, cx: &mut Cx<'_>) -> Executed<Self> {
        match request {
            LotteryRequest::Draw => {
                let draw = Draw { at: cx.clock(), number: cx.below(100) };
                Executed::Changed(LotteryReply { draws: self.0.len() + 1, last: Some(draw.clone()) }, draw)
            }
            LotteryRequest::Last => {
                Executed::Unchanged(LotteryReply { draws: self.0.len(), last: self.0.last().cloned() })
            }
        }
    }

    fn apply(&mut self, draw: &Draw) {
        self.0.push(draw.clone());
    }

    fn revert(&mut self, (): ()) {
        self.0.pop();
    }

    fn kind(request: &LotteryRequest) -> Kind {
        match request {
            LotteryRequest::Draw => Kind::Write,
            LotteryRequest::Last => Kind::Read,
        }
    }
}
