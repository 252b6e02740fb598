//! The types of the stage and of the world of this system, the timers of its workload, and how its files find
//! a process in the world.

use quorate_protocol::ProcessId;
use quorate_roles::tables::{Command, Process};

use crate::{
    endpoint::{self, relay_of, role_of},
    process::{AnyCommand, AnyProcess},
    stage,
};

pub(super) type TableStage = stage::Stage<TableTimer>;
pub(super) type TableWorld = quorate_world::World<AnyProcess>;

pub(crate) enum TableTimer {
    Act,
    Watch,
    /// All holders of the doomed range die.
    Bereave,
    /// This process stops, as it announced, and is started again.
    Stop(ProcessId),
    /// A process that has just begun gets the addresses of routers.
    Seed(usize),
}

/// Wraps a command to a role for its process.
pub(super) fn ask(command: Command) -> AnyCommand {
    AnyCommand::Table(endpoint::ask(command))
}

/// Returns the role of the process that runs on `machine`.
pub(super) fn role(world: &TableWorld, machine: usize) -> Option<&Process> {
    let AnyProcess::Table(process) = world.process(machine)? else { return None };
    Some(role_of(process)?.role())
}

/// Returns the number of relayed links that the process on `machine` has begun.
pub(super) fn roads_begun(world: &TableWorld, machine: usize) -> u64 {
    let Some(AnyProcess::Table(process)) = world.process(machine) else { return 0 };
    relay_of(process).map_or(0, |relay| relay.counters().begun)
}
