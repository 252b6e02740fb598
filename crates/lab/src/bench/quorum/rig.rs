//! Cells as processes on loopback, and one setting of the dial after another on a fresh map.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use quorate::maps::{Client, Failure, Reply, Store};
use quorate_tune::{Dials, Load, Tape, Workload};
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::spawned::Spawned;

/// A cluster of cells.
pub(super) struct Rig {
    spawned: Spawned,
    doors: Vec<String>,
    maps: u32,
}

/// The clients' work, apart from the dials.
#[derive(Clone, Debug)]
pub(super) struct Experiment {
    /// As `QUORATE CREATE` has it.
    pub(super) copies: String,
    pub(super) repair: String,
    pub(super) clients: u64,
    /// Operations a second of all clients together; zero: as many as they can.
    pub(super) rate: f64,
    pub(super) span: Duration,
    pub(super) workload: Workload,
    /// Each cell in turn stands still for so long, and so long passes until the next one does.
    pub(super) pauses: Option<(Duration, Duration)>,
}

/// The clients' operations.
pub(super) struct Done {
    /// Writing the keys at first.
    pub(super) before: Tape,
    pub(super) tape: Tape,
    pub(super) took: Duration,
}

/// No operation takes longer, and no map takes longer to be known.
const PATIENCE: Duration = Duration::from_secs(10);

impl Rig {
    /// Starts cells. `flags` go to `quorate up`.
    pub(super) fn start(flags: &[&str]) -> Result<Rig> {
        let spawned = Spawned::start(flags)?;
        let doors = spawned.redis().map(str::to_owned).collect();
        Ok(Rig { spawned, doors, maps: 0 })
    }

    /// Has clients work on a fresh map.
    pub(super) fn measure(&mut self, experiment: &Experiment, dials: Dials) -> Result<Done> {
        self.maps += 1;
        let map = format!("bench{}", self.maps);
        let Experiment { copies, repair, .. } = experiment;
        command(&self.doors[0], &["QUORATE", "CREATE", &map, "COPIES", copies, "REPAIR", repair])?;
        self.await_map(&map)?;
        let doors = &self.doors;
        let connect = |number: u64| -> Result<Box<dyn Store>, Failure> {
            let door = &doors[number as usize % doors.len()];
            let client = Client::connect(door, &map, PATIENCE);
            Ok(Box::new(client.map_err(|error| Failure::NotDone(format!("the cell at {door}: {error}")))?))
        };
        let load = Load::new(&connect, experiment.clients, &experiment.workload, dials, experiment.rate);
        let before = load.fill()?;
        let ends = AtomicBool::new(false);
        let (tape, took) = thread::scope(|scope| {
            scope.spawn(|| experiment.pauses.map(|(pause, between)| self.pause(pause, between, &ends)));
            let done = load.run(experiment.span);
            ends.store(true, Relaxed);
            done
        })?;
        command(&self.doors[0], &["QUORATE", "DROP", &map])?;
        Ok(Done { before, tape, took })
    }

    /// The rig has done what was wanted: nobody will ask for its logs.
    pub(super) fn passed(&self) {
        self.spawned.passed();
    }

    fn await_map(&self, map: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for door in &self.doors {
            while let Err(error) = command(door, &["QUORATE", "MAP", map]) {
                ensure!(Instant::now() < deadline, "{door} does not know the map: {error}");
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// Stops the cells in turn, as a collector of garbage stops the world, and lets each go on.
    fn pause(&self, pause: Duration, between: Duration, ends: &AtomicBool) {
        let cells = self.spawned.processes().iter().filter(|it| it.role == quorate_protocol::Role::Cell);
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

fn command(door: &str, words: &[&str]) -> Result<()> {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let mut client =
        Client::connect(door, "main", PATIENCE).with_context(|| format!("the cell at {door}"))?;
    match client.command(&words)? {
        Reply::Error(why) => Err(anyhow!("{why}")),
        _ => Ok(()),
    }
}
