//! Checks what the routers of the cells report: their leader and their members.

use quorate_protocol::{domain, ecast::RouterEvent};
use quorate_world::Violation;

use super::world::{QuorumStage, QuorumWorld};
use crate::process::AnyProcess;

/// Handles an event that a router reported to its user.
pub(super) fn router_told(
    stage: &mut QuorumStage,
    world: &mut QuorumWorld,
    machine: usize,
    event: RouterEvent<domain::Config>,
) -> Result<(), Violation> {
    match event {
        RouterEvent::Leader(leader) => stage.routers.told_leader(world, leader),
        RouterEvent::Removed => {
            world.count("removed process starts anew");
            world.wipe_at_end(machine);
            world.stop_after(machine, std::time::Duration::from_millis(1));
        }
        RouterEvent::Corrupt(why) => {
            return Err(Violation::new(
                "snapshot",
                format!("the router on machine {machine} received a snapshot that it cannot read: {why}"),
            ));
        }
        _ => {}
    }
    Ok(())
}

/// Takes the members that the process on `machine` knows after a step, if it is a router.
pub(super) fn router_stepped(
    stage: &mut QuorumStage,
    world: &mut QuorumWorld,
    machine: usize,
) -> Result<(), Violation> {
    if let Some(router) = world.process(machine).and_then(AnyProcess::router) {
        let (told_at, routers) = (router.log().applied().0, router.log().members().to_vec());
        stage.routers.told_members(world, told_at, &routers, false)?;
    }
    Ok(())
}
