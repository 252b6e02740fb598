//! The findings of a run on a graph: the broken promise, if there is one, and the time that each client
//! waited for progress.

use std::time::Duration;

use super::graph::Graph;

/// The result of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The number of the case.
    pub number: u64,
    /// The broken promise, or the failed assertion of the code itself.
    pub failure: Option<String>,
    /// The shapes that the network took; the last one is whole again.
    pub phases: Vec<Phase>,
    /// Number of steps in the run.
    pub steps: u64,
    /// The hash of all events: equal for equal cases.
    pub trace: u64,
}

/// The outcome of writes while the network had one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// The shape of the network.
    pub graph: Graph,
    /// Whether progress is promised to any client.
    pub promised: bool,
    /// The results of the clients: first of the clients that have a link to one router alone, in the order of
    /// the routers, then of the client with links to all routers.
    pub served: Vec<Served>,
    /// Number of reigns that began.
    pub reigns: usize,
}

/// The result of one client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// Whether progress is promised to this client.
    pub promised: bool,
    /// Time from the change of shape to the client's first acknowledgement of a later write. `None` if no
    /// later write was acknowledged.
    pub after: Option<Duration>,
}

impl Phase {
    /// Returns the longest wait of a client to which progress is promised.
    pub fn longest(&self) -> Option<Duration> {
        self.served.iter().filter(|served| served.promised).filter_map(|served| served.after).max()
    }
}
