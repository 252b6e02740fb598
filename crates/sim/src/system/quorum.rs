//! Maps of partial quorums: routers that order who is a cell, cells at two sites, and users who read and write at any of them.
//!
//! Cells are killed and come back with empty memories, give their places to a spare while they live, sleep, and are cut off; sites
//! cannot hear each other in one direction; clocks differ, and jump by more than is allowed. There are four maps, each with
//! a promise of its own (`settings::MAPS`), and counters in each where the scenario says so (`counters`). In most seeds cells compare their keys: then all replicas become equal whatever was
//! lost. In half of these one cell never asks; in the others what was deleted is forgotten by all in the end. With disks (`disks`) nothing is
//! lost that was acknowledged at a quorum: power is cut of one and of all, writes are torn, and bytes rot at one cell while the others are well.

mod cells;
mod counters;
mod disks;
mod operator;
mod process;
mod settings;
mod tamper;
mod users;

pub use settings::Settings;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use quorate_protocol::{
    CommandId, ProcessId, Ticket,
    ecast::RouterCommand,
    partial::{Resident, Roster},
    paxos::{Change, Paxos},
};
use quorate_world::Violation;

use crate::{
    check::{counters::CounterCheck, quorum::QuorumCheck},
    stage::{self, Workload},
};
use cells::cell;
use disks::Disks;
use operator::Operator;
use process::{Ask, Process, Role, Told};
use settings::compares;
use users::Book;

type Stage = stage::Stage<Timer>;
type World = quorate_world::World<Process>;

/// The users, and what they are told.
pub(crate) struct Readers {
    settings: Settings,
    machines: Vec<usize>,
    /// The process on each of them, or the last one.
    lives: BTreeMap<usize, ProcessId>,
    /// The cells and maps as the order has them.
    roster: Option<Arc<Roster>>,
    operator: Operator,
    disks: Disks,
    book: Book,
    check: QuorumCheck,
    counters: CounterCheck,
    /// Keys that are still to be read by everybody before the end.
    unread: Option<BTreeSet<String>>,
    pace: Duration,
}

pub(crate) enum Timer {
    Ask,
    Operate,
    Clocks,
}

impl Workload for Readers {
    const NAME: &'static str = "quorum";
    const SCENARIOS: &'static [(&'static str, &'static str)] = &[
        ("quorum", include_str!("../../../../scenarios/quorum.toml")),
        ("counters", include_str!("../../../../scenarios/counters.toml")),
        ("counters_disk", include_str!("../../../../scenarios/counters_disk.toml")),
        ("quorum_disk", include_str!("../../../../scenarios/quorum_disk.toml")),
    ];
    const CALM: Duration = Duration::from_millis(600);
    const REMOVALS: (Duration, f64) = (Duration::from_millis(900), 0.3);

    type Settings = Settings;
    type Process = Process;
    type Timer = Timer;

    fn new(stage: &mut Stage, world: &mut World, settings: Settings) -> Readers {
        let disks = Disks::new(stage, world, &settings);
        stage.add_routers(world, settings.routers, 1);
        let machines = stage.add_machines(world, settings.cells + settings.spares);
        stage.after(world, Duration::from_millis(300), Timer::Ask);
        stage.after(world, operator::LOOK, Timer::Operate);
        stage.after(world, operator::CLOCKS, Timer::Clocks);
        Readers {
            operator: Operator::new(stage.seed, &settings, &machines),
            machines,
            lives: BTreeMap::new(),
            roster: None,
            disks,
            book: Book::default(),
            check: QuorumCheck::default(),
            counters: CounterCheck::default(),
            unread: None,
            pace: stage.safety().mul_f64(1.8 / settings.operations as f64),
            settings,
        }
    }

    fn start(&mut self, stage: &mut Stage, world: &mut World, machine: usize, id: ProcessId) -> Process {
        if self.machines.contains(&machine) {
            return self.resident(stage, world, machine, id);
        }
        self.router(stage, world, machine, id)
    }

    fn goes_on(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        machine: usize,
        id: ProcessId,
        records: &[(Ticket, Bytes)],
    ) -> bool {
        self.recovers(stage, world, (machine, id), records)
    }

    fn act(&mut self, stage: &mut Stage, world: &mut World, timer: Timer) -> Result<(), Violation> {
        match timer {
            Timer::Ask => self.go_on_asking(stage, world),
            Timer::Operate => self.operate(stage, world),
            Timer::Clocks => self.set_clocks(stage, world),
        }
        Ok(())
    }

    fn event(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        on: usize,
        told: Told,
    ) -> Result<(), Violation> {
        match told {
            Told::Router(event) => process::router_told(stage, world, on, event),
            Told::Cell(event) => world.id(on).map_or(Ok(()), |me| self.told(stage, world, (on, me), event)),
        }
    }

    fn stepped(&mut self, stage: &mut Stage, world: &mut World, machine: usize) -> Result<(), Violation> {
        process::router_stepped(stage, world, machine)
    }

    fn settled(&mut self, stage: &mut Stage, world: &mut World) -> bool {
        self.has_come_right(stage, world)
    }

    /// Replicas of a key are equal in the end, and hold what was acknowledged.
    fn owed(&self, stage: &Stage, world: &World) -> Result<(), Violation> {
        let compared = compares(stage.seed);
        self.roster.as_ref().map_or(Ok(()), |roster| self.converged(roster, world, compared))
    }

    fn judge(&mut self, _: &Stage, world: &mut World) -> Result<(), Violation> {
        self.count(world);
        self.judge_lost()
    }

    fn judge_lost(&mut self) -> Result<(), Violation> {
        self.counters.judge()?;
        self.check.judge()
    }

    fn report(&self, _: &Stage, world: &World) -> String {
        let of = |machine: &usize| format!("{machine}: {:?}", cell(world, *machine).map(Resident::status));
        let cells: Vec<String> = self.machines.iter().map(of).collect();
        format!("{}; {}; unread {:?}", self.book, cells.join("; "), self.unread)
    }

    fn targets(&self, stage: &Stage, _: &World) -> Vec<Vec<usize>> {
        let [routers, leader] = stage.routers.targets();
        let [here, there] = self.by_site();
        [routers, leader, here, there].into_iter().filter(|group| !group.is_empty()).collect()
    }

    fn may_crash(&self, _: &Stage, world: &World, machine: usize) -> bool {
        self.can_do_without(world, machine)
    }

    fn log<'a>(&self, process: &'a Process) -> Option<&'a Paxos> {
        if let Role::Router(router) = &process.role { Some(router.log()) } else { None }
    }

    fn removal(id: CommandId, router: ProcessId) -> Option<Ask> {
        Some(Ask::Router(RouterCommand::Change { id, change: Change::Remove(router) }))
    }
}
