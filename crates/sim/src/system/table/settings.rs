//! What a scenario says about a whole cluster.

use std::time::Duration;

use quorate_protocol::{
    Terms,
    ecast::RouterSettings,
    paxos,
    rubberband::{ClientSettings, StorageSettings, SuperSettings},
};
use quorate_world::DiskSettings;
use serde::{Deserialize, Serialize};

use crate::mutation::Mutation;

/// How large, and how busy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How many routers there should be.
    pub routers: usize,
    /// How many more machines ask to be admitted as routers.
    pub spares: usize,
    /// How many storage processes the ring has.
    pub storage: usize,
    /// How many more wait as standbys.
    pub standbys: usize,
    /// How many replicas each range has.
    pub replicas: u8,
    /// How many supers.
    pub supers: usize,
    /// How many gateways.
    pub gateways: usize,
    /// How many gateways share an operating-system process with a storage process: what kills one kills both.
    pub together: usize,
    /// How many accounts.
    pub accounts: i64,
    /// How many commands all gateways together issue.
    pub commands: u64,
    /// How many data messages of one gateway may be under way.
    pub credit: u64,
    /// How much chosen log the routers keep.
    pub log_bytes_kept: usize,
    /// What one task of an engine takes.
    pub task_micros: u64,
    /// How long the ranges remember the writes of a gateway that departed, or of unknown fate.
    pub retention_ms: u64,
    /// How many writes of a gateway are remembered at least.
    pub remembered: u64,
    /// After how many more a gateway lets the ranges forget.
    pub forget_every: u64,
    /// The bytes of text that statements give back for each row, beside what is asked for.
    pub returned_bytes: usize,
    /// Bytes of one message of what ranges remember.
    pub section_bytes_max: usize,
    /// What the disks of routers and storage processes are like, if they have any.
    pub disk: Option<DiskSettings>,
    /// How likely all that hold a range are to die at once in a run, and an operator has to declare them lost (S14).
    pub losses: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            routers: 3,
            spares: 1,
            storage: 4,
            standbys: 1,
            replicas: 2,
            supers: 2,
            gateways: 3,
            together: 0,
            accounts: 24,
            commands: 1_200,
            credit: 32,
            log_bytes_kept: 32 << 10,
            task_micros: 40,
            retention_ms: 600_000,
            remembered: 65_536,
            forget_every: 16_384,
            returned_bytes: 0,
            section_bytes_max: 64 << 10,
            disk: None,
            losses: 0.0,
        }
    }
}

impl Settings {
    /// What the domain is founded with.
    pub(super) fn terms(&self) -> Terms {
        Terms {
            replicas: self.replicas,
            wanted_storage: u32::try_from(self.storage).expect("a ring has at most 64"),
            wanted_routers: u32::try_from(self.routers).expect("a handful"),
        }
    }

    /// How routers behave.
    pub(super) fn routers(&self) -> RouterSettings {
        RouterSettings {
            paxos: paxos::Settings {
                wanted: self.routers,
                log_bytes_kept: self.log_bytes_kept,
                chunk_bytes: 4 << 10,
                batch_bytes_max: 4 << 10,
                window_max: 8,
                checkpoint_bytes: self.disk.map(|_| LOG_CHECKPOINT_BYTES),
                ..paxos::Settings::default()
            },
            credit: self.credit,
            kept_max: KEPT_MAX,
            ..RouterSettings::default()
        }
    }

    /// How supers behave.
    pub(super) fn supers(&self) -> SuperSettings {
        SuperSettings { retention: Duration::from_millis(self.retention_ms), ..SuperSettings::default() }
    }

    /// How storage processes behave.
    pub(super) fn storage_settings(&self, mutation: Option<Mutation>) -> StorageSettings {
        let section_bytes_max = match mutation {
            Some(Mutation::RepliesInOnePiece) => usize::MAX,
            _ => self.section_bytes_max,
        };
        let checkpoint_bytes = self.disk.map(|_| CHECKPOINT_BYTES);
        StorageSettings { section_bytes_max, checkpoint_bytes, ..StorageSettings::default() }
    }

    /// How gateways behave.
    pub(super) fn gateways(&self) -> ClientSettings {
        ClientSettings {
            retention: Duration::from_millis(self.retention_ms),
            remembered_min: self.remembered,
            forget_every: self.forget_every,
            ..ClientSettings::default()
        }
    }
}

/// Little, so that every router and every storage process makes checkpoints.
const LOG_CHECKPOINT_BYTES: usize = 24 << 10;
const CHECKPOINT_BYTES: u64 = 12 << 10;

/// Few, so that what is open is kept apart in every run.
const KEPT_MAX: usize = 8;
