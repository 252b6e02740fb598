//! A whole cluster: routers, storage processes with their engines, supers and gateways, as production runs them.
//!
//! Gateways set marks, read them back, move money between accounts, add rows to a log, and try writes that must fail.
//! Storage processes are killed and replaced while rows migrate. Judged: marks are atomic, money is conserved in every
//! consistent cut, what was acknowledged is there once, what failed is nowhere, and replicas hold the same.

mod bank;
mod judge;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use quorate_node::{Command, Event, Node, storage::execute};
use quorate_protocol::{
    Peer, ProcessId,
    ecast::{Member, Router, RouterCommand, RouterEvent, RouterSettings},
    paxos::{self, Paxos},
    rubberband::{
        Client, ClientEvent, ClientSettings, Config, Role, Storage, StorageCommand, StorageEvent,
        StorageSettings, StorageState, Super, SuperEvent, SuperSettings,
    },
};
use quorate_table::{engine::Engine, plain::PlainEngine};
use serde::{Deserialize, Serialize};

use crate::{
    fault::{Fault, Nemesis},
    mutation::Mutation,
    random::Chance,
    run::{Report, Stage, two_phases},
    scenario::Scenario,
    system::{
        LINGER,
        routers::{RouterSet, beliefs},
    },
    world::{Environment, Violation, World},
};

use bank::Bank;
use judge::Order;

/// How large, and how busy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How many routers there should be.
    pub routers: usize,
    /// How many more machines ask to be admitted as routers.
    pub spares: usize,
    /// How many storage processes the ring has.
    pub storage: usize,
    /// How many more wait as standbys.
    pub standbys: usize,
    /// How many replicas each range has.
    pub replicas: u8,
    /// How many supers.
    pub supers: usize,
    /// How many gateways.
    pub gateways: usize,
    /// How many accounts.
    pub accounts: i64,
    /// How many commands all gateways together issue.
    pub commands: u64,
    /// How many data messages of one gateway may be under way.
    pub credit: u64,
    /// How much chosen log the routers keep.
    pub log_bytes_kept: usize,
    /// What one task of an engine takes.
    pub task_micros: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            routers: 3,
            spares: 1,
            storage: 4,
            standbys: 1,
            replicas: 2,
            supers: 2,
            gateways: 3,
            accounts: 24,
            commands: 1_200,
            credit: 32,
            log_bytes_kept: 32 << 10,
            task_micros: 40,
        }
    }
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
    /// Storage machines whose engine works.
    working: BTreeSet<usize>,
    /// The newest configuration that a gateway told of.
    config: Config,
    bank: Bank,
    order: Order,
    seen: BTreeMap<usize, Seen>,
    workload: Chance,
    nemesis: Option<Nemesis>,
    healed: bool,
    mutation: Option<Mutation>,
}

#[derive(Default)]
struct Seen {
    life: u64,
    resends: u64,
    starved: bool,
}

const STRIKE: u64 = 0;
const ACT: u64 = 1;
const WATCH: u64 = 2;
const REMOVE: u64 = 3;
const SEED: u64 = 1 << 32;

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
            ..RouterSettings::default()
        },
        routers: RouterSet::new(some(settings.routers + settings.spares)),
        storage: some(settings.storage + settings.standbys),
        supers: some(settings.supers),
        gateways: some(settings.gateways),
        engines: BTreeMap::new(),
        working: BTreeSet::new(),
        config: Config::new(settings.replicas),
        bank: Bank::new(
            settings.accounts,
            settings.commands,
            mutation == Some(Mutation::RepeatedUnderNewName),
        ),
        order: Order::default(),
        seen: BTreeMap::new(),
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
    fn may_crash(&self, world: &World<Node>, machine: usize) -> bool {
        let believed = believed(world);
        if self.routers.machines.contains(&machine) {
            return self.routers.may_crash(world, machine, &believed);
        }
        if self.supers.contains(&machine) {
            return self.supers.iter().any(|&other| other != machine && world.id(other).is_some());
        }
        let Some(me) = world.id(machine) else { return false };
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

    fn strike(&mut self, world: &mut World<Node>) {
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
        if let Some((Fault::Kill | Fault::Vanish, machine)) = struck
            && self.storage.contains(&machine)
        {
            world.count("storage killed");
            if migrating {
                world.count("storage killed during a migration");
            }
        }
        if let Some(pause) = nemesis.pause() {
            world.timer(pause, STRIKE);
        }
        self.nemesis = Some(nemesis);
    }

    /// Tells those who know only routers of the past where routers run.
    fn seed(&self, world: &mut World<Node>, machine: usize) {
        let lost = world
            .process(machine)
            .and_then(member)
            .is_some_and(|member| member.leader().is_none_or(|leader| !world.alive(leader)));
        if lost {
            let seeds = self.routers.living(world);
            world.command(machine, Command::Seeds(seeds));
        }
    }

    fn told_config(&mut self, world: &mut World<Node>, config: &Config) {
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

    fn again(&self, world: &mut World<Node>, machine: usize) {
        world.count("process wedged");
        world.stop_after(machine, LINGER);
    }
}

/// The end of the order in a process that is a member.
fn member(node: &Node) -> Option<&Member> {
    match node {
        Node::Router(_) => None,
        Node::Storage(storage) => Some(storage.member()),
        Node::Super(superior) => Some(superior.member()),
        Node::Client(client) => Some(client.member()),
    }
}

/// The newest configuration that any process knows.
fn newest_config(world: &World<Node>) -> Option<&Config> {
    let nodes = (0..world.machines()).filter_map(|machine| world.process(machine));
    let configs = nodes.filter_map(|node| match node {
        Node::Router(router) => Some(router.config()),
        Node::Storage(storage) => storage.config(),
        Node::Super(superior) => superior.config(),
        Node::Client(client) => client.config(),
    });
    configs.max_by_key(|config| config.version)
}

/// What the routers believe that the routers are.
fn believed(world: &World<Node>) -> Vec<Vec<Peer>> {
    let nodes = (0..world.machines()).filter_map(|machine| world.process(machine));
    beliefs(nodes.filter_map(|node| match node {
        Node::Router(router) => Some(router.log()),
        _ => None,
    }))
}

impl Environment<Node> for Town {
    fn start(&mut self, world: &mut World<Node>, machine: usize, id: ProcessId) -> Node {
        let me = Peer { id, address: World::<Node>::address(machine) };
        world.timer(Duration::from_millis(1), SEED + machine as u64);
        if self.storage.contains(&machine) {
            self.engines.insert(machine, Box::new(PlainEngine::default()));
            self.working.remove(&machine);
            return Node::Storage(Storage::new(me, format!("storage {machine}"), StorageSettings::default()));
        }
        if self.supers.contains(&machine) {
            let settings =
                SuperSettings { storage_wanted: self.settings.storage, ..SuperSettings::default() };
            return Node::Super(Super::new(me, format!("super {machine}"), settings));
        }
        if self.gateways.contains(&machine) {
            return Node::Client(Client::new(me, format!("gateway {machine}"), ClientSettings::default()));
        }
        let now = world.clock(machine);
        let paxos = self.router_settings.paxos.clone();
        let paxos = if self.routers.founded {
            Paxos::join(me, self.routers.living(world), paxos, now)
        } else {
            self.routers.founded = true;
            Paxos::found(me, paxos, now)
        };
        let config = Config::new(self.settings.replicas);
        Node::Router(Router::new(paxos, config, self.router_settings.clone()))
    }

    fn event(&mut self, world: &mut World<Node>, machine: usize, event: Event) -> Result<(), Violation> {
        match event {
            Event::Router(event) => {
                self.order.compare(world, machine)?;
                match event {
                    RouterEvent::Leader(leader) => self.routers.told_leader(world, leader),
                    RouterEvent::Removed => self.again(world, machine),
                    RouterEvent::Corrupt(why) => {
                        return Err(Violation::new("snapshot", format!("machine {machine}: {why}")));
                    }
                    RouterEvent::Routers(_) | RouterEvent::Config(..) | RouterEvent::ChangeRefused => {}
                }
            }
            Event::Storage(StorageEvent::Execute(tasks)) => {
                let engine = self.engines.get_mut(&machine).expect("every storage process has an engine");
                let cost = Duration::from_micros(self.settings.task_micros * tasks.len() as u64);
                let tasks = match self.mutation {
                    Some(mutation) => judge::mutated(mutation, machine, tasks),
                    None => tasks,
                };
                let results = execute(engine.as_mut(), tasks);
                self.working.insert(machine);
                world.command_after(machine, cost, Command::Storage(StorageCommand::Executed(results)));
            }
            Event::Super(SuperEvent::Suspected(process)) => {
                world.count(if world.alive(process) { "false suspicion" } else { "true suspicion" });
            }
            Event::Super(SuperEvent::Replacing { .. }) => world.count("replacement ordered"),
            Event::Super(SuperEvent::Config(_)) => {}
            Event::Client(ClientEvent::Config(config)) => self.told_config(world, &config),
            Event::Storage(StorageEvent::Wedged)
            | Event::Super(SuperEvent::Wedged)
            | Event::Client(ClientEvent::Wedged) => self.again(world, machine),
            Event::Client(event) => self.bank.told(world, machine, event)?,
            Event::Status { .. } => {}
        }
        Ok(())
    }

    fn timer(&mut self, world: &mut World<Node>, token: u64) -> Result<(), Violation> {
        match token {
            STRIKE => self.strike(world),
            ACT => {
                let machine = self.gateways[self.workload.index(self.gateways.len())];
                self.bank.act(world, machine, &self.config, &mut self.workload);
                let pause = self.workload.between(Duration::from_micros(100), Duration::from_millis(14));
                world.timer(pause, ACT);
            }
            WATCH => {
                for machine in 0..world.machines() {
                    self.seed(world, machine);
                }
                world.timer(Duration::from_millis(250), WATCH);
            }
            REMOVE => {
                let members = &self.routers.members;
                if !members.is_empty() && !self.healed && self.workload.happens(0.1) {
                    let router = members[self.workload.index(members.len())];
                    let asked = self.routers.machines[self.workload.index(self.routers.machines.len())];
                    world.command(asked, Command::Router(RouterCommand::Remove(router)));
                }
                world.timer(Duration::from_secs(1), REMOVE);
            }
            seed => self.seed(world, (seed - SEED) as usize),
        }
        Ok(())
    }

    fn stepped(&mut self, world: &mut World<Node>, machine: usize) -> Result<(), Violation> {
        let life = world.life(machine);
        let seen = self.seen.entry(machine).or_default();
        if seen.life != life {
            *seen = Seen { life, ..Seen::default() };
        }
        let (resends, starved, router) = match world.process(machine) {
            Some(Node::Router(router)) => {
                let log = router.log();
                (router.resends(), false, Some((log.applied().0, log.members().to_vec())))
            }
            Some(Node::Storage(storage)) => {
                self.working.remove(&machine);
                (storage.member().resends(), false, None)
            }
            Some(node) => {
                let member = member(node).expect("all but routers are members");
                (member.resends(), member.starved(), None)
            }
            None => return Ok(()),
        };
        let (again, newly) = (resends > seen.resends, starved && !seen.starved);
        (seen.resends, seen.starved) = (resends, starved);
        if again {
            world.count(if router.is_some() { "delivered again" } else { "submitted again" });
        }
        if newly {
            world.count("credits exhausted");
        }
        if let Some((told_at, members)) = router {
            self.order.compare(world, machine)?;
            if !members.is_empty() {
                self.routers.told_members(world, told_at, &members, false)?;
            }
        }
        Ok(())
    }
}

impl Stage<Node> for Town {
    fn heal(&mut self, world: &mut World<Node>) {
        self.nemesis = None;
        self.healed = true;
        for machine in 0..world.machines() {
            world.restart_after(machine, Duration::ZERO);
        }
    }

    fn settled(&mut self, world: &mut World<Node>) -> bool {
        let routers = self.routers.members.len() == self.settings.routers
            && self.routers.members.iter().all(|&id| match world.process(id.node as usize) {
                Some(Node::Router(router)) => world.alive(id) && router.position().0 == self.order.end(),
                _ => false,
            });
        let config = &self.config;
        let ring = config.ring.len() == self.settings.storage
            && config
                .ring
                .values()
                .all(|&id| world.alive(id) && config.storage.get(&id) == Some(&StorageState::Active));
        let members = (self.storage.iter().chain(&self.supers).chain(&self.gateways))
            .all(|&machine| world.id(machine).is_some_and(|id| config.members.contains_key(&id)));
        if !(routers && ring && members && self.bank.is_idle(world)) {
            return false;
        }
        // With everything well, one last look at all rows, and everything at rest.
        self.bank.ask_last(world, &self.gateways) && self.is_at_rest(world)
    }

    fn unsettled(&self, world: &World<Node>) -> Option<Violation> {
        if !self.routers.has_majority(world, &believed(world)) {
            return None;
        }
        let config = newest_config(world).unwrap_or(&self.config);
        let lost = |replicas: &[ProcessId]| {
            let complete =
                |id: &ProcessId| world.alive(*id) && config.storage.get(id) == Some(&StorageState::Active);
            !replicas.iter().any(complete)
        };
        if config.segments().iter().any(|segment| lost(&segment.replicas)) {
            // Two suspicions crossed: every replica of a range is gone, and no one can bring its rows back.
            return None;
        }
        let processes: Vec<String> = (0..world.machines())
            .map(|machine| match world.process(machine) {
                Some(Node::Router(router)) => format!(
                    "router {machine}: at {}, {}, leader {:?}",
                    router.position(),
                    router.log().status().role,
                    router.log().leader()
                ),
                Some(Node::Storage(storage)) => format!("storage {machine}: {:?}", storage.status()),
                Some(Node::Super(superior)) => format!(
                    "super {machine}: version {:?}, suspects {:?}",
                    superior.config().map(|config| config.version),
                    superior.suspected().collect::<Vec<_>>()
                ),
                Some(Node::Client(client)) => format!(
                    "gateway {machine}: {} outstanding, {:?} in the order, delivered {}",
                    client.outstanding(),
                    client.member().outstanding(),
                    client.member().delivered()
                ),
                None => format!("machine {machine}: down"),
            })
            .collect();
        let what = format!(
            "{}; the order ends at {}; routers {:?}; ring {:?}; states {:?}; {}",
            self.bank.waits(),
            self.order.end(),
            self.routers.members,
            config.ring,
            config.storage,
            processes.join("; ")
        );
        Some(Violation::new("liveness", what))
    }

    fn judge(&mut self, world: &mut World<Node>) -> Result<(), Violation> {
        judge::replicas_are_equal(world, &self.config, &mut self.engines)?;
        self.bank.judge()
    }
}

impl Town {
    /// Whether every replica has executed all that was ordered for it.
    fn is_at_rest(&self, world: &World<Node>) -> bool {
        let executed = |machine: &usize| match world.process(*machine) {
            Some(Node::Storage(storage)) => {
                let status = storage.status();
                status.queued == 0 && status.executed == status.delivered && !status.importing
            }
            _ => true,
        };
        self.working.is_empty()
            && self.storage.iter().all(executed)
            && self.config.role(Role::Storage).count() >= self.settings.storage
    }
}
