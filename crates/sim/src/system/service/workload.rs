//! The workload keeps what the clients called and heard, and starts the replicas.

use std::time::Duration;

use quorate_protocol::{
    Peer, ProcessId,
    service::{self, Replica},
};

use super::{
    Settings,
    request_log::RequestLog,
    settings::GROUP,
    world::{ServiceStage, ServiceWorld},
};
use crate::check::service::ServiceCheck;

/// The clients, and the answers that they received.
pub(crate) struct ServiceWorkload {
    pub(super) settings: Settings,
    pub(super) service: service::Settings,
    pub(super) clients: Vec<usize>,
    /// The machine that founded the set.
    pub(super) founder: Option<usize>,
    pub(super) request_log: RequestLog,
    pub(super) check: ServiceCheck,
    /// The longest pause between calls, chosen so that calls last as long as the faults.
    pub(super) pace: Duration,
}

impl ServiceWorkload {
    /// Returns the replica that starts on `machine`, from its disk if there is one.
    pub(super) fn replica(
        &mut self,
        stage: &mut ServiceStage,
        world: &mut ServiceWorld,
        machine: usize,
        id: ProcessId,
    ) -> Replica {
        let me = Peer { id, address: ServiceWorld::address(machine) };
        let (settings, now) = (self.service.clone(), world.clock(machine));
        let recovered = Replica::recover(GROUP, me.clone(), settings.clone(), world.records(machine), now);
        if let Some(replica) = recovered.expect("the durable records follow from each other") {
            world.count("recovered from disk");
            return replica;
        }
        if self.founder == Some(machine) && !stage.routers.begun() {
            // No process has heard of the set yet.
            stage.routers.found_again();
        }
        if stage.routers.founds() {
            self.founder = Some(machine);
            Replica::found(GROUP, me, settings, now)
        } else {
            Replica::join(GROUP, me, stage.routers.living(world), settings, now)
        }
    }
}
