//! The parts of this system. Each event, and each question of the stage, goes to the part whose machine it
//! concerns.

use bytes::Bytes;
use quorate_protocol::{Peer, ProcessId, Ticket};
use quorate_world::Violation;

use super::{
    part::{EverythingStage, EverythingTimer, EverythingWorld, Part},
    settings::Settings,
};
pub(super) use crate::system::table::TableWorkload;
use crate::{
    process::{AnyEvent, AnyProcess},
    stage::{REMOVAL, Workload, open_changes, part_of},
    system::{group::GroupWorkload, quorum::MapsWorkload, service::ServiceWorkload},
};

/// All workloads.
pub(crate) struct Everything {
    pub(super) tables: Part<TableWorkload>,
    pub(super) groups: Part<GroupWorkload>,
    pub(super) maps: Part<MapsWorkload>,
    pub(super) service: Part<ServiceWorkload>,
}

/// The numbers of the parts.
const TABLES: u64 = 1;
const GROUPS: u64 = 2;
const MAPS: u64 = 3;
const SERVICE: u64 = 4;

/// Evaluates an expression with the part to which a machine belongs.
macro_rules! part_with {
    ($everything:ident, $machine:expr, $part:ident => $what:expr) => {{
        let Everything { tables, groups, maps, service } = $everything;
        if tables.machines.contains(&$machine) {
            let $part = tables;
            $what
        } else if groups.machines.contains(&$machine) {
            let $part = groups;
            $what
        } else if maps.machines.contains(&$machine) {
            let $part = maps;
            $what
        } else {
            let $part = service;
            $what
        }
    }};
}

impl Everything {
    pub(super) fn build(
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        settings: Settings,
    ) -> Everything {
        let mut tables = Part::new(stage, world, (TABLES, true), settings.table);
        std::mem::swap(&mut tables.stage.routers, &mut stage.routers);
        stage.after(world, ServiceWorkload::REMOVALS.0, EverythingTimer::RemoveReplica);
        Everything {
            tables,
            groups: Part::new(stage, world, (GROUPS, true), settings.group),
            maps: Part::new(stage, world, (MAPS, true), settings.quorum),
            service: Part::new(stage, world, (SERVICE, false), settings.service),
        }
    }

    /// Makes the process for a new life of a machine.
    pub(super) fn begin(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        life: (usize, ProcessId),
    ) -> AnyProcess {
        part_with!(self, life.0, part => part.start(stage, world, life))
    }

    /// Whether the process that starts on a machine can continue from these records.
    pub(super) fn continues(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        (machine, id): (usize, ProcessId),
        records: &[(Ticket, Bytes)],
    ) -> bool {
        part_with!(self, machine, part => {
            part.with(stage, world, |it, stage, world| it.goes_on(stage, world, machine, id, records))
        })
    }

    /// With some probability, lets an operator remove a healthy replica of the service.
    pub(super) fn remove_replica(&mut self, stage: &mut EverythingStage, world: &mut EverythingWorld) {
        self.service.with(stage, world, |_, stage, world| stage.remove_router::<ServiceWorkload>(world));
        stage.after(world, REMOVAL, EverythingTimer::RemoveReplica);
    }

    /// Handles the end of a part's timer.
    pub(super) fn timer(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        token: u64,
    ) -> Result<(), Violation> {
        match part_of(token) {
            TABLES => self.tables.act(stage, world, token),
            GROUPS => self.groups.act(stage, world, token),
            MAPS => self.maps.act(stage, world, token),
            _ => self.service.act(stage, world, token),
        }
    }

    /// Handles an event of the process on a machine.
    pub(super) fn on_event(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        on: usize,
        event: AnyEvent,
    ) -> Result<(), Violation> {
        part_with!(self, on, part => part.with(stage, world, |it, stage, world| it.event(stage, world, on, event)))
    }

    /// Looks into a process that has finished a batch.
    pub(super) fn look_at(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        machine: usize,
    ) -> Result<(), Violation> {
        part_with!(self, machine, part => {
            part.with(stage, world, |it, stage, world| it.stepped(stage, world, machine))
        })
    }

    /// Returns the machines that faults strike: the common routers, and the groups of each part.
    pub(super) fn groups_of_targets(
        &self,
        stage: &EverythingStage,
        world: &EverythingWorld,
    ) -> Vec<Vec<usize>> {
        let [routers, leader] = stage.routers.targets();
        let [replicas, first] = self.service.stage.routers.targets();
        let mut targets = vec![routers, leader, replicas, first, self.service.workload.clients.clone()];
        targets.push(self.groups.workload.members.clone());
        targets.extend(self.tables.seen(world, |it, stage, world| it.targets(stage, world)));
        targets.extend(self.maps.seen(world, |it, stage, world| it.targets(stage, world)));
        targets.retain(|group| !group.is_empty());
        targets
    }

    /// Whether the process on `machine`, which is no common router, may be killed without stopping its part
    /// for good.
    pub(super) fn survives_without(&self, world: &EverythingWorld, machine: usize) -> bool {
        let replicas = &self.service.stage.routers;
        if replicas.machines.contains(&machine) {
            return replicas.may_crash(world, machine, &self.open_changes(world));
        }
        part_with!(self, machine, part => part.seen(world, |it, stage, world| it.may_crash(stage, world, machine)))
    }

    /// Returns the sets of replicas that open changes would make.
    fn open_changes(&self, world: &EverythingWorld) -> Vec<Vec<Peer>> {
        let processes = self.service.machines.clone().filter_map(|machine| world.process(machine));
        open_changes(processes.filter_map(|process| self.service.workload.log(process)))
    }

    /// Whether all parts have recovered. A service that has lost a majority of its replicas stands still.
    pub(super) fn are_settled(&mut self, stage: &mut EverythingStage, world: &mut EverythingWorld) -> bool {
        let lost = self.service_is_lost(world);
        let whole = self.service.stage.routers.are_whole(world);
        self.groups.settled(stage, world)
            && self.maps.settled(stage, world)
            && (lost || whole && self.service.settled(stage, world))
            && self.tables.settled(stage, world)
    }

    /// Judges the promises that can be judged only at the end.
    pub(super) fn judge_all(&mut self, world: &mut EverythingWorld) -> Result<(), Violation> {
        self.tables.judge(world)?;
        self.groups.judge(world)?;
        self.maps.judge(world)?;
        if self.service_is_lost(world) {
            world.count("service lost");
            return Ok(());
        }
        self.service.judge(world)
    }

    /// Whether a majority of the service's replicas is lost, so that the service stands still for good.
    fn service_is_lost(&self, world: &EverythingWorld) -> bool {
        self.service.stage.routers.lost(world, &self.open_changes(world)).is_some()
    }

    /// Returns the state of all parts.
    pub(super) fn describe(&self, world: &EverythingWorld) -> String {
        [
            self.tables.seen(world, |it, stage, world| it.report(stage, world)),
            self.groups.seen(world, |it, stage, world| it.report(stage, world)),
            self.maps.seen(world, |it, stage, world| it.report(stage, world)),
            self.service.seen(world, |it, stage, world| it.report(stage, world)),
        ]
        .join("\n")
    }
}
