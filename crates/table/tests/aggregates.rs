//! Aggregates, split over engines and merged, compared with PostgreSQL.

use quorate_table::{
    aggregate::State,
    cast::cast,
    engine::{Answer, Engine, Epoch, Job},
    expr::{Aggregate, AggregateFunction, Expr},
    host::SingleThread,
    merge::{Finish, Input, Merge},
    numeric::Numeric,
    operation::{Operation, Output, Select},
    plain::PlainEngine,
    scan::ScanEngine,
    schema::{Column, KeyRange, Partition, Schema, TableId},
    value::{Row, Type, Value},
};

use crate::{
    postgres::Postgres,
    scan::Threads,
    twin::{Maker, TYPES, literal, type_name},
};

const TABLE: TableId = TableId(1);
/// The number of arcs of the ring, with one engine each.
const PARTS: u64 = 5;
const ROUNDS: usize = 40;

fn aggregates() -> Vec<Aggregate> {
    let mut aggregates =
        vec![Aggregate { function: AggregateFunction::Count, argument: None, distinct: false }];
    for (index, &ty) in TYPES.iter().enumerate() {
        for distinct in [false, true] {
            let mut of = |function| {
                aggregates.push(Aggregate { function, argument: Some(Expr::Column(index, ty)), distinct });
            };
            of(AggregateFunction::Count);
            // PostgreSQL has no `min` and `max` for these types.
            if !matches!(ty, Type::Bool | Type::Uuid | Type::Bytea | Type::Jsonb) {
                of(AggregateFunction::Min);
                of(AggregateFunction::Max);
            }
            // Sums of floats depend on the order of rows, and PostgreSQL has its own order.
            if ty.is_number() && !matches!(ty, Type::Float4 | Type::Float8) {
                of(AggregateFunction::Sum);
                of(AggregateFunction::Avg);
                of(AggregateFunction::VarianceSample);
                of(AggregateFunction::VariancePopulation);
                of(AggregateFunction::DeviationSample);
                of(AggregateFunction::DeviationPopulation);
            }
        }
    }
    aggregates
}

fn sql(aggregate: &Aggregate) -> String {
    let name = match aggregate.function {
        AggregateFunction::Count => "count",
        AggregateFunction::Sum => "sum",
        AggregateFunction::Min => "min",
        AggregateFunction::Max => "max",
        AggregateFunction::Avg => "avg",
        AggregateFunction::VarianceSample => "var_samp",
        AggregateFunction::VariancePopulation => "var_pop",
        AggregateFunction::DeviationSample => "stddev_samp",
        AggregateFunction::DeviationPopulation => "stddev_pop",
    };
    let distinct = if aggregate.distinct { "distinct " } else { "" };
    match &aggregate.argument {
        Some(Expr::Column(column, _)) => format!("{name}({distinct}c{column})::text"),
        _ => format!("{name}(*)::text"),
    }
}

/// Returns the aggregates over the rows as text: an engine computes each arc, and the arcs are merged.
fn merged(rows: Vec<Row>, aggregates: &[Aggregate]) -> Result<Vec<String>, String> {
    let width = u64::MAX / PARTS + 1;
    let columns = TYPES.iter().enumerate();
    let columns = columns.map(|(index, &ty)| Column {
        name: format!("c{index}"),
        ty,
        modifier: None,
        not_null: false,
        default: None,
    });
    let schema = Schema {
        name: "t".to_owned(),
        columns: columns.collect(),
        primary_key: vec![],
        partition: Partition::Hash { column: 3 },
        constraints: Vec::new(),
    };
    let shown =
        (0..aggregates.len()).zip(aggregates).map(|(index, aggregate)| Expr::Column(index, aggregate.ty()));
    let input =
        Input::Groups { keys: 0, aggregates: aggregates.to_vec(), having: None, columns: shown.collect() };
    let visible = aggregates.len();
    let mut merge =
        Merge::new(Finish { input, distinct: false, order: vec![], offset: 0, limit: None, visible });
    let failed =
        |failure: quorate_table::failure::Failure| format!("!{} {}", failure.sqlstate, failure.message);
    for part in 0..PARTS {
        let low = part * width;
        let range = KeyRange { low, high: low.saturating_add(width - 1) };
        let mut engine = PlainEngine::default();
        let output = Output::Groups { keys: vec![], aggregates: aggregates.to_vec() };
        let operations = [
            Operation::CreateTable { table: TABLE, schema: schema.clone() },
            Operation::Insert { table: TABLE, rows: rows.clone(), returning: vec![] },
            Operation::Select(Select { table: TABLE, filter: None, output }),
        ];
        let jobs: Vec<Job> = operations
            .into_iter()
            .zip(1..)
            .map(|(operation, epoch)| Job {
                epoch: Epoch(epoch),
                ranges: vec![range],
                operation,
                held: false,
            })
            .collect();
        let answer = engine.apply(&jobs).pop().expect("an answer");
        assert!(matches!(answer, Answer::Groups(_) | Answer::Failed(_)));
        let bytes = postcard::to_stdvec(&answer).expect("encodes");
        merge.push(postcard::from_bytes(&bytes).expect("decodes")).map_err(failed)?;
    }
    let rows = merge.finish().map_err(failed)?;
    assert_eq!(rows.len(), 1);
    let text = |(value, aggregate): (&Value, &Aggregate)| {
        assert!(value.fits(aggregate.ty()), "{value:?} of {aggregate:?}");
        cast(value, Type::Text).expect("text").text().unwrap_or_else(|| "null".to_owned())
    };
    Ok(rows[0].iter().zip(aggregates).map(text).collect())
}

#[test]
fn merged_aggregates_equal_those_of_postgresql() {
    let Some(postgres) = Postgres::start() else { return };
    let aggregates = aggregates();
    let mut maker = Maker::new();
    for round in 0..ROUNDS {
        let count = maker.below(12);
        let rows: Vec<Row> = (0..count).map(|_| TYPES.iter().map(|&ty| maker.value(ty)).collect()).collect();
        let columns: Vec<String> =
            TYPES.iter().enumerate().map(|(index, ty)| format!("c{index} {}", type_name(*ty))).collect();
        let mut script = format!("drop table if exists a;\ncreate table a ({});\n", columns.join(", "));
        for row in &rows {
            let values: Vec<String> = row.iter().zip(TYPES).map(|(value, ty)| literal(value, ty)).collect();
            script += &format!("insert into a values ({});\n", values.join(", "));
        }
        let each = aggregates
            .iter()
            .map(|aggregate| format!("select coalesce({}, 'null') from a;\n", sql(aggregate)));
        script.extend(each);
        let theirs = postgres.query(&format!("set client_min_messages = warning;\n{script}"));
        let ours = merged(rows.clone(), &aggregates).expect("no aggregate fails");
        for ((aggregate, ours), theirs) in aggregates.iter().zip(&ours).zip(&theirs) {
            // `min` and `max` may return any of several equal values: 0.0 or 0.00, 0 or -0.
            let open = aggregate.distinct
                || matches!(aggregate.function, AggregateFunction::Min | AggregateFunction::Max);
            let same = ours == theirs || (open && number(ours) == number(theirs));
            assert!(
                same,
                "round {round}: {} gives {ours}, PostgreSQL {theirs}, of {rows:#?}",
                sql(aggregate)
            );
        }
        assert_eq!(ours.len(), theirs.len());
    }
}

/// Returns the number of a text, to compare texts of equal numbers.
fn number(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().map(|number| number + 0.0)
}

/// A partial sum may exceed the bounds if the final sum does not, because PostgreSQL checks only the final
/// sum.
#[test]
fn a_sum_of_numerics_may_exceed_its_range_in_between() {
    let postgres = Postgres::start();
    let (large, less) = ("9e131071", "-9e131071");
    let sets: [(&[&str], bool); 5] = [
        (&[large], true),
        (&[large, large, less], true),
        (&[less, large, large, less], true),
        (&[large, large], false),
        (&[less, "1", less], false),
    ];
    let column = TYPES.iter().position(|ty| *ty == Type::Numeric).expect("a type");
    for function in [AggregateFunction::Sum, AggregateFunction::Avg] {
        let argument = Some(Expr::Column(column, Type::Numeric));
        let aggregate = Aggregate { function, argument, distinct: false };
        for (set, fits) in sets {
            // The integers place each row on another arc.
            let row = |(number, text): (i64, &&str)| -> Row {
                let numeric = Value::Numeric(Numeric::parse(text).expect("a numeric"));
                let value = |ty: &Type| match ty {
                    Type::Int8 => Value::Int8(number),
                    Type::Numeric => numeric.clone(),
                    _ => Value::Null,
                };
                TYPES.iter().map(value).collect()
            };
            let rows: Vec<Row> = (0..).zip(set).map(row).collect();
            let ours = merged(rows, std::slice::from_ref(&aggregate)).map(|mut texts| texts.remove(0));
            assert_eq!(ours.is_ok(), fits, "{function:?} of {set:?}");
            if let Some(postgres) = &postgres {
                let values: Vec<String> = set.iter().map(|text| format!("({text}::numeric)")).collect();
                let query = sql(&aggregate).replace(&format!("c{column}"), "n");
                let script = format!(
                    "create or replace function tried() returns text language plpgsql as $$ begin return (select {query} \
                     from (values {}) v(n)); exception when others then return '!' || sqlstate || ' ' || sqlerrm; end $$;\n\
                     select tried();",
                    values.join(", ")
                );
                assert_eq!(postgres.query(&script), [ours.unwrap_or_else(|failure| failure)], "{set:?}");
            }
        }
    }
}

/// The large values are at the ends of several blocks, so that parts of the sum are too large, but the whole
/// is not.
#[test]
fn a_sum_does_not_depend_on_the_number_of_threads() {
    const ROWS: i32 = 9_000;
    let column =
        |name: &str, ty| Column { name: name.to_owned(), ty, modifier: None, not_null: true, default: None };
    let partition = Partition::Range { column: 0, low: Some(Value::Int4(0)), high: Some(Value::Int4(ROWS)) };
    let columns = vec![column("k", Type::Int4), column("n", Type::Numeric)];
    let schema =
        Schema { name: "t".to_owned(), columns, primary_key: vec![], partition, constraints: Vec::new() };
    let row = |k: i32| -> Row {
        let text = match k {
            0 | 1 => "9e131071",
            k if k >= ROWS - 2 => "-9e131071",
            _ => "1",
        };
        vec![Value::Int4(k), Value::Numeric(Numeric::parse(text).expect("a numeric"))]
    };
    let sum = Aggregate {
        function: AggregateFunction::Sum,
        argument: Some(Expr::Column(1, Type::Numeric)),
        distinct: false,
    };
    let output = Output::Groups { keys: vec![], aggregates: vec![sum] };
    let job =
        |epoch, operation| Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false };
    let jobs = [
        job(1, Operation::CreateTable { table: TABLE, schema }),
        job(2, Operation::Insert { table: TABLE, rows: (0..ROWS).map(row).collect(), returning: vec![] }),
        job(2, Operation::Select(Select { table: TABLE, filter: None, output })),
    ];
    let expected = PlainEngine::default().apply(&jobs).remove(2);
    let sum = Value::Numeric(Numeric::from_i128((ROWS - 4).into()));
    let Answer::Groups(groups) = &expected else { panic!("{expected:?}") };
    assert_eq!(groups[0].states, [State::Sum { count: ROWS as u64, sum }]);
    for threads in [1, 2, 3] {
        let host = Threads { host: &SingleThread, threads };
        let answers = ScanEngine::default().apply_keeping(&jobs, &mut |_, _| false, &host);
        assert_eq!(answers[2], expected, "{threads} threads");
    }
}
