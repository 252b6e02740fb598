//! The scan engine on the thread of a worker, with the help of scan threads.

use std::sync::{
    atomic::{AtomicUsize, Ordering},
    mpsc,
};

use quorate::scan_threads::{ScanThreadOptions, ScanThreads};
use quorate_protocol::{
    ecast::Position,
    rubberband::{Range, Task, TaskKind, TaskResult},
};
use quorate_roles::tables::storage::execute;
use quorate_runtime::worker::Worker;
use quorate_table::{
    engine::{Answer, Engine, Epoch, Job},
    expr::{Aggregate, AggregateFunction, Binary, Expr},
    host::Host,
    operation::{Operation, Order, Output, Select},
    scan::ScanEngine,
    schema::{Column, KeyRange, Partition, Schema, TableId},
    value::{Row, Type, Value},
};

const TABLE: TableId = TableId(1);
/// Number of rows: eight blocks.
const ROWS: i32 = 30_000;
const READS: i32 = 300;

fn job(epoch: u64, operation: Operation) -> Job {
    Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false }
}

/// Returns a number below `below`, without an obvious pattern.
fn spread(number: i32, below: i32) -> i32 {
    ((number as u32).wrapping_mul(0x9E37_79B1) >> 8) as i32 % below
}

fn table() -> Vec<Job> {
    let column =
        |name: &str, ty| Column { name: name.to_owned(), ty, modifier: None, not_null: true, default: None };
    let columns = vec![column("k", Type::Int4), column("n", Type::Int4), column("f", Type::Float8)];
    let schema = Schema {
        name: "t".to_owned(),
        columns,
        primary_key: vec![0],
        partition: Partition::Hash { column: 0 },
        constraints: Vec::new(),
    };
    let row = |k: i32| -> Row {
        vec![Value::Int4(k), Value::Int4(spread(k, 1_000)), Value::Float8(f64::from(k) / 7.0)]
    };
    let rows = (0..ROWS).map(row).collect();
    vec![
        job(1, Operation::CreateTable { table: TABLE, schema }),
        job(2, Operation::Insert { table: TABLE, rows, returning: vec![] }),
    ]
}

fn compared(operator: Binary, column: usize, value: i32) -> Expr {
    Expr::binary(operator, Expr::Column(column, Type::Int4), Expr::constant(Value::Int4(value), Type::Int4))
}

/// Returns reads of every kind, each of which scans much of the table, with updates among them.
fn batch() -> Vec<Job> {
    let mut epoch = 2;
    let columns = || vec![Expr::Column(0, Type::Int4), Expr::Column(1, Type::Int4)];
    let rows = |order, limit, distinct| Output::Rows { columns: columns(), order, limit, distinct };
    let sum = |column, ty| Aggregate {
        function: AggregateFunction::Sum,
        argument: Some(Expr::Column(column, ty)),
        distinct: false,
    };
    let read = |number: i32| {
        let (key, limit) = (Expr::Column(1, Type::Int4), Some(1 + number as u64));
        let order = Order { column: 1, descending: true, nulls_first: false };
        let output = match number % 5 {
            0 => rows(vec![], None, false),
            1 => rows(vec![], limit, false),
            2 => rows(vec![order], limit, true),
            3 => Output::Groups { keys: vec![key], aggregates: vec![sum(0, Type::Int4)] },
            _ => Output::Groups { keys: vec![], aggregates: vec![sum(2, Type::Float8)] },
        };
        let low = spread(number, 600);
        let filter = Expr::all(vec![
            compared(Binary::GreaterEqual, 1, low),
            compared(Binary::Less, 1, low + 300 + number % 7),
        ]);
        Operation::Select(Select { table: TABLE, filter: Some(filter), output })
    };
    let mut jobs = Vec::new();
    for number in 0..READS {
        if number % 20 == 10 {
            epoch += 1;
            let assignments = vec![(1, Expr::constant(Value::Int4(spread(number, 1_000)), Type::Int4))];
            let filter = Some(compared(Binary::Equal, 0, spread(number + ROWS, ROWS)));
            jobs.push(job(epoch, Operation::Update { table: TABLE, assignments, filter, returning: vec![] }));
        }
        jobs.push(job(epoch, read(number)));
    }
    jobs
}

/// Scan threads that record the largest number of parts in a pass.
struct Counted {
    scan_threads: ScanThreads,
    parts_max: AtomicUsize,
}

impl Host for Counted {
    fn threads(&self) -> usize {
        self.scan_threads.threads()
    }

    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.parts_max.fetch_max(count, Ordering::Relaxed);
        self.scan_threads.each(count, work);
    }
}

/// Returns the answers with this number of threads, and the largest number of parts in one pass.
fn answered(threads: usize) -> (Vec<Answer>, usize) {
    let scan_threads =
        ScanThreads::start(ScanThreadOptions { threads, ..ScanThreadOptions::default() }).unwrap();
    let (answers, results) = mpsc::channel();
    let mut engine = ScanEngine::default();
    let host = Counted { scan_threads, parts_max: AtomicUsize::new(1) };
    let worker = Worker::start("engine", 16, move |batches: Vec<Vec<Job>>| {
        host.scan_threads.join();
        for jobs in batches {
            let given = engine.apply_keeping(&jobs, &mut |_, _| false, &host);
            answers.send((given, host.parts_max.load(Ordering::Relaxed))).unwrap();
        }
    });
    let worker = worker.unwrap();
    let mut last = None;
    for jobs in [table(), batch()] {
        worker.submit(jobs).unwrap();
        last = Some(results.recv().unwrap());
    }
    last.unwrap()
}

#[test]
fn answers_do_not_depend_on_the_number_of_threads() {
    let (expected, parts) = answered(1);
    assert_eq!(parts, 1);
    assert!(expected.iter().all(|answer| !matches!(answer, Answer::Failed(_))));
    for threads in [2, 3] {
        let (answers, parts) = answered(threads);
        assert_eq!(parts, threads, "it is worth waking them");
        for (number, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
            assert!(answer == expected, "job {number}, {threads} threads");
        }
    }
}

/// Scan threads in which one part of each of the next `panics_left` passes panics.
struct Faulty {
    scan_threads: ScanThreads,
    panics_left: AtomicUsize,
    panicked: AtomicUsize,
}

impl Host for Faulty {
    fn threads(&self) -> usize {
        self.scan_threads.threads()
    }

    fn looks_min(&self) -> usize {
        1
    }

    fn panicked(&self) {
        self.panicked.fetch_add(1, Ordering::Relaxed);
    }

    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        let left =
            self.panics_left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        self.scan_threads.each(count, &|number| {
            assert!(left.is_err() || number + 1 != count, "as the test wants");
            work(number);
        });
    }
}

#[test]
fn a_panic_of_a_scanning_thread_is_the_failure_of_one_read() {
    let task = |job: Job| {
        let operation = postcard::to_stdvec(&job.operation).unwrap().into();
        let (at, ranges) = (Position(job.epoch.0), vec![Range::ALL]);
        let kind = match &job.operation {
            Operation::CreateTable { table, schema } => {
                let definition = postcard::to_stdvec(schema).unwrap().into();
                TaskKind::CreateTable { table: table.0, definition }
            }
            it if it.is_write() => TaskKind::Write { ranges, operation, held: false },
            _ => TaskKind::Read { ranges, operation },
        };
        Task { at, kind }
    };
    let reads: Vec<Task> = batch().into_iter().filter(|job| !job.operation.is_write()).map(task).collect();
    let is_panic = |result: &TaskResult| {
        let TaskResult::Read(pieces) = result else { return false };
        matches!(postcard::from_bytes(&pieces[0]), Ok(Answer::Failed(failure)) if failure.is_panic())
    };
    let threads = ScanThreadOptions { threads: 3, ..ScanThreadOptions::default() };
    let (mut engine, scan_threads) = (ScanEngine::default(), ScanThreads::start(threads).unwrap());
    let host = Faulty { scan_threads, panics_left: AtomicUsize::new(0), panicked: AtomicUsize::new(0) };
    execute(&mut engine, table().into_iter().map(task).collect(), &host);
    let expected = execute(&mut engine, reads.clone(), &host);
    assert!(!expected.iter().any(is_panic));

    // The pass of all reads panics. So do the passes of the first half, the first quarter and so on, down to
    // the first read.
    let halvings = reads.len().ilog2() as usize + 1;
    host.panics_left.store(halvings, Ordering::Relaxed);
    let results = execute(&mut engine, reads.clone(), &host);
    assert_eq!(host.panics_left.load(Ordering::Relaxed), 0);
    assert_eq!(host.panicked.load(Ordering::Relaxed), 1);
    for (number, (result, expected)) in results.iter().zip(&expected).enumerate() {
        assert_eq!(is_panic(result), number == 0, "read {number}");
        assert!(number == 0 || result == expected, "read {number} is answered as ever");
    }
    assert!(execute(&mut engine, reads, &host) == expected, "the engine and its threads go on");
}
