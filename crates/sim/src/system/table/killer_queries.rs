//! Reads that kill: a storage process dies when its engine reads a certain row for a certain query, whichever
//! process that is.
//!
//! Judged: no more than two processes die of one query. None of them is the last with all rows of a range, as
//! far as the gateway knows.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use quorate_protocol::{
    ProcessId, Time,
    rubberband::{Config, Task, TaskKind},
};
use quorate_tables::Process;

use super::{TableWorkload, World, storage::DOWN, table_process::role};
use quorate_world::{Chance, Crash, Fault, Violation};

/// Queries that kill the process that runs them.
pub(super) struct KillerQueries {
    queries: BTreeMap<Bytes, KillerQuery>,
    /// The time at which each gateway got its configuration.
    configured_at: BTreeMap<usize, Time>,
    chance: Chance,
}

struct KillerQuery {
    /// The ring key of the row.
    key: u64,
    /// The gateway that asks.
    gateway: usize,
    asked: Time,
    died: Vec<ProcessId>,
}

impl KillerQueries {
    pub(super) fn new(seed: u64) -> KillerQueries {
        KillerQueries {
            queries: BTreeMap::new(),
            configured_at: BTreeMap::new(),
            chance: Chance::new(seed, "deadly"),
        }
    }

    /// Notes that a gateway got its configuration.
    pub(super) fn configured(&mut self, gateway: usize, now: Time) {
        self.configured_at.insert(gateway, now);
    }

    /// Returns the query among these tasks that kills the process.
    fn met(&self, tasks: &[Task]) -> Option<Bytes> {
        tasks.iter().find_map(|task| {
            let TaskKind::Read { ranges, operation } = &task.kind else { return None };
            let key = self.queries.get(operation)?.key;
            ranges.iter().any(|range| range.low <= key && key <= range.high).then(|| operation.clone())
        })
    }
}

impl TableWorkload {
    /// Makes a gateway send a query that kills, over one row or over all.
    pub(super) fn ask_killer(&mut self, world: &mut World) {
        let gateway = self.gateways[self.killer_queries.chance.index(self.gateways.len())];
        let wide = self.killer_queries.chance.happens(0.3);
        let number = self.killer_queries.chance.below(1 << 62) as i64;
        let Some((operation, key)) = self.accounts.ask_killer(world, gateway, number, wide) else { return };
        let query = KillerQuery { key, gateway, asked: world.now(), died: Vec::new() };
        self.killer_queries.queries.insert(operation, query);
    }

    /// Whether one of these tasks kills the process on `machine`.
    pub(super) fn dies_of_a_read(
        &mut self,
        world: &mut World,
        machine: usize,
        tasks: &[Task],
    ) -> Result<bool, Violation> {
        let (Some(me), Some(operation)) = (world.id(machine), self.killer_queries.met(tasks)) else {
            return Ok(false);
        };
        let lasts = !self.survives_without(world, machine);
        let query = &self.killer_queries.queries[&operation];
        // The gateway hears of broken links and of removals a moment after the query.
        let span = world.now().since(query.asked) + WELL;
        let well =
            |machine| world.untroubled(machine, span) && world.slept_until(machine) + WELL < query.asked;
        let judged = !query.died.is_empty() && well(machine) && well(query.gateway);
        if judged && query.died.len() >= DEATHS_MAX {
            let what = format!(
                "process {me} was asked to execute a query that has already killed the processes {:?}",
                query.died
            );
            return Err(Violation::new("query of death", what));
        }
        let told = self.killer_queries.configured_at.get(&query.gateway).copied().unwrap_or(query.asked);
        let known = match role(world, query.gateway) {
            Some(Process::Client(client)) if told + IN_FLIGHT < world.now() => client.config(),
            _ => None,
        };
        if judged && known.is_some_and(|config| takes_the_last(config, me, &query.died)) {
            let what = format!(
                "process {me} was asked to execute a query that has already killed the processes {:?}, \
                 although it is the last replica",
                query.died
            );
            return Err(Violation::new("query of death", what));
        }
        if lasts {
            world.count("spared at a deadly read");
            return Ok(false);
        }
        let query = self.killer_queries.queries.get_mut(&operation).expect("just seen");
        query.died.push(me);
        world.count(if query.died.len() > 1 { "second death of a read" } else { "first death of a read" });
        world.count(Fault::DieAtRead.effect());
        world.crash(machine, Crash::Killed);
        world.restart_after(machine, DOWN);
        self.killed(world, machine, false);
        Ok(true)
    }
}

/// Whether some range of this process has no other complete replica in this configuration, except those that
/// have died.
fn takes_the_last(config: &Config, process: ProcessId, died: &[ProcessId]) -> bool {
    let held = config.segments().iter().filter(|segment| segment.replicas.contains(&process));
    held.into_iter()
        .any(|segment| config.complete(segment).all(|replica| replica == process || died.contains(&replica)))
}

/// Upper bound of the deaths by one query.
const DEATHS_MAX: usize = 2;
/// Time without trouble before the query, for the processes that are judged.
const WELL: Duration = Duration::from_secs(1);
/// Time after which a message sent under an earlier configuration has arrived.
const IN_FLIGHT: Duration = Duration::from_millis(50);
