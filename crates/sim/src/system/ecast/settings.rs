//! Settings of E-Cast and its members in a scenario.

use quorate_protocol::{ecast::RouterSettings, paxos};
use quorate_world::DiskSettings;
use serde::{Deserialize, Serialize};

/// Size and load of the system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The wanted number of routers.
    pub routers: usize,
    /// Number of additional machines that ask to join as routers.
    pub spares: usize,
    /// Number of members.
    pub members: usize,
    /// Number of rooms.
    pub rooms: u64,
    /// Number of messages that all members submit together.
    pub words: u64,
    /// Maximum number of filler bytes in a message.
    pub filler_bytes_max: u64,
    /// Number of ordered, unexecuted messages that each member may have; small, so that credits run out.
    pub credit: u64,
    /// Size of the chosen log that routers keep, in bytes; small, so that snapshots are needed.
    pub log_bytes_kept: usize,
    /// Time to execute a delivered message, in microseconds.
    pub execute_micros: u64,
    /// Factor by which one member is slower, so that execution lags behind confirmation (S7).
    pub sloth: u32,
    /// Number of losses of a majority of the routers, after which an operator lets the domain continue
    /// without it (S1).
    pub losses: u32,
    /// Number of times that all routers die, after which an operator lets the domain continue from its
    /// members (S1).
    pub extinctions: u32,
    /// The routers' disks, if they have any. Members have none.
    pub disk: Option<DiskSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            routers: 3,
            spares: 1,
            members: 6,
            rooms: 4,
            words: 1_500,
            filler_bytes_max: 120,
            credit: 24,
            log_bytes_kept: 16 << 10,
            execute_micros: 30,
            sloth: 200,
            losses: 0,
            extinctions: 0,
            disk: None,
        }
    }
}

impl Settings {
    /// Whether an operator lets the domain continue without a majority of its routers.
    pub(super) fn goes_on(&self) -> bool {
        self.losses + self.extinctions > 0
    }

    /// Returns the settings of routers.
    pub(super) fn routers(&self) -> RouterSettings {
        RouterSettings {
            paxos: paxos::Settings {
                wanted: self.routers,
                log_bytes_kept: self.log_bytes_kept,
                chunk_bytes: 2 << 10,
                batch_bytes_max: 4 << 10,
                window_max: 8,
                checkpoint_bytes: self.disk.map(|_| CHECKPOINT_BYTES),
                chosen_after: paxos::Settings::CHOSEN_AFTER,
                ..paxos::Settings::default()
            },
            credit: self.credit,
            kept_max: KEPT_MAX,
            ..RouterSettings::default()
        }
    }
}

/// The size of a log after which a router writes a checkpoint, in bytes: small, so that every router writes
/// some.
const CHECKPOINT_BYTES: usize = 24 << 10;

/// Maximum number of stable messages that a router keeps behind an unstable message. It is small, so that in
/// every run routers keep unstable messages separately.
const KEPT_MAX: usize = 8;
