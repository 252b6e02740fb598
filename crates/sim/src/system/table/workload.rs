//! The workload of a cluster: everything outside its processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use quorate_protocol::{
    Peer, ProcessId, Time,
    domain::{self, Shared},
    ecast::{Member, Router, RouterSettings},
    rubberband::{Client, Config, Handover, KeptRows, Storage, Super},
};
use quorate_roles::tables::{Command, Process};
use quorate_table::{engine::Engine, plain::PlainEngine, scan::ScanEngine};
use quorate_world::Crash;

use super::{
    Settings,
    accounts::AccountWorkload,
    disks::Disks,
    killer_queries::KillerQueries,
    operator::Operator,
    replicas::Replicas,
    table_process::member,
    twin::TableTwin,
    world::{TableStage, TableTimer, TableWorld, ask, role},
};
use crate::{
    check::{HoldersCheck, order::Order},
    mutation::Mutation,
    system::ResendCounters,
};

/// Everything outside the processes of a cluster.
pub(crate) struct TableWorkload {
    pub(super) settings: Settings,
    pub(super) router_settings: RouterSettings,
    pub(super) storage: Vec<usize>,
    pub(super) supers: Vec<usize>,
    pub(super) gateways: Vec<usize>,
    pub(super) engines: BTreeMap<usize, Box<dyn Engine>>,
    /// Storage machines whose process dies at its next task.
    pub(super) doomed: BTreeSet<usize>,
    pub(super) killer_queries: KillerQueries,
    /// Storage machines whose engine has a batch.
    pub(super) working: BTreeSet<usize>,
    /// The newest configuration that a gateway reported.
    pub(super) config: Config,
    pub(super) accounts: AccountWorkload,
    pub(super) order: Order<TableTwin>,
    pub(super) replicas: Replicas,
    pub(super) holders: HoldersCheck,
    /// Number of control messages that the check of holders has seen.
    pub(super) held_at: u64,
    /// The rows that a process which is no longer a member leaves to the next life on its machine.
    pub(super) remains: BTreeMap<usize, Box<Handover>>,
    /// Storage processes that keep the rows of a former life.
    pub(super) keepers: BTreeMap<ProcessId, KeptRows>,
    pub(super) disks: Disks,
    /// The time at which each storage process was removed.
    pub(super) removed: BTreeMap<ProcessId, Time>,
    /// Number of entries of the twin's `forsaken` that were handled.
    pub(super) forsaken: usize,
    /// The last storage process on each machine.
    pub(super) present: BTreeMap<usize, ProcessId>,
    pub(super) operator: Operator,
    pub(super) resend_counters: ResendCounters,
    /// The counters of the reads that gateways restarted.
    pub(super) reads: ResendCounters,
    /// Number of relayed links that each machine's process has begun.
    pub(super) relayed: BTreeMap<usize, u64>,
    /// The longest pause between two bursts of commands, chosen so that commands last as long as the faults.
    pub(super) pace: Duration,
}

impl TableWorkload {
    /// Adds the machines and sets the first timers.
    pub(super) fn build(stage: &mut TableStage, world: &mut TableWorld, settings: Settings) -> Self {
        let settings = settings.of_seed(stage.seed);
        if let Some(disk) = settings.disk {
            world.with_disks(disk, stage.mutation.and_then(Mutation::breach));
        }
        stage.add_routers(world, settings.routers, settings.spares);
        let storage = stage.add_machines(world, settings.storage + settings.standbys);
        world.without_disks();
        let supers = stage.add_machines(world, settings.supers);
        let gateways = stage.add_machines(world, settings.gateways);
        stage.after(world, Duration::from_millis(100), TableTimer::Act);
        stage.after(world, Duration::from_millis(100), TableTimer::Watch);
        TableWorkload {
            router_settings: settings.routers(),
            storage,
            supers,
            gateways: gateways.clone(),
            engines: BTreeMap::new(),
            doomed: BTreeSet::new(),
            killer_queries: KillerQueries::new(stage.seed),
            working: BTreeSet::new(),
            config: Config::founded(settings.terms()),
            accounts: AccountWorkload::new(&settings, gateways, stage.mutation),
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
            resend_counters: ResendCounters::default(),
            reads: ResendCounters::default(),
            relayed: BTreeMap::new(),
            pace: stage.safety().mul_f64(7.0 / settings.commands as f64),
            settings,
        }
    }

    /// Creates the role of a new process on `machine`.
    pub(super) fn role(
        &mut self,
        stage: &mut TableStage,
        world: &mut TableWorld,
        machine: usize,
        id: ProcessId,
    ) -> Process {
        let me = Peer { id, address: TableWorld::address(machine) };
        if let Some(remains) = self.remains.remove(&machine) {
            // The process has the rows of the former life.
            if let Some(former) = self.present.insert(machine, id) {
                self.holders.renamed(former, id);
            }
            self.keepers.insert(id, remains.keeps());
            return Process::Storage(Storage::again(me, format!("storage {machine}"), remains));
        }
        if self.storage.contains(&machine) {
            let recovered = self.comes_back(world, machine, id);
            // A third of the machines runs the plain engine, so that differences between the plain engine and
            // the production engine show as differences between replicas.
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

    /// Returns the machine that shares its operating-system process with `machine`: a gateway's for a storage
    /// process, and the reverse.
    pub(super) fn companion(&self, machine: usize) -> Option<usize> {
        let pairs = self.storage.iter().zip(&self.gateways).take(self.settings.together);
        pairs.into_iter().find_map(|(&storage, &gateway)| match machine {
            _ if machine == storage => Some(gateway),
            _ if machine == gateway => Some(storage),
            _ => None,
        })
    }

    /// Kills the process that shares its operating-system process with `machine`, which was killed. Both
    /// start again.
    pub(super) fn kill_companion(&mut self, world: &mut TableWorld, machine: usize, migrating: bool) {
        let Some(other) = self.companion(machine).filter(|&other| world.id(other).is_some()) else { return };
        world.count("storage and gateway died together");
        world.crash(other, Crash::Killed);
        world.restart_after(other, DOWN);
        self.killed(world, other, migrating);
    }

    /// Notes the repetitions of the member on `machine`.
    pub(super) fn note(
        &mut self,
        world: &mut TableWorld,
        machine: usize,
        again: (&'static str, u64),
        starved: bool,
    ) {
        self.resend_counters.note(world, machine, again, starved);
        if let Some(Process::Client(client)) = role(world, machine) {
            let retries = client.retries();
            self.reads.note(world, machine, ("read started anew", retries), false);
        }
    }

    /// Gives the addresses of routers to processes that know only former routers.
    pub(super) fn seed(&self, stage: &TableStage, world: &mut TableWorld, machine: usize) {
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

/// Time for which a process that died at a task is down.
pub(super) const DOWN: Duration = Duration::from_millis(20);
