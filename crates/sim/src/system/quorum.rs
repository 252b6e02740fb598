//! Maps of partial quorums: routers that order the set of cells, cells at two sites, and users who read and
//! write at any cell. Cells are killed and return without memory, give their places to a spare while alive,
//! sleep, and are cut off. Sites cannot hear each other in one direction; clocks differ, and jump too far.
//! Each of four maps has its own promise (`settings::MAPS`) and perhaps counters (`counters`); there are
//! hashes, expiring values, scans and a temporary map (`keys`). In some seeds users reach the small limits of
//! entries and cells. In most seeds cells compare their keys, so all replicas become equal. In half of these
//! seeds one cell never asks others to compare; in the other half all cells forget deletions in the end. With
//! disks (`disks`) no write acknowledged at a quorum is lost: power fails, writes are torn, and one cell's
//! bytes rot.

mod cells;
mod counters;
mod disks;
mod keys;
mod operator;
pub(crate) mod process;
mod request_log;
mod routers;
mod settings;
mod tamper;
mod users;
mod workload;
mod world;

pub use settings::Settings;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use quorate_protocol::{CommandId, ProcessId, Ticket, ecast::Router, partial::Resident, paxos::Paxos};
use quorate_world::{Chance, Violation};

use crate::{
    check::{counters::CounterCheck, quorum::QuorumCheck},
    endpoint::told,
    process::{AnyCommand, AnyEvent, AnyProcess},
    stage::Workload,
};
use disks::Disks;
use operator::Operator;
use request_log::RequestLog;
pub(crate) use workload::MapsWorkload;
use world::{QuorumStage, QuorumTimer, QuorumWorld, cell};

impl Workload for MapsWorkload {
    const NAME: &'static str = "quorum";
    const SCENARIOS: &'static [(&'static str, &'static str)] = settings::SCENARIOS;
    const CALM: Duration = Duration::from_millis(600);
    const REMOVALS: (Duration, f64) = (Duration::from_millis(900), 0.3);

    type Settings = Settings;
    type Process = AnyProcess;
    type Timer = QuorumTimer;

    fn new(stage: &mut QuorumStage, world: &mut QuorumWorld, settings: Settings) -> MapsWorkload {
        let disks = Disks::new(stage, world, &settings);
        stage.add_routers(world, settings.routers, 1);
        let machines = stage.add_machines(world, settings.cells + settings.spares);
        operator::begin(stage, world);
        MapsWorkload {
            operator: Operator::new(stage.seed, &settings, &machines),
            machines,
            lives: BTreeMap::new(),
            roster: None,
            disks,
            request_log: RequestLog::default(),
            check: QuorumCheck::default(),
            counters: CounterCheck::default(),
            unread: None,
            padded: settings.is_small(stage.seed),
            more: Chance::new(stage.seed, "more"),
            quiet_at: None,
            pace: stage.safety().mul_f64(1.8 / settings.operations as f64),
            settings,
        }
    }

    fn start(
        &mut self,
        stage: &mut QuorumStage,
        world: &mut QuorumWorld,
        machine: usize,
        id: ProcessId,
    ) -> AnyProcess {
        if self.machines.contains(&machine) {
            return self.resident(stage, world, machine, id);
        }
        self.router(stage, world, machine, id)
    }

    fn goes_on(
        &mut self,
        stage: &mut QuorumStage,
        world: &mut QuorumWorld,
        machine: usize,
        id: ProcessId,
        records: &[(Ticket, Bytes)],
    ) -> bool {
        self.recovers(stage, world, (machine, id), records)
    }

    fn act(
        &mut self,
        stage: &mut QuorumStage,
        world: &mut QuorumWorld,
        timer: QuorumTimer,
    ) -> Result<(), Violation> {
        match timer {
            QuorumTimer::Ask => self.go_on_asking(stage, world),
            QuorumTimer::Operate => self.operate(stage, world),
            QuorumTimer::Clocks => self.set_clocks(stage, world),
        }
        Ok(())
    }

    fn event(
        &mut self,
        stage: &mut QuorumStage,
        world: &mut QuorumWorld,
        on: usize,
        event: AnyEvent,
    ) -> Result<(), Violation> {
        if let AnyEvent::Maps(event) = event {
            let event = told(on, event)?.zip(world.id(on));
            return event.map_or(Ok(()), |(event, me)| self.on_event(stage, world, (on, me), event));
        }
        let event = event.of_router(on)?;
        event.map_or(Ok(()), |event| routers::router_told(stage, world, on, event))
    }

    fn stepped(
        &mut self,
        stage: &mut QuorumStage,
        world: &mut QuorumWorld,
        machine: usize,
    ) -> Result<(), Violation> {
        routers::router_stepped(stage, world, machine)
    }

    fn settled(&mut self, stage: &mut QuorumStage, world: &mut QuorumWorld) -> bool {
        self.has_come_right(stage, world)
    }

    /// Checks that at the end replicas of a key are equal, and hold all acknowledged writes.
    fn owed(&self, stage: &QuorumStage, world: &QuorumWorld) -> Result<(), Violation> {
        self.roster.as_ref().map_or(Ok(()), |roster| self.converged(roster, world, stage.seed))
    }

    fn judge(&mut self, _: &QuorumStage, world: &mut QuorumWorld) -> Result<(), Violation> {
        self.count(world);
        self.judge_lost()
    }

    fn judge_lost(&mut self) -> Result<(), Violation> {
        self.counters.judge().and_then(|()| self.check.judge())
    }

    fn report(&self, _: &QuorumStage, world: &QuorumWorld) -> String {
        let of = |machine: &usize| format!("{machine}: {:?}", cell(world, *machine).map(Resident::status));
        let cells: Vec<String> = self.machines.iter().map(of).collect();
        format!("{}; {}; keys not read at the end: {:?}", self.request_log, cells.join("; "), self.unread)
    }

    fn targets(&self, stage: &QuorumStage, _: &QuorumWorld) -> Vec<Vec<usize>> {
        let ([routers, leader], [here, there]) = (stage.routers.targets(), self.by_site());
        [routers, leader, here, there].into_iter().filter(|group| !group.is_empty()).collect()
    }

    fn may_crash(&self, _: &QuorumStage, world: &QuorumWorld, machine: usize) -> bool {
        self.can_do_without(world, machine)
    }

    fn log<'a>(&self, process: &'a AnyProcess) -> Option<&'a Paxos> {
        process.router().map(Router::log)
    }

    fn removal(id: CommandId, router: ProcessId) -> Option<AnyCommand> {
        Some(AnyCommand::removal(id, router))
    }
}
