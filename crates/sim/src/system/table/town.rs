//! Everything around the processes of a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use quorate_protocol::{
    Peer, ProcessId, Time,
    domain::{self, Shared},
    ecast::{Member, Router, RouterSettings},
    rubberband::{Client, Config, Keeps, Remains, Storage, Super},
};
use quorate_table::{engine::Engine, plain::PlainEngine, scan::ScanEngine};
use quorate_tables::{Command, Process};
use quorate_world::Crash;

use super::{
    Settings, Stage, Timer, World,
    bank::Bank,
    citizen::{ask, member, role},
    deadly::Deadly,
    disks::Disks,
    operator::Operator,
    replicas::Replicas,
    storage::DOWN,
    twin::TableTwin,
};
use crate::{
    check::{HoldersCheck, order::Order},
    mutation::Mutation,
    system::Signs,
};

/// Everything around the processes.
pub(crate) struct Town {
    pub(super) settings: Settings,
    pub(super) router_settings: RouterSettings,
    pub(super) storage: Vec<usize>,
    pub(super) supers: Vec<usize>,
    pub(super) gateways: Vec<usize>,
    pub(super) engines: BTreeMap<usize, Box<dyn Engine>>,
    /// Storage machines whose process dies at its next task.
    pub(super) doomed: BTreeSet<usize>,
    pub(super) deadly: Deadly,
    /// Storage machines whose engine works.
    pub(super) working: BTreeSet<usize>,
    /// The newest configuration that a gateway told of.
    pub(super) config: Config,
    pub(super) bank: Bank,
    pub(super) order: Order<TableTwin>,
    pub(super) replicas: Replicas,
    pub(super) holders: HoldersCheck,
    /// Up to which control message the holders are known.
    pub(super) held_at: u64,
    /// What a process that is out leaves to the next life on its machine.
    pub(super) remains: BTreeMap<usize, Box<Remains>>,
    /// Storage processes that keep the rows of a former life.
    pub(super) keepers: BTreeMap<ProcessId, Keeps>,
    pub(super) disks: Disks,
    /// When storage processes were removed.
    pub(super) removed: BTreeMap<ProcessId, Time>,
    /// How many of the keys whose last replica was given up were looked at.
    pub(super) forsaken: usize,
    /// Storage processes by machine, the last one each.
    pub(super) present: BTreeMap<usize, ProcessId>,
    pub(super) operator: Operator,
    pub(super) signs: Signs,
    /// The same of the reads that gateways began anew.
    pub(super) reads: Signs,
    /// How many relayed links each machine's process has begun.
    pub(super) relayed: BTreeMap<usize, u64>,
    /// The longest pause between two bursts of commands, so that they last as long as the faults.
    pub(super) pace: Duration,
}

impl Town {
    /// Adds the machines and sets the first timers.
    pub(super) fn build(stage: &mut Stage, world: &mut World, settings: Settings) -> Self {
        if let Some(disk) = settings.disk {
            world.with_disks(disk, stage.mutation.and_then(Mutation::breach));
        }
        stage.add_routers(world, settings.routers, settings.spares);
        let storage = stage.add_machines(world, settings.storage + settings.standbys);
        world.without_disks();
        let supers = stage.add_machines(world, settings.supers);
        let gateways = stage.add_machines(world, settings.gateways);
        stage.after(world, Duration::from_millis(100), Timer::Act);
        stage.after(world, Duration::from_millis(100), Timer::Watch);
        Town {
            router_settings: settings.routers(),
            storage,
            supers,
            gateways: gateways.clone(),
            engines: BTreeMap::new(),
            doomed: BTreeSet::new(),
            deadly: Deadly::new(stage.seed),
            working: BTreeSet::new(),
            config: Config::founded(settings.terms()),
            bank: Bank::new(&settings, gateways, stage.mutation),
            order: Order::new(TableTwin::new(settings.replicas)),
            replicas: Replicas::default(),
            holders: HoldersCheck::default(),
            held_at: 0,
            remains: BTreeMap::new(),
            keepers: BTreeMap::new(),
            disks: Disks::default(),
            removed: BTreeMap::new(),
            forsaken: 0,
            present: BTreeMap::new(),
            operator: Operator::new(stage.seed, settings.losses, stage.safety()),
            signs: Signs::default(),
            reads: Signs::default(),
            relayed: BTreeMap::new(),
            pace: stage.safety().mul_f64(7.0 / settings.commands as f64),
            settings,
        }
    }

    /// What runs on `machine`.
    pub(super) fn role(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        machine: usize,
        id: ProcessId,
    ) -> Process {
        let me = Peer { id, address: World::address(machine) };
        if let Some(remains) = self.remains.remove(&machine) {
            // Its rows are those of the life before.
            if let Some(former) = self.present.insert(machine, id) {
                self.holders.renamed(former, id);
            }
            self.keepers.insert(id, remains.keeps());
            return Process::Storage(Storage::again(me, format!("storage {machine}"), remains));
        }
        if self.storage.contains(&machine) {
            let recovered = self.comes_back(world, machine, id);
            // The plain engine at some: where it and the one of production differ, replicas do.
            let engine: Box<dyn Engine> = match machine % 3 {
                0 => Box::new(PlainEngine::default()),
                _ => Box::new(ScanEngine::default()),
            };
            self.engines.insert(machine, engine);
            self.working.remove(&machine);
            self.present.insert(machine, id);
            if let Some(storage) = recovered {
                return Process::Storage(storage);
            }
            let settings = self.settings.storage_settings(stage.mutation);
            return Process::Storage(Storage::new(me, format!("storage {machine}"), settings));
        }
        if self.supers.contains(&machine) {
            return Process::Super(Super::new(me, format!("super {machine}"), self.settings.supers()));
        }
        if self.gateways.contains(&machine) {
            return Process::Client(Client::new(me, format!("gateway {machine}"), self.settings.gateways()));
        }
        let paxos = self.log(stage, world, machine, id);
        let tables = Shared::new(Config::founded(self.settings.terms()));
        let config = domain::Config { tables, ..domain::Config::vacant() };
        Process::Router(Router::new(paxos, config, self.router_settings.clone()))
    }

    /// The member that shares its operating-system process with the one on `machine`: a gateway with a storage process.
    pub(super) fn companion(&self, machine: usize) -> Option<usize> {
        let pairs = self.storage.iter().zip(&self.gateways).take(self.settings.together);
        pairs.into_iter().find_map(|(&storage, &gateway)| match machine {
            _ if machine == storage => Some(gateway),
            _ if machine == gateway => Some(storage),
            _ => None,
        })
    }

    /// The process on `machine` was killed, and with it who shares it. Both begin anew.
    pub(super) fn kill_companion(&mut self, world: &mut World, machine: usize, migrating: bool) {
        let Some(other) = self.companion(machine).filter(|&other| world.id(other).is_some()) else { return };
        world.count("storage and gateway died together");
        world.crash(other, Crash::Killed);
        world.restart_after(other, DOWN);
        self.killed(world, other, migrating);
    }

    /// Notes what the member on `machine` did over again.
    pub(super) fn note(
        &mut self,
        world: &mut World,
        machine: usize,
        again: (&'static str, u64),
        starved: bool,
    ) {
        self.signs.note(world, machine, again, starved);
        if let Some(Process::Client(client)) = role(world, machine) {
            let retries = client.retries();
            self.reads.note(world, machine, ("read started anew", retries), false);
        }
    }

    /// Tells those who know only routers of the past where routers run.
    pub(super) fn seed(&self, stage: &Stage, world: &mut World, machine: usize) {
        let led_by = role(world, machine).map(|role| match role {
            Process::Router(router) => router.log().leader(),
            other => member(other).and_then(Member::leader),
        });
        let lost = led_by.is_some_and(|leader| leader.is_none_or(|leader| !world.alive(leader)));
        if lost {
            let seeds = stage.routers.living(world);
            world.command(machine, ask(Command::Seeds(seeds)));
        }
    }
}
