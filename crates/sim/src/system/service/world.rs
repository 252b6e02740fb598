//! The types of the stage and of the world that this system plays on, and the timers of its workload. The
//! other files of the system use them, and find a process in the world here.

use quorate_protocol::{ProcessId, service::ClientCommand};

use super::process::{
    self, HostedReplica, Resident, ServiceCommand, ServiceProcess, replica_of, resident_of,
};
use crate::{
    process::{AnyCommand, AnyProcess},
    stage,
};

pub(super) type ServiceStage = stage::Stage<ServiceTimer>;
pub(super) type ServiceWorld = quorate_world::World<AnyProcess>;

pub(crate) enum ServiceTimer {
    Call,
    /// The process that has started on this machine looks for its set, or founds the set.
    Begin {
        machine: usize,
        id: ProcessId,
        founds: bool,
    },
    LookForReplicas,
    Strand(Stranding),
}

/// The next step of a stranding, with the machines of the leader and of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stranding {
    Begins,
    ClientTurns { leader: usize, client: usize },
}

/// Gives the addresses of replicas to processes without a set, to clients, and to replicas that know no
/// leader, as hosts do in production.
pub(super) fn look_for_replicas(stage: &ServiceStage, world: &mut ServiceWorld) {
    for machine in 0..world.machines() {
        look_from(stage, world, machine);
    }
}

/// Gives the process on `machine` the addresses of replicas, if it needs them.
pub(super) fn look_from(stage: &ServiceStage, world: &mut ServiceWorld, machine: usize) {
    let Some(process) = service(world, machine) else { return };
    let leads_or_follows = |it: &HostedReplica| it.replica().log().leader().is_some();
    if replica_of(process).is_some_and(leads_or_follows) {
        return;
    }
    let mut others = stage.routers.living(world);
    others.retain(|peer| Some(peer.id) != world.id(machine));
    world.command(machine, ask(ServiceCommand::Seeds(others)));
}

/// Wraps a command to an endpoint for its process.
pub(super) fn ask(command: ServiceCommand) -> AnyCommand {
    AnyCommand::Service(process::ask(command))
}

/// Wraps a client's call for its process.
pub(super) fn call_of(command: ClientCommand) -> AnyCommand {
    ask(ServiceCommand::Calls(vec![command]))
}

/// Returns the process of this system that runs on `machine`.
fn service(world: &ServiceWorld, machine: usize) -> Option<&ServiceProcess> {
    match world.process(machine)? {
        AnyProcess::Service(process) => Some(process),
        _ => None,
    }
}

pub(super) fn hosted(world: &ServiceWorld, machine: usize) -> Option<&HostedReplica> {
    replica_of(service(world, machine)?)
}

/// Returns the state of each process, for a run that does not end.
pub(super) fn states(world: &ServiceWorld) -> String {
    let state = |machine| match service(world, machine).map(resident_of) {
        Some(Some(Resident::Client(it))) => format!("client {machine}: {:?}", it.client()),
        Some(_) => match hosted(world, machine) {
            Some(it) => format!("replica {machine}: {:?}", it.replica().status()),
            None => format!("machine {machine} looks for its set"),
        },
        None => format!("machine {machine} is down"),
    };
    let states: Vec<String> = (0..world.machines()).map(state).collect();
    states.join("; ")
}
