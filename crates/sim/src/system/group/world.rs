//! The workload finds its processes in the world, and sets its timers on the stage.

use super::process::{Kind, Process};
use crate::stage;

pub(super) type Stage = stage::Stage<Timer>;
pub(super) type World = quorate_world::World<Process>;

pub(crate) enum Timer {
    Talk,
    Watch,
    Exodus,
}

/// Returns the kind of the process that runs on `machine`.
pub(crate) fn kind(world: &World, machine: usize) -> Option<&Kind> {
    world.process(machine).map(|process| &process.kind)
}
