//! The types of the stage and of the world that this system plays on, and the timers of its workload. The
//! other files of the system use them, and find a process in the world here.

use quorate_protocol::{
    ecast::{Router, Station},
    group::{self, Groups},
};

use super::process::Process;
use crate::stage;

pub(super) type GroupStage = stage::Stage<GroupTimer>;
pub(super) type GroupWorld = quorate_world::World<Process>;

pub(crate) enum GroupTimer {
    Talk,
    Watch,
    Exodus,
}

/// Returns the router that runs on `machine`.
pub(super) fn router(world: &GroupWorld, machine: usize) -> Option<&Router<Groups>> {
    match world.process(machine)? {
        Station::Router(router) => Some(router),
        Station::Member(_) => None,
    }
}

/// Returns the process with groups that runs on `machine`.
pub(super) fn member(world: &GroupWorld, machine: usize) -> Option<&group::Process> {
    match world.process(machine)? {
        Station::Member(member) => Some(&member.process),
        Station::Router(_) => None,
    }
}
