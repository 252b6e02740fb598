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
//! | `domains` | processes that belong to two domains |
//! | [`token`] | three machines that pass a token: an example to start from |
//!
//! A scenario file selects a system by its name. A new system needs a line for its module and an entry in
//! `SYSTEMS`.

pub(crate) mod domains;
pub mod ecast;
pub mod group;
pub mod paxos;
pub mod quorum;
mod resend_counters;
pub(crate) mod rooms;
pub mod service;
pub mod table;
pub mod token;

pub(crate) use resend_counters::ResendCounters;

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;

use crate::{
    mutation::Mutation,
    run::Report,
    scenario::Scenario,
    stage::{self, Workload},
};

/// All systems.
static SYSTEMS: [Kind; 8] = [
    kind::<ecast::EcastWorkload>(),
    kind::<group::GroupWorkload>(),
    kind::<table::TableWorkload>(),
    kind::<paxos::PaxosWorkload>(),
    kind::<domains::Domains>(),
    kind::<service::ServiceWorkload>(),
    kind::<quorum::MapsWorkload>(),
    kind::<token::Ring>(),
];

/// A system, as a scenario file states it: `[system.<name>]`, and its settings.
#[derive(Clone, Deserialize)]
#[serde(try_from = "BTreeMap<String, toml::Table>")]
pub struct System {
    kind: &'static Kind,
    settings: toml::Table,
}

/// The registration of a system: its name, scenarios and entry points.
struct Kind {
    name: &'static str,
    scenarios: &'static [(&'static str, &'static str)],
    check: fn(&toml::Table) -> Result<(), toml::de::Error>,
    simulate: fn(&Scenario, &toml::Table, u64, Option<Mutation>) -> Report,
}

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

impl System {
    pub(crate) fn simulate(&self, scenario: &Scenario, seed: u64, mutation: Option<Mutation>) -> Report {
        (self.kind.simulate)(scenario, &self.settings, seed, mutation)
    }
}

/// Returns the scenarios that come with Quorate: name and text.
pub(crate) fn scenarios() -> impl Iterator<Item = (&'static str, &'static str)> {
    SYSTEMS.iter().flat_map(|kind| kind.scenarios.iter().copied())
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

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.kind.name, self.settings)
    }
}
