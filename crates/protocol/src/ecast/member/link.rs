//! The state that a member keeps for each link to a router: the leader that the router named, and whether the
//! member has heard of any leader.

use crate::{id::ProcessId, time::Time};

#[derive(Debug)]
pub(super) struct RouterLink {
    pub(super) address: String,
    /// Whether the link stands, and the router has named, on this link, the leader of this process's
    /// generation. A message to a router that has not named that leader may be ordered in a later generation.
    pub(super) heard: bool,
    /// The leader, by the router's latest statement. A leader names itself as long as a majority follows it.
    pub(super) says: Option<ProcessId>,
    /// Whether the statement in `says` is old: expected news did not come, and another router knows of no
    /// leader.
    pub(super) stale: bool,
}

/// Whether a router leads, as far as this process hears.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum LeaderKnowledge {
    /// No router has led yet.
    #[default]
    Joining,
    Led,
    /// No router leads; at this instant the member reports that it is adrift.
    Drifting(Time),
    /// The member has reported that it is adrift.
    Adrift,
}
