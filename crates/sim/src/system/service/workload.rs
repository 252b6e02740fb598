//! The workload: the calls of the clients and their answers, and the start of the replicas.

use std::{collections::BTreeMap, time::Duration};

use quorate_protocol::{Peer, ProcessId, Ticket};
use quorate_roles::services::ReplicaOptions;

use super::{
    Settings,
    host::StoreHost,
    process::{Resident, ServiceCommand, ServiceProcess, process_of, recovered_process},
    request_log::RequestLog,
    tamper::Tamper,
    world::{ServiceStage, ServiceTimer, ServiceWorld, ask, look_from},
};
use crate::check::service::ServiceCheck;

/// The clients, and the answers that they received.
pub(crate) struct ServiceWorkload {
    pub(super) settings: Settings,
    pub(super) options: ReplicaOptions,
    pub(in crate::system) clients: Vec<usize>,
    /// The machine that founded the set.
    pub(super) founder: Option<usize>,
    /// The first record on the disk of each machine whose process can continue.
    pub(super) first_records: BTreeMap<usize, Ticket>,
    pub(super) request_log: RequestLog,
    pub(super) check: ServiceCheck,
    /// The longest pause between calls, chosen so that clients call for as long as faults happen.
    pub(super) pace: Duration,
}

impl ServiceWorkload {
    /// Creates the process of the replica on `machine`. The process continues from the machine's records if
    /// its disk has any.
    pub(super) fn replica(
        &mut self,
        stage: &mut ServiceStage,
        world: &mut ServiceWorld,
        machine: usize,
        id: ProcessId,
    ) -> ServiceProcess {
        let me = Peer { id, address: ServiceWorld::address(machine) };
        let (options, now) = (self.options.clone(), world.clock(machine));
        let host = StoreHost::new(self.settings.manner(stage.seed), stage.mutation);
        let tamper = stage.mutation.map(Tamper::new);
        let records = world.records(machine);
        if !records.is_empty() {
            world.count("recovered from disk");
            let first = self.first_records.remove(&machine).expect("the records were found complete");
            let recovered = recovered_process(&me, (first, records), (options, host, tamper), now);
            return recovered.expect("the durable records follow from each other");
        }
        if self.founder == Some(machine) && !stage.routers.begun() {
            // The founder lost its records before any process had heard of the replica set, so the set is
            // founded again.
            stage.routers.found_again();
        }
        let founds = stage.routers.founds();
        if founds {
            self.founder = Some(machine);
        }
        stage.after(world, MOMENT, ServiceTimer::Begin { machine, id, founds });
        process_of(Resident::replica(me, options, host, tamper))
    }

    /// Lets the process that has started on `machine` found the set, or look for it.
    pub(super) fn begin(
        &mut self,
        stage: &ServiceStage,
        world: &mut ServiceWorld,
        (machine, id, founds): (usize, ProcessId, bool),
    ) {
        match founds {
            _ if world.id(machine) != Some(id) => {}
            true => {
                world.command(machine, ask(ServiceCommand::Begin { set: self.settings.set(), founded: true }))
            }
            false => look_from(stage, world, machine),
        }
    }
}

/// The time from the start of a process to its first command.
pub(super) const MOMENT: Duration = Duration::from_micros(10);
