//! The systems that can be simulated: processes, their workload, and the checkers that watch them.
//!
//! | module | |
//! |---|---|
//! | [`paxos`] | routers and their log alone |
//! | [`ecast`] | routers, and members that talk in rooms through them |
//! | [`group`] | routers, and members of process groups |
//! | [`service`] | a replicated service that is not deterministic, and its clients |
//! | [`quorum`] | cells that keep maps of partial quorums, and users who read and write at all levels |
//! | [`table`] | a whole cluster, as production runs it |
//! | [`everything`] | tables, groups, maps and a service, under the same faults |
//! | `domains` | processes that belong to two domains |
//! | [`token`] | three machines that pass a token: an example to start from |
//!
//! A scenario file selects a system by its name. A new system needs a line for its module and an entry in
//! `SYSTEMS`.

pub(crate) mod domains;
pub mod ecast;
pub mod everything;
pub mod group;
pub mod paxos;
pub mod quorum;
mod resend_counters;
pub(crate) mod rooms;
pub mod service;
pub mod table;
pub mod token;

pub use crate::scenario::System;
pub(crate) use resend_counters::ResendCounters;

use std::collections::BTreeMap;

use crate::{
    scenario::{Kind, Scenario},
    stage::{self, Workload},
};

/// All systems.
static SYSTEMS: [Kind; 9] = [
    kind::<ecast::EcastWorkload>(),
    kind::<group::GroupWorkload>(),
    kind::<everything::Everything>(),
    kind::<table::TableWorkload>(),
    kind::<paxos::PaxosWorkload>(),
    kind::<domains::Domains>(),
    kind::<service::ServiceWorkload>(),
    kind::<quorum::MapsWorkload>(),
    kind::<token::Ring>(),
];

const fn kind<W: Workload>() -> Kind {
    Kind {
        name: W::NAME,
        scenarios: W::SCENARIOS,
        check: |settings| settings.clone().try_into::<W::Settings>().map(drop),
        simulate: |scenario, settings, seed, mutation| {
            let settings = settings.clone().try_into::<W::Settings>();
            stage::simulate::<W>(
                scenario,
                settings.expect("the settings of a system are checked when its scenario is read"),
                seed,
                mutation,
            )
        },
    }
}

/// Returns the scenarios that come with Quorate: name and text.
fn scenarios() -> impl Iterator<Item = (&'static str, &'static str)> {
    SYSTEMS.iter().flat_map(|kind| kind.scenarios.iter().copied())
}

impl Scenario {
    /// Returns the scenario called `name`, if it comes with Quorate.
    pub fn named(name: &str) -> Option<Self> {
        let (_, text) = scenarios().find(|(known, _)| *known == name)?;
        Some(Self::parse(text).expect("every scenario that comes with Quorate can be read"))
    }

    /// Returns the names of the scenarios that come with Quorate.
    pub fn names() -> impl Iterator<Item = &'static str> {
        scenarios().map(|(name, _)| name)
    }
}

impl TryFrom<BTreeMap<String, toml::Table>> for System {
    type Error = String;

    fn try_from(mut systems: BTreeMap<String, toml::Table>) -> Result<Self, String> {
        let (Some((name, settings)), true) = (systems.pop_first(), systems.is_empty()) else {
            return Err("a scenario must have exactly one table named system.NAME".to_owned());
        };
        let kind = SYSTEMS.iter().find(|kind| kind.name == name).ok_or_else(|| {
            let known: Vec<&str> = SYSTEMS.iter().map(|kind| kind.name).collect();
            format!("no system is named \"{name}\"; the systems are {}", known.join(", "))
        })?;
        (kind.check)(&settings).map_err(|error| format!("system.{name}: {error}"))?;
        Ok(System { kind, settings })
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
}
