//! The engine on a thread of its own: batches of tasks in, their results to the protocol thread.

use std::{sync::Arc, time::Duration};

use crossbeam_channel::Sender;
use quorate_protocol::rubberband::{StorageCommand, Task};
use quorate_runtime::{
    StartError, clock,
    metrics::{Counter, EncodeLabelSet, Family, Gauge, Metrics},
    worker::Worker,
};
use quorate_table::{
    engine::{Engine, Pinned, Usage},
    host::Host,
};
use quorate_tables::{Command, storage::execute};
use tracing::error;

use super::{End, Shared, withdrawals::Withdrawals};
use crate::crew::Crew;

/// What the engine thread is asked for.
pub(super) enum Job {
    /// To do these, and hand the results to the protocol thread.
    Execute(Vec<Task>, Arc<Withdrawals>),
    /// To tell what its tables take.
    Usage(Sender<Vec<Usage>>),
    /// To give the engine away: the last that is asked.
    Hand(Sender<Box<dyn Engine>>),
}

/// What an engine's thread counts.
pub(super) struct Passes {
    batches: Counter,
    tasks: Counter,
    nanoseconds: Counter,
    withdrawn: Counter,
    panicked: Counter,
    readers: Gauge,
    broken: Counter,
    pinned: Family<Keeper, Gauge>,
}

/// For whom versions are kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Keeper {
    kept_for: &'static str,
}

impl Passes {
    pub(super) fn new(metrics: &Metrics) -> Passes {
        Passes {
            batches: metrics.counter("engine_batches", "Batches of tasks that the engine did"),
            tasks: metrics.counter("engine_tasks", "Tasks in them"),
            nanoseconds: metrics.counter("engine_nanoseconds", "Time that the engine took for them"),
            withdrawn: metrics
                .counter("engine_tasks_withdrawn", "Reads that were given up when the engine had them"),
            panicked: metrics
                .counter("engine_reads_panicked", "Reads that failed because the engine panicked at them"),
            readers: metrics.gauge("engine_readers", "Long results of which a version is kept"),
            broken: metrics
                .counter("engine_readers_broken", "Long results that ended because they kept too much"),
            pinned: metrics.register(
                "engine_pinned_bytes",
                "Overwritten rows that are kept for long results and moves of ranges",
                Family::default(),
            ),
        }
    }

    fn batch(&self, tasks: u64, took: Duration, pinned: Pinned) {
        self.batches.inc();
        self.tasks.inc_by(tasks);
        self.nanoseconds.inc_by(took.as_nanos() as u64);
        self.readers.set(pinned.readers as i64);
        self.broken.inc_by(pinned.broken - self.broken.get());
        let kept = [("readers", pinned.reader_bytes), ("migrations", pinned.migration_bytes)];
        for (kept_for, bytes) in kept {
            self.pinned.get_or_create(&Keeper { kept_for }).set(bytes as i64);
        }
    }
}

/// A storage process has one batch at its engine; the rest is for those who ask what tables take.
const ENGINE_JOBS_MAX: usize = 64;

pub(super) fn start(
    engine: Box<dyn Engine>,
    crew: Crew,
    passes: Passes,
    shared: Arc<Shared>,
    end: Sender<End>,
) -> Result<Worker<Job>, StartError> {
    let mut joined = false;
    let mut held = Some(engine);
    let worker = Worker::start("engine", ENGINE_JOBS_MAX, move |jobs: Vec<Job>| {
        if !std::mem::replace(&mut joined, true) {
            crew.join();
        }
        for job in jobs {
            let Some(engine) = &mut held else { return };
            let (tasks, withdrawals) = match job {
                Job::Execute(tasks, withdrawals) => (tasks, withdrawals),
                Job::Usage(asker) => {
                    // Whoever asked may have lost patience.
                    let _ = asker.try_send(engine.usage());
                    continue;
                }
                Job::Hand(taker) => {
                    // Nobody takes it who has lost patience: then the rows end with this process.
                    let _ = held.take().map(|engine| taker.try_send(engine));
                    return;
                }
            };
            let (began, count) = (clock::now(), tasks.len() as u64);
            let host = EngineHost { crew: &crew, withdrawals: &withdrawals, panicked: &passes.panicked };
            let run = || execute(&mut **engine, tasks, &host);
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            let Ok(results) = ran else {
                let _ = end.try_send(End::Broken(String::from("the engine thread panicked")));
                return;
            };
            passes.batch(count, clock::now().since(began), engine.pinned());
            passes.withdrawn.inc_by(withdrawals.beyond(0).len() as u64);
            // A process that comes back from its disk has its first batch before it is known where results go. A batch comes from a
            // protocol thread that runs, so it will be known in a moment. Refused only when the process is ending.
            let _ = shared.port.wait().command(Command::Storage(StorageCommand::Executed(results)));
        }
    })?;
    Ok(worker)
}

/// What an engine is lent while it does a batch.
struct EngineHost<'a> {
    crew: &'a Crew,
    withdrawals: &'a Withdrawals,
    panicked: &'a Counter,
}

impl Host for EngineHost<'_> {
    fn withdrawn(&self, seen: usize) -> Vec<usize> {
        self.withdrawals.beyond(seen)
    }

    fn panicked(&self) {
        self.panicked.inc();
        error!("the engine panicked at a query: that one fails, and the process goes on");
    }

    fn threads(&self) -> usize {
        self.crew.threads()
    }

    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.crew.each(count, work);
    }
}
