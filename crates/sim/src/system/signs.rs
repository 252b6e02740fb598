//! What happened to each process since it was looked at last, to be counted.

use std::collections::BTreeMap;

use quorate_protocol::{Protocol, wire::Wire};
use quorate_world::World;

/// The last look at each machine, to tell what has happened since.
#[derive(Default)]
pub(crate) struct Signs(BTreeMap<usize, Sign>);

#[derive(Default)]
struct Sign {
    life: u64,
    resends: u64,
    starved: bool,
}

impl Signs {
    /// The process on `machine` has sent again so often, and is out of credits, or not: `again` is counted when that grew,
    /// and exhaustion when it began.
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
        let sign = self.0.entry(machine).or_default();
        if sign.life != life {
            *sign = Sign { life, ..Sign::default() };
        }
        if resends > sign.resends {
            world.count(again);
        }
        if starved && !sign.starved {
            world.count("credits exhausted");
        }
        (sign.resends, sign.starved) = (resends, starved);
    }
}
