//! The workload finds its processes in the world, and sets its timers on the stage.

use quorate_protocol::partial::Resident;

use super::process::{Process, Role};
use crate::stage;

pub(super) type QuorumStage = stage::Stage<QuorumTimer>;
pub(super) type QuorumWorld = quorate_world::World<Process>;

pub(crate) enum QuorumTimer {
    Ask,
    Operate,
    Clocks,
}

/// Returns the cell that runs on a machine.
pub(super) fn cell(world: &QuorumWorld, machine: usize) -> Option<&Resident> {
    match &world.process(machine)?.role {
        Role::Cell(resident) => Some(resident),
        Role::Router(_) => None,
    }
}
