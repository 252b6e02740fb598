//! What can be simulated: processes, their workload, and the checkers that watch them.
//!
//! | module | |
//! |---|---|
//! | [`paxos`] | routers and their log, nothing else |
//! | [`ecast`] | routers, and members that talk in rooms through them |
//! | [`table`] | a whole cluster, as production runs it |
//! | `routers` | what all of them know of their routers from outside |
//! | `order` | the order, judged by the predicates of correct routing; with a twin for each routing |

pub mod ecast;
pub(crate) mod order;
pub mod paxos;
pub(crate) mod rooms;
pub(crate) mod routers;
pub mod table;

pub(crate) use order::NUMBER_AT;

use std::collections::BTreeMap;

use quorate_protocol::{Protocol, wire::Wire};

use quorate_world::World;

/// What was last seen of each machine, to tell what has happened since.
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
