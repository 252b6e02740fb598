//! The types of the stage and of the world that this system plays on, and the timers of its workload. The
//! other files of the system use them, and find a process in the world here.

use quorate_protocol::service::{self, ClientCommand};

use super::process::{HostedReplica, ServiceCommand, ServiceProcess};
use crate::stage;

pub(super) type ServiceStage = stage::Stage<ServiceTimer>;
pub(super) type ServiceWorld = quorate_world::World<ServiceProcess>;

pub(crate) enum ServiceTimer {
    Call,
    LookForReplicas,
    Strand(Stranding),
}

/// The next step, with the machines of the leader and of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stranding {
    Begins,
    ClientTurns { leader: usize, client: usize },
}

/// Gives clients, and replicas that know no leader, the addresses of replicas, as real processes look for
/// them.
pub(super) fn look_for_replicas(stage: &ServiceStage, world: &mut ServiceWorld) {
    for machine in 0..world.machines() {
        let mut others = stage.routers.living(world);
        others.retain(|peer| Some(peer.id) != world.id(machine));
        match world.process(machine) {
            Some(ServiceProcess::Client(_)) => {
                world.command(machine, ServiceCommand::Client(ClientCommand::Seeds(others)))
            }
            Some(ServiceProcess::Replica(it)) if it.replica.log().leader().is_none() => {
                world.command(machine, ServiceCommand::Replica(service::Command::Seeds(others)));
            }
            _ => {}
        }
    }
}

pub(super) fn hosted(world: &ServiceWorld, machine: usize) -> Option<&HostedReplica> {
    match world.process(machine)? {
        ServiceProcess::Replica(hosted) => Some(hosted),
        ServiceProcess::Client(_) => None,
    }
}

/// Returns the state of each process, for a run that does not end.
pub(super) fn states(world: &ServiceWorld) -> String {
    let state = |machine| match world.process(machine) {
        Some(ServiceProcess::Replica(it)) => format!("replica {machine}: {:?}", it.replica.status()),
        Some(ServiceProcess::Client(it)) => format!("client {machine}: {:?}", it.client),
        None => format!("machine {machine} is down"),
    };
    let states: Vec<String> = (0..world.machines()).map(state).collect();
    states.join("; ")
}
