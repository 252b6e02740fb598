//! The time of a pass and of an update on a table of 100,000 rows: `cargo bench -p quorate-table --bench
//! passes`.
//!
//! A pass of Q reads is one call of the engine with all Q reads; its time includes the result rows. Each
//! update changes one row. A call has a hundred updates, and a reader holds the version before them.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use quorate_table::{
    engine::{Answer, Engine, Epoch, Holder, Job},
    expr::{Binary, Expr},
    operation::{Operation, Output, Select},
    scan::ScanEngine,
    schema::{Column, KeyRange, Partition, Schema, TableId},
    value::{Row, Type, Value},
};

const TABLE: TableId = TableId(1);
const ROWS: i32 = 100_000;
/// The number of names, with fifty rows each.
const NAMES: i32 = 2_000;
const DAYS: i32 = 365;
/// The number of days that a read asks for, in addition to a name.
const SPAN: i32 = 60;
/// The number of updates between two pinned versions.
const UPDATES: i32 = 100;

/// The indexes of the table's columns.
const KEY: usize = 0;
const NAME: usize = 1;
const DAY: usize = 2;
const PRICE: usize = 3;

/// Maps a number to a number below `below`, so that neighbours lie far apart.
fn spread(number: i32, below: i32) -> i32 {
    ((number as u32).wrapping_mul(0x9E37_79B1) >> 8) as i32 % below
}

fn name(number: i32) -> Value {
    Value::text_of(format!("name {}", spread(number, NAMES)))
}

fn job(epoch: u64, operation: Operation) -> Job {
    Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false }
}

fn loaded() -> ScanEngine {
    let column = |(name, ty): (&str, Type)| Column {
        name: name.to_owned(),
        ty,
        modifier: None,
        not_null: true,
        default: None,
    };
    let columns = [("key", Type::Int4), ("name", Type::Text), ("day", Type::Int4), ("price", Type::Int4)];
    let schema = Schema {
        name: "sales".to_owned(),
        columns: columns.into_iter().map(column).collect(),
        primary_key: vec![KEY],
        partition: Partition::Hash { column: KEY },
        constraints: Vec::new(),
    };
    let row = |key: i32| -> Row {
        vec![
            Value::Int4(key),
            name(key),
            Value::Int4(spread(key + ROWS, DAYS)),
            Value::Int4(spread(key, 9_999)),
        ]
    };
    let mut engine = ScanEngine::default();
    let answers = engine.apply(&[
        job(1, Operation::CreateTable { table: TABLE, schema }),
        job(2, Operation::Insert { table: TABLE, rows: (0..ROWS).map(row).collect(), returning: Vec::new() }),
    ]);
    assert!(matches!(answers[1], Answer::Written(_)), "the rows are there");
    engine
}

fn compare(operator: Binary, column: usize, value: i32) -> Expr {
    Expr::binary(operator, Expr::Column(column, Type::Int4), Expr::constant(Value::Int4(value), Type::Int4))
}

fn read(number: i32) -> Job {
    let day = spread(number, DAYS - SPAN);
    let named =
        Expr::binary(Binary::Equal, Expr::Column(NAME, Type::Text), Expr::constant(name(number), Type::Text));
    let filter = [compare(Binary::GreaterEqual, DAY, day), compare(Binary::Less, DAY, day + SPAN)]
        .into_iter()
        .fold(named, |all, more| Expr::binary(Binary::And, all, more));
    let columns = vec![Expr::Column(NAME, Type::Text), Expr::Column(PRICE, Type::Int4)];
    let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
    job(2, Operation::Select(Select { table: TABLE, filter: Some(filter), output }))
}

/// This function is not inlined, so that its instructions can be counted.
#[inline(never)]
fn apply(engine: &mut ScanEngine, jobs: &[Job]) -> Vec<Answer> {
    engine.apply(jobs)
}

fn passes(criterion: &mut Criterion) {
    let mut engine = loaded();
    let mut group = criterion.benchmark_group("pass");
    group.sample_size(20);
    for queries in [1, 1_024, 4_096] {
        let jobs: Vec<Job> = (0..queries).map(read).collect();
        group.throughput(Throughput::Elements(queries as u64));
        group.bench_function(queries.to_string(), |bencher| {
            bencher.iter(|| apply(&mut engine, black_box(&jobs)));
        });
    }
    group.finish();
}

fn updates(criterion: &mut Criterion) {
    let mut engine = loaded();
    let mut epoch = 2;
    let mut group = criterion.benchmark_group("update");
    group.throughput(Throughput::Elements(UPDATES as u64));
    group.bench_function("publish", |bencher| {
        bencher.iter(|| {
            let held = Epoch(epoch);
            engine.pin(held, Holder::Reader);
            let update = |number: i32| {
                let set = (PRICE, Expr::constant(Value::Int4(number), Type::Int4));
                let filter = Some(compare(Binary::Equal, KEY, spread(number + epoch as i32, ROWS)));
                let returning = Vec::new();
                job(epoch + 1, Operation::Update { table: TABLE, assignments: vec![set], filter, returning })
            };
            let jobs: Vec<Job> = (0..UPDATES).map(update).collect();
            epoch += 1;
            let answers = apply(&mut engine, &jobs);
            engine.release(held, Holder::Reader);
            answers
        });
    });
    group.finish();
}

criterion_group!(benches, passes, updates);
criterion_main!(benches);
