//! A whole cluster: routers, storage processes with their engines, supers and gateways, as production runs them.
//!
//! Gateways set marks, read them back, move money between accounts, add rows to a log, and try writes that must fail.
//! Storage processes are killed and replaced while rows migrate. Judged: marks are atomic, money is conserved in every
//! consistent cut, what was acknowledged is there once, what failed is nowhere, and replicas hold the same.

mod bank;
mod citizen;
mod deadly;
mod operator;
mod replicas;
mod settings;
mod stage;
mod twin;

pub use settings::Settings;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use quorate_protocol::{
    Peer, ProcessId,
    ecast::{Router, RouterCommand, RouterEvent, RouterSettings},
    paxos,
    rubberband::{
        Client, ClientEvent, Config, Keeps, Remains, Storage, StorageCommand, StorageEvent, StorageSettings,
        StorageState, Super, SuperCommand, SuperEvent, Task, TaskKind,
    },
};
use quorate_table::{engine::Engine, host::Alone, plain::PlainEngine, scan::ScanEngine};
use quorate_tables::{Command, Event, Node, storage::execute};

use quorate_world::{Chance, Crash, Environment, Fault, Nemesis, Violation, World};

use crate::{
    check::{HoldersCheck, RoutingCheck, holders::Standings},
    mutation::{Mutation, Tamper},
    run::{Report, two_phases},
    scenario::Scenario,
    system::{
        Signs,
        order::Order,
        routers::{RouterSet, open_changes},
    },
};

use bank::Bank;
use citizen::{Citizen, Told, member, node};
use deadly::Deadly;
use operator::Operator;
use replicas::Replicas;
use twin::{TAKEN_UP, TableTwin};

/// What is known of holders, apart from the holders.
macro_rules! known {
    ($town:expr) => {
        Known { twin: &$town.order.twin, check: &$town.order.check, keepers: &$town.keepers }
    };
}

/// Everything around the processes.
struct Town {
    settings: Settings,
    router_settings: RouterSettings,
    routers: RouterSet,
    storage: Vec<usize>,
    supers: Vec<usize>,
    gateways: Vec<usize>,
    engines: BTreeMap<usize, Box<dyn Engine>>,
    /// Storage machines whose process dies at its next task.
    doomed: BTreeSet<usize>,
    deadly: Deadly,
    /// Storage machines whose engine works.
    working: BTreeSet<usize>,
    /// The newest configuration that a gateway told of.
    config: Config,
    bank: Bank,
    order: Order<TableTwin>,
    replicas: Replicas,
    holders: HoldersCheck,
    /// Up to which control message the holders are known.
    held_at: u64,
    /// What a process that is out leaves to the next life on its machine.
    remains: BTreeMap<usize, Box<Remains>>,
    /// Storage processes that keep the rows of a former life.
    keepers: BTreeMap<ProcessId, Keeps>,
    /// Storage processes by machine, the last one each.
    present: BTreeMap<usize, ProcessId>,
    operator: Operator,
    signs: Signs,
    /// How many relayed links each machine's process has begun.
    relayed: BTreeMap<usize, u64>,
    /// The longest pause between two bursts of commands, so that they last as long as the faults.
    pace: Duration,
    workload: Chance,
    nemesis: Option<Nemesis>,
    healed: bool,
    mutation: Option<Mutation>,
}

/// Few, so that what is open is kept apart in every run.
const KEPT_MAX: usize = 8;

const STRIKE: u64 = 0;
const ACT: u64 = 1;
const WATCH: u64 = 2;
const REMOVE: u64 = 3;
const BEREAVE: u64 = 4;
const SEED: u64 = 1 << 32;
/// How long a process is down that died at a task.
const DOWN: Duration = Duration::from_millis(20);
/// After so long without trouble everyone has heard of everyone.
const QUIET: Duration = Duration::from_secs(1);
/// Nobody is suspected of a shorter silence.
const AWAKE: Duration = Duration::from_millis(500);

/// Runs one seed.
pub(crate) fn simulate(
    scenario: &Scenario,
    settings: &Settings,
    seed: u64,
    mutation: Option<Mutation>,
) -> Report {
    let mut world = World::new(seed, scenario.network, scenario.machines);
    let mut next = 0;
    let mut some = |count: usize| {
        next += count;
        (next - count..next).collect::<Vec<usize>>()
    };
    let routers = some(settings.routers + settings.spares);
    let storage = some(settings.storage + settings.standbys);
    let supers = some(settings.supers);
    let gateways = some(settings.gateways);
    let town = Town {
        settings: settings.clone(),
        router_settings: RouterSettings {
            paxos: paxos::Settings {
                wanted: settings.routers,
                log_bytes_kept: settings.log_bytes_kept,
                chunk_bytes: 4 << 10,
                batch_bytes_max: 4 << 10,
                window_max: 8,
                ..paxos::Settings::default()
            },
            credit: settings.credit,
            kept_max: KEPT_MAX,
            ..RouterSettings::default()
        },
        routers: RouterSet::new(routers, settings.routers),
        storage,
        supers,
        gateways: gateways.clone(),
        engines: BTreeMap::new(),
        doomed: BTreeSet::new(),
        deadly: Deadly::new(seed),
        working: BTreeSet::new(),
        config: Config::founded(settings.terms()),
        bank: Bank::new(settings.accounts, settings.commands, gateways, mutation),
        order: Order::new(TableTwin::new(settings.replicas)),
        replicas: Replicas::default(),
        holders: HoldersCheck::default(),
        held_at: 0,
        remains: BTreeMap::new(),
        keepers: BTreeMap::new(),
        present: BTreeMap::new(),
        operator: Operator::new(seed, settings.losses, scenario.safety()),
        signs: Signs::default(),
        relayed: BTreeMap::new(),
        pace: scenario.safety().mul_f64(7.0 / settings.commands as f64),
        workload: Chance::new(seed, "workload"),
        nemesis: Some(Nemesis::new(seed, scenario.faults.clone())),
        healed: false,
        mutation,
    };
    for number in 0..next {
        let machine = world.machine();
        world.restart_after(machine, Duration::from_millis(number as u64));
    }
    world.timer(Duration::from_millis(100), ACT);
    world.timer(Duration::from_millis(1_500), STRIKE);
    world.timer(Duration::from_millis(100), WATCH);
    world.timer(Duration::from_millis(2_000), REMOVE);
    two_phases(world, town, scenario, seed)
}

impl Town {
    /// Whether the cluster could go on without the process on `machine`: every range would keep a complete replica.
    fn may_crash(&self, world: &World<Citizen>, machine: usize) -> bool {
        let open = changes(world);
        if self.routers.machines.contains(&machine) {
            return self.routers.may_crash(world, machine, &open);
        }
        if self.supers.contains(&machine) {
            return true;
        }
        let Some(me) = world.id(machine) else { return false };
        if self.holders.ranges().any(|keys| self.holders.holders(keys, &self.known()) == [me]) {
            return false;
        }
        let newest = newest_config(world).unwrap_or(&self.config);
        let complete = |id: &ProcessId| {
            *id != me && world.alive(*id) && newest.storage.get(id) == Some(&StorageState::Active)
        };
        !self.storage.contains(&machine)
            || newest
                .segments()
                .iter()
                .filter(|segment| segment.replicas.contains(&me))
                .all(|segment| segment.replicas.iter().any(complete))
    }

    fn strike(&mut self, world: &mut World<Citizen>) {
        let Some(mut nemesis) = self.nemesis.take() else { return };
        let [routers, leader] = self.routers.targets();
        let groups = [
            routers,
            leader,
            self.storage.clone(),
            self.storage.clone(),
            self.supers.clone(),
            self.gateways.clone(),
        ];
        let migrating = newest_config(world).is_some_and(|config| config.receiving().next().is_some());
        let struck = nemesis.strike(world, &groups, |world, machine| self.may_crash(world, machine));
        let (kind, hit) = struck.unzip();
        match kind {
            Some(Fault::Kill | Fault::Vanish | Fault::KillGroup) => {
                if self.supers.iter().all(|&machine| world.id(machine).is_none()) {
                    world.count("all supers down");
                }
                for machine in hit.unwrap_or_default() {
                    self.killed(world, machine, migrating);
                }
            }
            Some(Fault::DieAtTask) => self.doomed.extend(hit.unwrap_or_default()),
            Some(Fault::DieAtRead) => self.ask_deadly(world),
            _ => {}
        }
        if let Some(pause) = nemesis.pause() {
            world.timer(pause, STRIKE);
        }
        self.nemesis = Some(nemesis);
    }

    /// Tells those who know only routers of the past where routers run.
    fn seed(&self, world: &mut World<Citizen>, machine: usize) {
        let lost = node(world, machine)
            .and_then(member)
            .is_some_and(|member| member.leader().is_none_or(|leader| !world.alive(leader)));
        if lost {
            let seeds = self.routers.living(world);
            world.command(machine, Command::Seeds(seeds));
        }
    }

    /// What runs on `machine`.
    fn node(&mut self, world: &World<Citizen>, machine: usize, id: ProcessId) -> Node {
        let me = Peer { id, address: World::<Citizen>::address(machine) };
        if let Some(remains) = self.remains.remove(&machine) {
            // Its rows are those of the life before.
            if let Some(former) = self.present.insert(machine, id) {
                self.holders.renamed(former, id);
            }
            self.keepers.insert(id, remains.keeps());
            return Node::Storage(Storage::again(me, format!("storage {machine}"), remains));
        }
        if self.storage.contains(&machine) {
            // The plain engine at some: where it and the one of production differ, replicas do.
            let engine: Box<dyn Engine> = match machine % 3 {
                0 => Box::new(PlainEngine::default()),
                _ => Box::new(ScanEngine::default()),
            };
            self.engines.insert(machine, engine);
            self.working.remove(&machine);
            self.present.insert(machine, id);
            return Node::Storage(Storage::new(me, format!("storage {machine}"), StorageSettings::default()));
        }
        if self.supers.contains(&machine) {
            return Node::Super(Super::new(me, format!("super {machine}"), self.settings.supers()));
        }
        if self.gateways.contains(&machine) {
            return Node::Client(Client::new(me, format!("gateway {machine}"), self.settings.gateways()));
        }
        let paxos = self.routers.start(world, machine, id, self.router_settings.paxos.clone());
        let config = Config::founded(self.settings.terms());
        Node::Router(Router::new(paxos, config, self.router_settings.clone()))
    }

    /// Who has just slept itself suspects nobody for the silence that it slept through (S11).
    fn judge_suspicion(
        &self,
        world: &World<Citizen>,
        machine: usize,
        process: ProcessId,
    ) -> Result<(), Violation> {
        let other = process.node as usize;
        let well = world.alive(process)
            && world.untroubled(other, QUIET)
            && world.slept_until(other) + QUIET < world.now()
            && world.untroubled(machine, QUIET);
        let slept = world.slept_until(machine);
        if well && slept <= world.now() && world.now() < slept + AWAKE {
            let what =
                format!("machine {machine} slept until {slept:?}, and suspects {process}, which was well");
            return Err(Violation::new("S11", what));
        }
        Ok(())
    }

    /// Compares what a router has learned with the order.
    fn compare(&mut self, world: &mut World<Citizen>, machine: usize) -> Result<(), Violation> {
        let Some(Node::Router(router)) = node(world, machine) else { return Ok(()) };
        let (told_at, routers) = (router.log().applied().0, router.log().members().to_vec());
        for what in self.order.compare(world.life(machine), router)? {
            world.count(what);
        }
        for what in self.order.twin.occurred() {
            world.count(what);
            if what == TAKEN_UP {
                self.bank.tear();
            }
        }
        self.routers.told_members(world, told_at, &routers, false)?;
        self.hold(world);
        let undeclared = |(_, process): &&(u64, ProcessId)| !self.operator.declared(*process);
        if let Some((key, process)) = self.order.twin.forsaken().iter().find(undeclared) {
            let what = format!("{process}, the last replica of {key}, is declared lost, and nobody said so");
            return Err(Violation::new("S14", what));
        }
        Ok(())
    }

    /// An engine's tasks: judged, done, and what is held then compared with other replicas.
    fn execute(
        &mut self,
        world: &mut World<Citizen>,
        machine: usize,
        tasks: Vec<Task>,
    ) -> Result<(), Violation> {
        let Some(me) = world.id(machine) else { return Ok(()) };
        if self.doomed.remove(&machine) && self.may_crash(world, machine) {
            world.count(Fault::DieAtTask.effect());
            world.crash(machine, Crash::Killed);
            world.restart_after(machine, DOWN);
            self.killed(world, machine, false);
            return Ok(());
        }
        if self.dies_of_a_read(world, machine, &tasks)? {
            return Ok(());
        }
        // The replica executes for its former life the tasks that were meant for that one.
        let for_former = |task: &&Task| self.keepers.get(&me).is_some_and(|keeps| task.at <= keeps.through);
        let former = self.keepers.get(&me).map_or(me, |keeps| keeps.former);
        let (twin, check) = (&self.order.twin, &self.order.check);
        let late = tasks.iter().filter(for_former);
        self.replicas.execute(former, late, twin, check)?;
        self.replicas.execute(me, tasks.iter().filter(|task| !for_former(task)), twin, check)?;
        for task in &tasks {
            match &task.kind {
                TaskKind::Write { ranges, held, .. } => {
                    if *held {
                        self.exchanged(world, ranges);
                    }
                    ranges.iter().for_each(|range| self.holders.wrote((range.low, range.high), task.at.0));
                }
                TaskKind::Forget { .. } => {
                    let known = known!(self);
                    self.holders.gave_up(me, &known)?;
                    self.keepers.remove(&me);
                }
                _ => {}
            }
        }
        let engine = self.engines.get_mut(&machine).expect("every storage process has an engine");
        let cost = Duration::from_micros(self.settings.task_micros * tasks.len() as u64);
        let results = match self.mutation {
            Some(mutation) => {
                execute(engine.as_mut(), replicas::mutated(mutation, machine, tasks.clone()), &Alone)
            }
            None => execute(engine.as_mut(), tasks.clone(), &Alone),
        };
        let Some(Node::Storage(storage)) = node(world, machine) else { return Ok(()) };
        if let Some(config) = storage.config() {
            self.replicas.done(me, config, &tasks, &self.order.twin, engine.as_mut())?;
        }
        self.working.insert(machine);
        world.command_after(machine, cost, Command::Storage(StorageCommand::Executed(results)));
        Ok(())
    }

    fn told_config(&mut self, world: &mut World<Citizen>, config: &Config) {
        if config.version <= self.config.version {
            return;
        }
        for (process, state) in &config.storage {
            let before = self.config.storage.get(process);
            match state {
                StorageState::Receiving { .. } if before != Some(state) => world.count("migration begun"),
                StorageState::Active if matches!(before, Some(StorageState::Receiving { .. })) => {
                    world.count("storage replaced");
                }
                StorageState::Unreachable if before != Some(state) => world.count("storage unreachable"),
                _ => {}
            }
        }
        self.lose(world, config);
        for (process, before) in &self.config.storage {
            if !config.storage.contains_key(process) {
                world.count("storage suspected");
                if matches!(before, StorageState::Receiving { .. }) {
                    world.count("migration interrupted");
                }
            }
        }
        self.config = config.clone();
    }

    /// Has those dropped that have become unreachable, if a mutation wants that: all of them, or the first of several as if
    /// the others had still counted for complete.
    fn lose(&self, world: &mut World<Citizen>, config: &Config) {
        let unreachable = |config: &Config, process: &ProcessId| {
            config.storage.get(process) == Some(&StorageState::Unreachable)
        };
        let mut newly: Vec<ProcessId> = config.storage.keys().copied().collect();
        newly.retain(|process| unreachable(config, process) && !unreachable(&self.config, process));
        match self.mutation {
            Some(Mutation::LossUndeclared) => {}
            Some(Mutation::SuspectsOneByOne) if newly.len() > 1 => newly.truncate(1),
            _ => return,
        }
        for (&machine, &process) in self.supers.iter().flat_map(|it| newly.iter().map(move |lost| (it, lost)))
        {
            world.command(machine, Command::Super(SuperCommand::DeclareLost(process)));
        }
    }

    /// A process is out, and ends of its own accord.
    fn again(&mut self, world: &mut World<Citizen>, machine: usize) -> Result<(), Violation> {
        world.count("process wedged");
        world.stop_after(machine, Duration::from_millis(1));
        if let Some(me) = world.id(machine) {
            let known = known!(self);
            self.holders.gave_up(me, &known)?;
        }
        Ok(())
    }

    /// A process is out, and comes back with its rows.
    fn out(&mut self, world: &mut World<Citizen>, machine: usize, remains: Box<Remains>) {
        let Some(me) = world.id(machine) else { return };
        world.count("process wedged");
        world.stop_after(machine, Duration::from_millis(1));
        self.keepers.insert(me, remains.keeps());
        self.working.remove(&machine);
        self.remains.insert(machine, remains);
    }

    fn known(&self) -> Known<'_> {
        known!(self)
    }

    /// Notes who has become complete by what was ordered.
    fn hold(&mut self, world: &World<Citizen>) {
        let at = self.order.twin.controls();
        if std::mem::replace(&mut self.held_at, at) != at {
            for (keys, complete) in self.order.twin.complete() {
                for holder in complete.into_iter().filter(|&holder| world.alive(holder)) {
                    self.holders.holds(keys, holder);
                }
            }
        }
    }

    /// The process on `machine` was killed.
    fn killed(&mut self, world: &mut World<Citizen>, machine: usize, migrating: bool) {
        let Some(&id) = self.present.get(&machine) else { return };
        self.remains.remove(&machine);
        world.count("storage killed");
        if migrating {
            world.count("storage killed during a migration");
        }
        self.died(world, id);
    }

    /// A storage process was killed.
    fn died(&mut self, world: &mut World<Citizen>, id: ProcessId) {
        let known = known!(self);
        for keys in self.holders.crashed(id, &known) {
            world.count("range lost");
            self.bank.lose(keys, world.now());
        }
    }
}

/// What the order says of processes.
struct Known<'a> {
    twin: &'a TableTwin,
    check: &'a RoutingCheck,
    keepers: &'a BTreeMap<ProcessId, Keeps>,
}

impl Known<'_> {
    /// Up to where a keeper, or one that is about to be one, has all rows.
    fn through(&self, process: ProcessId) -> Option<u64> {
        self.keepers.get(&process).map(|keeps| keeps.through.0).or_else(|| self.twin.behind(process))
    }
}

impl Standings for Known<'_> {
    fn is_member(&self, process: ProcessId) -> bool {
        // What is ordered for the ranges of a keeper does not come to it.
        self.twin.has_member(process) && self.through(process).is_none()
    }

    fn delivered(&self, process: ProcessId) -> u64 {
        self.through(process).unwrap_or_else(|| self.check.delivered_last(process))
    }
}

/// The newest configuration that any process knows.
fn newest_config(world: &World<Citizen>) -> Option<&Config> {
    let nodes = (0..world.machines()).filter_map(|machine| node(world, machine));
    let configs = nodes.filter_map(|node| match node {
        Node::Router(router) => Some(router.config()),
        Node::Storage(storage) => storage.config(),
        Node::Super(superior) => superior.config(),
        Node::Client(client) => client.config(),
    });
    configs.max_by_key(|config| config.version)
}

/// The routers that changes under way would make.
fn changes(world: &World<Citizen>) -> Vec<Vec<Peer>> {
    let nodes = (0..world.machines()).filter_map(|machine| node(world, machine));
    open_changes(nodes.filter_map(|node| match node {
        Node::Router(router) => Some(router.log()),
        _ => None,
    }))
}

impl Environment<Citizen> for Town {
    fn start(&mut self, world: &mut World<Citizen>, machine: usize, id: ProcessId) -> Citizen {
        world.timer(Duration::from_millis(1), SEED + machine as u64);
        citizen::citizen(self.node(world, machine, id), self.mutation.map(Tamper::new))
    }

    fn event(&mut self, world: &mut World<Citizen>, machine: usize, event: Told) -> Result<(), Violation> {
        let event = match event {
            Told::Node(event) => event,
            Told::Submitted(content) => {
                if let Some(me) = world.id(machine) {
                    self.order.check.submitted(me, content);
                }
                return Ok(());
            }
        };
        match event {
            Event::Router(event) => {
                self.compare(world, machine)?;
                match event {
                    RouterEvent::Leader(leader) => self.routers.told_leader(world, leader),
                    RouterEvent::Removed => self.again(world, machine)?,
                    RouterEvent::Corrupt(why) => {
                        return Err(Violation::new("snapshot", format!("machine {machine}: {why}")));
                    }
                    RouterEvent::Routers(_) | RouterEvent::Config(..) | RouterEvent::ChangeRefused(_) => {}
                    RouterEvent::Reformed(_)
                    | RouterEvent::ReformRefused(_)
                    | RouterEvent::RefoundRefused(_) => {
                        panic!("no scenario begins a generation: {event:?}")
                    }
                }
            }
            Event::Storage(StorageEvent::Execute(tasks)) => self.execute(world, machine, tasks)?,
            // The engine has done the batch already: its host has only yet to say so.
            Event::Storage(StorageEvent::Withdraw { .. }) => world.count("read withdrawn at the engine"),
            Event::Super(SuperEvent::Suspected(process)) => {
                self.judge_suspicion(world, machine, process)?;
                world.count(if world.alive(process) { "false suspicion" } else { "true suspicion" });
            }
            Event::Super(SuperEvent::Removing { process, .. }) => {
                world.count(if world.alive(process) { "false removal" } else { "true removal" });
            }
            Event::Super(SuperEvent::Replacing { .. }) => world.count("replacement ordered"),
            Event::Super(SuperEvent::Config(_)) => {}
            Event::NotAdmitted(_) => world.count("not admitted"),
            Event::Client(ClientEvent::Config(config)) => {
                self.deadly.told(machine, world.now());
                self.told_config(world, &config);
            }
            Event::Storage(StorageEvent::Out(remains)) => self.out(world, machine, remains),
            Event::Storage(StorageEvent::Wedged)
            | Event::Super(SuperEvent::Wedged)
            | Event::Client(ClientEvent::Wedged) => self.again(world, machine)?,
            Event::Client(event) => self.bank.told(world, machine, event)?,
            Event::Status { .. } | Event::Operated { .. } => {}
        }
        Ok(())
    }

    fn timer(&mut self, world: &mut World<Citizen>, token: u64) -> Result<(), Violation> {
        match token {
            STRIKE => self.strike(world),
            ACT => {
                let machine = self.gateways[self.workload.index(self.gateways.len())];
                self.bank.act(world, machine, &self.config, &mut self.workload);
                let pause = self.workload.between(Duration::from_micros(100), self.pace);
                world.timer(pause, ACT);
            }
            WATCH => {
                for machine in 0..world.machines() {
                    self.seed(world, machine);
                }
                self.operate(world);
                world.timer(Duration::from_millis(250), WATCH);
            }
            REMOVE => {
                if !self.healed
                    && let Some((asked, router)) = self.routers.operate(world, &mut self.workload, 0.1)
                {
                    world.command(asked, Command::Router(RouterCommand::Remove(router)));
                }
                world.timer(Duration::from_secs(1), REMOVE);
            }
            BEREAVE => self.bereave(world),
            seed => self.seed(world, (seed - SEED) as usize),
        }
        Ok(())
    }

    fn stepped(&mut self, world: &mut World<Citizen>, machine: usize) -> Result<(), Violation> {
        let begun = world.process(machine).map_or(0, |citizen| citizen.figures().begun);
        if self.relayed.insert(machine, begun).is_some_and(|before| before < begun) {
            world.count("relayed link begun");
        }
        let Some(process) = node(world, machine) else { return Ok(()) };
        if let Some(member) = member(process) {
            let (again, starved) = (("submitted again", member.resends()), member.starved());
            let delivered = member.delivered().0;
            if matches!(process, Node::Storage(_)) {
                self.working.remove(&machine);
            }
            self.signs.note(world, machine, again, starved);
            if delivered > 0
                && let Some(me) = world.id(machine)
            {
                self.order.check.delivered_through(me, delivered)?;
            }
        } else if let Node::Router(router) = process {
            let again = ("delivered again", router.resends());
            self.signs.note(world, machine, again, false);
            self.compare(world, machine)?;
        }
        Ok(())
    }
}
