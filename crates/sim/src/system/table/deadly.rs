//! Reads that kill: a storage process dies when its engine reads a certain row for a certain query, wherever that is asked.
//!
//! Judged: no more than two processes die of one query, and none that is the last with all rows of a range as far as the
//! gateway knows.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use quorate_protocol::{
    ProcessId, Time,
    rubberband::{Config, Task, TaskKind},
};
use quorate_tables::Process;

use super::{Town, World, citizen::role, storage::DOWN};
use quorate_world::{Chance, Crash, Fault, Violation};

/// Queries of which processes die.
pub(super) struct Deadly {
    queries: BTreeMap<Bytes, Query>,
    /// When each gateway was told of its configuration.
    told: BTreeMap<usize, Time>,
    chance: Chance,
}

struct Query {
    /// The ring key of the row.
    key: u64,
    /// The gateway that asks.
    gateway: usize,
    asked: Time,
    died: Vec<ProcessId>,
}

impl Deadly {
    pub(super) fn new(seed: u64) -> Deadly {
        Deadly { queries: BTreeMap::new(), told: BTreeMap::new(), chance: Chance::new(seed, "deadly") }
    }

    /// A gateway was told of its configuration.
    pub(super) fn told(&mut self, gateway: usize, now: Time) {
        self.told.insert(gateway, now);
    }

    /// The query among these tasks at which the process dies.
    fn met(&self, tasks: &[Task]) -> Option<Bytes> {
        tasks.iter().find_map(|task| {
            let TaskKind::Read { ranges, operation } = &task.kind else { return None };
            let key = self.queries.get(operation)?.key;
            ranges.iter().any(|range| range.low <= key && key <= range.high).then(|| operation.clone())
        })
    }
}

impl Town {
    /// A gateway asks a query that kills: one row, or all.
    pub(super) fn ask_deadly(&mut self, world: &mut World) {
        let gateway = self.gateways[self.deadly.chance.index(self.gateways.len())];
        let wide = self.deadly.chance.happens(0.3);
        let number = self.deadly.chance.below(1 << 62) as i64;
        let Some((operation, key)) = self.bank.ask_deadly(world, gateway, number, wide) else { return };
        let query = Query { key, gateway, asked: world.now(), died: Vec::new() };
        self.deadly.queries.insert(operation, query);
    }

    /// Whether the process on `machine` dies of one of these tasks.
    pub(super) fn dies_of_a_read(
        &mut self,
        world: &mut World,
        machine: usize,
        tasks: &[Task],
    ) -> Result<bool, Violation> {
        let (Some(me), Some(operation)) = (world.id(machine), self.deadly.met(tasks)) else {
            return Ok(false);
        };
        let lasts = !self.survives_without(world, machine);
        let query = &self.deadly.queries[&operation];
        // The gateway is told when a link breaks, and of removals, a moment later than all this.
        let span = world.now().since(query.asked) + WELL;
        let well =
            |machine| world.untroubled(machine, span) && world.slept_until(machine) + WELL < query.asked;
        let judged = !query.died.is_empty() && well(machine) && well(query.gateway);
        if judged && query.died.len() >= DEATHS_MAX {
            let what = format!("{me} is asked a query of which {:?} died", query.died);
            return Err(Violation::new("query of death", what));
        }
        let told = self.deadly.told.get(&query.gateway).copied().unwrap_or(query.asked);
        let known = match role(world, query.gateway) {
            Some(Process::Client(client)) if told + IN_FLIGHT < world.now() => client.config(),
            _ => None,
        };
        if judged && known.is_some_and(|config| takes_the_last(config, me, &query.died)) {
            let what =
                format!("{me} is asked a query of which {:?} died, and no replica is left", query.died);
            return Err(Violation::new("query of death", what));
        }
        if lasts {
            world.count("spared at a deadly read");
            return Ok(false);
        }
        let query = self.deadly.queries.get_mut(&operation).expect("just seen");
        query.died.push(me);
        world.count(if query.died.len() > 1 { "second death of a read" } else { "first death of a read" });
        world.count(Fault::DieAtRead.effect());
        world.crash(machine, Crash::Killed);
        world.restart_after(machine, DOWN);
        self.killed(world, machine, false);
        Ok(true)
    }
}

/// Whether some range of this process has no other complete replica, by this configuration, but those that have died.
fn takes_the_last(config: &Config, process: ProcessId, died: &[ProcessId]) -> bool {
    let held = config.segments().iter().filter(|segment| segment.replicas.contains(&process));
    held.into_iter()
        .any(|segment| config.complete(segment).all(|replica| replica == process || died.contains(&replica)))
}

/// Of one query no more die.
const DEATHS_MAX: usize = 2;
/// So long before the query was asked nothing was wrong with those who are judged.
const WELL: Duration = Duration::from_secs(1);
/// A message that was sent by an earlier configuration has arrived.
const IN_FLIGHT: Duration = Duration::from_millis(50);
