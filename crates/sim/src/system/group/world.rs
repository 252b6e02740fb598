//! The types of the stage and of the world that this system plays on, and the timers of its workload. The
//! other files of the system use them, and find a process in the world here.

use super::process::{Kind, Process};
use crate::stage;

pub(super) type GroupStage = stage::Stage<GroupTimer>;
pub(super) type GroupWorld = quorate_world::World<Process>;

pub(crate) enum GroupTimer {
    Talk,
    Watch,
    Exodus,
}

/// Returns the kind of the process that runs on `machine`.
pub(crate) fn kind(world: &GroupWorld, machine: usize) -> Option<&Kind> {
    world.process(machine).map(|process| &process.kind)
}
