//! The types of the stage and of the world that this system plays on, and the timers of its workload. The
//! other files of the system use them, and find a process in the world here.

use quorate_protocol::{
    domain,
    ecast::StationEvent,
    group::{self, Command, Event},
};
use quorate_world::Violation;

use crate::{
    endpoint::{self, role_of},
    process::{AnyCommand, AnyEvent, AnyProcess},
    stage,
};

pub(super) type GroupStage = stage::Stage<GroupTimer>;
pub(super) type GroupWorld = quorate_world::World<AnyProcess>;
pub(super) type GroupEvent = StationEvent<domain::Config, Event>;

pub(crate) enum GroupTimer {
    Talk,
    Watch,
    Exodus,
}

/// Wraps a command to a member for its process.
pub(super) fn ask(command: Command) -> AnyCommand {
    AnyCommand::Group(endpoint::ask(command))
}

/// Returns the event of the router or member on `machine`, if the event is of one.
pub(super) fn told(machine: usize, event: AnyEvent) -> Result<Option<GroupEvent>, Violation> {
    Ok(match event {
        AnyEvent::Group(event) => endpoint::told(machine, event)?.map(StationEvent::Member),
        event => event.of_router(machine)?.map(StationEvent::Router),
    })
}

/// Returns the process with groups that runs on `machine`.
pub(super) fn member(world: &GroupWorld, machine: usize) -> Option<&group::Process> {
    let AnyProcess::Group(process) = world.process(machine)? else { return None };
    Some(&role_of(process)?.process)
}
