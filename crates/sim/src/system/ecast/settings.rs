//! Settings of E-Cast and its members in a scenario.

use quorate_protocol::{ecast::RouterSettings, paxos};
use quorate_world::DiskSettings;
use serde::{Deserialize, Serialize};

/// How large, and how busy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How many routers there should be.
    pub routers: usize,
    /// How many more machines ask to be admitted as routers.
    pub spares: usize,
    /// How many members there are.
    pub members: usize,
    /// How many rooms.
    pub rooms: u64,
    /// How many words all members together say.
    pub words: u64,
    /// A word has up to this many bytes more than it needs.
    pub filler_bytes_max: u64,
    /// How many words of one member may be under way; few, so that credits are exhausted.
    pub credit: u64,
    /// How much chosen log the routers keep; little, so that snapshots are needed.
    pub log_bytes_kept: usize,
    /// What the execution of a delivered word takes.
    pub execute_micros: u64,
    /// One member is so many times slower, so that execution lags behind confirmation (S7).
    pub sloth: u32,
    /// How often a majority of the routers is lost, and an operator has the domain go on without it (S1).
    pub losses: u32,
    /// How often all routers die, and an operator has the domain go on from its members (S1).
    pub extinctions: u32,
    /// What the routers' disks are like, if they have any. Members have none.
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
    /// Whether an operator has the domain go on without a majority of its routers.
    pub(super) fn goes_on(&self) -> bool {
        self.losses + self.extinctions > 0
    }

    /// How routers behave.
    pub(super) fn routers(&self) -> RouterSettings {
        RouterSettings {
            paxos: paxos::Settings {
                wanted: self.routers,
                log_bytes_kept: self.log_bytes_kept,
                chunk_bytes: 2 << 10,
                batch_bytes_max: 4 << 10,
                window_max: 8,
                checkpoint_bytes: self.disk.map(|_| CHECKPOINT_BYTES),
                ..paxos::Settings::default()
            },
            credit: self.credit,
            kept_max: KEPT_MAX,
            ..RouterSettings::default()
        }
    }
}

/// Little, so that every router makes checkpoints.
const CHECKPOINT_BYTES: usize = 24 << 10;

/// Few, so that what is open is kept apart in every run.
const KEPT_MAX: usize = 8;
