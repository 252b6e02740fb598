//! The engine on its own thread: batches of tasks in, results to the protocol thread.

use std::{
    any::Any,
    sync::{Arc, Mutex},
    time::Duration,
};

use crossbeam_channel::{Sender, bounded};
use quorate_protocol::rubberband::{Handover, StorageCommand, Task};
use quorate_roles::tables::{Command, storage::execute};
use quorate_runtime::{
    StartError, clock,
    metrics::{Counter, EncodeLabelSet, Family, Gauge, Metrics},
    worker::Worker,
};
use quorate_table::{
    engine::{Engine, Pinned, Usage},
    host::Host,
};
use tracing::error;

use super::{
    Process, ProcessShared,
    executor::{ExecutorEnded, StartExecutor, TaskExecutor},
    withdrawals::Withdrawals,
};
use crate::{
    end::{End, EndReporter},
    lock::lock,
    scan_threads::{ScanThreadOptions, ScanThreads},
};

/// A job of the engine thread.
enum Job {
    /// Executes tasks, and passes the results to the protocol thread.
    Execute(Vec<Task>, Arc<Withdrawals>),
    /// Reports the memory of its tables.
    Usage(Sender<Vec<Usage>>),
    /// Gives the engine to the receiver of this channel. This is the last job.
    Hand(Sender<Box<dyn Engine>>),
}

/// The counters of an engine's thread.
struct Passes {
    batches: Counter,
    tasks: Counter,
    nanoseconds: Counter,
    withdrawn: Counter,
    panicked: Counter,
    readers: Gauge,
    broken: Counter,
    pinned: Family<Keeper, Gauge>,
}

/// The label of a metric: the purpose for which versions are kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Keeper {
    kept_for: &'static str,
}

impl Passes {
    fn new(metrics: &Metrics) -> Passes {
        Passes {
            batches: metrics.counter("engine_batches", "Batches of tasks that the engine executed"),
            tasks: metrics.counter("engine_tasks", "Tasks in the batches that the engine executed"),
            nanoseconds: metrics
                .counter("engine_nanoseconds", "Time that the engine took for its batches, in ns"),
            withdrawn: metrics
                .counter("engine_tasks_withdrawn", "Reads that were given up while the engine had them"),
            panicked: metrics
                .counter("engine_reads_panicked", "Reads that failed because the engine panicked"),
            readers: metrics.gauge("engine_readers", "Long results for which an old version of rows is kept"),
            broken: metrics.counter(
                "engine_readers_broken",
                "Long results that were ended because they kept too many old rows",
            ),
            pinned: metrics.register(
                "engine_pinned_bytes",
                "Bytes of overwritten rows that are kept for long results and moves of ranges",
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

/// Upper bound of the waiting jobs. A storage process has one batch at its engine; all further room is for
/// requests for the tables' memory.
const ENGINE_JOBS_MAX: usize = 64;

/// The engine of a storage process, on its thread.
struct EngineThread {
    worker: Worker<Job>,
    /// The withdrawals of the last batch.
    withdrawals: Mutex<Arc<Withdrawals>>,
}

/// Returns the start of an executor that has this engine, and these threads to scan its rows.
pub(crate) fn on_engine(engine: Box<dyn Engine>, scan_thread_options: ScanThreadOptions) -> StartExecutor {
    Box::new(move |metrics, shared, end| {
        let scan_threads = ScanThreads::start(scan_thread_options)?;
        let worker = start(engine, scan_threads, Passes::new(metrics), shared, end)?;
        Ok(Arc::new(EngineThread { worker, withdrawals: Mutex::default() }))
    })
}

impl TaskExecutor for EngineThread {
    fn execute(&self, tasks: Vec<Task>) -> Result<(), ExecutorEnded> {
        let withdrawals = Arc::<Withdrawals>::default();
        *lock(&self.withdrawals) = withdrawals.clone();
        self.worker.submit(Job::Execute(tasks, withdrawals)).map_err(|_| ExecutorEnded)
    }

    fn withdraw(&self, task: usize) {
        lock(&self.withdrawals).add(task);
    }
}

impl Process {
    fn engine(&self) -> Option<&EngineThread> {
        let executor: &dyn Any = &**self.executor.as_ref()?;
        executor.downcast_ref()
    }

    /// Returns the memory of a storage process's tables. `None` if its engine does not answer within
    /// `patience`, or there is none.
    pub fn usage(&self, patience: Duration) -> Option<Vec<Usage>> {
        let (sender, receiver) = bounded(1);
        self.engine()?.worker.submit(Job::Usage(sender)).ok()?;
        receiver.recv_timeout(patience).ok()
    }

    /// Takes the state that a storage process leaves to its next life after its exclusion, and its engine.
    /// The next life keeps the rows. Returns this state only once.
    pub(crate) fn take_remains(&self, patience: Duration) -> Option<(Box<Handover>, Box<dyn Engine>)> {
        let remains = lock(&self.shared.remains).take()?;
        let (sender, receiver) = bounded(1);
        self.engine()?.worker.submit(Job::Hand(sender)).ok()?;
        Some((remains, receiver.recv_timeout(patience).ok()?))
    }
}

fn start(
    engine: Box<dyn Engine>,
    scan_threads: ScanThreads,
    passes: Passes,
    shared: Arc<ProcessShared>,
    end: EndReporter,
) -> Result<Worker<Job>, StartError> {
    let mut joined = false;
    let mut held = Some(engine);
    let worker = Worker::start("engine", ENGINE_JOBS_MAX, move |jobs: Vec<Job>| {
        if !std::mem::replace(&mut joined, true) {
            scan_threads.join();
        }
        for job in jobs {
            let Some(engine) = &mut held else { return };
            let (tasks, withdrawals) = match job {
                Job::Execute(tasks, withdrawals) => (tasks, withdrawals),
                Job::Usage(asker) => {
                    // The asker may have lost patience.
                    let _ = asker.try_send(engine.usage());
                    continue;
                }
                Job::Hand(taker) => {
                    // If the taker has lost patience, the rows end with this process.
                    let _ = held.take().map(|engine| taker.try_send(engine));
                    return;
                }
            };
            let (began, count) = (clock::now(), tasks.len() as u64);
            let host = EngineHost {
                scan_threads: &scan_threads,
                withdrawals: &withdrawals,
                panicked: &passes.panicked,
            };
            let run = || execute(&mut **engine, tasks, &host);
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            let Ok(results) = ran else {
                end.report(End::Broken(String::from("the engine thread panicked")));
                return;
            };
            passes.batch(count, clock::now().since(began), engine.pinned());
            passes.withdrawn.inc_by(withdrawals.beyond(0).len() as u64);
            // A process that comes back from its disk has its first batch before the port is set. That batch
            // comes from a running protocol thread, so the port will be set within a moment. The command is
            // refused only if the process is ending.
            let _ = shared.port.wait().command(Command::Storage(StorageCommand::Executed(results)));
        }
    })?;
    Ok(worker)
}

/// The parts of the process that an engine uses while it executes a batch.
struct EngineHost<'a> {
    scan_threads: &'a ScanThreads,
    withdrawals: &'a Withdrawals,
    panicked: &'a Counter,
}

impl Host for EngineHost<'_> {
    fn withdrawn(&self, seen: usize) -> Vec<usize> {
        self.withdrawals.beyond(seen)
    }

    fn panicked(&self) {
        self.panicked.inc();
        error!("the engine panicked at a query: the query fails, and the process goes on");
    }

    fn threads(&self) -> usize {
        self.scan_threads.threads()
    }

    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.scan_threads.each(count, work);
    }
}
