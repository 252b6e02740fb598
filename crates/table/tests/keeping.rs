//! Versions that are kept for reads that continue page by page.

use quorate_table::{
    engine::{Answer, Bounds, Engine, Epoch, Failure, Holder, Job, Pinned},
    expr::{Binary, Expr},
    host::SingleThread,
    operation::{LoadId, Operation, Output, Select},
    plain::PlainEngine,
    scan::ScanEngine,
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

/// Reads of one batch, with writes between and after them, each keep the version that they saw.
#[test]
fn a_read_keeps_the_version_that_it_saw() {
    let mut engine = Twin::default();
    let column =
        Column { name: "n".to_owned(), ty: Type::Int4, modifier: None, not_null: true, default: None };
    let partition = Partition::Hash { column: 0 };
    let schema = Schema {
        name: "t".to_owned(),
        columns: vec![column],
        primary_key: Vec::new(),
        partition,
        constraints: Vec::new(),
    };
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
    let mut keep = |job, answer: &Answer| {
        asked.push(job);
        matches!(answer, Answer::Rows(rows) if rows.len() > 30)
    };
    let answers = engine.apply_keeping(&jobs, &mut keep, &SingleThread);
    assert_eq!(asked, [0, 2, 3, 5], "only reads are asked about");
    let seen = |job: usize| match &answers[job] {
        Answer::Rows(rows) => rows.clone(),
        other => panic!("a read answered {other:?}"),
    };
    assert_eq!([seen(0).len(), seen(2).len(), seen(3).len(), seen(5).len()], [100, 60, 60, 20]);

    assert_eq!(paged(&mut engine, 2), seen(0));
    assert_eq!(paged(&mut engine, 3), seen(2));
    assert!(engine.page(Epoch(4), &[KeyRange::ALL], &all(), None, 7).is_err(), "nobody wanted it kept");
    engine.release(Epoch(2), Holder::Reader);
    engine.release(Epoch(3), Holder::Reader);
    assert_eq!(paged(&mut engine, 3), seen(3), "two reads kept it");
    engine.release(Epoch(3), Holder::Reader);
    assert!(engine.page(Epoch(3), &[KeyRange::ALL], &all(), None, 7).is_err());
}

fn text() -> Expr {
    Expr::Column(1, Type::Text)
}

/// A thousand rows with texts. From epoch 2 on, the reader of each epoch sees different rows.
struct OverwrittenTable<E> {
    engine: E,
    epoch: u64,
}

impl<E: Engine> OverwrittenTable<E> {
    const ROWS: i32 = 1_000;

    fn new(mut engine: E) -> OverwrittenTable<E> {
        let column = |name: &str, ty| Column {
            name: name.to_owned(),
            ty,
            modifier: None,
            not_null: true,
            default: None,
        };
        let columns = vec![column("n", Type::Int4), column("t", Type::Text)];
        let partition = Partition::Hash { column: 0 };
        let schema = Schema {
            name: "t".to_owned(),
            columns,
            primary_key: Vec::new(),
            partition,
            constraints: Vec::new(),
        };
        let rows = (0..Self::ROWS).map(|n| vec![Value::Int4(n), Value::text_of("2")]).collect();
        engine.apply(&[
            job(1, Operation::CreateTable { table: TABLE, schema }),
            job(2, Operation::Insert { table: TABLE, rows, returning: Vec::new() }),
        ]);
        OverwrittenTable { engine, epoch: 2 }
    }

    /// Overwrites every row with the epoch.
    fn overwrite(&mut self) {
        self.epoch += 1;
        let value = Expr::constant(Value::text_of(self.epoch.to_string()), Type::Text);
        let update = Operation::Update {
            table: TABLE,
            assignments: vec![(1, value)],
            filter: None,
            returning: vec![],
        };
        let answers = self.engine.apply(&[job(self.epoch, update)]);
        assert!(matches!(answers[..], [Answer::Written(_)]), "{answers:?}");
    }

    /// Reads the first page of a long read at an epoch.
    fn page(&mut self, epoch: u64) -> Result<(), Failure> {
        let output = Output::Rows { columns: vec![text()], order: Vec::new(), limit: None, distinct: false };
        let select = Select { table: TABLE, filter: None, output };
        let page = self.engine.page(Epoch(epoch), &[KeyRange::ALL], &select, None, usize::MAX)?;
        assert_eq!(page.rows, vec![vec![Value::text_of(epoch.to_string())]; Self::ROWS as usize]);
        Ok(())
    }
}

/// Runs three readers. Returns their results, the final use of pins, and the memory after each reader in
/// bytes.
fn three_readers<E: Engine>(engine: E) -> ([Result<(), Failure>; 3], Pinned, Vec<u64>) {
    let mut kept = OverwrittenTable::new(engine);
    let mut bytes = Vec::new();
    for epoch in 2..=4 {
        kept.engine.pin(Epoch(epoch), Holder::Reader);
        kept.overwrite();
        bytes.push(kept.engine.pinned().reader_bytes);
    }
    let seen = [2, 3, 4].map(|epoch| kept.page(epoch));
    let pinned = kept.engine.pinned();
    for epoch in 2..=4 {
        kept.engine.release(Epoch(epoch), Holder::Reader);
    }
    let after = kept.engine.pinned();
    assert_eq!((after.readers, after.reader_bytes), (0, 0), "everything was given back");
    (seen, pinned, bytes)
}

/// The memory for readers is bounded: the oldest reader loses its version first, its read fails, and the
/// others go on.
fn the_oldest_reader_gives_way<E: Engine>(make: impl Fn(Bounds) -> E) {
    let (seen, pinned, bytes) =
        three_readers(make(Bounds { pinned_bytes_max: u64::MAX, ..Bounds::default() }));
    assert!(seen.iter().all(Result::is_ok), "{seen:?}");
    assert_eq!((pinned.readers, pinned.broken), (3, 0));
    assert!(bytes[0] > 0 && bytes[0] < bytes[1] && bytes[1] < bytes[2], "{bytes:?}");

    let (seen, pinned, _) =
        three_readers(make(Bounds { pinned_bytes_max: bytes[2] - 1, ..Bounds::default() }));
    let failure = seen[0].as_ref().expect_err("the oldest gives way");
    assert_eq!(failure.sqlstate, "72000");
    assert!(failure.detail.as_ref().is_some_and(|detail| detail.contains("pinned_bytes_max")));
    assert!(seen[1].is_ok() && seen[2].is_ok(), "{seen:?}");
    assert_eq!((pinned.readers, pinned.broken), (2, 1));
    assert!(pinned.reader_bytes < bytes[2]);

    let (seen, pinned, _) = three_readers(make(Bounds { pinned_bytes_max: 0, ..Bounds::default() }));
    assert!(seen.iter().all(Result::is_err), "{seen:?}");
    assert_eq!((pinned.readers, pinned.broken), (0, 3));
}

/// The memory that a migration's pin keeps has no bound. A reader that needs no further memory keeps its
/// version.
fn a_migration_keeps_what_it_needs<E: Engine>(make: impl Fn(Bounds) -> E) {
    let mut kept = OverwrittenTable::new(make(Bounds { pinned_bytes_max: 0, ..Bounds::default() }));
    kept.engine.pin(Epoch(2), Holder::Migration);
    kept.engine.pin(Epoch(2), Holder::Reader);
    kept.overwrite();
    let pinned = kept.engine.pinned();
    assert!(pinned.migration_bytes > 0);
    assert_eq!((pinned.readers, pinned.reader_bytes, pinned.broken), (1, 0, 0));
    kept.page(2).expect("the migration keeps it");

    // A newer reader needs data that is overwritten later. By then the migration's pin keeps that table
    // whole.
    kept.engine.pin(Epoch(3), Holder::Reader);
    kept.overwrite();
    assert_eq!(kept.engine.pinned().broken, 1);
    kept.page(2).expect("the migration keeps it");
    assert_eq!(kept.page(3).expect_err("only the reader kept it").sqlstate, "72000");

    kept.engine.release(Epoch(2), Holder::Migration);
    assert!(kept.page(2).is_err(), "from now on only a reader kept it");
    assert_eq!(kept.engine.pinned().broken, 2);
    kept.engine.release(Epoch(2), Holder::Reader);
    kept.engine.release(Epoch(3), Holder::Reader);
    let pinned = kept.engine.pinned();
    assert_eq!((pinned.readers, pinned.reader_bytes, pinned.migration_bytes), (0, 0, 0));
    // The broken pin leaves nothing that would disturb another pin.
    kept.engine.pin(Epoch(4), Holder::Reader);
    kept.page(4).unwrap();
}

#[test]
fn the_memory_of_versions_that_readers_keep_is_bounded() {
    the_oldest_reader_gives_way(PlainEngine::new);
    the_oldest_reader_gives_way(ScanEngine::new);
    a_migration_keeps_what_it_needs(PlainEngine::new);
    a_migration_keeps_what_it_needs(ScanEngine::new);
}

#[test]
fn staged_rows_of_a_session_are_dropped_with_the_session() {
    let mut engine = Twin::default();
    let column = Column { name: "n".into(), ty: Type::Int4, modifier: None, not_null: true, default: None };
    let partition = Partition::Hash { column: 0 };
    let schema = Schema {
        name: "t".into(),
        columns: vec![column],
        primary_key: Vec::new(),
        partition,
        constraints: Vec::new(),
    };
    let stage = |load, n| Operation::Stage { table: TABLE, load, rows: vec![vec![Value::Int4(n)]] };
    let (mine, other) = (LoadId(1, 7), LoadId(2, 7));
    engine.apply(&[
        job(1, Operation::CreateTable { table: TABLE, schema }),
        job(2, stage(mine, 1)),
        job(3, stage(other, 2)),
    ]);
    engine.pin(Epoch(3), Holder::Migration);
    let before = engine.digest(None, &[KeyRange::ALL]).unwrap();
    engine.end_session(1);
    engine.end_session(9);
    assert_ne!(engine.digest(None, &[KeyRange::ALL]).unwrap(), before);
    assert_eq!(engine.digest(Some(Epoch(3)), &[KeyRange::ALL]).unwrap(), before, "what is pinned stays");
    let mut published = |epoch, load| {
        let answers = engine.apply(&[job(epoch, Operation::Publish { table: TABLE, load, rows: 1 })]);
        let Answer::Written(written) = &answers[0] else { panic!("{answers:?}") };
        written.iter().map(|written| written.rows).sum::<u64>()
    };
    assert_eq!((published(4, mine), published(5, other)), (0, 1));
}
