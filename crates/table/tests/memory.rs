//! The memory that an engine reports for its tables, compared with the allocator's.

use std::process::Command;

use peak_alloc::PeakAlloc;
use quorate_table::{
    engine::{Answer, Engine, Epoch, Holder, Job},
    expr::{Binary, Expr},
    numeric::Numeric,
    operation::Operation,
    scan::ScanEngine,
    schema::{Column, KeyRange, Partition, Schema, TableId},
    value::{Row, Type, Value},
};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const TABLE: TableId = TableId(1);
const ROWS: i32 = 40_000;
/// The reported memory may differ from the allocated memory by 1/`PRECISION` of it.
const PRECISION: f64 = 20.0;

/// The variable that marks a process with only this test, because other tests would allocate memory
/// meanwhile.
const ALONE: &str = "QUORATE_TEST_ALONE";

#[test]
#[expect(clippy::disallowed_methods, reason = "the test starts itself once more, and must know which it is")]
fn the_counted_memory_of_tables_equals_the_allocated_memory() {
    if std::env::var_os(ALONE).is_none() {
        let mut again = Command::new(std::env::current_exe().expect("this program"));
        let output = again
            .args([
                "--exact",
                "memory::the_counted_memory_of_tables_equals_the_allocated_memory",
                "--nocapture",
            ])
            .env(ALONE, "")
            .output();
        let output = output.expect("this program starts");
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{}", said.concat());
        return;
    }
    // This first load makes the allocations that happen only once and stay, so that the check does not count
    // them.
    drop(Tables::loaded(10));
    Tables::check();
}

struct Tables {
    engine: ScanEngine,
    epoch: u64,
}

fn row(key: i32) -> Row {
    vec![
        Value::Int4(key),
        Value::text_of(format!("one of a few: {}", key % 100)),
        Value::text_of(format!("of its own: {key}")),
        if key % 3 == 0 { Value::Null } else { Value::Int8(i64::from(key) << 20) },
        Value::Numeric(Numeric::from_i128(i128::from(key % 500))),
    ]
}

impl Tables {
    fn loaded(rows: i32) -> Tables {
        let column = |(name, ty): (&str, Type)| Column {
            name: name.to_owned(),
            ty,
            modifier: None,
            not_null: false,
            default: None,
        };
        let columns = [
            ("k", Type::Int4),
            ("few", Type::Text),
            ("own", Type::Text),
            ("b", Type::Int8),
            ("n", Type::Numeric),
        ];
        let schema = Schema {
            name: "t".to_owned(),
            columns: columns.into_iter().map(column).collect(),
            primary_key: vec![0],
            partition: Partition::Hash { column: 0 },
            constraints: Vec::new(),
        };
        let mut tables = Tables { engine: ScanEngine::default(), epoch: 0 };
        tables.apply(vec![Operation::CreateTable { table: TABLE, schema }]);
        tables.insert((0..rows).map(row).collect());
        tables
    }

    fn check() {
        let before = ALLOCATOR.current_usage();
        let mut tables = Tables::loaded(ROWS);
        tables.compare("loaded at once", before);
        for keys in (ROWS..ROWS + 6_000).collect::<Vec<_>>().chunks(100) {
            let insert =
                |&key: &i32| Operation::Insert { table: TABLE, rows: vec![row(key)], returning: Vec::new() };
            tables.apply(keys.iter().map(insert).collect());
        }
        tables.compare("rows added one by one", before);
        let held = Epoch(tables.epoch);
        tables.engine.pin(held, Holder::Reader);
        for keys in (0..2_000).map(|number| number * 19).collect::<Vec<_>>().chunks(100) {
            let update = |&key: &i32| {
                let text = Value::text_of(format!("changed, and longer than before: {key}"));
                Operation::Update {
                    table: TABLE,
                    assignments: vec![(2, Expr::constant(text, Type::Text))],
                    filter: Some(key_is(Binary::Equal, key)),
                    returning: Vec::new(),
                }
            };
            tables.apply(keys.iter().map(update).collect());
        }
        tables.compare("rows changed while a version is kept", before);
        tables.engine.release(held, Holder::Reader);
        tables.compare("the version given back", before);
        let filter = Some(key_is(Binary::Less, ROWS / 3));
        tables.apply(vec![Operation::Delete { table: TABLE, filter, returning: Vec::new() }]);
        tables.compare("a third deleted", before);
    }

    fn apply(&mut self, operations: Vec<Operation>) {
        let job = |(operation, number)| Job {
            epoch: Epoch(self.epoch + number),
            ranges: vec![KeyRange::ALL],
            operation,
            held: false,
        };
        let jobs: Vec<Job> = operations.into_iter().zip(1..).map(job).collect();
        let answers = self.engine.apply(&jobs);
        let failed = answers.iter().find(|answer| matches!(answer, Answer::Failed(_)));
        assert!(failed.is_none(), "{failed:?}");
        self.epoch += jobs.len() as u64;
    }

    fn insert(&mut self, rows: Vec<Row>) {
        self.apply(vec![Operation::Insert { table: TABLE, rows, returning: Vec::new() }]);
    }

    fn compare(&self, when: &str, before: usize) {
        let said: u64 = self.engine.usage().iter().map(|usage| usage.bytes).sum();
        let taken = (ALLOCATOR.current_usage() - before) as f64;
        let ratio = said as f64 / taken;
        println!("{when}: {said} bytes said, {taken} taken: {ratio:.3}");
        assert!((ratio - 1.0).abs() < 1.0 / PRECISION, "{when}: {said} bytes are said, and {taken} taken");
    }
}

fn key_is(operator: Binary, key: i32) -> Expr {
    Expr::binary(operator, Expr::Column(0, Type::Int4), Expr::constant(Value::Int4(key), Type::Int4))
}
