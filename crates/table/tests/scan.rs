//! The scan engine compared with the plain one: every call goes to both, and both must answer the same.

use std::collections::BTreeSet;

use quorate_table::{
    engine::{
        Answer, Bounds, Chunk, Cursor, Engine, Epoch, Failure, Holder, Job, Page, Pinned, Records,
        SaveTarget, SavedPart, Usage,
    },
    expr::{Aggregate, AggregateFunction, Binary, Expr, Unary},
    host::Host,
    operation::{LoadId, Operation, Order, Output, Select},
    plain::PlainEngine,
    scan::{Costs, ScanEngine},
    schema::{Column, KeyRange, Partition, Schema, TableId},
    value::{Row, Type, Value},
};

use crate::twin::{COLUMNS, Maker, TYPES};

/// Two engines that must not differ, whatever number of threads one of them uses for a batch.
#[derive(Default)]
pub(crate) struct Twin {
    plain: PlainEngine,
    scan: ScanEngine,
    batches: usize,
}

/// A host that reports this number of threads to an engine.
pub(crate) struct Threads<'a> {
    pub(crate) host: &'a dyn Host,
    pub(crate) threads: usize,
}

impl Host for Threads<'_> {
    fn withdrawn(&self, seen: usize) -> Vec<usize> {
        self.host.withdrawn(seen)
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn looks_min(&self) -> usize {
        1
    }

    /// Calls `work` with each number. With three and more threads the last number comes first, because no
    /// engine may rely on an order.
    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        match self.threads {
            ..3 => (0..count).for_each(work),
            _ => (0..count).rev().for_each(work),
        }
    }
}

impl Engine for Twin {
    fn apply_keeping(
        &mut self,
        jobs: &[Job],
        keep: &mut dyn FnMut(usize, &Answer) -> bool,
        host: &dyn Host,
    ) -> Vec<Answer> {
        let mut kept = BTreeSet::new();
        let plain = self.plain.apply_keeping(
            jobs,
            &mut |job, answer| {
                let keeps = keep(job, answer);
                if keeps {
                    kept.insert(job);
                }
                keeps
            },
            host,
        );
        self.batches += 1;
        let host = Threads { host, threads: [1, 2, 3, 7][self.batches % 4] };
        let scan = self.scan.apply_keeping(jobs, &mut |job, _| kept.contains(&job), &host);
        assert_eq!(plain.len(), scan.len());
        for ((plain, scan), job) in plain.iter().zip(&scan).zip(jobs) {
            assert_eq!(scan, plain, "the scan engine's answer to {job:?}");
        }
        plain
    }

    fn settle(&mut self, epoch: Epoch, publish: bool) {
        self.plain.settle(epoch, publish);
        self.scan.settle(epoch, publish);
    }

    fn pin(&mut self, epoch: Epoch, holder: Holder) {
        self.plain.pin(epoch, holder);
        self.scan.pin(epoch, holder);
    }

    fn release(&mut self, epoch: Epoch, holder: Holder) {
        self.plain.release(epoch, holder);
        self.scan.release(epoch, holder);
    }

    fn page(
        &mut self,
        epoch: Epoch,
        ranges: &[KeyRange],
        select: &Select,
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Page, Failure> {
        let plain = self.plain.page(epoch, ranges, select, cursor.clone(), rows);
        assert_eq!(self.scan.page(epoch, ranges, select, cursor, rows), plain);
        plain
    }

    fn export(
        &mut self,
        epoch: Epoch,
        ranges: &[KeyRange],
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Chunk, Failure> {
        let plain = self.plain.export(epoch, ranges, cursor.clone(), rows);
        assert_eq!(self.scan.export(epoch, ranges, cursor, rows), plain);
        plain
    }

    fn import(&mut self, chunk: Chunk) -> Result<(), Failure> {
        let plain = self.plain.import(chunk.clone());
        assert_eq!(self.scan.import(chunk), plain);
        plain
    }

    fn save(&mut self, _: Epoch, _: &SaveTarget, _: Option<Cursor>) -> Result<SavedPart, Failure> {
        unreachable!("each engine has fragments of its own")
    }

    fn restore(&mut self, _: &[u8], _: &Records) -> Result<(), Failure> {
        unreachable!("each engine has fragments of its own")
    }

    fn forget(&mut self, ranges: &[KeyRange]) {
        self.plain.forget(ranges);
        self.scan.forget(ranges);
    }

    fn end_session(&mut self, session: u128) {
        self.plain.end_session(session);
        self.scan.end_session(session);
    }

    fn digest(&mut self, epoch: Option<Epoch>, ranges: &[KeyRange]) -> Result<u64, Failure> {
        let plain = self.plain.digest(epoch, ranges);
        assert_eq!(self.scan.digest(epoch, ranges), plain);
        plain
    }

    fn rows_at(&self, table: TableId, key: u64, most: usize) -> usize {
        let count = self.plain.rows_at(table, key, most);
        assert_eq!(self.scan.rows_at(table, key, most), count);
        count
    }

    fn usage(&self) -> Vec<Usage> {
        let (plain, scan) = (self.plain.usage(), self.scan.usage());
        let rows =
            |usages: &[Usage]| usages.iter().map(|usage| (usage.table, usage.rows)).collect::<Vec<_>>();
        assert_eq!(rows(&scan), rows(&plain));
        plain
    }

    fn pinned(&self) -> Pinned {
        let (plain, scan) = (self.plain.pinned(), self.scan.pinned());
        assert_eq!((scan.readers, scan.broken), (plain.readers, plain.broken));
        plain
    }
}

const TABLE: TableId = TableId(3);
const WIDTH: usize = TYPES.len() * COLUMNS;
/// A column of small integers that is the same in every history, to partition by.
const KEY: usize = WIDTH;

/// Returns columns of all types, as `Maker`'s expressions need them, and one more.
fn schema(maker: &mut Maker) -> Schema {
    let types = TYPES.iter().flat_map(|&ty| [ty; COLUMNS]).chain([Type::Int4]);
    let column = |(index, ty)| Column {
        name: format!("c{index}"),
        ty,
        modifier: None,
        not_null: false,
        default: None,
    };
    let partition = match maker.below(2) {
        0 => Partition::Hash { column: KEY },
        _ => Partition::Range { column: KEY, low: Some(Value::Int4(0)), high: Some(Value::Int4(40)) },
    };
    let columns = types.enumerate().map(column).collect();
    Schema { name: "all".to_owned(), columns, primary_key: Vec::new(), partition, constraints: Vec::new() }
}

/// Returns costs of the ways to find rows, plausible or not.
pub(crate) fn odd_costs(seed: u8) -> Costs {
    match seed % 4 {
        0 => Costs::default(),
        1 => Costs { group: 0.0, row: 0.0 },
        2 => Costs { group: 3.0, row: 1e9 },
        _ => Costs { group: f64::INFINITY, row: 1.0 },
    }
}

/// The state of a history.
struct History {
    maker: Maker,
    twin: Twin,
    schema: Schema,
    epoch: u64,
    /// Rows that were inserted at some time, to take constants from.
    rows: Vec<Row>,
    ranges: Vec<KeyRange>,
    cases: usize,
}

impl History {
    fn new(seed: u8) -> History {
        let mut maker = Maker::seeded(seed);
        let schema = schema(&mut maker);
        let ranges = match maker.below(3) {
            0 => {
                vec![KeyRange { low: 0, high: u64::MAX / 3 }, KeyRange { low: u64::MAX / 2, high: u64::MAX }]
            }
            _ => vec![KeyRange::ALL],
        };
        let rows = Vec::new();
        // In some histories, many reads gather about as much memory as they may.
        let bounds = match seed % 3 {
            2 => Bounds { result_bytes_max: 20_000, ..Bounds::default() },
            _ => Bounds::default(),
        };
        let mut history = History {
            maker,
            // Costs of any size must not change answers.
            twin: Twin {
                plain: PlainEngine::new(bounds),
                scan: ScanEngine::new(bounds).with_costs(odd_costs(seed)),
                batches: 0,
            },
            schema: schema.clone(),
            epoch: 0,
            rows,
            ranges,
            cases: 0,
        };
        history.write(Operation::CreateTable { table: TABLE, schema });
        history
    }

    fn write(&mut self, operation: Operation) {
        self.epoch += 1;
        let job = Job { epoch: Epoch(self.epoch), ranges: self.ranges.clone(), operation, held: false };
        self.twin.apply(&[job]);
        self.cases += 1;
    }

    fn new_rows(&mut self, count: usize) -> Vec<Row> {
        // Most columns have few different values, some have many.
        let rows: Vec<Row> = (0..count)
            .map(|_| {
                let mut row: Row = (0..WIDTH)
                    .map(|column| match (TYPES[column / COLUMNS], column % COLUMNS) {
                        (Type::Text, 0) => Value::text_of(format!("name {}", self.maker.below(3000))),
                        (Type::Int8, 0) => Value::Int8(self.maker.below(1 << 40) as i64),
                        (Type::Int4, 0) => Value::Int4(self.maker.below(70_000) as i32 - 100),
                        (ty, _) => self.maker.value(ty),
                    })
                    .collect();
                row.push(Value::Int4(self.maker.below(42) as i32 - 1));
                row
            })
            .collect();
        self.rows.extend(rows.iter().cloned());
        rows
    }

    /// Returns a constant for a column: from some row, or arbitrary.
    fn constant(&mut self, column: usize) -> Expr {
        let ty = self.schema.columns[column].ty;
        let value = match self.maker.below(5) {
            0 => self.maker.value(ty),
            _ => {
                let row = self.maker.below(self.rows.len());
                self.rows[row][column].clone()
            }
        };
        Expr::constant(value, ty)
    }

    fn some_column(&mut self) -> usize {
        self.maker.below(WIDTH + 1)
    }

    /// Returns a comparison that an engine could look up.
    fn leaf(&mut self, column: usize) -> Expr {
        let ty = self.schema.columns[column].ty;
        let this = Expr::Column(column, ty);
        let constant = self.constant(column);
        match self.maker.below(12) {
            0 => Expr::IsNull(Box::new(this)),
            1 => Expr::Unary(Unary::Not, Box::new(Expr::IsNull(Box::new(this)))),
            2 | 3 => {
                // Short lists are looked up, long ones are compared or sorted.
                let most = [4, 4, 4, 40][self.maker.below(4)];
                let list = (0..1 + self.maker.below(most)).map(|_| self.constant(column)).collect();
                let listed = Expr::In(Box::new(this), list);
                if self.maker.below(3) == 0 { Expr::Unary(Unary::Not, Box::new(listed)) } else { listed }
            }
            4 if ty == Type::Text => {
                let pattern = ["a%", "%", "name 1%", "x\u{e4}%", "a_%", "ab", "na\\%%", ""];
                let pattern = pattern[self.maker.below(pattern.len())];
                let pattern = Box::new(Expr::constant(Value::text_of(pattern), Type::Text));
                Expr::Like { text: Box::new(this), pattern, escape: Some('\\'), case_insensitive: false }
            }
            5 if ty.is_integer() => {
                let wide = Expr::Cast(Box::new(this), Type::Numeric);
                let number = self.maker.value(Type::Numeric);
                let operators = [Binary::Less, Binary::Equal, Binary::GreaterEqual, Binary::NotEqual];
                let operator = operators[self.maker.below(operators.len())];
                Expr::binary(operator, Expr::constant(number, Type::Numeric), wide)
            }
            6 if ty == Type::Bool => this,
            7 if ty == Type::Bool => Expr::Unary(Unary::Not, Box::new(this)),
            _ => {
                use Binary::*;
                let operators = [Equal, Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual];
                let operator = operators[self.maker.below(operators.len())];
                if self.maker.below(2) == 0 {
                    Expr::binary(operator, this, constant)
                } else {
                    Expr::binary(operator, constant, this)
                }
            }
        }
    }

    fn filter(&mut self, signature: &[usize]) -> Option<Expr> {
        let mut terms: Vec<Expr> = signature
            .iter()
            .map(|&column| {
                let this = Expr::Column(column, self.schema.columns[column].ty);
                Expr::binary(Binary::Equal, this, self.constant(column))
            })
            .collect();
        for _ in 0..self.maker.below(3) {
            let column = self.some_column();
            terms.push(self.leaf(column));
        }
        if self.maker.below(6) == 0 {
            // An arbitrary expression, which may fail.
            let depth = 1 + self.maker.below(3);
            let position = self.maker.below(terms.len() + 1);
            terms.insert(position, self.maker.expr(Type::Bool, depth));
        }
        if terms.is_empty() && self.maker.below(2) == 0 {
            return None;
        }
        Some(Expr::all(terms))
    }

    fn output(&mut self) -> Output {
        let mut columns: Vec<Expr> = (0..1 + self.maker.below(4))
            .map(|_| {
                let column = self.some_column();
                Expr::Column(column, self.schema.columns[column].ty)
            })
            .collect();
        if self.maker.below(6) == 0 {
            columns.push(self.maker.expr(Type::Int4, 2));
        }
        let limit = (self.maker.below(3) == 0).then(|| self.maker.below(12) as u64);
        match self.maker.below(8) {
            0 => {
                let aggregate = |function, argument, distinct| Aggregate { function, argument, distinct };
                let number = Expr::Column(2 * COLUMNS, Type::Int4);
                let float = Expr::Column(4 * COLUMNS, Type::Float8);
                let mut aggregates = vec![
                    aggregate(AggregateFunction::Count, None, false),
                    aggregate(AggregateFunction::Sum, Some(number.clone()), false),
                    aggregate(AggregateFunction::VarianceSample, Some(number.clone()), false),
                    aggregate(AggregateFunction::Count, Some(number), true),
                    aggregate(AggregateFunction::Max, Some(columns[0].clone()), false),
                    aggregate(AggregateFunction::Avg, Some(float), false),
                ];
                // A sum of floats makes one pass look at all rows.
                if self.maker.below(2) == 0 {
                    aggregates.pop();
                }
                let keys = columns.into_iter().skip(1).collect();
                Output::Groups { keys, aggregates }
            }
            1 => {
                let order =
                    vec![Order { column: 0, descending: self.maker.below(2) == 0, nulls_first: false }];
                Output::Rows { columns, order, limit, distinct: false }
            }
            2 => Output::Rows { columns, order: Vec::new(), limit, distinct: true },
            _ => Output::Rows { columns, order: Vec::new(), limit, distinct: false },
        }
    }

    /// Runs many reads in one batch, most with equality on the same columns.
    fn read(&mut self, epoch: u64) {
        let signature: Vec<usize> = (0..1 + self.maker.below(3)).map(|_| self.some_column()).collect();
        let jobs: Vec<Job> = (0..120)
            .map(|_| {
                let filter = match self.maker.below(5) {
                    0 => self.filter(&[]),
                    _ => self.filter(&signature),
                };
                let operation = Operation::Select(Select { table: TABLE, filter, output: self.output() });
                Job { epoch: Epoch(epoch), ranges: self.ranges.clone(), operation, held: false }
            })
            .collect();
        self.cases += jobs.len();
        self.twin.apply(&jobs);
    }

    /// Runs reads with writes between them.
    fn mix(&mut self) {
        let signature: Vec<usize> = (0..1 + self.maker.below(3)).map(|_| self.some_column()).collect();
        let jobs: Vec<Job> = (0..80)
            .map(|_| {
                let operation = if self.maker.below(6) == 0 {
                    self.epoch += 1;
                    match self.maker.below(3) {
                        0 => {
                            let rows = self.new_rows(2);
                            Operation::Insert { table: TABLE, rows, returning: Vec::new() }
                        }
                        _ => self.change(),
                    }
                } else {
                    let filter = self.filter(&signature);
                    Operation::Select(Select { table: TABLE, filter, output: self.output() })
                };
                Job { epoch: Epoch(self.epoch), ranges: self.ranges.clone(), operation, held: false }
            })
            .collect();
        self.cases += jobs.len();
        self.twin.apply(&jobs);
    }

    fn update(&mut self) {
        let operation = self.change();
        self.write(operation);
    }

    fn change(&mut self) -> Operation {
        let signature: Vec<usize> = (0..1 + self.maker.below(2)).map(|_| self.some_column()).collect();
        let filter = self.filter(&signature);
        let returning = vec![Expr::Column(0, Type::Bool)];
        if self.maker.below(4) == 0 {
            return Operation::Delete { table: TABLE, filter, returning };
        }
        let assignments = (0..1 + self.maker.below(3))
            .map(|_| {
                let column = self.maker.below(WIDTH);
                let ty = self.schema.columns[column].ty;
                let value =
                    if self.maker.below(4) == 0 { self.maker.expr(ty, 1) } else { self.constant(column) };
                (column, value)
            })
            .collect();
        Operation::Update { table: TABLE, assignments, filter, returning }
    }

    fn run(&mut self, steps: usize, rows: usize) {
        let mut pinned: Option<u64> = None;
        for step in 0..steps {
            let count = 1 + self.maker.below(rows);
            let rows = self.new_rows(count);
            match self.maker.below(3) {
                0 => {
                    let load = LoadId(1, step as u64);
                    self.write(Operation::Stage { table: TABLE, load, rows });
                    self.write(Operation::Publish { table: TABLE, load, rows: 0 });
                }
                _ => self.write(Operation::Insert { table: TABLE, rows, returning: Vec::new() }),
            }
            self.read(self.epoch);
            (0..4).for_each(|_| self.update());
            (0..3).for_each(|_| self.mix());
            self.read(self.epoch);
            match pinned.take() {
                Some(epoch) => {
                    self.read(epoch);
                    self.twin.release(Epoch(epoch), Holder::Migration);
                }
                None => {
                    self.twin.pin(Epoch(self.epoch), Holder::Migration);
                    pinned = Some(self.epoch);
                }
            }
            self.twin.digest(None, &[KeyRange::ALL]).expect("the present");
            self.twin.usage();
        }
    }
}

#[test]
fn the_scan_engine_gives_the_answers_of_the_plain_engine() {
    let mut cases = 0;
    for seed in 0..12 {
        let mut history = History::new(seed);
        history.run(8, 40);
        cases += history.cases;
    }
    // These histories have several blocks, merged dictionaries, and inserts between other rows.
    for seed in [99, 98] {
        let mut history = History::new(seed);
        history.run(3, 8000);
        cases += history.cases;
    }
    assert!(cases > 20_000, "{cases} cases");
}

#[test]
fn blocks_are_split_joined_and_emptied() {
    let column =
        |name: &str, ty| Column { name: name.to_owned(), ty, modifier: None, not_null: false, default: None };
    let schema = Schema {
        name: "many".to_owned(),
        columns: vec![column("k", Type::Int4), column("s", Type::Text)],
        primary_key: vec![0],
        partition: Partition::Range { column: 0, low: Some(Value::Int4(0)), high: Some(Value::Int4(40_000)) },
        constraints: Vec::new(),
    };
    let mut twin = Twin::default();
    let mut epoch = 0;
    let mut apply = |twin: &mut Twin, operation| {
        epoch += 1;
        let job = Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false };
        let answer = twin.apply(&[job]).remove(0);
        assert!(!matches!(answer, Answer::Failed(_)), "{answer:?}");
        twin.digest(None, &[KeyRange::ALL]).expect("the present");
    };
    apply(&mut twin, Operation::CreateTable { table: TABLE, schema });
    let row = |k: i32| vec![Value::Int4(k), Value::text_of(format!("row {}", k % 3000))];
    let insert = |keys: Vec<i32>| Operation::Insert {
        table: TABLE,
        rows: keys.into_iter().map(row).collect(),
        returning: vec![],
    };
    apply(&mut twin, insert((0..30_000).step_by(3).collect()));
    apply(&mut twin, insert((0..30_000).skip(1).step_by(3).collect()));
    (0..40).for_each(|k| apply(&mut twin, insert(vec![3 * k * 17 + 2])));
    let k = || Expr::Column(0, Type::Int4);
    let below = |bound: i32| Expr::binary(Binary::Less, k(), Expr::constant(Value::Int4(bound), Type::Int4));
    let delete = |filter| Operation::Delete { table: TABLE, filter, returning: vec![] };
    apply(&mut twin, delete(Some(below(9_000))));
    for digit in [1, 4, 7] {
        let last = Expr::binary(Binary::Modulo, k(), Expr::constant(Value::Int4(9), Type::Int4));
        apply(
            &mut twin,
            delete(Some(Expr::binary(Binary::Equal, last, Expr::constant(Value::Int4(digit), Type::Int4)))),
        );
    }
    apply(&mut twin, insert((0..9_000).collect()));
    apply(&mut twin, delete(None));
    assert_eq!(twin.usage()[0].rows, 0);
    apply(&mut twin, insert(vec![5]));
    assert_eq!(twin.usage()[0].rows, 1);
}

#[test]
fn a_pinned_version_stays_readable_after_its_dictionary_changed() {
    let column =
        |name: &str, ty| Column { name: name.to_owned(), ty, modifier: None, not_null: false, default: None };
    let schema = Schema {
        name: "few".to_owned(),
        columns: vec![column("k", Type::Int4), column("s", Type::Text)],
        primary_key: vec![0],
        partition: Partition::Hash { column: 0 },
        constraints: Vec::new(),
    };
    let mut twin = Twin::default();
    let job =
        |epoch, operation| Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false };
    twin.apply(&[job(1, Operation::CreateTable { table: TABLE, schema })]);
    let rows = (0..10).map(|k| vec![Value::Int4(k), Value::text_of(format!("old {}", 9 - k))]).collect();
    twin.apply(&[job(2, Operation::Insert { table: TABLE, rows, returning: vec![] })]);
    twin.pin(Epoch(2), Holder::Migration);
    // There are enough new values for the dictionary to be merged, and too few changes for the table to be
    // kept whole.
    let updates = (3..1020).map(|epoch| {
        let is = |k| {
            let constant = Expr::constant(Value::Int4(k), Type::Int4);
            Some(Expr::binary(Binary::Equal, Expr::Column(0, Type::Int4), constant))
        };
        let assignments =
            vec![(1, Expr::constant(Value::text_of(format!("new {}", 2000 - epoch)), Type::Text))];
        let filter = is(epoch as i32 % 7);
        job(epoch, Operation::Update { table: TABLE, assignments, filter, returning: vec![] })
    });
    for batch in updates.collect::<Vec<_>>().chunks(100) {
        twin.apply(batch);
    }
    let columns = vec![Expr::Column(0, Type::Int4), Expr::Column(1, Type::Text)];
    let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
    let all = Operation::Select(Select { table: TABLE, filter: None, output });
    let Answer::Rows(rows) = twin.apply(&[job(2, all)]).remove(0) else { panic!("a read brings rows") };
    let old = |row: &Row| row[0].as_integer().map(|k| Value::text_of(format!("old {}", 9 - k)));
    assert!(rows.len() == 10 && rows.iter().all(|row| Some(row[1].clone()) == old(row)), "{rows:?}");
    twin.release(Epoch(2), Holder::Migration);
}

/// Some keys have few rows and some have many, in a table that is partitioned by the key. The reads use keys
/// of both kinds, alone, among writes that turn one kind into the other, and with filters that nothing can
/// satisfy.
#[test]
fn a_key_may_be_in_many_rows() {
    let column =
        |name: &str, ty| Column { name: name.to_owned(), ty, modifier: None, not_null: false, default: None };
    let range = Partition::Range { column: 0, low: Some(Value::Int4(0)), high: Some(Value::Int4(9)) };
    for partition in [Partition::Hash { column: 0 }, range] {
        let schema = Schema {
            name: "crowded".to_owned(),
            columns: vec![column("k", Type::Int4), column("s", Type::Text), column("n", Type::Int4)],
            primary_key: vec![],
            partition,
            constraints: Vec::new(),
        };
        let mut twin = Twin::default();
        let mut epoch = 0;
        let mut apply = |operations: Vec<Operation>| {
            let job = |operation| {
                epoch += 1;
                Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false }
            };
            let jobs: Vec<Job> = operations.into_iter().map(job).collect();
            let answers = twin.apply(&jobs);
            assert!(!answers.iter().any(|answer| matches!(answer, Answer::Failed(_))), "{answers:?}");
        };
        let (k, s) = (|| Expr::Column(0, Type::Int4), || Expr::Column(1, Type::Text));
        let number = |n: i32| Expr::constant(Value::Int4(n), Type::Int4);
        let text = |text: &str| Expr::constant(Value::text_of(text), Type::Text);
        let equal = |a, b| Expr::binary(Binary::Equal, a, b);
        let any = |keys: &[i32]| {
            let is = keys.iter().map(|&key| equal(k(), number(key)));
            is.reduce(|a, b| Expr::binary(Binary::Or, a, b)).expect("a key")
        };
        let read = |filter: Expr| {
            let columns = vec![k(), s(), Expr::Column(2, Type::Int4)];
            let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
            Operation::Select(Select { table: TABLE, filter: Some(filter), output })
        };
        let insert = |key: i32, numbers: std::ops::Range<i32>| Operation::Insert {
            table: TABLE,
            rows: numbers
                .map(|n| vec![Value::Int4(key), Value::text_of(format!("s{}", n % 3)), Value::Int4(n)])
                .collect(),
            returning: vec![],
        };
        let update = |filter: Expr, name: &str| Operation::Update {
            table: TABLE,
            assignments: vec![(1, text(name))],
            filter: Some(filter),
            returning: vec![],
        };
        let reads = || {
            let keys = [&[1][..], &[2], &[3], &[1, 2], &[2, 3, 4], &[5]];
            keys.into_iter().flat_map(|keys| {
                let named =
                    ["s1", "absent", "new"].map(|name| Expr::all(vec![any(keys), equal(s(), text(name))]));
                let odd =
                    equal(Expr::binary(Binary::Modulo, Expr::Column(2, Type::Int4), number(2)), number(1));
                named.into_iter().chain([Expr::all(vec![any(keys), odd])]).map(read).collect::<Vec<_>>()
            })
        };
        apply(vec![Operation::CreateTable { table: TABLE, schema }]);
        apply(vec![insert(1, 0..16), insert(2, 0..5000), insert(3, 0..2)]);
        apply(reads().collect());
        // The seventeenth row arrives within a batch, and later reads of the batch see its writes.
        let mut batch: Vec<Operation> = reads().collect();
        batch.push(insert(1, 16..17));
        batch.extend(reads());
        batch.push(update(Expr::all(vec![any(&[1, 2]), equal(s(), text("s1"))]), "new"));
        batch.push(update(Expr::all(vec![any(&[2]), equal(s(), text("absent"))]), "never"));
        batch.extend(reads());
        batch.push(Operation::Delete { table: TABLE, filter: Some(any(&[2])), returning: vec![] });
        batch.extend(reads());
        apply(batch);
        apply(reads().collect());
    }
}

/// One batch looks up many keys of few rows each. The rows of a key differ in the columns of filters and
/// outputs, or do not. There are nearly unique texts, NULL next to the least of them, and keys without rows.
#[test]
fn many_keys_are_looked_up_together() {
    const KEYS: i32 = 1500;
    let column =
        |name: &str, ty| Column { name: name.to_owned(), ty, modifier: None, not_null: false, default: None };
    let schema = Schema {
        name: "bookings".to_owned(),
        columns: vec![column("k", Type::Text), column("s", Type::Text), column("n", Type::Int4)],
        primary_key: vec![],
        partition: Partition::Hash { column: 0 },
        constraints: Vec::new(),
    };
    let mut twin = Twin::default();
    let key = |key: i32| Value::text_of(format!("key {key:05}"));
    let row = |number: i32| {
        let own = number / 3;
        let text = if number % 3 == 1 { Value::Null } else { Value::text_of(format!("of {own:05}")) };
        vec![key(own), text, Value::Int4(number % 3)]
    };
    let job =
        |epoch, operation| Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false };
    let rows: Vec<Row> = (0..3 * KEYS).map(row).collect();
    let loaded = twin.apply(&[
        job(1, Operation::CreateTable { table: TABLE, schema }),
        job(2, Operation::Insert { table: TABLE, rows, returning: vec![] }),
    ]);
    assert!(!loaded.iter().any(|answer| matches!(answer, Answer::Failed(_))), "{loaded:?}");
    let (k, n) = (|| Expr::Column(0, Type::Text), || Expr::Column(2, Type::Int4));
    let text = |value| Expr::constant(value, Type::Text);
    let read = |number: i32| {
        let asked = [number * 17 % (KEYS + 50), number % KEYS, number * 5 % KEYS];
        let of = match number % 3 {
            0 => Expr::In(Box::new(k()), asked.map(|asked| text(key(asked))).to_vec().into()),
            _ => Expr::binary(Binary::Equal, k(), text(key(asked[0]))),
        };
        let filter = match number % 2 {
            0 => Expr::all(vec![
                of,
                Expr::binary(Binary::Less, n(), Expr::constant(Value::Int4(number % 4), Type::Int4)),
            ]),
            _ => of,
        };
        let columns = vec![k(), Expr::Column(1, Type::Text), n()];
        let limit = (number % 7 == 0).then_some(2);
        let output = Output::Rows { columns, order: Vec::new(), limit, distinct: false };
        job(2, Operation::Select(Select { table: TABLE, filter: Some(filter), output }))
    };
    let answers = twin.apply(&(0..2 * KEYS).map(read).collect::<Vec<_>>());
    let rows = answers.iter().map(|answer| match answer {
        Answer::Rows(rows) => rows.len(),
        other => panic!("{other:?}"),
    });
    assert!(rows.sum::<usize>() > KEYS as usize, "most keys are there");
}
