//! Withdrawn reads: the engine drops them in the middle of a pass.

use std::sync::atomic::{AtomicUsize, Ordering};

use quorate_table::{
    engine::{Answer, Engine, Epoch, Job},
    expr::{Binary, Expr},
    host::{Host, SingleThread},
    operation::{Operation, Output, Select},
    scan::ScanEngine,
    schema::{Column, KeyRange, Partition, Schema, TableId},
    value::{Type, Value},
};

use crate::scan::Threads;

const TABLE: TableId = TableId(1);
/// The number of rows: ten blocks of 4,096.
const ROWS: i32 = 40_960;

/// A host that counts the engine's questions, and withdraws some jobs at the `after`th question.
struct Clock {
    asked: AtomicUsize,
    after: usize,
    jobs: Vec<usize>,
}

impl Clock {
    fn new(after: usize, jobs: &[usize]) -> Clock {
        Clock { asked: AtomicUsize::new(0), after, jobs: jobs.to_vec() }
    }

    fn blocks(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Host for Clock {
    fn withdrawn(&self, seen: usize) -> Vec<usize> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        if asked >= self.after { self.jobs[seen.min(self.jobs.len())..].to_vec() } else { Vec::new() }
    }
}

fn job(epoch: u64, operation: Operation) -> Job {
    Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false }
}

fn column(number: usize) -> Expr {
    Expr::Column(number, Type::Int4)
}

fn loaded() -> ScanEngine {
    let column = |name: &str| Column {
        name: name.to_owned(),
        ty: Type::Int4,
        modifier: None,
        not_null: true,
        default: None,
    };
    let partition = Partition::Hash { column: 0 };
    let columns = vec![column("n"), column("m")];
    let schema =
        Schema { name: "t".to_owned(), columns, primary_key: Vec::new(), partition, constraints: Vec::new() };
    let rows = (0..ROWS).map(|n| vec![Value::Int4(n), Value::Int4(n % 100)]).collect();
    let mut engine = ScanEngine::default();
    engine.apply(&[
        job(1, Operation::CreateTable { table: TABLE, schema }),
        job(2, Operation::Insert { table: TABLE, rows, returning: Vec::new() }),
    ]);
    engine
}

fn read(m: i32) -> Job {
    let filter = Expr::binary(Binary::Equal, column(1), Expr::constant(Value::Int4(m), Type::Int4));
    let output = Output::Rows { columns: vec![column(0)], order: Vec::new(), limit: None, distinct: false };
    job(2, Operation::Select(Select { table: TABLE, filter: Some(filter), output }))
}

fn asked(engine: &mut ScanEngine, jobs: &[Job], clock: &Clock) -> Vec<Answer> {
    engine.apply_keeping(jobs, &mut |_, _| false, clock)
}

fn is_given_up(answer: &Answer) -> bool {
    matches!(answer, Answer::Failed(failure) if failure.sqlstate == "57014")
}

#[test]
fn a_pass_ends_when_all_its_reads_are_withdrawn() {
    let mut engine = loaded();
    let whole = Clock::new(usize::MAX, &[]);
    asked(&mut engine, &[read(1)], &whole);
    assert!(whole.blocks() >= 10, "the host is asked once a block");
    // One read alone, and enough reads for a group.
    for queries in [1, 500] {
        let jobs: Vec<Job> = (0..queries).map(|query| read(query % 100)).collect();
        let all: Vec<usize> = (0..jobs.len()).collect();
        let clock = Clock::new(3, &all);
        let answers = asked(&mut engine, &jobs, &clock);
        assert!(answers.iter().all(is_given_up), "{queries} queries");
        assert!(clock.blocks() <= 4, "{queries} queries: {} of {} blocks", clock.blocks(), whole.blocks());
    }
}

#[test]
fn reads_that_are_not_withdrawn_are_answered() {
    let mut engine = loaded();
    let delete = |m: i32| {
        let filter = Expr::binary(Binary::Equal, column(0), Expr::constant(Value::Int4(m), Type::Int4));
        job(3, Operation::Delete { table: TABLE, filter: Some(filter), returning: Vec::new() })
    };
    let later = |m: i32| Job { epoch: Epoch(3), ..read(m) };
    for jobs in [
        vec![read(1), read(2), read(1)],
        // A write between the reads concerns the withdrawn read and others.
        vec![read(5), delete(7), later(7), later(7), later(8)],
        (0..500).map(|query| read(query % 100)).collect(),
    ] {
        let expected = loaded().apply_keeping(&jobs, &mut |_, _| false, &SingleThread);
        let gone = jobs.len() / 2;
        // Of three threads, one or two notice the withdrawal.
        for (threads, after) in [(1, 2), (3, 2), (3, 6)] {
            let clock = Clock::new(after, &[gone]);
            let host = Threads { host: &clock, threads };
            let answers = engine.apply_keeping(&jobs, &mut |_, _| false, &host);
            for (number, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
                match number == gone {
                    true => assert!(is_given_up(answer)),
                    false => assert_eq!(answer, expected),
                }
            }
            engine = loaded();
        }
    }
}
