//! The events of processes.

use std::time::Duration;

use quorate_world::Violation;

use super::{
    process::{NodeEvent, ServiceEvent, begin},
    workload::ServiceWorkload,
    world::{ServiceStage, ServiceWorld, ask},
};
use crate::process::AnyEvent;

impl ServiceWorkload {
    /// Handles an event of the node on a machine.
    pub(super) fn on_node_event(
        &mut self,
        stage: &mut ServiceStage,
        world: &mut ServiceWorld,
        machine: usize,
        event: AnyEvent,
    ) -> Result<(), Violation> {
        let AnyEvent::Service(event) = event else { return Ok(()) };
        let event = match event {
            _ if world.id(machine).is_none() => return Ok(()),
            NodeEvent::Typed(_, event) => event,
            NodeEvent::PolicyMismatch { theirs, .. } => {
                // A process that already belongs to the set ignores the command.
                begin(&theirs).into_iter().for_each(|begin| world.command(machine, ask(begin)));
                return Ok(());
            }
            NodeEvent::Malformed { error, .. } => return Err(Violation::new("bytes", error.to_string())),
            NodeEvent::Added(_) | NodeEvent::Occupied(_) | NodeEvent::Ended(..) => return Ok(()),
            NodeEvent::Unserved(_) | NodeEvent::Dynamic(..) => return Ok(()),
        };
        match event {
            ServiceEvent::Client(event) => self.on_event(stage, world, event)?,
            ServiceEvent::Expired(session, number) => self.check.expired(session, number)?,
            ServiceEvent::Unfounded(what) => return Err(Violation::new("maybe applied", what)),
            ServiceEvent::Members { slot, members } => {
                stage.routers.told_members(world, slot, &members, false)?
            }
            ServiceEvent::Leader(leader) => stage.routers.told_leader(world, leader),
            ServiceEvent::Removed => {
                world.count("removed process starts anew");
                world.wipe_at_end(machine);
                world.stop_after(machine, Duration::from_millis(1));
            }
            ServiceEvent::Corrupt(error) => return Err(Violation::new("bytes", error)),
            ServiceEvent::News(what) => world.count(what),
        }
        Ok(())
    }
}
