//! Tables, groups, maps and a service in one domain, under the same faults.
//!
//! The processes of tables, the members of groups and the cells of maps are members of the domain: the same
//! routers order for all of them. The replicas of a service agree by a log of their own, at a channel of the
//! same domain. Each workload drives and judges its own processes, as it does alone. All routers must agree
//! on the whole order. The routers' destinations are judged for the messages of tables; the checkers of
//! groups and maps judge what members deliver.

mod part;
mod parts;
mod settings;

pub use settings::Settings;

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::{CommandId, ProcessId, Ticket, paxos::Paxos};
use quorate_world::{Fault, Violation};

use crate::{
    process::{AnyCommand, AnyEvent, AnyProcess},
    stage::Workload,
};
use part::{EverythingStage, EverythingTimer, EverythingWorld};
pub(crate) use parts::Everything;
use parts::TableWorkload;

impl Workload for Everything {
    const NAME: &'static str = "everything";
    const SCENARIOS: &'static [(&'static str, &'static str)] = &[
        ("everything", include_str!("../../../../scenarios/everything.toml")),
        ("everything_disk", include_str!("../../../../scenarios/everything_disk.toml")),
    ];
    const CALM: Duration = TableWorkload::CALM;
    const REMOVALS: (Duration, f64) = TableWorkload::REMOVALS;

    type Settings = Settings;
    type Process = AnyProcess;
    type Timer = EverythingTimer;

    fn new(stage: &mut EverythingStage, world: &mut EverythingWorld, settings: Settings) -> Self {
        Everything::build(stage, world, settings)
    }

    fn goes_on(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        machine: usize,
        id: ProcessId,
        records: &[(Ticket, Bytes)],
    ) -> bool {
        self.continues(stage, world, (machine, id), records)
    }

    fn start(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        machine: usize,
        id: ProcessId,
    ) -> AnyProcess {
        self.begin(stage, world, (machine, id))
    }

    fn act(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        timer: EverythingTimer,
    ) -> Result<(), Violation> {
        match timer {
            EverythingTimer::RemoveReplica => self.remove_replica(stage, world),
        }
        Ok(())
    }

    fn part_act(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        token: u64,
    ) -> Result<(), Violation> {
        self.timer(stage, world, token)
    }

    fn event(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        on: usize,
        event: AnyEvent,
    ) -> Result<(), Violation> {
        self.on_event(stage, world, on, event)
    }

    fn stepped(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        machine: usize,
    ) -> Result<(), Violation> {
        self.look_at(stage, world, machine)
    }

    fn targets(&self, stage: &EverythingStage, world: &EverythingWorld) -> Vec<Vec<usize>> {
        self.groups_of_targets(stage, world)
    }

    fn may_crash(&self, _: &EverythingStage, world: &EverythingWorld, machine: usize) -> bool {
        self.survives_without(world, machine)
    }

    fn struck(
        &mut self,
        stage: &mut EverythingStage,
        world: &mut EverythingWorld,
        fault: Fault,
        hit: Vec<usize>,
    ) {
        self.tables.struck(stage, world, fault, &hit);
        self.groups.struck(stage, world, fault, &hit);
        self.maps.struck(stage, world, fault, &hit);
        self.service.struck(stage, world, fault, &hit);
    }

    fn settled(&mut self, stage: &mut EverythingStage, world: &mut EverythingWorld) -> bool {
        self.are_settled(stage, world)
    }

    fn report(&self, _: &EverythingStage, world: &EverythingWorld) -> String {
        self.describe(world)
    }

    fn owed(&self, _: &EverythingStage, world: &EverythingWorld) -> Result<(), Violation> {
        self.tables.seen(world, |it, stage, world| it.owed(stage, world))?;
        self.maps.seen(world, |it, stage, world| it.owed(stage, world))
    }

    fn judge(&mut self, _: &EverythingStage, world: &mut EverythingWorld) -> Result<(), Violation> {
        self.judge_all(world)
    }

    fn judge_lost(&mut self) -> Result<(), Violation> {
        self.tables.workload.judge_lost()?;
        self.maps.workload.judge_lost()
    }

    fn log<'a>(&self, process: &'a AnyProcess) -> Option<&'a Paxos> {
        self.tables.workload.log(process)
    }

    fn removal(id: CommandId, router: ProcessId) -> Option<AnyCommand> {
        TableWorkload::removal(id, router)
    }
}
