//! Settings of a router set in a scenario.

use quorate_world::DiskSettings;
use serde::{Deserialize, Serialize};

/// How large, and how busy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How many routers there should be.
    pub routers: usize,
    /// How many more machines ask to be admitted.
    pub spares: usize,
    /// How many entries all users together append.
    pub entries: u64,
    /// An entry's payload has up to this many bytes.
    pub payload_bytes_max: u64,
    /// How much chosen log is kept; little, so that snapshots are needed.
    pub log_bytes_kept: usize,
    /// What the disks are like, if the routers have any.
    pub disk: Option<DiskSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            routers: 3,
            spares: 1,
            entries: 1_500,
            payload_bytes_max: 200,
            log_bytes_kept: 16 << 10,
            disk: None,
        }
    }
}
