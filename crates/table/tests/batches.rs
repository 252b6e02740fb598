//! Reads and writes of one batch: each read sees exactly the writes before it.

use quorate_table::{
    engine::{Answer, Engine, Epoch, Job},
    expr::{Binary, Expr},
    operation::{Operation, Output, Select},
    schema::{Column, KeyRange, Partition, Schema, TableId},
    value::{Row, Type, Value},
};

use crate::scan::Twin;

const TABLE: TableId = TableId(7);
const KEYS: i32 = 400;
/// The columns: a key with three rows, a number that distinguishes the three rows, and a text that is
/// written.
const KEY: usize = 0;
const NUMBER: usize = 1;
const TEXT: usize = 2;

fn number(number: i32) -> Expr {
    Expr::constant(Value::Int4(number), Type::Int4)
}

fn compare(operator: Binary, column: usize, value: i32) -> Expr {
    Expr::binary(operator, Expr::Column(column, Type::Int4), number(value))
}

/// Returns the filter for the row of a key and a number.
fn row_of(key: i32, number: i32) -> Expr {
    Expr::all(vec![compare(Binary::Equal, KEY, key), compare(Binary::Equal, NUMBER, number)])
}

/// Returns a filter that must be evaluated on each row, and that fails for the number zero.
fn sixth_is(quotient: i32) -> Expr {
    let sixth = Expr::binary(Binary::Divide, number(6), Expr::Column(NUMBER, Type::Int4));
    Expr::binary(Binary::Equal, sixth, number(quotient))
}

fn rows(keys: impl Iterator<Item = i32>) -> Operation {
    let row = |row: i32| vec![Value::Int4(row / 3), Value::Int4(row % 3), Value::text_of("old")];
    let rows: Vec<Row> = keys.flat_map(|key| (0..3).map(move |number| row(3 * key + number))).collect();
    Operation::Insert { table: TABLE, rows, returning: Vec::new() }
}

fn set(column: usize, value: Expr, filter: Expr) -> Operation {
    let returning = vec![Expr::Column(KEY, Type::Int4), Expr::Column(NUMBER, Type::Int4)];
    Operation::Update { table: TABLE, assignments: vec![(column, value)], filter: Some(filter), returning }
}

fn write(text: &str, filter: Expr) -> Operation {
    set(TEXT, Expr::constant(Value::text_of(text), Type::Text), filter)
}

/// Returns reads that do not filter by the text: of many rows and of few, of unchanged and of computed
/// columns, and of the first rows only.
fn reads() -> Vec<Operation> {
    let columns = || vec![Expr::Column(KEY, Type::Int4), Expr::Column(TEXT, Type::Text)];
    let made =
        || vec![Expr::binary(Binary::Concat, Expr::Column(TEXT, Type::Text), Expr::Column(TEXT, Type::Text))];
    let read = |filter: Expr, columns: Vec<Expr>, limit: Option<u64>| {
        let output = Output::Rows { columns, order: Vec::new(), limit, distinct: false };
        Operation::Select(Select { table: TABLE, filter: Some(filter), output })
    };
    let filters = || {
        let of_keys = (0..40).map(|key| compare(Binary::Equal, KEY, key * 7));
        let wide = (0..3).map(|number| compare(Binary::Equal, NUMBER, number));
        of_keys.chain(wide).chain([compare(Binary::Less, KEY, 30)])
    };
    let plain = filters().map(|filter| read(filter, columns(), None));
    let made = filters().map(|filter| read(filter, made(), None));
    let first = filters().map(|filter| read(filter, columns(), Some(2)));
    plain.chain(made).chain(first).collect()
}

/// Runs a batch of these writes, with reads before and after each, and returns the answers to the writes.
fn among(writes: Vec<Operation>) -> Vec<Answer> {
    let column =
        |name: &str, ty| Column { name: name.to_owned(), ty, modifier: None, not_null: false, default: None };
    let schema = Schema {
        name: "numbered".to_owned(),
        columns: vec![column("k", Type::Int4), column("n", Type::Int4), column("s", Type::Text)],
        primary_key: vec![],
        partition: Partition::Hash { column: KEY },
        constraints: Vec::new(),
    };
    let mut twin = Twin::default();
    let job =
        |(epoch, operation)| Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false };
    let load = [(1, Operation::CreateTable { table: TABLE, schema }), (2, rows(0..KEYS))];
    twin.apply(&load.map(job));
    let written: Vec<bool> =
        writes.iter().flat_map(|_| reads().into_iter().map(|_| false).chain([true])).collect();
    let operations = writes.into_iter().flat_map(|write| reads().into_iter().chain([write]));
    let jobs: Vec<Job> = (3..).zip(operations.chain(reads())).map(job).collect();
    let answers = twin.apply(&jobs);
    twin.digest(None, &[KeyRange::ALL]).expect("the present");
    let answers = answers.into_iter().zip(written.into_iter().chain(std::iter::repeat(false)));
    answers.filter_map(|(answer, written)| written.then_some(answer)).collect()
}

/// Returns the keys and numbers of the rows that a write has changed.
fn changed(answer: &Answer) -> Vec<(i32, i32)> {
    let Answer::Written(written) = answer else { panic!("{answer:?}") };
    let number = |value: &Value| match value {
        Value::Int4(number) => *number,
        other => panic!("{other:?}"),
    };
    let rows = written.iter().flat_map(|written| &written.returning);
    rows.map(|row| (number(&row[0]), number(&row[1]))).collect()
}

#[test]
fn a_read_returns_the_last_write_of_each_row_in_its_batch() {
    let answers = among(vec![
        write("one", row_of(7, 1)),
        write("many", compare(Binary::Equal, NUMBER, 2)),
        // Inserted rows lie between the other rows, and move these.
        rows(KEYS..KEYS + 200),
        write("moved", row_of(14, 1)),
        write("new", row_of(KEYS, 1)),
        // A row leaves the results of some reads and enters those of others.
        set(NUMBER, number(0), row_of(21, 1)),
        write("other", compare(Binary::Equal, NUMBER, 0)),
        Operation::Delete { table: TABLE, filter: Some(row_of(28, 0)), returning: vec![] },
        write("last", compare(Binary::Less, KEY, 50)),
    ]);
    assert_eq!(changed(&answers[0]), [(7, 1)]);
    assert_eq!(changed(&answers[1]).len(), KEYS as usize);
    assert_eq!(changed(&answers[6]).len(), KEYS as usize + 200 + 1);
    assert_eq!(changed(&answers[8]).len(), 149);
}

#[test]
fn a_write_sees_the_earlier_writes_of_its_batch() {
    let point = |key: i32, filter: Expr| Expr::all(vec![compare(Binary::Equal, KEY, key), filter]);
    let answers = among(vec![
        // Of the three rows of a key, two satisfy a filter that divides by their numbers, and on the third it
        // fails.
        write("never", point(7, sixth_is(3))),
        set(NUMBER, number(6), row_of(7, 0)),
        write("now", point(7, sixth_is(3))),
        set(NUMBER, number(2), row_of(7, 1)),
        write("again", point(7, sixth_is(3))),
        write("none", point(7, sixth_is(6))),
        write("untouched", row_of(14, 2)),
    ]);
    assert!(
        matches!(&answers[0], Answer::Failed(failure) if failure.sqlstate == "22012"),
        "{:?}",
        answers[0]
    );
    let changed: Vec<_> = answers[1..].iter().map(changed).collect();
    assert_eq!(changed[1], [(7, 2)]);
    assert_eq!(changed[3], [(7, 2), (7, 2)]);
    assert_eq!((&changed[4][..], &changed[5][..]), (&[][..], &[(14, 2)][..]));
}
