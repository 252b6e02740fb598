//! The memory that one read may gather and that one statement may return.

use quorate_table::{
    engine::{Answer, Bounds, Engine, Epoch, Holder, Job},
    expr::{Aggregate, AggregateFunction, Binary, Expr},
    host::SingleThread,
    operation::{Operation, Order, Output, Select},
    plain::PlainEngine,
    scan::ScanEngine,
    schema::{Column, KeyRange, Partition, Schema, TableId},
    value::{Row, Type, Value},
};

use crate::scan::Threads;

const TABLE: TableId = TableId(1);
const ROWS: i32 = 20_000;

fn job(epoch: u64, operation: Operation) -> Job {
    Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false }
}

fn number() -> Expr {
    Expr::Column(0, Type::Int4)
}

fn text() -> Expr {
    Expr::Column(1, Type::Text)
}

fn loaded<E: Engine>(mut engine: E, rows: Vec<Row>) -> E {
    let column =
        |name: &str, ty| Column { name: name.to_owned(), ty, modifier: None, not_null: true, default: None };
    let partition = Partition::Hash { column: 0 };
    let columns = vec![column("n", Type::Int4), column("t", Type::Text)];
    let schema =
        Schema { name: "t".to_owned(), columns, primary_key: Vec::new(), partition, constraints: Vec::new() };
    let answers = engine.apply(&[
        job(1, Operation::CreateTable { table: TABLE, schema }),
        job(2, Operation::Insert { table: TABLE, rows, returning: Vec::new() }),
    ]);
    assert!(matches!(answers[1], Answer::Written(_)));
    engine
}

fn rows(limit: Option<u64>, ordered: bool, distinct: bool) -> Output {
    let order = Order { column: 0, descending: true, nulls_first: false };
    Output::Rows {
        columns: vec![number(), text()],
        order: if ordered { vec![order] } else { vec![] },
        limit,
        distinct,
    }
}

fn read(output: Output) -> Job {
    job(2, Operation::Select(Select { table: TABLE, filter: None, output }))
}

fn a_read_gathers_no_more_than_it_may<E: Engine>(make: impl Fn(Bounds) -> E) {
    let all = || (0..ROWS).map(|n| vec![Value::Int4(n), Value::text_of(format!("{n:050}"))]).collect();
    // A tenth of the rows is well within the bound; all rows exceed it.
    let bounds = Bounds { result_bytes_max: 1 << 20, ..Bounds::default() };
    let mut engine = loaded(make(bounds), all());
    let mut large = loaded(make(Bounds { result_bytes_max: u64::MAX, ..bounds }), all());
    let count = |distinct| Aggregate { function: AggregateFunction::Count, argument: Some(text()), distinct };
    let groups = |keys, distinct| Output::Groups { keys, aggregates: vec![count(distinct)] };

    let too_much = [
        rows(None, true, false),
        rows(None, false, true),
        rows(None, false, false),
        rows(Some(15_000), true, false),
        rows(Some(15_000), true, true),
        groups(vec![number()], false),
        groups(vec![], true),
    ];
    for output in too_much {
        let jobs = [read(output.clone()), read(rows(Some(10), true, false))];
        let answers = engine.apply(&jobs);
        let Answer::Failed(failure) = &answers[0] else { panic!("{output:?} is answered") };
        assert!(failure.is_too_much());
        assert_eq!(failure.sqlstate, "53200");
        let expected = large.apply(&jobs);
        assert!(matches!(expected[0], Answer::Rows(_) | Answer::Groups(_)), "{:?}", expected[0]);
        assert_eq!(answers[1], expected[1], "the others of its batch are answered");
    }
    let enough = [
        rows(Some(2_000), true, false),
        rows(Some(2_000), true, true),
        rows(Some(2_000), false, true),
        rows(Some(2_000), false, false),
        groups(vec![], false),
    ];
    for output in enough {
        let jobs = [read(output)];
        assert_eq!(engine.apply(&jobs), large.apply(&jobs));
    }
}

/// Failures on which replicas must agree do not depend on settings.
fn a_statement_returns_no_more_than_fits<E: Engine>(make: impl Fn(Bounds) -> E) {
    let long = "x".repeat(100_000);
    let few = (0..400).map(|n| vec![Value::Int4(n), Value::text_of(&*long)]).collect();
    let mut engine = loaded(make(Bounds { result_bytes_max: 1, ..Bounds::default() }), few);
    let delete = |epoch, returning| job(epoch, Operation::Delete { table: TABLE, filter: None, returning });
    let answers = engine.apply(&[delete(3, vec![text()])]);
    assert!(matches!(&answers[0], Answer::Failed(failure) if failure.sqlstate == "54000"));
    let answers = engine.apply(&[delete(4, vec![number()])]);
    let Answer::Written(written) = &answers[0] else { panic!("{answers:?}") };
    assert_eq!((written[0].rows, written[0].returning.len()), (400, 400), "nothing had been deleted");
}

#[test]
fn the_results_of_a_read_and_of_a_statement_are_bounded() {
    a_read_gathers_no_more_than_it_may(PlainEngine::new);
    a_read_gathers_no_more_than_it_may(ScanEngine::new);
    a_statement_returns_no_more_than_fits(PlainEngine::new);
    a_statement_returns_no_more_than_fits(ScanEngine::new);
}

fn reads_that_come_together_share<E: Engine>(make: impl Fn(Bounds) -> E) {
    let all = || (0..ROWS).map(|n| vec![Value::Int4(n), Value::text_of(format!("{n:050}"))]).collect();
    let bounds = Bounds { result_bytes_max: 12 << 20, batch_bytes_max: 12 << 20, ..Bounds::default() };
    let mut engine = loaded(make(bounds), all());
    let mut large = loaded(make(Bounds { batch_bytes_max: u64::MAX, ..bounds }), all());
    let max = AggregateFunction::Max;
    let groups = Output::Groups {
        keys: vec![number()],
        aggregates: vec![Aggregate { function: max, argument: Some(text()), distinct: false }],
    };
    for output in [rows(None, true, false), rows(None, false, true), rows(None, false, false), groups] {
        let mut jobs = vec![read(output.clone()); 20];
        jobs.extend(vec![read(rows(Some(10), true, false)); 20]);
        let (mut together, mut kept) = (0, 0);
        let answers = engine.apply_keeping(
            &jobs,
            &mut |_, answer| {
                let crowded = matches!(answer, Answer::Failed(failure) if failure.is_crowded());
                kept += usize::from(crowded);
                crowded
            },
            &SingleThread,
        );
        let expected = large.apply(&jobs);
        for (answer, expected) in answers.iter().zip(&expected) {
            match answer {
                Answer::Failed(failure) => assert!(failure.is_crowded(), "{failure:?}"),
                answer => {
                    assert_eq!(answer, expected);
                    together += 1;
                }
            }
        }
        assert!((21..30).contains(&together), "{together} of 40 are answered, of {output:?}");
        assert_eq!(kept + together, 40);
        // Alone, the read is answered from the version that it named, in spite of later writes.
        let delete = Operation::Delete { table: TABLE, filter: None, returning: Vec::new() };
        engine.apply(&[job(3, delete)]);
        assert_eq!(engine.apply(&jobs[..1]), expected[..1]);
        (0..kept).for_each(|_| engine.release(Epoch(2), Holder::Reader));
        assert_eq!(engine.pinned().readers, 0);
        engine = loaded(make(bounds), all());
    }
}

#[test]
fn the_results_of_a_batch_are_bounded() {
    reads_that_come_together_share(PlainEngine::new);
    reads_that_come_together_share(ScanEngine::new);
}

/// A read exceeds its segments' shares of the bound, but not the bound itself, and an earlier write of its
/// batch concerns the read.
#[test]
fn a_read_within_the_bound_sees_the_earlier_write_of_its_batch() {
    let all = || (0..ROWS).map(|n| vec![Value::Int4(n), Value::text_of(format!("{n:050}"))]).collect();
    let expr = |value: Value, ty| Expr::Constant(value, ty);
    let filter = Expr::binary(Binary::Less, number(), expr(Value::Int4(20), Type::Int4));
    let update = Operation::Update {
        table: TABLE,
        assignments: vec![(1, expr(Value::text_of("short"), Type::Text))],
        filter: Some(filter),
        returning: vec![],
    };
    let mut read = read(rows(None, false, false));
    read.epoch = Epoch(3);
    let jobs = [job(3, update), read];
    let ask = |result_bytes_max, threads| {
        let bounds = Bounds { result_bytes_max, ..Bounds::default() };
        let mut engine = loaded(ScanEngine::new(bounds), all());
        engine.apply_keeping(&jobs, &mut |_, _| false, &Threads { host: &SingleThread, threads }).remove(1)
    };
    let mut most = 500_000;
    let expected = loop {
        match ask(most, 1) {
            Answer::Failed(failure) => assert!(failure.is_too_much()),
            answer => break answer,
        }
        most += most / 16;
    };
    assert_eq!(loaded(PlainEngine::default(), all()).apply(&jobs)[1], expected);
    for threads in [2, 3, 7] {
        assert!(ask(most, threads) == expected, "{threads} threads, {most} bytes");
    }
}

#[test]
fn a_too_large_result_is_refused_with_any_number_of_threads() {
    let long = |n: i32| n * 7919 % 300;
    let all = |n: i32| vec![Value::Int4(n), Value::text_of(format!("{n:0$}", long(n) as usize))];
    let mut kinds = [(0, 0); 4];
    for step in 0..36 {
        let bounds = Bounds {
            result_bytes_max: 20_000 * 5u64.pow(step / 6) * (6 + u64::from(step % 6)) / 6,
            ..Bounds::default()
        };
        let mut engine = loaded(ScanEngine::new(bounds), (0..ROWS).map(all).collect());
        let least = Aggregate { function: AggregateFunction::Min, argument: Some(number()), distinct: false };
        let outputs = [
            rows(Some(2000), true, false),
            rows(Some(2000), true, true),
            rows(None, false, true),
            Output::Groups { keys: vec![text()], aggregates: vec![least] },
        ];
        let jobs: Vec<Job> = outputs.into_iter().map(read).collect();
        let mut ask = |threads| {
            engine.apply_keeping(&jobs, &mut |_, _| false, &Threads { host: &SingleThread, threads })
        };
        let expected = ask(1);
        for threads in [2, 3, 7] {
            assert!(ask(threads) == expected, "{bounds:?}, {threads} threads");
        }
        for (answer, (well, failed)) in expected.iter().zip(&mut kinds) {
            match answer {
                Answer::Failed(_) => *failed += 1,
                _ => *well += 1,
            }
        }
    }
    assert!(kinds.iter().all(|(well, failed)| *well > 1 && *failed > 1), "{kinds:?}");
}
