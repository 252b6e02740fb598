//! The workload finds its processes in the world, and sets its timers on the stage.

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
