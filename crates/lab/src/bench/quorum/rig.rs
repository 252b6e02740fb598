//! A series of dial settings, each on a fresh map of one store.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use quorate_tune::{Connect, Dials, Load, SettingResults, Tape, Workload};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::{
    bench::spawned::Spawned,
    forwarder,
    store::{CELLS, Doors, Maps, Replication, StoreAddress},
};

/// A store under measurement.
pub(crate) struct Rig {
    store: Box<dyn Maps>,
    /// The cluster of the rig's cells, if the bench started it.
    spawned: Option<Spawned>,
    /// The nodes that the bench can stop and resume.
    nodes: Vec<Pid>,
    maps: u32,
}

/// A running store, given on the command line.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Running {
    /// A running store, instead of cells that the bench starts: `quorate://HOST:PORT[,HOST:PORT…]` or
    /// `cassandra://HOST:PORT[,HOST:PORT…][/KEYSPACE]`.
    #[arg(long)]
    pub store: Option<StoreAddress>,
    /// Process ids of the store's nodes, separated by commas, if they run on this machine and may be stopped
    /// for a while.
    #[arg(long, value_name = "PIDS", value_delimiter = ',', requires = "store")]
    node_pids: Vec<NonZeroU32>,
    /// The door of the forwarder between the store's nodes (`quorate lab forward`), which sets the distances
    /// of the experiment between their sites.
    #[arg(long, value_name = "HOST:PORT", requires = "store")]
    forwarder: Option<String>,
}

impl Running {
    /// Sets the distances between the sites of a running store, if it has a forwarder.
    pub(crate) fn place(&self, distances: &str) -> Result<()> {
        self.forwarder.iter().try_for_each(|door| forwarder::send_distances(door, distances))
    }

    /// Whether the sites can have distances, each with clients at its node; the error gives the reason if
    /// not.
    pub(crate) fn takes_distances(&self) -> Result<(), &'static str> {
        match &self.store {
            None => Ok(()),
            Some(place) if place.name() == CELLS => {
                Err("the distances of running cells can be set only by `quorate up`")
            }
            Some(place) if !place.is_pinned() => {
                Err("clients must be at the sites of their nodes: use cassandra://…?coordinators=pinned")
            }
            Some(_) if self.forwarder.is_none() => {
                Err("a running store between sites needs a forwarder: give --forwarder")
            }
            Some(_) => Ok(()),
        }
    }
}

/// The work of the clients, without the settings of the dials.
#[derive(Clone, Debug)]
pub(crate) struct Experiment {
    pub(crate) replication: Replication,
    pub(crate) clients: u64,
    /// Operations per second of all clients together; zero means no limit.
    pub(crate) rate: f64,
    pub(crate) span: Duration,
    pub(crate) workload: Workload,
    /// The pause of each cell in turn, and the time until the next cell pauses.
    pub(crate) pauses: Option<(Duration, Duration)>,
}

/// The clients' operations.
pub(crate) struct Done {
    /// The first writes of the keys.
    pub(crate) before: Tape,
    pub(crate) tape: Tape,
    pub(crate) took: Duration,
}

impl Rig {
    /// Starts cells. `flags` go to `quorate up`.
    pub(crate) fn start(flags: &[&str]) -> Result<Rig> {
        let spawned = Spawned::start(flags)?;
        let doors = Doors(spawned.redis().map(str::to_owned).collect());
        let cells = spawned.processes().iter().filter(|it| it.role == quorate_protocol::Role::Cell);
        let nodes = cells.filter_map(|cell| Pid::from_raw(cell.pid?.try_into().ok()?)).collect();
        Ok(Rig { store: Box::new(doors), spawned: Some(spawned), nodes, maps: 0 })
    }

    /// Takes the running store, or starts cells if there is none.
    pub(crate) fn of(running: &Running, flags: &[&str]) -> Result<Rig> {
        let Some(place) = &running.store else { return Rig::start(flags) };
        let node = |pid: &NonZeroU32| i32::try_from(pid.get()).ok().and_then(Pid::from_raw);
        let nodes: Option<Vec<Pid>> = running.node_pids.iter().map(node).collect();
        let nodes = nodes.context("--node-pids contains a number that cannot be a process id")?;
        for node in &nodes {
            test_kill_process(*node).with_context(|| {
                format!("cannot send signals to process {} of --node-pids", node.as_raw_nonzero())
            })?;
        }
        Ok(Rig { store: place.open()?, spawned: None, nodes, maps: 0 })
    }

    /// Whether the bench knows nodes that it can stop.
    pub(crate) fn can_pause(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Returns the store's name, and the number of its nodes.
    pub(crate) fn store(&self) -> (&'static str, usize) {
        (self.store.name(), self.store.nodes())
    }

    /// Lets clients work on a fresh map.
    pub(crate) fn measure(&mut self, experiment: &Experiment, dials: Dials) -> Result<Done> {
        ensure!(
            experiment.pauses.is_none() || self.can_pause(),
            "to stop the nodes of a running store for a while, the bench needs their process ids: give \
             --node-pids"
        );
        self.on_a_map(&experiment.replication, |rig, connect| rig.work(connect, experiment, dials))
    }

    /// Creates a fresh map, and drops it at the end.
    pub(crate) fn on_a_map<T>(
        &mut self,
        replication: &Replication,
        work: impl FnOnce(&Rig, &Connect<'_>) -> Result<T>,
    ) -> Result<T> {
        self.maps += 1;
        // A running store may have maps of another bench.
        let map = format!("bench_{}_{}", std::process::id(), self.maps);
        self.store.create(&map, replication)?;
        let done = self.store.clients(&map).and_then(|connect| work(self, &*connect));
        let dropped = self.store.drop_map(&map);
        let done = done?;
        dropped.map(|()| done)
    }

    /// Returns the share of the throughput that recording and checking take. Each turn runs twice: first
    /// clients record nothing; then they record their operations, while the records of the preceding turn
    /// are checked. The result is the median over the turns.
    pub(crate) fn recording_cost(
        &mut self,
        experiment: &Experiment,
        dials: Dials,
        turns: usize,
    ) -> Result<f64> {
        self.on_a_map(&experiment.replication, |_, connect| {
            let load = || Load::new(connect, experiment.clients, &experiment.workload, dials, 0.0);
            let (recorded, unrecorded) = (load(), load().unrecorded());
            let rate = |(tape, took): (&Tape, Duration)| {
                (tape.reads.len() + tape.writes.len()) as f64 / took.as_secs_f64()
            };
            let mut last = recorded.fill()?;
            let mut costs = Vec::new();
            for _ in 0..turns {
                let (tape, took) = unrecorded.run(experiment.span)?;
                let without = rate((&tape, took));
                let (tape, took) = thread::scope(|scope| {
                    scope.spawn(|| {
                        SettingResults::of(Tape::default(), std::mem::take(&mut last), experiment.span)
                    });
                    recorded.run(experiment.span)
                })?;
                costs.push(1.0 - rate((&tape, took)) / without);
                last = tape;
            }
            costs.sort_by(f64::total_cmp);
            Ok(costs[turns / 2])
        })
    }

    fn work(&self, connect: &Connect<'_>, experiment: &Experiment, dials: Dials) -> Result<Done> {
        let load = Load::new(connect, experiment.clients, &experiment.workload, dials, experiment.rate);
        let before = load.fill()?;
        let ends = AtomicBool::new(false);
        let (tape, took) = thread::scope(|scope| {
            scope.spawn(|| experiment.pauses.map(|(pause, between)| self.pause(pause, between, &ends)));
            let done = load.run(experiment.span);
            ends.store(true, Relaxed);
            done
        })?;
        Ok(Done { before, tape, took })
    }

    /// Notes that the measurement succeeded, so the logs are not needed.
    pub(crate) fn succeeded(&self) {
        self.spawned.iter().for_each(Spawned::succeeded);
    }

    /// Stops the nodes in turn, like a garbage collector that stops the world, and resumes each.
    pub(crate) fn pause(&self, pause: Duration, between: Duration, ends: &AtomicBool) {
        for node in self.nodes.iter().cycle().take_while(|_| !ends.load(Relaxed)) {
            thread::sleep(between);
            // A process that has ended cannot be stopped; its clients report its end.
            if kill_process(*node, Signal::STOP).is_ok() {
                thread::sleep(pause);
                let _ = kill_process(*node, Signal::CONT);
            }
        }
    }
}
