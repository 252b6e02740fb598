//! A process that starts again recovers from its disk.

use bytes::Bytes;
use quorate_protocol::{
    Generation, Peer, ProcessId, Ticket, domain,
    ecast::{Router, RouterSettings},
    partial::{Record, Resident, Unrecoverable},
    paxos::{self, Paxos},
    wire::Wire as _,
};

use crate::{
    endpoint::{log_of_role, records_of_role},
    mutation::Mutation,
    process::AnyProcess,
    stage::log_goes_on,
    system::quorum::{
        workload::MapsWorkload,
        world::{QuorumStage, QuorumWorld},
    },
};

impl MapsWorkload {
    /// Whether the process continues from these records.
    pub(in super::super) fn recovers(
        &mut self,
        stage: &QuorumStage,
        world: &mut QuorumWorld,
        (machine, id): (usize, ProcessId),
        records: &[(Ticket, Bytes)],
    ) -> bool {
        let me = Peer { id, address: QuorumWorld::address(machine) };
        let mut records: Vec<Bytes> =
            records_of_role(records.to_vec()).into_iter().map(|(_, record)| record).collect();
        if !self.machines.contains(&machine) || records.is_empty() {
            return log_goes_on(
                world,
                machine,
                Paxos::recover(me, self.router_log(), records, world.clock(machine)),
            );
        }
        let is = |record: &Bytes, what: fn(&Record) -> bool| {
            Record::decode(&mut record.clone()).is_ok_and(|record| what(&record))
        };
        if stage.mutation == Some(Mutation::StampsReissued) {
            records.retain(|record| !is(record, |record| matches!(record, Record::Reserved(_))));
        }
        let has_checkpoint = records.iter().any(|record| is(record, |record| *record == Record::Ended));
        let settings = self.settings.cell(self.place(machine), stage.seed, stage.mutation);
        let now = (self.operator.offset(world, machine), world.clock(machine));
        match Resident::recover(me, settings, Generation::FIRST, records, now) {
            Ok(recovered) => {
                world.count(if has_checkpoint { "recovered from a checkpoint" } else { "cell recovered" });
                self.disks.recovered.extend(recovered.map(|resident| (machine, resident)));
                true
            }
            Err(why) => {
                let is_rot = why == Unrecoverable::Missing && world.may_lack_records(machine);
                assert!(is_rot, "the durable records of a log follow from each other: {why}");
                world.count("lacked what had rotted");
                false
            }
        }
    }

    /// Returns the cell that recovered on `machine`.
    pub(in super::super) fn comes_back(&mut self, machine: usize) -> Option<Resident> {
        self.disks.recovered.remove(&machine)
    }

    fn router_log(&self) -> paxos::Settings {
        paxos::Settings {
            wanted: self.settings.routers,
            log_bytes_kept: 64 << 10,
            checkpoint_bytes: self.settings.disk.map(|_| CHECKPOINT_BYTES),
            ..paxos::Settings::default()
        }
    }

    /// Returns the router that starts on `machine`, from its disk if there is one.
    pub(in super::super) fn router(
        &mut self,
        stage: &mut QuorumStage,
        world: &mut QuorumWorld,
        machine: usize,
        id: ProcessId,
    ) -> AnyProcess {
        let log = self.router_log();
        let me = Peer { id, address: QuorumWorld::address(machine) };
        let records = log_of_role(world.records(machine));
        let recovered = Paxos::recover(me, log.clone(), records, world.clock(machine));
        let paxos = match recovered.expect("the durable records follow from each other") {
            Some(paxos) => {
                world.count("recovered from disk");
                paxos
            }
            None => {
                if self.disks.founder == Some(machine) && !stage.routers.begun() {
                    // The founder lost its records before any process knew of the domain, so the domain is
                    // founded again.
                    stage.routers.found_again();
                }
                if !stage.routers.founded() {
                    self.disks.founder = Some(machine);
                }
                stage.routers.start(world, machine, id, log.clone())
            }
        };
        let settings = RouterSettings { paxos: log, ..RouterSettings::default() };
        AnyProcess::of_router(Router::new(paxos, domain::Config::vacant(), settings))
    }
}

/// Bytes written after which a router writes its whole state.
const CHECKPOINT_BYTES: usize = 16 << 10;
