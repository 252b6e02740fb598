//! The types of the stage and of the world that this system plays on, and the timers of its workload. The
//! other files of the system use them, and find a process in the world here.

use quorate_protocol::{ecast::Station, partial::Resident};

use super::process::Process;
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
    match world.process(machine)? {
        Station::Member(cell) => Some(&cell.resident),
        Station::Router(_) => None,
    }
}
