//! Settings of a replicated service in a scenario.

use std::time::Duration;

use quorate_protocol::{
    paxos,
    service::{self, ClientSettings, GroupId, Pipelining},
};
use quorate_roles::services::{ReplicaOptions, Set, Terms};
use quorate_world::DiskSettings;
use serde::{Deserialize, Serialize};

use super::host::{Manner, Pace};
use crate::mutation::Mutation;

pub(crate) const GROUP: GroupId = GroupId(7);

/// The scenarios of this system.
pub(super) const SCENARIOS: &[(&str, &str)] = &[
    ("service", include_str!("../../../../../scenarios/service.toml")),
    ("service_disk", include_str!("../../../../../scenarios/service_disk.toml")),
    ("service_far", include_str!("../../../../../scenarios/service_far.toml")),
    ("service_reads", include_str!("../../../../../scenarios/service_reads.toml")),
    ("service_transactions", include_str!("../../../../../scenarios/service_transactions.toml")),
    ("service_transactions_far", include_str!("../../../../../scenarios/service_transactions_far.toml")),
];

/// Size and load of the system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The wanted number of replicas.
    pub replicas: usize,
    /// Number of additional machines that ask to join.
    pub spares: usize,
    /// Number of clients.
    pub clients: usize,
    /// Number of calls of all clients together.
    pub calls: u64,
    /// Number of keys of the service.
    pub keys: u64,
    /// The share of calls that begin a transaction, between 0 and 1.
    pub transactions: f64,
    /// The share of writes outside of transactions that have a key, under which another client repeats them.
    pub keyed: f64,
    /// Maximum number of open calls of one client.
    pub under_way_max: usize,
    /// Longest time of a call at a host, in microseconds. In every other seed hosts answer in the same turn.
    pub execute_micros_max: u64,
    /// Size of the chosen log that is kept, in bytes; small, so that checkpoints are needed.
    pub log_bytes_kept: usize,
    /// Maximum number of sessions; small, so that some end.
    pub sessions_max: usize,
    /// Number of times that a leader is left alone with a client that knows more than the leader, in every
    /// third seed.
    pub strandings: u64,
    /// Time that a client waits for an answer, in milliseconds.
    pub wait_ms: u64,
    /// The disks, if the replicas have any.
    pub disk: Option<DiskSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            replicas: 3,
            spares: 1,
            clients: 4,
            calls: 1_200,
            keys: 6,
            transactions: 0.0,
            keyed: 0.0,
            under_way_max: 6,
            execute_micros_max: 2_000,
            log_bytes_kept: 8 << 10,
            sessions_max: 8,
            strandings: 0,
            wait_ms: 3_000,
            disk: None,
        }
    }
}

impl Settings {
    /// Returns the options of this seed's replicas.
    pub(super) fn options(&self, seed: u64, mutation: Option<Mutation>) -> ReplicaOptions {
        let settings = self.service(seed, mutation);
        let remove_durable_after = settings.log.remove_after;
        ReplicaOptions { settings, checkpoint_bytes: CHECKPOINT_BYTES, remove_durable_after }
    }

    /// Returns the set that is founded in this seed.
    pub(super) fn set(&self) -> Set {
        let replicas = self.replicas as u8;
        Set { group: GROUP, terms: Terms { beginning: 0, replicas, durable: self.disk.is_some() } }
    }

    /// Returns the settings of this seed's replicas.
    pub(super) fn service(&self, seed: u64, mutation: Option<Mutation>) -> service::Settings {
        let whole_states = self.whole_states(seed);
        let mut settings = service::Settings {
            log: paxos::Settings {
                wanted: self.replicas,
                log_bytes_kept: self.log_bytes_kept,
                chunk_bytes: 1 << 10,
                batch_bytes_max: 2 << 10,
                window_min: if whole_states { 1 } else { 2 },
                window_max: if whole_states { 1 } else { 8 },
                ..paxos::Settings::default()
            },
            pipelining: if seed % 8 == 7 { Pipelining::OneAtATime } else { Pipelining::Speculative },
            whole_states,
            any_order: self.manner(seed).any_order,
            sessions_max: self.sessions_max,
            transaction_idle: TRANSACTION_IDLE,
            ..service::Settings::default()
        };
        if has_small_bounds(seed) {
            (settings.log.window_min, settings.log.window_max) = (1, if whole_states { 1 } else { 2 });
            settings.log.batch_bytes_max = 1 << 10;
            settings.log.pending_bytes_max = 4 << 10;
            settings.in_flight_bytes_max = 4 << 10;
            settings.results_held_max = 6 << 10;
            settings.waiting_bytes_max = 4 << 10;
            settings.session_bytes_max = 3 << 10;
            settings.replies_bytes_max = 8 << 10;
            if !whole_states {
                settings.transaction_bytes_max = 4 << 10;
                settings.transactions_bytes_max = 8 << 10;
            }
        }
        if mutation == Some(Mutation::RepliesUnbounded) {
            settings.session_bytes_max = usize::MAX;
        }
        settings
    }

    /// Whether leaders of this seed are left alone with clients.
    pub(super) fn strands(&self, seed: u64) -> bool {
        self.strandings > 0 && seed % 3 == 2
    }

    /// Whether changes of this seed are whole states.
    pub(super) fn whole_states(&self, seed: u64) -> bool {
        seed % 8 == 5
    }

    /// Returns the settings of this seed's clients.
    pub(super) fn client(&self, seed: u64) -> ClientSettings {
        ClientSettings {
            wait: Duration::from_millis(self.wait_ms),
            announced_reads_max: [0, 2, usize::MAX][(seed / 2 % 3) as usize],
            ..ClientSettings::default()
        }
    }

    /// Returns the manner of this seed's hosts. Services with threads of their own have no transactions.
    pub(super) fn manner(&self, seed: u64) -> Manner {
        Manner {
            pace: Pace::UpTo(Duration::from_micros(if seed % 2 == 1 { self.execute_micros_max } else { 0 })),
            whole_states: self.whole_states(seed),
            any_order: seed % 8 == 3 && self.transactions == 0.0,
            padding: if has_small_bounds(seed) { RESULT_BYTES_MAX } else { 0 },
        }
    }
}

/// Whether the bounds of this seed are so small that they are reached: in every third seed.
pub(super) fn has_small_bounds(seed: u64) -> bool {
    seed % 3 == 1
}

/// Maximum padding of replies and changes in seeds with small bounds, in bytes.
pub(super) const RESULT_BYTES_MAX: usize = 1500;
/// Time after which an idle transaction ends; short, so that some clients are forgotten with an open
/// transaction.
const TRANSACTION_IDLE: Duration = Duration::from_millis(800);
/// Bytes of log after which a replica writes a checkpoint; small, so that every replica writes some.
const CHECKPOINT_BYTES: usize = 24 << 10;
