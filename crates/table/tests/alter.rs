//! Alterations on both engines, compared with rows that are altered one by one.

use proptest::prelude::*;
use quorate_table::{
    alter::{Alteration, ColumnSource},
    engine::{Answer, Engine, Epoch, Holder},
    expr::{Binary, Expr},
    operation::{Operation, Output, Select},
    schema::{Column, KeyRange, Schema, TableId},
    value::{Row, Type, Value},
};

use crate::{
    engine::{HALVES, TABLE, V, any_rows, job, one, schema},
    scan::Twin,
};

const ALTERED: TableId = TableId(8);
const AGAIN: TableId = TableId(9);

fn column(name: &str, ty: Type) -> Column {
    Column { name: name.to_owned(), ty, modifier: None, not_null: false, default: None }
}

/// Keeps the columns in another order, makes `v` wider, and adds a text, a numeric and a boolean.
fn alteration(hash: bool) -> Alteration {
    let earlier = schema(hash);
    let [k, s, v] = &earlier.columns[..] else { unreachable!("it has three columns") };
    let numeric = quorate_table::numeric::Numeric::parse("1.50").unwrap();
    let columns = [
        (Column { ty: Type::Int8, ..v.clone() }, ColumnSource::Column(2)),
        (column("t", Type::Text), ColumnSource::Constant(Value::text_of("added"))),
        (k.clone(), ColumnSource::Column(0)),
        (column("n", Type::Numeric), ColumnSource::Constant(Value::Numeric(numeric))),
        (s.clone(), ColumnSource::Column(1)),
        (column("b", Type::Bool), ColumnSource::Constant(Value::Null)),
    ];
    let partition = match earlier.partition {
        quorate_table::schema::Partition::Hash { .. } => quorate_table::schema::Partition::Hash { column: 2 },
        quorate_table::schema::Partition::Range { low, high, .. } => {
            quorate_table::schema::Partition::Range { column: 2, low, high }
        }
    };
    let (columns, sources) = columns.into_iter().unzip();
    let schema = Schema { columns, primary_key: vec![2, 4], partition, ..earlier };
    Alteration { schema, columns: sources }
}

fn altered_row(row: &Row) -> Row {
    let [k, s, v] = &row[..] else { unreachable!("it has three columns") };
    let v = match v {
        Value::Int4(v) => Value::Int8(i64::from(*v)),
        other => other.clone(),
    };
    let numeric = quorate_table::numeric::Numeric::parse("1.50").unwrap();
    vec![v, Value::text_of("added"), k.clone(), Value::Numeric(numeric), s.clone(), Value::Null]
}

fn all_of(table: TableId, schema: &Schema, filter: Option<Expr>) -> Select {
    let columns = schema.columns.iter().enumerate();
    let columns = columns.map(|(index, column)| Expr::Column(index, column.ty)).collect();
    Select { table, filter, output: Output::Rows { columns, order: vec![], limit: None, distinct: false } }
}

fn rows_of(answer: Answer) -> Vec<Row> {
    let Answer::Rows(mut rows) = answer else { panic!("{answer:?}") };
    rows.sort_by_key(|row| quorate_table::value::key_of(row));
    rows
}

fn distinct_keys(mut rows: Vec<Row>) -> Vec<Row> {
    rows.retain(|row| !row[1].is_null());
    rows.sort_by_key(|row| quorate_table::value::key_of(&row[..2]));
    rows.dedup_by(|a, b| a[..2] == b[..2]);
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn an_altered_table_has_the_same_rows(hash: bool, rows in any_rows(40), later in any_rows(10)) {
        let (rows, later) = (distinct_keys(rows), distinct_keys(later));
        let (earlier, alteration) = (schema(hash), alteration(hash));
        let mut engine = Twin::default();
        let mut epoch = 0;
        let mut run = |engine: &mut Twin, operation: Operation| {
            epoch += 1;
            one(engine, job(epoch, &[KeyRange::ALL], &operation, false))
        };
        run(&mut engine, Operation::CreateTable { table: TABLE, schema: earlier.clone() });
        run(&mut engine, Operation::Insert { table: TABLE, rows: rows.clone(), returning: vec![] });
        engine.pin(Epoch(2), Holder::Reader);
        let alter = |alteration: &Alteration, table, altered| Operation::AlterTable {
            table, altered, alteration: alteration.clone()
        };
        let answer = run(&mut engine, alter(&alteration, TABLE, ALTERED));
        prop_assert!(matches!(answer, Answer::Written(_)), "{answer:?}");

        // Reads of the present table that ended fail. The pinned version still answers them.
        let gone = run(&mut engine, Operation::Select(all_of(TABLE, &earlier, None)));
        prop_assert!(matches!(gone, Answer::Failed(failure) if failure.sqlstate == "42P01"));
        let page = engine.page(Epoch(2), &[KeyRange::ALL], &all_of(TABLE, &earlier, None), None, 100);
        prop_assert_eq!(page.unwrap().rows.len(), rows.len());
        engine.release(Epoch(2), Holder::Reader);

        let mut model: Vec<Row> = rows.iter().map(altered_row).collect();
        let read = |filter| Operation::Select(all_of(ALTERED, &alteration.schema, filter));
        model.sort_by_key(|row| quorate_table::value::key_of(row));
        prop_assert_eq!(rows_of(run(&mut engine, read(None))), model.clone());

        // Filters by an earlier column and by an added column find the rows.
        let wide = Expr::Column(0, Type::Int8);
        let filter = Expr::binary(Binary::Greater, wide.clone(), Expr::constant(Value::Int8(0), Type::Int8));
        let expected: Vec<Row> =
            model.iter().filter(|row| matches!(row[0], Value::Int8(v) if v > 0)).cloned().collect();
        prop_assert_eq!(rows_of(run(&mut engine, read(Some(filter)))), expected);
        let added = Expr::Column(1, Type::Text);
        let filter = Expr::binary(Binary::Equal, added, Expr::constant(Value::text_of("added"), Type::Text));
        prop_assert_eq!(rows_of(run(&mut engine, read(Some(filter)))), model.clone());

        // A later write changes a column of the earlier table and an added column.
        let sum = Expr::binary(Binary::Add, wide, Expr::constant(Value::Int8(1 << 40), Type::Int8));
        let text = Expr::constant(Value::text_of("changed"), Type::Text);
        let assignments = vec![(0, sum), (1, text)];
        let update = Operation::Update { table: ALTERED, assignments, filter: None, returning: vec![] };
        run(&mut engine, update);
        for row in &mut model {
            row[1] = Value::text_of("changed");
            if let Value::Int8(v) = &mut row[0] {
                *v += 1 << 40;
            }
        }
        let known = |row: &Row| rows.iter().any(|other| other[..2] == row[..2]);
        let later: Vec<Row> = later.iter().filter(|row| !known(row)).map(altered_row).collect();
        model.extend(later.iter().cloned());
        run(&mut engine, Operation::Insert { table: ALTERED, rows: later, returning: vec![] });
        model.sort_by_key(|row| quorate_table::value::key_of(row));
        prop_assert_eq!(rows_of(run(&mut engine, read(None))), model.clone());

        // A move gives a fresh engine the same rows.
        let digest = engine.digest(None, &HALVES).unwrap();
        engine.pin(Epoch(epoch), Holder::Migration);
        let chunk = engine.export(Epoch(epoch), &[KeyRange::ALL], None, 1000).unwrap();
        engine.release(Epoch(epoch), Holder::Migration);
        let mut fresh = Twin::default();
        fresh.import(chunk).unwrap();
        prop_assert_eq!(fresh.digest(None, &HALVES).unwrap(), digest);

        // Columns are dropped.
        let dropped = Alteration {
            schema: Schema {
                columns: vec![alteration.schema.columns[2].clone(), alteration.schema.columns[4].clone()],
                primary_key: vec![0, 1],
                partition: earlier.partition.clone(),
                ..earlier.clone()
            },
            columns: vec![ColumnSource::Column(2), ColumnSource::Column(4)],
        };
        epoch += 1;
        let operation = alter(&dropped, ALTERED, AGAIN);
        let answer = one(&mut engine, job(epoch, &[KeyRange::ALL], &operation, false));
        prop_assert!(matches!(answer, Answer::Written(_)), "{answer:?}");
        let read = Operation::Select(all_of(AGAIN, &dropped.schema, None));
        let mut keys: Vec<Row> = model.iter().map(|row| vec![row[2].clone(), row[4].clone()]).collect();
        keys.sort_by_key(|row| quorate_table::value::key_of(row));
        epoch += 1;
        prop_assert_eq!(rows_of(one(&mut engine, job(epoch, &[KeyRange::ALL], &read, false))), keys);
    }
}

/// The engine refuses an alteration that would move rows or change their values, and the table stays.
#[test]
fn an_alteration_that_moves_rows_or_changes_their_values_is_refused() {
    let mut engine = Twin::default();
    let earlier = schema(true);
    let mut epoch = 1;
    let create = Operation::CreateTable { table: TABLE, schema: earlier.clone() };
    one(&mut engine, job(epoch, &[KeyRange::ALL], &create, false));
    let same = Alteration::of_definition(earlier.clone());
    let mut broken = Vec::new();
    let mut change = |change: &dyn Fn(&mut Alteration)| {
        let mut alteration = same.clone();
        change(&mut alteration);
        broken.push(alteration);
    };
    change(&|it| it.columns.truncate(2));
    change(&|it| it.columns[2] = ColumnSource::Column(3));
    change(&|it| it.columns[2] = ColumnSource::Column(1));
    change(&|it| it.columns[2] = ColumnSource::Constant(Value::text_of("x")));
    change(&|it| it.schema.columns[2].ty = Type::Int2);
    change(&|it| it.schema.columns[2].ty = Type::Text);
    change(&|it| it.schema.columns[0].ty = Type::Int8);
    change(&|it| it.schema.primary_key = vec![1, 0]);
    change(&|it| it.schema.primary_key = vec![0]);
    change(&|it| it.columns[1] = ColumnSource::Constant(Value::text_of("x")));
    for alteration in broken {
        epoch += 1;
        let operation = Operation::AlterTable { table: TABLE, altered: ALTERED, alteration };
        let answer = one(&mut engine, job(epoch, &[KeyRange::ALL], &operation, false));
        assert!(matches!(answer, Answer::Failed(_)), "{operation:?}");
    }
    let rows = vec![vec![Value::Int4(1), Value::text_of("a"), Value::Null]];
    let insert = Operation::Insert { table: TABLE, rows, returning: vec![V()] };
    let answer = one(&mut engine, job(epoch + 1, &[KeyRange::ALL], &insert, false));
    assert!(matches!(answer, Answer::Written(_)), "{answer:?}");
}
