//! Settings of a router set in a scenario.

use quorate_world::DiskSettings;
use serde::{Deserialize, Serialize};

/// Size and load of the system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The wanted number of routers.
    pub routers: usize,
    /// Number of additional machines that ask to join.
    pub spares: usize,
    /// Number of entries that all users append together.
    pub entries: u64,
    /// Maximum payload of an entry, in bytes.
    pub payload_bytes_max: u64,
    /// Size of the chosen log that routers keep, in bytes; small, so that snapshots are needed.
    pub log_bytes_kept: usize,
    /// The routers' disks, if they have any.
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
