//! A gateway sends a query that kills, and the judge counts the deaths by this query.

use std::time::Duration;

use quorate_protocol::{
    ProcessId,
    rubberband::{Config, Task},
};
use quorate_roles::tables::Process;
use quorate_world::{Crash, Fault, Violation};

use super::KillerQuery;
use crate::system::table::{
    workload::{DOWN, TableWorkload},
    world::{TableWorld, role},
};

impl TableWorkload {
    /// Makes a gateway send a query that kills, over one row or over all.
    pub(in super::super) fn ask_killer(&mut self, world: &mut TableWorld) {
        let gateway = self.gateways[self.killer_queries.chance.index(self.gateways.len())];
        let wide = self.killer_queries.chance.happens(0.3);
        let number = self.killer_queries.chance.below(1 << 62) as i64;
        let Some((operation, key)) = self.accounts.ask_killer(world, gateway, number, wide) else { return };
        let query = KillerQuery { key, gateway, asked: world.now(), died: Vec::new() };
        self.killer_queries.queries.insert(operation, query);
    }

    /// Whether one of these tasks kills the process on `machine`.
    pub(in super::super) fn dies_of_a_read(
        &mut self,
        world: &mut TableWorld,
        machine: usize,
        tasks: &[Task],
    ) -> Result<bool, Violation> {
        let (Some(me), Some(operation)) = (world.id(machine), self.killer_queries.met(tasks)) else {
            return Ok(false);
        };
        let lasts = !self.survives_without(world, machine);
        let query = &self.killer_queries.queries[&operation];
        // The gateway notices broken links and removals a moment after they happen, so the time before the
        // query counts, too.
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
                "process {me} was asked to execute a query that has already killed the processes {:?}, although it is the last replica",
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
/// Time before the query in which the killed process and the gateway must have had no trouble. Otherwise
/// the death is not judged.
const WELL: Duration = Duration::from_secs(1);
/// Time after which a message sent under an earlier configuration has arrived.
const IN_FLIGHT: Duration = Duration::from_millis(50);
