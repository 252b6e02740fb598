//! The types of the stage and of the world that this system plays on, and the timers of its workload. The
//! other files of the system use them, and find a process in the world here.

use quorate_protocol::{Generation, ProcessId, ecast::Fence};

use super::process::{Kind, Process};
use crate::stage;

pub(super) type EcastStage = stage::Stage<EcastTimer>;
pub(super) type EcastWorld = quorate_world::World<Process>;

pub(crate) enum EcastTimer {
    Talk,
    Watch,
    Operate,
    Join(usize),
    /// A member has executed all deliveries up to this position.
    Executed {
        who: ProcessId,
        through: u64,
    },
}

/// Returns the fence that the process on `machine` shows to others, also after its end.
pub(crate) fn fence(world: &EcastWorld, machine: usize) -> Option<Fence> {
    Fence::of_pass(&world.pass(machine)?)
}

/// Returns the generation of the domain to which the process on `machine` belongs.
pub(crate) fn generation(world: &EcastWorld, machine: usize) -> Generation {
    fence(world, machine).map_or(Generation::FIRST, |it| it.generation)
}

/// Returns the kind of the process that runs on `machine`.
pub(crate) fn kind(world: &EcastWorld, machine: usize) -> Option<&Kind> {
    world.process(machine).map(|process| &process.kind)
}
