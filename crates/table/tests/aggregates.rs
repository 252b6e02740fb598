//! Aggregates, split over engines and merged, against PostgreSQL.

use quorate_table::{
    cast::cast,
    engine::{Answer, Engine, Epoch, Job},
    expr::{Aggregate, AggregateFunction, Expr},
    merge::{Finish, Input, Merge},
    operation::{Operation, Output, Select},
    plain::PlainEngine,
    schema::{Column, KeyRange, Partition, Schema, TableId},
    value::{Row, Type, Value},
};

use crate::{
    postgres::Postgres,
    twin::{Maker, TYPES, literal},
};

const TABLE: TableId = TableId(1);
/// Arcs of the ring, an engine each.
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
            if ty != Type::Bool {
                of(AggregateFunction::Min);
                of(AggregateFunction::Max);
            }
            // Sums of floats round by the order of rows, which is PostgreSQL's own.
            if ty.is_number() && ty != Type::Float8 {
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

/// The aggregates over the rows, as text, computed by an engine for each arc and merged.
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
fn merged_aggregates_are_those_of_postgresql() {
    let Some(postgres) = Postgres::start() else { return };
    let aggregates = aggregates();
    let mut maker = Maker::new();
    for round in 0..ROUNDS {
        let count = maker.below(12);
        let rows: Vec<Row> = (0..count).map(|_| TYPES.iter().map(|&ty| maker.value(ty)).collect()).collect();
        let columns: Vec<String> =
            TYPES.iter().enumerate().map(|(index, ty)| format!("c{index} {}", ty.name())).collect();
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
            // Of values that are equal, which one a minimum shows is open: 0.0 or 0.00, 0 or -0.
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

/// The value of a text as a number, for those that are written differently.
fn number(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().map(|number| number + 0.0)
}
