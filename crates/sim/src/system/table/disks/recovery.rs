//! A process that starts again recovers from its disk, and a range is lost if no disk has it any longer.

use bytes::Bytes;
use quorate_protocol::{
    Generation, Peer, ProcessId, Ticket,
    paxos::Paxos,
    rubberband::{Record, Storage, Unrecoverable},
    wire::Wire,
};
use quorate_world::Violation;

use crate::{
    endpoint::{log_of_role, records_of_role},
    mutation::Mutation,
    stage::log_goes_on,
    system::table::{
        workload::TableWorkload,
        world::{TableStage, TableWorld},
    },
};

impl TableWorkload {
    /// Whether the process continues from its disk. A process whose rows were not all on its disk yet does
    /// not continue.
    pub(in super::super) fn recovers(
        &mut self,
        stage: &TableStage,
        world: &mut TableWorld,
        machine: usize,
        id: ProcessId,
        records: &[(Ticket, Bytes)],
    ) -> bool {
        let me = Peer { id, address: TableWorld::address(machine) };
        if !self.storage.contains(&machine) || records.is_empty() {
            let records = log_of_role(records.iter().map(|(_, record)| record.clone()).collect());
            let settings = self.router_settings.paxos.clone();
            return log_goes_on(world, machine, Paxos::recover(me, settings, records, world.clock(machine)));
        }
        let settings = self.settings.storage_settings(stage.mutation);
        let mut records = records_of_role(records.to_vec());
        if stage.mutation == Some(Mutation::CheckpointWithoutReplies) {
            records
                .retain(|(_, record)| !matches!(Record::decode(&mut record.clone()), Ok(Record::Replies(_))));
        }
        match Storage::recover(me, settings, Generation::FIRST, records) {
            Ok(Some(storage)) => {
                self.disks.recovered.insert(machine, storage);
                true
            }
            Ok(None) => false,
            Err(why) => {
                let is_rot = why == Unrecoverable::Missing && world.may_lack_records(machine);
                assert!(
                    why == Unrecoverable::Unfinished || is_rot,
                    "the durable records of a log follow from each other: {why}"
                );
                world.count(if is_rot {
                    "lacked what had rotted"
                } else {
                    "had rows that were not written down"
                });
                false
            }
        }
    }

    /// Returns the storage process that recovered on `machine`. If a new process begins there instead, the
    /// rows of the former process are gone.
    pub(in super::super) fn comes_back(
        &mut self,
        world: &mut TableWorld,
        machine: usize,
        id: ProcessId,
    ) -> Option<Storage> {
        let recovered = self.disks.recovered.remove(&machine);
        match &recovered {
            Some(storage) => {
                world.count("storage recovered from disk");
                let member = storage.member();
                // No process accepts messages from an older copy.
                let numbered = (!world.has_older_copy(machine)).then(|| member.numbered());
                self.order.check.returned(id, member.delivered().0, numbered);
                self.replicas.returned(id);
            }
            None => {
                if let Some(former) = self.present.get(&machine).copied().filter(|_| self.has_disks()) {
                    self.died(world, former);
                }
            }
        }
        recovered
    }

    pub(in super::super) fn has_disks(&self) -> bool {
        self.settings.disk.is_some()
    }

    /// Notes a range that is lost with the process whose disk had it. A keeper's rows are on no disk.
    pub(in super::super) fn lost_with(&mut self, process: ProcessId, what: &str) {
        if self.has_disks() && !self.keepers.contains_key(&process) {
            self.disks.lost =
                Some(format!("the range {what} is lost with process {process}, although no disk had failed"));
        }
    }

    /// Reports a range that was found lost though no disk had failed.
    pub(in super::super) fn lost_on_disk(&mut self) -> Result<(), Violation> {
        match self.disks.lost.take() {
            Some(what) => Err(Violation::new("durable", what)),
            None => Ok(()),
        }
    }

    /// Returns the log of the router that starts on `machine`, from its disk if there is one.
    pub(in super::super) fn log(
        &mut self,
        stage: &mut TableStage,
        world: &mut TableWorld,
        machine: usize,
        id: ProcessId,
    ) -> Paxos {
        let settings = self.router_settings.paxos.clone();
        let me = Peer { id, address: TableWorld::address(machine) };
        let records = log_of_role(world.records(machine));
        let recovered = Paxos::recover(me, settings.clone(), records, world.clock(machine));
        if let Some(paxos) = recovered.expect("the durable records follow from each other") {
            world.count("recovered from disk");
            return paxos;
        }
        if self.has_disks() && self.disks.founder == Some(machine) && !stage.routers.begun() {
            // The founder lost its records before any process had heard of the domain, so the domain is
            // founded again.
            stage.routers.found_again();
        }
        if !stage.routers.founded() {
            self.disks.founder = Some(machine);
        }
        stage.routers.start(world, machine, id, settings)
    }
}
