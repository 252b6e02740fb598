//! Counts the resends and the phases without credit of each process since the last look at it.

use std::collections::BTreeMap;

use quorate_protocol::{Protocol, wire::Wire};
use quorate_world::World;

/// The counters of the process on each machine at the last look at it.
#[derive(Default)]
pub(crate) struct ResendCounters(BTreeMap<usize, MachineCounters>);

#[derive(Default)]
struct MachineCounters {
    life: u64,
    resends: u64,
    starved: bool,
}

impl ResendCounters {
    /// Notes the number of resends of the process on `machine`, and whether it lacks credits. Counts `again`
    /// when the resends grew, and an exhaustion when it began.
    pub(crate) fn note<P: Protocol>(
        &mut self,
        world: &mut World<P>,
        machine: usize,
        (again, resends): (&'static str, u64),
        starved: bool,
    ) where
        P::Message: Wire,
    {
        let life = world.life(machine);
        let counters = self.0.entry(machine).or_default();
        if counters.life != life {
            *counters = MachineCounters { life, ..MachineCounters::default() };
        }
        if resends > counters.resends {
            world.count(again);
        }
        if starved && !counters.starved {
            world.count("credits exhausted");
        }
        (counters.resends, counters.starved) = (resends, starved);
    }
}
