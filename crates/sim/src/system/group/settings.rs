//! The settings of a group scenario: the size and the load of the groups.

use serde::Deserialize;

/// Size and load of the system.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The wanted number of routers; 0 if another workload has them.
    pub routers: usize,
    /// Number of members.
    pub members: usize,
    /// Number of groups that each member joins.
    pub groups: u64,
    /// Number of messages that all members send together.
    pub words: u64,
    /// Whether bounds are so small that each is reached in some seeds.
    pub small_bounds: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { routers: 3, members: 5, groups: 2, words: 2_000, small_bounds: false }
    }
}
