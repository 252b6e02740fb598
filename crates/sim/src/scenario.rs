//! Scenario files: a cluster, its workload, and the faults that it must survive.

use std::time::Duration;

use serde::Deserialize;

use quorate_world::{FaultSettings, MachineSettings, NetworkSettings};

use crate::system::{self, System};

/// A scenario, as its file states it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The purpose of the scenario, in a sentence.
    pub about: String,
    /// The simulated system with its settings.
    pub system: System,
    /// The network's behaviour without faults.
    #[serde(default)]
    pub network: NetworkSettings,
    /// The behaviour of machines.
    #[serde(default)]
    pub machines: MachineSettings,
    /// The faults.
    #[serde(default)]
    pub faults: FaultSettings,
    /// Duration of the first phase, in milliseconds: faults strike, and safety is judged.
    pub safety_ms: u64,
    /// Upper bound of the second phase, in milliseconds: after the faults, everything must recover, and
    /// liveness is judged.
    pub liveness_ms: u64,
    /// Events that must occur at least once in a sweep of some hundred seeds. A sweep that never saw an event
    /// did not test it.
    #[serde(default)]
    pub expect: Vec<String>,
}

impl Scenario {
    /// Reads a scenario.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// Returns the scenario called `name`, if it comes with Quorate.
    pub fn named(name: &str) -> Option<Self> {
        let (_, text) = system::scenarios().find(|(known, _)| *known == name)?;
        Some(Self::parse(text).expect("every scenario that comes with Quorate can be read"))
    }

    /// Returns the names of the scenarios that come with Quorate.
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
