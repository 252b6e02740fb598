//! Versions that are kept for reads which go on page by page.

use quorate_table::{
    engine::{Answer, Engine, Epoch, Job},
    expr::{Binary, Expr},
    operation::{Operation, Output, Select},
    schema::{Column, KeyRange, Partition, Schema, TableId},
    value::{Row, Type, Value},
};

use crate::scan::Twin;

const TABLE: TableId = TableId(1);

fn number() -> Expr {
    Expr::Column(0, Type::Int4)
}

fn all() -> Select {
    let output = Output::Rows { columns: vec![number()], order: Vec::new(), limit: None, distinct: false };
    Select { table: TABLE, filter: None, output }
}

fn job(epoch: u64, operation: Operation) -> Job {
    Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false }
}

fn delete_below(number_below: i32) -> Operation {
    let bound = Expr::constant(Value::Int4(number_below), Type::Int4);
    let filter = Some(Expr::binary(Binary::Less, number(), bound));
    Operation::Delete { table: TABLE, filter, returning: Vec::new() }
}

fn paged(engine: &mut Twin, epoch: u64) -> Vec<Row> {
    let (mut rows, mut cursor) = (Vec::new(), None);
    loop {
        let page = engine.page(Epoch(epoch), &[KeyRange::ALL], &all(), cursor, 7).unwrap();
        rows.extend(page.rows);
        cursor = page.next;
        if cursor.is_none() {
            return rows;
        }
    }
}

/// Reads of one batch, with writes between and behind them, each keep the version that they saw.
#[test]
fn a_read_keeps_what_it_saw() {
    let mut engine = Twin::default();
    let column =
        Column { name: "n".to_owned(), ty: Type::Int4, modifier: None, not_null: true, default: None };
    let partition = Partition::Hash { column: 0 };
    let schema = Schema { name: "t".to_owned(), columns: vec![column], primary_key: Vec::new(), partition };
    let rows = (0..100).map(|n| vec![Value::Int4(n)]).collect();
    engine.apply(&[
        job(1, Operation::CreateTable { table: TABLE, schema }),
        job(2, Operation::Insert { table: TABLE, rows, returning: Vec::new() }),
    ]);

    let read = |epoch| job(epoch, Operation::Select(all()));
    let jobs = [
        read(2),
        job(3, delete_below(40)),
        read(3),
        read(3),
        job(4, delete_below(80)),
        read(4),
        job(5, delete_below(90)),
    ];
    let mut asked = Vec::new();
    let answers = engine.apply_keeping(&jobs, &mut |job, answer| {
        asked.push(job);
        matches!(answer, Answer::Rows(rows) if rows.len() > 30)
    });
    assert_eq!(asked, [0, 2, 3, 5], "only reads are asked about");
    let seen = |job: usize| match &answers[job] {
        Answer::Rows(rows) => rows.clone(),
        other => panic!("a read answered {other:?}"),
    };
    assert_eq!([seen(0).len(), seen(2).len(), seen(3).len(), seen(5).len()], [100, 60, 60, 20]);

    assert_eq!(paged(&mut engine, 2), seen(0));
    assert_eq!(paged(&mut engine, 3), seen(2));
    assert!(engine.page(Epoch(4), &[KeyRange::ALL], &all(), None, 7).is_err(), "nobody wanted it kept");
    engine.release(Epoch(2));
    engine.release(Epoch(3));
    assert_eq!(paged(&mut engine, 3), seen(3), "two reads kept it");
    engine.release(Epoch(3));
    assert!(engine.page(Epoch(3), &[KeyRange::ALL], &all(), None, 7).is_err());
}
