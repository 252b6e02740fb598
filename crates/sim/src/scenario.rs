//! Scenario files: a cluster, its workload, and the faults that it must survive.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::Deserialize;

use quorate_world::{FaultSettings, MachineSettings, NetworkSettings};

use crate::{mutation::Mutation, report::Report};

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

    pub(crate) fn safety(&self) -> Duration {
        Duration::from_millis(self.safety_ms)
    }

    pub(crate) fn liveness(&self) -> Duration {
        Duration::from_millis(self.liveness_ms)
    }
}

/// A system, as a scenario file states it: `[system.<name>]`, and its settings.
#[derive(Clone, Deserialize)]
#[serde(try_from = "BTreeMap<String, toml::Table>")]
pub struct System {
    pub(crate) kind: &'static Kind,
    pub(crate) settings: toml::Table,
}

/// The registration of a system: its name, scenarios and entry points.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) scenarios: &'static [(&'static str, &'static str)],
    pub(crate) check: fn(&toml::Table) -> Result<(), toml::de::Error>,
    pub(crate) simulate: fn(&Scenario, &toml::Table, u64, Option<Mutation>) -> Report,
}

impl System {
    pub(crate) fn simulate(&self, scenario: &Scenario, seed: u64, mutation: Option<Mutation>) -> Report {
        (self.kind.simulate)(scenario, &self.settings, seed, mutation)
    }
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.kind.name, self.settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        let error = Scenario::parse("about = \"\"\nsafty_ms = 1").unwrap_err();
        assert!(error.contains("safty_ms"), "{error}");
    }
}
