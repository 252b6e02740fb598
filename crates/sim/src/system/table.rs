//! A whole cluster: routers, storage processes with engines, supers and gateways, as production runs them.
//!
//! Gateways set marks, read them back, move money between accounts, add rows to a log, and try writes that
//! must fail. Storage processes are killed and replaced while rows migrate. Judged: marks are atomic, every
//! consistent cut conserves the money, an acknowledged write is there once, a failed write is nowhere, and
//! replicas hold the same rows. With disks, power fails, writes are torn and bytes rot, and no range is lost.

mod accounts;
mod disks;
mod end;
mod events;
mod killer_queries;
mod known;
mod operator;
mod replicas;
mod settings;
mod storage;
pub(crate) mod table_process;
mod twin;
mod workload;
mod world;

pub use settings::Settings;

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::{CommandId, ProcessId, Ticket, ecast::Router, paxos::Paxos};
use quorate_world::{Fault, Violation};

use crate::{
    mutation::Tamper,
    process::{AnyCommand, AnyEvent, AnyProcess},
    stage::Workload,
};
use known::newest_config;
use table_process::table_process;
pub(crate) use workload::TableWorkload;
use world::{TableStage, TableTimer, TableWorld};

impl Workload for TableWorkload {
    const NAME: &'static str = "table";
    const SCENARIOS: &'static [(&'static str, &'static str)] = &[
        ("table", include_str!("../../../../scenarios/table.toml")),
        ("accidents", include_str!("../../../../scenarios/accidents.toml")),
        ("alterations", include_str!("../../../../scenarios/alterations.toml")),
        ("alterations_disk", include_str!("../../../../scenarios/alterations_disk.toml")),
        ("power", include_str!("../../../../scenarios/power.toml")),
        ("replies", include_str!("../../../../scenarios/replies.toml")),
        ("together", include_str!("../../../../scenarios/together.toml")),
        ("transactions", include_str!("../../../../scenarios/transactions.toml")),
    ];
    const CALM: Duration = Duration::from_millis(1_500);
    const REMOVALS: (Duration, f64) = (Duration::from_millis(2_000), 0.1);
    type Settings = Settings;
    type Process = AnyProcess;
    type Timer = TableTimer;

    fn new(stage: &mut TableStage, world: &mut TableWorld, settings: Settings) -> Self {
        TableWorkload::build(stage, world, settings)
    }

    fn start(
        &mut self,
        stage: &mut TableStage,
        world: &mut TableWorld,
        machine: usize,
        id: ProcessId,
    ) -> AnyProcess {
        stage.after(world, Duration::from_millis(1), TableTimer::Seed(machine));
        let role = self.role(stage, world, machine, id);
        let submissions = self.order.check.submissions_of(id);
        let tamper = stage.mutation.map(Tamper::new);
        AnyProcess::Table(Box::new(table_process(role, submissions, tamper)))
    }

    fn goes_on(
        &mut self,
        stage: &mut TableStage,
        world: &mut TableWorld,
        machine: usize,
        id: ProcessId,
        records: &[(Ticket, Bytes)],
    ) -> bool {
        self.recovers(stage, world, machine, id, records)
    }

    fn act(
        &mut self,
        stage: &mut TableStage,
        world: &mut TableWorld,
        timer: TableTimer,
    ) -> Result<(), Violation> {
        match timer {
            TableTimer::Act => {
                let machine = self.gateways[stage.chance.index(self.gateways.len())];
                self.accounts.act(world, machine, &mut stage.chance);
                let pause = stage.chance.between(Duration::from_micros(100), self.pace);
                stage.after(world, pause, TableTimer::Act);
            }
            TableTimer::Watch => {
                for machine in 0..world.machines() {
                    self.seed(stage, world, machine);
                }
                self.operate(stage, world);
                stage.after(world, Duration::from_millis(250), TableTimer::Watch);
            }
            TableTimer::Bereave => self.bereave(stage, world),
            TableTimer::Stop(process) => self.stop(world, process),
            TableTimer::Seed(machine) => self.seed(stage, world, machine),
        }
        Ok(())
    }

    fn event(
        &mut self,
        stage: &mut TableStage,
        world: &mut TableWorld,
        machine: usize,
        event: AnyEvent,
    ) -> Result<(), Violation> {
        self.on_node_event(stage, world, machine, event)
    }

    fn stepped(
        &mut self,
        stage: &mut TableStage,
        world: &mut TableWorld,
        machine: usize,
    ) -> Result<(), Violation> {
        self.look_at(stage, world, machine)
    }

    fn targets(&self, stage: &TableStage, _: &TableWorld) -> Vec<Vec<usize>> {
        let [routers, leader] = stage.routers.targets();
        let storage = || self.storage.clone();
        vec![routers, leader, storage(), storage(), self.supers.clone(), self.gateways.clone()]
    }

    fn may_crash(&self, _: &TableStage, world: &TableWorld, machine: usize) -> bool {
        self.survives_without(world, machine)
            && self.companion(machine).is_none_or(|other| self.survives_without(world, other))
    }

    fn struck(&mut self, _: &mut TableStage, world: &mut TableWorld, fault: Fault, hit: Vec<usize>) {
        match fault {
            Fault::Kill | Fault::Vanish | Fault::KillGroup => {
                let migrating =
                    newest_config(world).is_some_and(|config| config.receiving().next().is_some());
                if self.supers.iter().all(|&machine| world.id(machine).is_none()) {
                    world.count("all supers down");
                }
                for machine in hit {
                    self.killed(world, machine, migrating);
                    self.kill_companion(world, machine, migrating);
                }
            }
            Fault::DieAtTask => self.doomed.extend(hit),
            Fault::DieAtRead => self.ask_killer(world),
            _ => {}
        }
    }

    fn settled(&mut self, stage: &mut TableStage, world: &mut TableWorld) -> bool {
        self.is_settled(stage, world)
    }

    fn report(&self, _: &TableStage, world: &TableWorld) -> String {
        self.describe(world)
    }

    fn owed(&self, _: &TableStage, world: &TableWorld) -> Result<(), Violation> {
        self.order.check.finish(|id| world.alive(id))
    }

    fn judge(&mut self, _: &TableStage, world: &mut TableWorld) -> Result<(), Violation> {
        for _ in 0..self.replicas.compared.min(1_000_000) {
            world.count("replicas compared");
        }
        self.accounts.judge()
    }

    fn judge_lost(&mut self) -> Result<(), Violation> {
        self.accounts.judge_histories()
    }

    fn log<'a>(&self, process: &'a AnyProcess) -> Option<&'a Paxos> {
        process.router().map(Router::log)
    }

    fn removal(id: CommandId, router: ProcessId) -> Option<AnyCommand> {
        Some(AnyCommand::removal(id, router))
    }
}
