//! A leader alone with a client that knows more than the leader.
//!
//! The leader stands still, cut off from the other replicas, which elect another leader. Meanwhile a client
//! starts, and opens a session with the new leader. Then the client is cut off from all but the old leader,
//! which resumes and does not know yet that it was deposed. Before that leader says anything about the
//! session, calls or the state, it must find out whether it still leads.

use std::time::Duration;

use quorate_world::Crash;

use super::{ServiceStage, ServiceTimer, ServiceWorkload, ServiceWorld, hosted, world::Stranding};

impl ServiceWorkload {
    pub(super) fn strand(
        &mut self,
        stage: &mut ServiceStage,
        world: &mut ServiceWorld,
        stranding: Stranding,
    ) {
        if stage.is_healed() {
            return;
        }
        let replicas = stage.routers.machines.clone();
        match stranding {
            Stranding::Begins => {
                let leads =
                    |machine: &usize| hosted(world, *machine).is_some_and(|it| it.replica().is_serving());
                let Some(leader) = replicas.iter().copied().find(leads) else { return };
                let client = self.clients[stage.chance.index(self.clients.len())];
                world.pause(leader, LEADER_AWAY);
                cut_off(world, leader, &replicas, LEADER_AWAY + TOGETHER);
                world.crash(client, Crash::Killed);
                world.restart_after(client, CLIENT_STARTS);
                // The client is cut off from the other replicas up to 20 ms before the leader resumes.
                let early = stage.chance.between(Duration::ZERO, Duration::from_millis(20));
                stage.after(
                    world,
                    LEADER_AWAY - early,
                    ServiceTimer::Strand(Stranding::ClientTurns { leader, client }),
                );
            }
            Stranding::ClientTurns { leader, client } => {
                world.count("client alone with a deposed leader");
                let others: Vec<usize> = replicas.into_iter().filter(|machine| *machine != leader).collect();
                for machine in &others {
                    world.break_link(client, *machine);
                }
                cut_off(world, client, &others, TOGETHER);
            }
        }
    }
}

fn cut_off(world: &mut ServiceWorld, machine: usize, from: &[usize], span: Duration) {
    for other in from.iter().copied().filter(|other| *other != machine) {
        world.cut(machine, other, span);
        world.cut(other, machine, span);
    }
}

/// Time for which the leader stands still: long enough for an election and for a client's first calls.
const LEADER_AWAY: Duration = Duration::from_millis(700);
/// Time until the client starts.
const CLIENT_STARTS: Duration = Duration::from_millis(400);
/// Time for which client and leader are alone.
const TOGETHER: Duration = Duration::from_millis(500);
