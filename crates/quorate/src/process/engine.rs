//! The engine: it takes batches of tasks, and passes results to the protocol thread.
//!
//! The engine has a thread of its own, because a pass over many rows takes long. But a read or a write of one
//! key takes a few microseconds, and waking the engine's thread and then the protocol thread takes ten times
//! as long. So the protocol thread itself executes a short batch if the engine is idle: a few short tasks,
//! each at one point of the ring with few rows. The protocol thread never waits for the engine.
//!
//! **The meter.** Some work of a batch depends on the whole table, for example the merge of a tail. So the
//! engine measures the time of each short batch, on either thread. A long batch adds to an account, the more
//! the longer it took, and a short batch subtracts from it. While the account is full, all batches go to the
//! engine's thread. One batch of 64 ms fills the account. The few milliseconds for which the system may
//! suspend a thread do not.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    time::Duration,
};

use crossbeam_channel::{Sender, bounded};
use quorate_protocol::rubberband::{Handover, StorageCommand, Task, TaskKind, TaskResult};
use quorate_roles::tables::{Command, gateway, storage::execute};
use quorate_runtime::{
    StartError, clock,
    metrics::{Counter, EncodeLabelSet, Family, Gauge, Metrics},
    worker::Worker,
};
use quorate_table::{
    engine::{Engine, Pinned, Usage},
    host::Host,
    operation::Operation,
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
    /// Reports the memory of the engine's tables.
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

/// The label of a metric: the purpose for which the engine keeps versions.
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

/// Upper bound of the waiting jobs. A storage process has one batch at its engine at a time. The further
/// places are for requests for the memory of its tables.
const ENGINE_JOBS_MAX: usize = 64;

/// The engine of a storage process, with its thread.
struct EngineThread {
    worker: Worker<Job>,
    shared: Arc<EngineShared>,
    /// The withdrawals of the last batch.
    withdrawals: Mutex<Arc<Withdrawals>>,
}

/// The parts that the protocol thread and the engine's thread share.
struct EngineShared {
    /// The engine, locked by the thread that uses it.
    state: Mutex<EngineState>,
    scan_threads: ScanThreads,
    passes: Passes,
    end: EndReporter,
}

struct EngineState {
    /// `None` once the engine was given away, or has panicked.
    engine: Option<Box<dyn Engine>>,
    meter: BatchMeter,
}

/// Returns a function that starts an executor with this engine, and with these threads to scan the engine's
/// rows.
pub(crate) fn on_engine(engine: Box<dyn Engine>, scan_thread_options: ScanThreadOptions) -> StartExecutor {
    Box::new(move |metrics, process, end| {
        let shared = Arc::new(EngineShared {
            state: Mutex::new(EngineState { engine: Some(engine), meter: BatchMeter::default() }),
            scan_threads: ScanThreads::start(scan_thread_options)?,
            passes: Passes::new(metrics),
            end,
        });
        let worker = start(shared.clone(), process)?;
        Ok(Arc::new(EngineThread { worker, shared, withdrawals: Mutex::default() }))
    })
}

impl TaskExecutor for EngineThread {
    fn execute(&self, tasks: Vec<Task>) -> Result<Option<Vec<TaskResult>>, ExecutorEnded> {
        let withdrawals = Arc::<Withdrawals>::default();
        *lock(&self.withdrawals) = withdrawals.clone();
        if is_short(&tasks) {
            let state = match self.shared.state.try_lock() {
                Ok(state) => Some(state),
                Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
                // The engine's thread holds the lock, because it answers a request for the memory of the
                // tables. So the tasks go to that thread.
                Err(TryLockError::WouldBlock) => None,
            };
            let is_ready = |state: &MutexGuard<'_, EngineState>| {
                let engine = state.engine.as_deref();
                !state.meter.is_full() && engine.is_some_and(|engine| looks_at_few_rows(engine, &tasks))
            };
            if let Some(mut state) = state.filter(is_ready) {
                return self.shared.run(&mut state, tasks, &withdrawals).map(Some).ok_or(ExecutorEnded);
            }
        }
        let queued = self.worker.submit(Job::Execute(tasks, withdrawals));
        queued.map(|()| None).map_err(|_| ExecutorEnded)
    }

    fn withdraw(&self, task: usize) {
        lock(&self.withdrawals).add(task);
    }
}

impl EngineShared {
    /// Executes a batch. Returns `None` if the engine is gone, or has panicked.
    fn run(
        &self,
        state: &mut EngineState,
        tasks: Vec<Task>,
        withdrawals: &Withdrawals,
    ) -> Option<Vec<TaskResult>> {
        let engine = state.engine.as_mut()?;
        let (began, count, short) = (clock::now(), tasks.len() as u64, is_short(&tasks));
        let host =
            EngineHost { scan_threads: &self.scan_threads, withdrawals, panicked: &self.passes.panicked };
        let run = || execute(&mut **engine, tasks, &host);
        let Ok(results) = catch_unwind(AssertUnwindSafe(run)) else {
            state.engine = None;
            self.end.report(End::Broken(String::from("the engine panicked")));
            return None;
        };
        let took = clock::now().since(began);
        if short {
            state.meter.count(took);
        }
        self.passes.batch(count, took, engine.pinned());
        self.passes.withdrawn.inc_by(withdrawals.beyond(0).len() as u64);
        Some(results)
    }
}

/// Whether the tasks are few, and each is short and at one point of the ring.
fn is_short(tasks: &[Task]) -> bool {
    tasks.len() <= SHORT_TASKS_MAX && tasks.iter().all(|task| point_of(task).is_some())
}

/// Returns the ring key and the operation of a task, if the task is short and at one point of the ring.
fn point_of(task: &Task) -> Option<(u64, &[u8])> {
    let (TaskKind::Read { ranges, operation } | TaskKind::Write { ranges, operation, .. }) = &task.kind
    else {
        return None;
    };
    match ranges[..] {
        [range] if range.span() == 0 && operation.len() <= SHORT_OPERATION_BYTES_MAX => {
            Some((range.low, operation))
        }
        _ => None,
    }
}

/// Whether the tasks, each at one point of the ring, look at few rows.
fn looks_at_few_rows(engine: &dyn Engine, tasks: &[Task]) -> bool {
    let is_few = |key: u64, operation: &Operation| {
        engine.rows_at(operation.table(), key, SHORT_ROWS_MAX + 1) <= SHORT_ROWS_MAX
    };
    tasks.iter().filter_map(point_of).all(|(key, operation)| match gateway::operation(operation) {
        Some(Operation::Transaction(transaction)) => {
            transaction.statements().all(|statement| is_few(key, &statement.operation))
        }
        Some(Operation::Trial(trial)) => {
            trial.statements().all(|statement| is_few(key, &statement.operation))
        }
        Some(operation) => is_few(key, &operation),
        None => true,
    })
}

/// An account of the batches that took long.
#[derive(Debug, Default)]
struct BatchMeter {
    account: u32,
}

impl BatchMeter {
    /// Counts the time of a short batch.
    fn count(&mut self, took: Duration) {
        if took > SHORT_BATCH_MAX {
            let more = 1 + took.as_millis();
            let account = self.account.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
            self.account = account.min(2 * ACCOUNT_MAX);
        } else {
            self.account = self.account.saturating_sub(1);
        }
    }

    fn is_full(&self) -> bool {
        self.account >= ACCOUNT_MAX
    }
}

/// Maximum number of tasks that the protocol thread executes in one batch.
const SHORT_TASKS_MAX: usize = 8;
/// Maximum size of an operation that the protocol thread executes, in bytes.
const SHORT_OPERATION_BYTES_MAX: usize = 4 << 10;
/// Maximum number of rows that a table may have at a task's point of the ring if the protocol thread is to
/// execute the task. Otherwise the engine's thread executes it.
const SHORT_ROWS_MAX: usize = 64;
/// Upper bound of the time of a short batch.
const SHORT_BATCH_MAX: Duration = Duration::from_micros(400);
const ACCOUNT_MAX: u32 = 64;

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

    /// Takes the state that an excluded storage process leaves to its next life, and its engine. The next
    /// life keeps the rows. Only the first call returns the state.
    pub(crate) fn take_handover(&self, patience: Duration) -> Option<(Box<Handover>, Box<dyn Engine>)> {
        let remains = lock(&self.shared.remains).take()?;
        let (sender, receiver) = bounded(1);
        self.engine()?.worker.submit(Job::Hand(sender)).ok()?;
        Some((remains, receiver.recv_timeout(patience).ok()?))
    }
}

fn start(shared: Arc<EngineShared>, process: Arc<ProcessShared>) -> Result<Worker<Job>, StartError> {
    let mut joined = false;
    let worker = Worker::start("engine", ENGINE_JOBS_MAX, move |jobs: Vec<Job>| {
        if !std::mem::replace(&mut joined, true) {
            shared.scan_threads.join();
        }
        for job in jobs {
            let mut state = lock(&shared.state);
            if state.engine.is_none() {
                return;
            }
            let (tasks, withdrawals) = match job {
                Job::Execute(tasks, withdrawals) => (tasks, withdrawals),
                Job::Usage(asker) => {
                    // The asker may have stopped waiting.
                    let _ = state.engine.as_mut().map(|engine| asker.try_send(engine.usage()));
                    continue;
                }
                Job::Hand(taker) => {
                    // If the receiver has stopped waiting, the rows end with this process.
                    let _ = state.engine.take().map(|engine| taker.try_send(engine));
                    return;
                }
            };
            let Some(results) = shared.run(&mut state, tasks, &withdrawals) else { return };
            // The protocol thread may use the engine as soon as it has the results.
            drop(state);
            // A process that comes back from its disk gets its first batch before its port is set. The batch
            // comes from a running protocol thread, so the port is set within a moment. The command is
            // refused only if the process is ending.
            let _ = process.port.wait().command(Command::Storage(StorageCommand::Executed(results)));
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use quorate_protocol::{ecast::Position, rubberband::Range};
    use quorate_table::{
        engine::{Epoch, Job},
        operation::{Compared, Step, TableTransaction, TransactionStatement},
        plain::PlainEngine,
        schema::{Column, KeyRange, Partition, Schema, TableId},
        value::{Type, Value},
    };

    use super::*;

    fn read(low: u64, high: u64) -> Task {
        let kind = TaskKind::Read { ranges: vec![Range { low, high }], operation: Bytes::new() };
        Task { at: Position(1), kind }
    }

    #[test]
    fn only_a_few_tasks_at_points_are_short() {
        assert!(is_short(&[read(3, 3)]));
        assert!(is_short(&(0..8).map(|key| read(key, key)).collect::<Vec<_>>()));
        assert!(!is_short(&(0..9).map(|key| read(key, key)).collect::<Vec<_>>()));
        assert!(!is_short(&[read(3, 3), read(3, 4)]));
        assert!(!is_short(&[Task { at: Position(1), kind: TaskKind::Pin }]));
        let kind = TaskKind::Read {
            ranges: vec![Range { low: 3, high: 3 }],
            operation: vec![0; SHORT_OPERATION_BYTES_MAX + 1].into(),
        };
        assert!(!is_short(&[Task { at: Position(1), kind }]));
    }

    #[test]
    fn a_point_with_many_rows_is_left_to_the_thread_of_the_engine() {
        let mut engine = PlainEngine::default();
        let column = |name: &str| Column {
            name: name.to_owned(),
            ty: Type::Int8,
            modifier: None,
            not_null: false,
            default: None,
        };
        let partition = Partition::Hash { column: 0 };
        let columns = vec![column("tenant"), column("number")];
        let schema = Schema {
            name: String::from("t"),
            columns,
            primary_key: vec![0, 1],
            partition,
            constraints: Vec::new(),
        };
        let key = schema.partition.key_of(&Value::Int8(7));
        let rows = |count: i64| (0..count).map(|number| vec![Value::Int8(7), Value::Int8(number)]).collect();
        let job = |epoch, operation| Job {
            epoch: Epoch(epoch),
            ranges: vec![KeyRange::ALL],
            operation,
            held: false,
        };
        let insert = |rows| Operation::Insert { table: TableId(1), rows, returning: Vec::new() };
        engine.apply(&[
            job(1, Operation::CreateTable { table: TableId(1), schema }),
            job(2, insert(rows(SHORT_ROWS_MAX as i64))),
        ]);
        let delete = Operation::Delete { table: TableId(1), filter: None, returning: Vec::new() };
        let bytes = |operation: &Operation| postcard::to_stdvec(operation).expect("it can be encoded").into();
        let write = |operation: &Operation| {
            let ranges = vec![Range { low: key, high: key }];
            let kind = TaskKind::Write { ranges, operation: bytes(operation), held: false };
            Task { at: Position(3), kind }
        };
        let statement =
            TransactionStatement { operation: delete.clone(), compared: Compared::All, received: Vec::new() };
        let transaction = TableTransaction { key: 1, steps: vec![Step::Execute(statement)] };
        let tasks = [write(&delete), write(&Operation::Transaction(transaction))];
        assert!(is_short(&tasks) && looks_at_few_rows(&engine, &tasks));
        engine.apply(&[job(3, insert(vec![vec![Value::Int8(7), Value::Int8(-1)]]))]);
        tasks.into_iter().for_each(|task| assert!(!looks_at_few_rows(&engine, &[task])));
    }

    #[test]
    fn long_batches_go_to_the_thread_of_the_engine_until_batches_are_short_again() {
        let mut meter = BatchMeter::default();
        let [short, suspended, long] = [20, 3000, 70_000].map(Duration::from_micros);
        for batch in 0..10_000 {
            meter.count(if batch % 10 == 0 { suspended } else { short });
            assert!(!meter.is_full(), "the system suspends the thread now and then");
        }
        meter.count(long);
        assert!(meter.is_full());
        let until_short = (0..).take_while(|_| {
            meter.count(short);
            meter.is_full()
        });
        assert!(until_short.count() < 10);
        (0..100).for_each(|_| meter.count(long));
        assert!((0..1000).any(|_| {
            meter.count(short);
            !meter.is_full()
        }));
    }
}
