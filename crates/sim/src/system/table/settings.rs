//! Settings of a whole cluster in a scenario.

use std::time::Duration;

use quorate_protocol::{
    Terms,
    ecast::{Position, RouterSettings},
    paxos,
    rubberband::{ClientSettings, StorageSettings, SuperSettings},
};
use quorate_world::DiskSettings;
use serde::{Deserialize, Serialize};

use crate::mutation::Mutation;

/// Size and load of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The wanted number of routers.
    pub routers: usize,
    /// Number of additional machines that ask to join as routers.
    pub spares: usize,
    /// Number of storage processes of the ring.
    pub storage: usize,
    /// Number of additional storage processes that wait as standbys.
    pub standbys: usize,
    /// Number of replicas of each range.
    pub replicas: u8,
    /// Number of supers.
    pub supers: usize,
    /// Number of gateways.
    pub gateways: usize,
    /// Number of gateways that share an operating-system process with a storage process, so that one crash
    /// kills both.
    pub together: usize,
    /// Number of accounts.
    pub accounts: i64,
    /// Number of commands of all gateways together.
    pub commands: u64,
    /// Share of the commands that begin a conversation, a transaction whose client tries each statement.
    pub conversations: f64,
    /// Share of the commands that alter a table.
    pub alterations: f64,
    /// Maximum number of unexecuted data messages of one gateway.
    pub credit: u64,
    /// Size of the chosen log that the routers keep, in bytes.
    pub log_bytes_kept: usize,
    /// Time of one task of an engine, in microseconds.
    pub task_micros: u64,
    /// Time for which ranges remember the writes of a departed gateway, and writes of unknown outcome, in
    /// milliseconds.
    pub retention_ms: u64,
    /// Minimum number of writes of a gateway that are remembered.
    pub remembered: u64,
    /// Number of writes of a gateway between two messages that let the ranges forget earlier writes.
    pub forget_every: u64,
    /// Size of the additional text that statements return for each row, in bytes.
    pub returned_bytes: usize,
    /// Size of one message of remembered replies, and of one record of verdicts, in bytes.
    pub section_bytes_max: usize,
    /// Number of decisions on writes that span ranges, kept for processes that come late.
    pub settled_max: usize,
    /// Size of the decisions that are kept for processes that come late, in bytes.
    pub settled_bytes_max: usize,
    /// Maximum padding of the reason of a failed write, in bytes.
    pub failure_padding: usize,
    /// The disks of routers and storage processes, if they have any.
    pub disk: Option<DiskSettings>,
    /// Probability that in a run all holders of a range die at once, and an operator must declare them lost
    /// (S14).
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
            conversations: 0.0,
            alterations: 0.0,
            credit: 32,
            log_bytes_kept: 32 << 10,
            task_micros: 40,
            retention_ms: 600_000,
            remembered: 65_536,
            forget_every: 16_384,
            returned_bytes: 0,
            section_bytes_max: 64 << 10,
            settled_max: 65_536,
            settled_bytes_max: 16 << 20,
            failure_padding: 0,
            disk: None,
            losses: 0.0,
        }
    }
}

impl Settings {
    /// Returns the settings of a run. In one seed of three, there is little room for decisions on writes that
    /// span ranges, and reasons of failures are long: in some seeds so long that no process keeps them.
    pub(super) fn of_seed(self, seed: u64) -> Settings {
        if !seed.is_multiple_of(3) {
            return self;
        }
        Settings {
            settled_max: 4 + (seed % 13) as usize,
            settled_bytes_max: 4 << 10,
            failure_padding: if seed.is_multiple_of(2) { 1 << 10 } else { 1 << 20 },
            ..self
        }
    }

    /// Returns the padding of a failure's reason at this position, in bytes; equal at all replicas.
    pub(super) fn padding(&self, at: Position) -> usize {
        if self.failure_padding == 0 { 0 } else { (at.0 as usize).wrapping_mul(7_919) % self.failure_padding }
    }

    /// Returns the terms with which the domain is founded.
    pub(super) fn terms(&self) -> Terms {
        Terms {
            replicas: self.replicas,
            wanted_storage: u32::try_from(self.storage).expect("a ring has at most 64 storage processes"),
            wanted_routers: u32::try_from(self.routers).expect("a handful"),
        }
    }

    /// Returns the settings of routers.
    pub(super) fn routers(&self) -> RouterSettings {
        RouterSettings {
            paxos: paxos::Settings {
                wanted: self.routers,
                log_bytes_kept: self.log_bytes_kept,
                chunk_bytes: 4 << 10,
                batch_bytes_max: 4 << 10,
                window_max: 8,
                checkpoint_bytes: self.disk.map(|_| LOG_CHECKPOINT_BYTES),
                chosen_after: paxos::Settings::CHOSEN_AFTER,
                ..paxos::Settings::default()
            },
            credit: self.credit,
            kept_max: KEPT_MAX,
            ..RouterSettings::default()
        }
    }

    /// Returns the settings of supers.
    pub(super) fn supers(&self) -> SuperSettings {
        SuperSettings { retention: Duration::from_millis(self.retention_ms), ..SuperSettings::default() }
    }

    /// Returns the settings of storage processes.
    pub(super) fn storage_settings(&self, mutation: Option<Mutation>) -> StorageSettings {
        let section_bytes_max = match mutation {
            Some(Mutation::RepliesInOnePiece) => usize::MAX,
            _ => self.section_bytes_max,
        };
        let defaults = StorageSettings::default();
        let (settled_bytes_max, failure_bytes_max) = match mutation {
            Some(Mutation::ReasonsUnbounded) => (usize::MAX, usize::MAX),
            _ => (self.settled_bytes_max, defaults.failure_bytes_max),
        };
        StorageSettings {
            section_bytes_max,
            settled_max: self.settled_max,
            settled_bytes_max,
            failure_bytes_max,
            checkpoint_bytes: self.disk.map(|_| CHECKPOINT_BYTES),
            ..defaults
        }
    }

    /// Returns the settings of gateways.
    pub(super) fn gateways(&self) -> ClientSettings {
        ClientSettings {
            retention: Duration::from_millis(self.retention_ms),
            remembered_min: self.remembered,
            forget_every: self.forget_every,
            ..ClientSettings::default()
        }
    }
}

/// Size of a router's log after which the router writes a checkpoint, in bytes. It is small, so that every
/// router writes checkpoints.
const LOG_CHECKPOINT_BYTES: usize = 24 << 10;
/// Bytes of deliveries in a storage process's journal after which a checkpoint begins. They are few, so that
/// every storage process writes checkpoints.
const CHECKPOINT_BYTES: u64 = 12 << 10;

/// Number of the newest messages that routers keep after an open message. It is small, so that in every run
/// routers keep open messages outside their queue.
const KEPT_MAX: usize = 8;
