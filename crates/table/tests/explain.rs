//! Explanations of reads by both engines.

use quorate_table::{
    engine::{Answer, Engine, Epoch, Job},
    explain::{Explanation, Strategy},
    expr::{Binary, Expr},
    host::SingleThread,
    operation::{Operation, Output, Select},
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

/// Creates rows (k, k / 100, "even" or "odd", k % 7), in blocks in the order of k.
fn loaded<E: Engine + Default>() -> E {
    let mut engine = E::default();
    let column =
        |name: &str, ty| Column { name: name.into(), ty, modifier: None, not_null: true, default: None };
    let columns = vec![
        column("k", Type::Int4),
        column("hundred", Type::Int4),
        column("parity", Type::Text),
        column("day", Type::Int4),
    ];
    let partition = Partition::Range { column: 0, low: Some(Value::Int4(0)), high: Some(Value::Int4(ROWS)) };
    let schema =
        Schema { name: "t".into(), columns, primary_key: vec![], partition, constraints: Vec::new() };
    let row = |k: i32| -> Row {
        let parity = if k % 2 == 0 { "even" } else { "odd" };
        vec![Value::Int4(k), Value::Int4(k / 100), Value::text_of(parity), Value::Int4(k % 7)]
    };
    let rows = (0..ROWS).map(row).collect();
    engine.apply(&[
        job(1, Operation::CreateTable { table: TABLE, schema }),
        job(2, Operation::Insert { table: TABLE, rows, returning: vec![] }),
    ]);
    engine
}

fn compared(column: usize, operator: Binary, value: Value) -> Expr {
    let ty = value.ty().expect("not NULL");
    Expr::binary(operator, Expr::Column(column, ty), Expr::Constant(value, ty))
}

fn select(filter: Vec<Expr>) -> Select {
    let columns = vec![Expr::Column(0, Type::Int4)];
    let output = Output::Rows { columns, order: vec![], limit: None, distinct: false };
    Select { table: TABLE, filter: Some(Expr::all(filter)), output }
}

/// Explains a read among other reads. Checks that these, and the read itself, have the plain engine's
/// answers.
fn explained(engine: &mut impl Engine, filter: Vec<Expr>, others: Vec<Select>) -> Explanation {
    let mut jobs =
        vec![job(2, Operation::Explain(select(filter.clone()))), job(2, Operation::Select(select(filter)))];
    jobs.extend(others.into_iter().map(|select| job(2, Operation::Select(select))));
    let answers = engine.apply(&jobs);
    let (Answer::Explanation(explained), Answer::Rows(rows)) = (&answers[0], &answers[1]) else {
        panic!("{:?}", &answers[..2])
    };
    assert_eq!(answers[1..], loaded::<PlainEngine>().apply(&jobs[1..]));
    assert_eq!((explained.epoch, explained.batch), (Epoch(2), jobs.len() as u64));
    assert_eq!(explained.rows, rows.len() as u64);
    explained.clone()
}

#[test]
fn an_explanation_shows_how_the_rows_were_found() {
    use Binary::*;
    let engine = &mut loaded::<ScanEngine>();
    let parity = |text: &str| compared(2, Equal, Value::text_of(text));
    let hundred = |number: i32| compared(1, Equal, Value::Int4(number));

    let one = explained(engine, vec![parity("odd"), hundred(3)], vec![]);
    assert_eq!(one.strategy, Strategy::Alone);
    assert_eq!((one.conditions, one.evaluated, one.rows), (2, false, 50));
    assert!(one.visited < one.blocks, "bounds rule blocks out: {one:?}");

    let none = explained(engine, vec![parity("neither")], vec![]);
    assert_eq!((none.strategy, none.visited, none.rows), (Strategy::Nothing, 0, 0));

    let point = explained(engine, vec![compared(0, Equal, Value::Int4(7)), parity("odd")], vec![]);
    assert_eq!((point.strategy, point.visited, point.rows), (Strategy::Points, 1, 1));

    let others = |range: &dyn Fn(i32) -> Vec<Expr>| (0..60).map(|number| select(range(number))).collect();
    let equal = |number: i32| vec![parity("even"), hundred(number)];
    let many = explained(engine, equal(5), others(&equal));
    assert_eq!(many.strategy, Strategy::Group { equal: vec![1, 2], range: None, queries: 62 });
    assert_eq!((many.visited, many.rows), (many.blocks, 50));

    let between = |number: i32| {
        let bound = |operator, number: i32| compared(1, operator, Value::Int4(number));
        vec![compared(3, Equal, Value::Int4(4)), bound(GreaterEqual, number), bound(Less, number + 3)]
    };
    let ranged = explained(engine, between(9), others(&between));
    assert_eq!(ranged.strategy, Strategy::Group { equal: vec![3], range: Some(1), queries: 62 });

    let plain = explained(&mut loaded::<PlainEngine>(), equal(5), vec![]);
    assert_eq!((plain.strategy, plain.rows), (Strategy::RowByRow, 50));
}

/// The two threads of this host take turns: the thread with the first rows runs before the other.
#[test]
fn a_reached_limit_ends_the_scan_of_later_rows() {
    let mut engine = loaded::<ScanEngine>();
    let mut visited = |limit: u64, threads: usize| {
        let mut select = select(vec![compared(2, Binary::Equal, Value::text_of("even"))]);
        let Output::Rows { limit: most, .. } = &mut select.output else { unreachable!("a read of rows") };
        *most = Some(limit);
        let jobs = [job(2, Operation::Explain(select.clone())), job(2, Operation::Select(select))];
        let host = Threads { host: &SingleThread, threads };
        let answers = engine.apply_keeping(&jobs, &mut |_, _| false, &host);
        let (Answer::Explanation(explained), Answer::Rows(rows)) = (&answers[0], &answers[1]) else {
            panic!("{answers:?}")
        };
        assert_eq!(answers[1..], loaded::<PlainEngine>().apply(&jobs[1..]));
        assert_eq!(rows.len() as u64, limit);
        explained.visited
    };
    assert_eq!((visited(10, 1), visited(10, 2)), (1, 1), "the first block has ten");
    assert_eq!((visited(9_000, 1), visited(9_000, 2)), (5, 5), "no half has as many");
}
