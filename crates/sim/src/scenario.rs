//! Scenario files: a cluster, its workload, and the faults it must stand.

use std::time::Duration;

use serde::Deserialize;

use quorate_world::{FaultSettings, MachineSettings, NetworkSettings};

use crate::system::{self, System};

/// One scenario, as its file has it.
#[derive(Clone, Debug, Deserialize)]
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

impl Scenario {
    /// Reads a scenario.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// The scenario called `name`, of those that come with Quorate.
    pub fn named(name: &str) -> Option<Self> {
        let (_, text) = system::scenarios().find(|(known, _)| *known == name)?;
        Some(Self::parse(text).expect("a test reads every scenario that comes with Quorate"))
    }

    /// The names of the scenarios that come with Quorate.
    pub fn names() -> impl Iterator<Item = &'static str> {
        system::scenarios().map(|(name, _)| name)
    }

    pub(crate) fn safety(&self) -> Duration {
        Duration::from_millis(self.safety_ms)
    }

    pub(crate) fn liveness(&self) -> Duration {
        Duration::from_millis(self.liveness_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_that_come_along_can_be_read() {
        for name in Scenario::names() {
            assert!(Scenario::named(name).is_some());
        }
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        let error = Scenario::parse("about = \"\"\nsafty_ms = 1").unwrap_err();
        assert!(error.contains("safty_ms"), "{error}");
    }
}
