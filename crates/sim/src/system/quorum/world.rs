//! The types of the stage and of the world that this system plays on, and the timers of its workload. The
//! other files of the system use them, and find a process in the world here.

use quorate_protocol::partial::{Resident, resident::Command};

use crate::{
    endpoint::{self, role_of},
    process::{AnyCommand, AnyProcess},
    stage,
};

pub(super) type QuorumStage = stage::Stage<QuorumTimer>;
pub(super) type QuorumWorld = quorate_world::World<AnyProcess>;

pub(crate) enum QuorumTimer {
    Ask,
    Operate,
    Clocks,
}

/// Wraps a command to a cell for its process.
pub(super) fn ask(command: Command) -> AnyCommand {
    AnyCommand::Maps(endpoint::ask(command))
}

/// Returns the cell that runs on a machine.
pub(super) fn cell(world: &QuorumWorld, machine: usize) -> Option<&Resident> {
    let AnyProcess::Maps(process) = world.process(machine)? else { return None };
    Some(&role_of(process)?.resident)
}
