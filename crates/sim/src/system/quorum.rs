//! Maps of partial quorums: routers that order who is a cell, cells at two sites, and users who read and write at any of them.
//!
//! Cells are killed and come back with empty memories, give their places to a spare while they live, sleep, and are cut off; sites
//! cannot hear each other in one direction; clocks differ, and jump by more than is allowed. There are four maps, each with
//! a promise of its own (`settings::MAPS`), and counters in each where the scenario says so (`counters`). In most seeds cells compare their keys: then all replicas become equal whatever was
//! lost. In half of these one cell never asks; in the others what was deleted is forgotten by all in the end.

mod cells;
mod counters;
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

use quorate_protocol::{
    CommandId, ProcessId,
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
use operator::Operator;
use process::{Ask, Process, Role, Told};
use settings::{compares, forgets};
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
    ];
    const CALM: Duration = Duration::from_millis(600);
    const REMOVALS: (Duration, f64) = (Duration::from_millis(900), 0.3);

    type Settings = Settings;
    type Process = Process;
    type Timer = Timer;

    fn new(stage: &mut Stage, world: &mut World, settings: Settings) -> Readers {
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
            self.forget(machine);
            return self.resident(stage, world, machine, id);
        }
        process::router(stage, world, machine, id, self.settings.routers)
    }

    fn act(&mut self, stage: &mut Stage, world: &mut World, timer: Timer) -> Result<(), Violation> {
        match timer {
            Timer::Ask if self.book.asked < self.settings.operations => {
                self.ask(stage, world);
                let pause = stage.chance.between(Duration::from_micros(100), self.pace);
                stage.after(world, pause, Timer::Ask);
            }
            Timer::Ask => {}
            Timer::Operate => {
                self.operate(stage, world);
                stage.after(world, operator::LOOK, Timer::Operate);
            }
            Timer::Clocks => {
                self.set_clocks(stage, world);
                stage.after(world, operator::CLOCKS, Timer::Clocks);
            }
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
            Told::Cell(event) => match world.id(on) {
                Some(me) => self.told(stage, world, (on, me), event),
                None => Ok(()),
            },
        }
    }

    fn stepped(&mut self, stage: &mut Stage, world: &mut World, machine: usize) -> Result<(), Violation> {
        process::router_stepped(stage, world, machine)
    }

    fn settled(&mut self, stage: &mut Stage, world: &mut World) -> bool {
        self.are_well(world)
            && self.book.asked >= self.settings.operations
            && self.book.is_quiet()
            && self.hints(world) == 0
            && self.operator.clocks_are_right(world)
            && self.read_everything(stage, world)
            && (!compares(stage.seed)
                || self.roster.as_ref().is_some_and(|it| self.are_equal(it, world, forgets(stage.seed))))
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
