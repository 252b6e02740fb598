//! Scenario files: a cluster, its workload, and the faults it must stand.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{FaultSettings, MachineSettings, NetworkSettings, system};

/// One scenario, as its file has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it is for, in a sentence.
    pub about: String,
    /// Which processes, doing what.
    pub system: System,
    /// What the network is like while nobody breaks it.
    #[serde(default)]
    pub network: NetworkSettings,
    /// What machines are like.
    #[serde(default)]
    pub machines: MachineSettings,
    /// What goes wrong.
    #[serde(default)]
    pub faults: FaultSettings,
    /// How long faults last: the first phase, which judges safety.
    pub safety_ms: u64,
    /// How long everything may take to come right once the faults have ended: the second phase, which judges liveness.
    pub liveness_ms: u64,
    /// What must occur at least once in a sweep of some hundred seeds; a sweep that never saw it tested nothing.
    #[serde(default)]
    pub expect: Vec<String>,
}

/// The systems that can be simulated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum System {
    /// A router set and its log.
    Paxos(system::paxos::Settings),
}

impl Scenario {
    /// Reads a scenario.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    pub(crate) fn safety(&self) -> Duration {
        Duration::from_millis(self.safety_ms)
    }

    pub(crate) fn liveness(&self) -> Duration {
        Duration::from_millis(self.liveness_ms)
    }
}
