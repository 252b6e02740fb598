//! One setting of the dial after another, each on a fresh map of one store.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use quorate_tune::{Connect, Dials, Load, Tape, Workload};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    bench::spawned::Spawned,
    store::{Doors, Maps, Place},
};

/// A store.
pub(crate) struct Rig {
    store: Box<dyn Maps>,
    /// The processes of its cells, if they were started for this.
    spawned: Option<Spawned>,
    maps: u32,
}

/// The clients' work, apart from the dials.
#[derive(Clone, Debug)]
pub(crate) struct Experiment {
    /// As `QUORATE CREATE` has it.
    pub(crate) copies: String,
    pub(crate) repair: String,
    pub(crate) clients: u64,
    /// Operations a second of all clients together; zero: as many as they can.
    pub(crate) rate: f64,
    pub(crate) span: Duration,
    pub(crate) workload: Workload,
    /// Each cell in turn stands still for so long, and so long passes until the next one does.
    pub(crate) pauses: Option<(Duration, Duration)>,
}

/// The clients' operations.
pub(crate) struct Done {
    /// Writing the keys at first.
    pub(crate) before: Tape,
    pub(crate) tape: Tape,
    pub(crate) took: Duration,
}

impl Rig {
    /// Starts cells. `flags` go to `quorate up`.
    pub(crate) fn start(flags: &[&str]) -> Result<Rig> {
        let spawned = Spawned::start(flags)?;
        let doors = Doors(spawned.redis().map(str::to_owned).collect());
        Ok(Rig { store: Box::new(doors), spawned: Some(spawned), maps: 0 })
    }

    /// Takes a store that runs already.
    pub(crate) fn of(place: &Place) -> Result<Rig> {
        Ok(Rig { store: place.open()?, spawned: None, maps: 0 })
    }

    /// The store's name, and how many nodes it has.
    pub(crate) fn store(&self) -> (&'static str, usize) {
        (self.store.name(), self.store.nodes())
    }

    /// Has clients work on a fresh map.
    pub(crate) fn measure(&mut self, experiment: &Experiment, dials: Dials) -> Result<Done> {
        ensure!(
            experiment.pauses.is_none() || self.spawned.is_some(),
            "only cells that were started for it can pause"
        );
        let Experiment { copies, repair, .. } = experiment;
        self.on_a_map(copies, repair, |rig, connect| rig.work(connect, experiment, dials))
    }

    /// Makes a fresh map, and drops it in the end.
    pub(crate) fn on_a_map<T>(
        &mut self,
        copies: &str,
        repair: &str,
        work: impl FnOnce(&Rig, &Connect<'_>) -> Result<T>,
    ) -> Result<T> {
        self.maps += 1;
        // A store that runs already may have maps of another bench.
        let map = format!("bench_{}_{}", std::process::id(), self.maps);
        self.store.create(&map, copies, repair)?;
        let done = self.store.clients(&map).and_then(|connect| work(self, &*connect));
        let dropped = self.store.drop_map(&map);
        let done = done?;
        dropped.map(|()| done)
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

    /// The rig has done what was wanted: nobody will ask for its logs.
    pub(crate) fn passed(&self) {
        self.spawned.iter().for_each(Spawned::passed);
    }

    /// Stops the cells in turn, as a collector of garbage stops the world, and lets each go on.
    pub(crate) fn pause(&self, pause: Duration, between: Duration, ends: &AtomicBool) {
        let processes = self.spawned.iter().flat_map(Spawned::processes);
        let cells = processes.filter(|it| it.role == quorate_protocol::Role::Cell);
        let cells: Vec<Pid> = cells.filter_map(|cell| Pid::from_raw(cell.pid?.try_into().ok()?)).collect();
        for cell in cells.iter().cycle().take_while(|_| !ends.load(Relaxed)) {
            thread::sleep(between);
            // One that has ended cannot be paused, and its clients tell that it has.
            if kill_process(*cell, Signal::STOP).is_ok() {
                thread::sleep(pause);
                let _ = kill_process(*cell, Signal::CONT);
            }
        }
    }
}
