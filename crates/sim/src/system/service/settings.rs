//! Settings of a replicated service in a scenario.

use std::time::Duration;

use quorate_protocol::{
    paxos,
    service::{self, ClientSettings, Pipelining},
};
use quorate_world::DiskSettings;
use serde::{Deserialize, Serialize};

use super::store::{Manner, Pace};

/// The scenarios that come along.
pub(super) const SCENARIOS: &[(&str, &str)] = &[
    ("service", include_str!("../../../../../scenarios/service.toml")),
    ("service_disk", include_str!("../../../../../scenarios/service_disk.toml")),
    ("service_far", include_str!("../../../../../scenarios/service_far.toml")),
    ("service_reads", include_str!("../../../../../scenarios/service_reads.toml")),
    ("service_transactions", include_str!("../../../../../scenarios/service_transactions.toml")),
];

/// How large, and how busy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How many replicas there should be.
    pub replicas: usize,
    /// How many more machines ask to be admitted.
    pub spares: usize,
    /// How many clients.
    pub clients: usize,
    /// How many calls all clients together make.
    pub calls: u64,
    /// How many keys the service has.
    pub keys: u64,
    /// The share of calls that begin a transaction of some.
    pub transactions: f64,
    /// The share of writes outside of transactions that bear a key, under which another client asks for them again.
    pub keyed: f64,
    /// How many calls of one client may be under way.
    pub under_way_max: usize,
    /// How long a call takes a host at most; every other seed has hosts that answer in the same turn.
    pub execute_micros_max: u64,
    /// How much chosen log is kept; little, so that checkpoints are needed.
    pub log_bytes_kept: usize,
    /// Sessions beyond which one ends; little, so that some do.
    pub sessions_max: usize,
    /// How long a client waits for an answer.
    pub wait_ms: u64,
    /// What the disks are like, if the replicas have any.
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
            wait_ms: 3_000,
            disk: None,
        }
    }
}

impl Settings {
    /// How the replicas of this seed behave.
    pub(super) fn service(&self, seed: u64) -> service::Settings {
        let whole_states = self.whole_states(seed);
        service::Settings {
            log: paxos::Settings {
                wanted: self.replicas,
                log_bytes_kept: self.log_bytes_kept,
                chunk_bytes: 1 << 10,
                batch_bytes_max: 2 << 10,
                window_min: if whole_states { 1 } else { 2 },
                window_max: if whole_states { 1 } else { 8 },
                checkpoint_bytes: self.disk.map(|_| CHECKPOINT_BYTES),
                ..paxos::Settings::default()
            },
            pipelining: if seed % 8 == 7 { Pipelining::OneAtATime } else { Pipelining::Speculative },
            whole_states,
            any_order: self.manner(seed).any_order,
            sessions_max: self.sessions_max,
            transaction_idle: TRANSACTION_IDLE,
            ..service::Settings::default()
        }
    }

    /// Whether changes of this seed are whole states.
    pub(super) fn whole_states(&self, seed: u64) -> bool {
        seed % 8 == 5
    }

    /// How the clients of this seed behave.
    pub(super) fn client(&self, seed: u64) -> ClientSettings {
        ClientSettings {
            wait: Duration::from_millis(self.wait_ms),
            told_reads_max: [0, 2, usize::MAX][(seed / 2 % 3) as usize],
            ..ClientSettings::default()
        }
    }

    /// How the hosts of this seed work. Services with threads of their own have no transactions.
    pub(super) fn manner(&self, seed: u64) -> Manner {
        Manner {
            pace: Pace::UpTo(Duration::from_micros(if seed % 2 == 1 { self.execute_micros_max } else { 0 })),
            whole_states: self.whole_states(seed),
            any_order: seed % 8 == 3 && self.transactions == 0.0,
        }
    }
}

/// Little, so that some clients are forgotten with a transaction open.
const TRANSACTION_IDLE: Duration = Duration::from_millis(800);
/// Little, so that every replica makes checkpoints.
const CHECKPOINT_BYTES: usize = 24 << 10;
