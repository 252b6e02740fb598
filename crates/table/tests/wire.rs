//! Messages between processes: their bytes are pinned, and damaged bytes are refused.

use proptest::prelude::*;
use quorate_table::{
    aggregate::State,
    alter::{Alteration, ColumnSource},
    constraint::Check,
    engine::{Answer, Chunk, Engine, Epoch, Exported, Group, Job, RowId, Written},
    expr::{Aggregate, AggregateFunction, Binary, Expr, Function},
    merge::{Finish, Input, Merge},
    operation::{Conflict, LoadId, Operation, Order, Output, Select},
    plain::PlainEngine,
    schema::{Column, KeyRange, Partition, Schema, TableId},
    text::parse_text,
    value::{Row, Type, Value},
};
use serde::{Serialize, de::DeserializeOwned};

const TABLE: TableId = TableId(3);

fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T, expected: &str) {
    let bytes = postcard::to_stdvec(value).expect("encodes");
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected, "{value:?}");
    assert_eq!(&postcard::from_bytes::<T>(&bytes).expect("decodes"), value);
}

fn row() -> Row {
    let value = |ty, text| parse_text(ty, text).expect("a value");
    vec![
        value(Type::Int4, "-1"),
        value(Type::Text, "ö"),
        value(Type::Numeric, "12.50"),
        value(Type::Date, "2013-01-31"),
        value(Type::Float8, "0.5"),
        Value::Null,
    ]
}

fn schema() -> Schema {
    let column =
        |name: &str, ty| Column { name: name.to_owned(), ty, modifier: None, not_null: false, default: None };
    let types = [Type::Int4, Type::Text, Type::Numeric, Type::Date, Type::Float8, Type::Timestamptz];
    Schema {
        name: "t".to_owned(),
        columns: ["a", "b", "c", "d", "e", "f"]
            .iter()
            .zip(types)
            .map(|(name, ty)| column(name, ty))
            .collect(),
        primary_key: vec![0],
        partition: Partition::Hash { column: 0 },
        constraints: Vec::new(),
    }
}

fn filter() -> Expr {
    let text = Expr::Call(Function::Lower, vec![Expr::Column(1, Type::Text)]);
    let like = Expr::Like {
        text: Box::new(text),
        pattern: Box::new(Expr::constant(Value::text_of("%"), Type::Text)),
        escape: Some('\\'),
        case_insensitive: false,
    };
    let sum =
        Expr::binary(Binary::Add, Expr::Column(0, Type::Int4), Expr::constant(Value::Int4(2), Type::Int4));
    Expr::all(vec![
        like,
        Expr::In(Box::new(sum), vec![Expr::constant(Value::Int4(1), Type::Int4)].into()),
        Expr::IsNull(Box::new(Expr::Column(5, Type::Timestamptz))),
    ])
}

/// Returns one operation of each kind.
fn operations() -> Vec<Operation> {
    let average = Aggregate {
        function: AggregateFunction::Avg,
        argument: Some(Expr::Column(2, Type::Numeric)),
        distinct: false,
    };
    let order = vec![Order { column: 0, descending: true, nulls_first: true }];
    let columns = vec![Expr::Column(0, Type::Int4), Expr::Column(3, Type::Date)];
    let load = LoadId(1, 2);
    let null = || Expr::Constant(Value::Null, Type::Float8);
    let field = Expr::constant(Value::text_of("year"), Type::Text);
    let year = Expr::Call(Function::Extract, vec![field, Expr::Column(3, Type::Date)]);
    vec![
        Operation::CreateTable { table: TABLE, schema: schema() },
        Operation::Insert { table: TABLE, rows: vec![row()], returning: vec![Expr::Column(0, Type::Int4)] },
        Operation::Select(Select {
            table: TABLE,
            filter: Some(filter()),
            output: Output::Rows { columns, order, limit: Some(5), distinct: true },
        }),
        Operation::Select(Select {
            table: TABLE,
            filter: None,
            output: Output::Groups { keys: vec![year], aggregates: vec![average] },
        }),
        Operation::Update {
            table: TABLE,
            assignments: vec![(4, Expr::Cast(Box::new(Expr::Column(2, Type::Numeric)), Type::Float8))],
            filter: Some(filter()),
            returning: vec![],
        },
        Operation::Delete { table: TABLE, filter: Some(filter()), returning: vec![] },
        Operation::Stage { table: TABLE, load, rows: vec![row()] },
        Operation::Publish { table: TABLE, load, rows: 1 },
        Operation::Discard { table: TABLE, load },
        Operation::DropTable { table: TABLE },
        Operation::Upsert { table: TABLE, rows: vec![row()], conflict: Conflict::Skip, returning: vec![] },
        Operation::Upsert {
            table: TABLE,
            rows: vec![],
            conflict: Conflict::Update { assignments: vec![(4, null())], filter: Some(filter()) },
            returning: vec![],
        },
    ]
}

/// Returns an alteration that keeps the first columns and adds a constant, with a condition.
fn alteration() -> Operation {
    let mut schema = schema();
    let last = schema.columns.len() - 1;
    let mut columns: Vec<ColumnSource> = (0..last).map(ColumnSource::Column).collect();
    columns.push(ColumnSource::Constant(Value::Null));
    let condition = Expr::IsNull(Box::new(Expr::Column(last, schema.columns[last].ty)));
    schema.add_check(Check { name: "c".to_owned(), condition, text: String::new() });
    let alteration = Alteration { schema, columns };
    Operation::AlterTable { table: TABLE, altered: TableId(TABLE.0 + 1), alteration }
}

#[test]
fn an_alteration_is_accepted_undamaged() {
    let mut engine = PlainEngine::default();
    let job =
        |epoch, operation| Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false };
    engine.apply(&[job(1, Operation::CreateTable { table: TABLE, schema: schema() })]);
    let answers = engine.apply(&[job(2, alteration())]);
    assert!(matches!(answers[..], [Answer::Written(_)]), "{answers:?}");
}

#[test]
fn bytes_between_processes_are_pinned() {
    check(&row(), "0603010702c3b6060202e20408d64a05000000000000e03f00");
    let hex = |operation: &Operation| postcard::to_stdvec(operation).expect("encodes");
    let all: Vec<u8> = operations().iter().flat_map(hex).collect();
    assert_eq!((all.len(), xxhash_rust::xxh3::xxh3_64(&all)), (374, 1470579872700118980));
    let group =
        Group { keys: vec![Value::Bool(true)], states: vec![State::Count(300), State::Extreme(Value::Null)] };
    check(&Answer::Groups(vec![group]), "02010101010200ac020200");
    check(
        &Answer::Written(vec![Written { rows: 1, returning: vec![vec![Value::Int8(-300)]] }]),
        "000101010104d704",
    );
    let id = RowId { epoch: Epoch(300), line: 2 };
    let exported = Exported { table: TABLE, load: Some(LoadId(1, 2)), id, row: vec![Value::Int2(1)] };
    check(&Chunk { definitions: vec![], rows: vec![exported], next: None }, "000103010102ac020201020200");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_operations_do_not_panic(
        which in 0..operations().len() + 1,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut engine = PlainEngine::default();
        let job = |epoch, operation| Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false };
        engine.apply(&[
            job(1, Operation::CreateTable { table: TABLE, schema: schema() }),
            job(2, Operation::Insert { table: TABLE, rows: vec![row()], returning: vec![] }),
        ]);
        let operation = operations().into_iter().nth(which).unwrap_or_else(alteration);
        let mut bytes = postcard::to_stdvec(&operation).expect("encodes");
        for (index, byte) in damage {
            let place = index.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok(operation) = postcard::from_bytes::<Operation>(&bytes) {
            let bound = operation.bind(&[]).unwrap_or(operation);
            engine.apply(&[job(3, bound)]);
            engine.digest(None, &[KeyRange::ALL]).expect("the present");
        }
    }

    #[test]
    fn damaged_answers_do_not_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), grouped: bool,
    ) {
        let number = Expr::Column(0, Type::Numeric);
        let aggregate =
            |function, distinct| Aggregate { function, argument: Some(number.clone()), distinct };
        let aggregates = vec![
            aggregate(AggregateFunction::Sum, false),
            aggregate(AggregateFunction::Max, false),
            aggregate(AggregateFunction::Avg, true),
        ];
        let one = parse_text(Type::Numeric, "1.5").expect("a number");
        let states = vec![
            State::Sum { count: 1, sum: one.clone() },
            State::Extreme(one.clone()),
            State::Distinct(vec![one.clone()]),
        ];
        let answer = if grouped {
            Answer::Groups(vec![Group { keys: vec![Value::Int4(1)], states }])
        } else {
            Answer::Rows(vec![vec![one, Value::Int4(1)]])
        };
        let input = if grouped {
            let columns = vec![Expr::Column(1, Type::Numeric), Expr::Column(0, Type::Int4)];
            Input::Groups { keys: 1, aggregates, having: None, columns }
        } else {
            Input::Rows
        };
        let order = vec![Order { column: 1, descending: false, nulls_first: false }];
        let mut merge = Merge::new(Finish { input, distinct: true, order, offset: 0, limit: None, visible: 1 });
        let mut bytes = postcard::to_stdvec(&answer).expect("encodes");
        merge.push(answer).expect("a sound answer");
        for (index, byte) in damage {
            let place = index.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok(damaged) = postcard::from_bytes::<Answer>(&bytes) {
            let _ = merge.push(damaged);
            let _ = merge.finish();
        }
    }
}
