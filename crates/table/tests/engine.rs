//! Both engines compared with a vector of rows. Random statements run on one engine that holds everything and
//! on two that hold half the ring each, with holds, pins, loads and migrations between them.

use proptest::prelude::*;
use quorate_table::{
    constraint::Check,
    engine::{Answer, Cursor, Engine, Epoch, Failure, Holder, Job, Written},
    eval::{eval, satisfies},
    expr::{Aggregate, AggregateFunction, Binary, Expr},
    merge::{Finish, Input, Merge},
    operation::{LoadId, Operation, Order, Output, Select},
    schema::{Column, KeyRange, Partition, ROW_BYTES_MAX, Schema, TEXT_BYTES_SHORT, TableId},
    value::{Row, Type, Value, key_of},
};

use crate::scan::Twin;

pub(crate) const TABLE: TableId = TableId(7);
const LOADS: u64 = 2;
pub(crate) const HALVES: [KeyRange; 2] =
    [KeyRange { low: 0, high: u64::MAX / 2 }, KeyRange { low: u64::MAX / 2 + 1, high: u64::MAX }];

#[derive(Clone, Debug)]
enum Step {
    Insert(Vec<Row>),
    Update(Vec<(usize, Expr)>, Option<Expr>),
    Delete(Option<Expr>),
    Stage(u64, Vec<Row>),
    Publish(u64),
    Discard(u64),
    Select(Option<Expr>),
    /// Holds the next write, and drops it afterwards.
    VoidNext,
    Pin,
    Release,
    /// Moves the half of this index to a fresh engine, in chunks of at most this number of rows.
    Migrate(usize, usize),
}

pub(crate) fn schema(hash: bool) -> Schema {
    let column = |name: &str, ty, not_null| Column {
        name: name.to_owned(),
        ty,
        modifier: None,
        not_null,
        default: None,
    };
    let partition = if hash {
        Partition::Hash { column: 0 }
    } else {
        Partition::Range { column: 0, low: Some(Value::Int4(0)), high: Some(Value::Int4(6)) }
    };
    Schema {
        name: "things".to_owned(),
        columns: vec![
            column("k", Type::Int4, true),
            column("s", Type::Text, false),
            column("v", Type::Int4, false),
        ],
        primary_key: vec![0, 1],
        partition,
        constraints: Vec::new(),
    }
}

/// The greatest sum that [`checked`] allows.
const SUM_MAX: i32 = 7;

/// Adds CHECK (k + v <= 7) and CHECK (s <> 'bb').
fn checked(mut schema: Schema) -> Schema {
    let sum = Expr::binary(Binary::Add, K(), V());
    let small = Expr::binary(Binary::LessEqual, sum, Expr::constant(Value::Int4(SUM_MAX), Type::Int4));
    let named = Expr::binary(Binary::NotEqual, S(), Expr::constant(Value::text_of("bb"), Type::Text));
    for (name, condition) in [("small", small), ("named", named)] {
        schema.add_check(Check { name: name.to_owned(), condition, text: String::new() });
    }
    schema
}

/// Fails with an SQLSTATE if a row breaks a condition of [`checked`]. The condition `named` is evaluated
/// first.
fn conforms(schema: &Schema, row: &Row) -> Result<(), String> {
    schema.check_row(row).map_err(|failure| failure.sqlstate)?;
    let [Value::Int4(k), s, v] = &row[..] else { unreachable!("the columns have these types") };
    match v {
        _ if schema.constraints.is_empty() => Ok(()),
        _ if *s == Value::text_of("bb") => Err("23514".to_owned()),
        Value::Int4(v) => match k.checked_add(*v) {
            None => Err("22003".to_owned()),
            Some(sum) if sum > SUM_MAX => Err("23514".to_owned()),
            Some(_) => Ok(()),
        },
        _ => Ok(()),
    }
}

pub(crate) const K: fn() -> Expr = || Expr::Column(0, Type::Int4);
pub(crate) const S: fn() -> Expr = || Expr::Column(1, Type::Text);
pub(crate) const V: fn() -> Expr = || Expr::Column(2, Type::Int4);

pub(crate) fn any_k() -> impl Strategy<Value = Value> {
    (0i32..7).prop_map(Value::Int4)
}

pub(crate) fn any_s() -> impl Strategy<Value = Value> {
    prop_oneof![20 => "[ab]{0,2}".prop_map(Value::text_of), 1 => Just(Value::Null)]
}

fn any_v() -> impl Strategy<Value = Value> {
    prop_oneof![6 => (-3i32..4).prop_map(Value::Int4), 1 => Just(Value::Null), 1 => Just(Value::Int4(i32::MAX))]
}

pub(crate) fn any_rows(most: usize) -> impl Strategy<Value = Vec<Row>> {
    prop::collection::vec((any_k(), any_s(), any_v()).prop_map(|(k, s, v)| vec![k, s, v]), 0..most)
}

pub(crate) fn any_filter() -> impl Strategy<Value = Option<Expr>> {
    let operator = || {
        prop_oneof![
            Just(Binary::Equal),
            Just(Binary::Less),
            Just(Binary::GreaterEqual),
            Just(Binary::NotEqual)
        ]
    };
    let compared = |column: fn() -> Expr, ty: Type| {
        move |(operator, value)| Expr::binary(operator, column(), Expr::constant(value, ty))
    };
    let leaf = prop_oneof![
        (operator(), any_k()).prop_map(compared(K, Type::Int4)),
        (operator(), any_s()).prop_map(compared(S, Type::Text)),
        (operator(), any_v()).prop_map(compared(V, Type::Int4)),
    ];
    let tree = leaf.prop_recursive(2, 4, 2, |inner| {
        (any::<bool>(), inner.clone(), inner)
            .prop_map(|(and, a, b)| Expr::binary(if and { Binary::And } else { Binary::Or }, a, b))
    });
    prop::option::weighted(0.8, tree)
}

pub(crate) fn any_assignments() -> impl Strategy<Value = Vec<(usize, Expr)>> {
    let sum = |by: Value| Expr::binary(Binary::Add, V(), Expr::constant(by, Type::Int4));
    prop_oneof![
        any_v().prop_map(move |by| vec![(2, sum(by))]),
        any_s().prop_map(|s| vec![(1, Expr::constant(s, Type::Text))]),
        Just(vec![(1, Expr::binary(Binary::Concat, S(), Expr::constant(Value::text_of("a"), Type::Text)))]),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any_rows(4).prop_map(Step::Insert),
        4 => (any_assignments(), any_filter()).prop_map(|(assignments, filter)| Step::Update(assignments, filter)),
        1 => any_filter().prop_map(Step::Delete),
        2 => (0..LOADS, any_rows(4)).prop_map(|(load, rows)| Step::Stage(load, rows)),
        1 => (0..LOADS).prop_map(Step::Publish),
        1 => (0..LOADS).prop_map(Step::Discard),
        3 => any_filter().prop_map(Step::Select),
        1 => Just(Step::VoidNext),
        1 => Just(Step::Pin),
        1 => Just(Step::Release),
        1 => (0..2usize, 1..9usize).prop_map(|(half, rows)| Step::Migrate(half, rows)),
    ]
}

/// The model: a plain list of rows.
#[derive(Clone, Default)]
struct Model {
    rows: Vec<Row>,
    staged: [Vec<Row>; LOADS as usize],
}

impl Model {
    /// Runs a write. Returns the number of affected rows, or the SQLSTATE.
    fn write(&mut self, schema: &Schema, step: &Step) -> Result<usize, String> {
        let mut next = self.clone();
        let failed = |failure: Failure| failure.sqlstate;
        let affected = match step {
            Step::Insert(rows) => {
                next.rows.extend(rows.iter().cloned());
                rows.iter().try_for_each(|row| conforms(schema, row))?;
                rows.len()
            }
            Step::Update(assignments, filter) => {
                let mut affected = 0;
                for row in &mut next.rows {
                    if satisfies(filter.as_ref(), row).map_err(failed)? {
                        let old = row.clone();
                        for (column, expr) in assignments {
                            row[*column] = eval(expr, &old).map_err(failed)?;
                        }
                        conforms(schema, row)?;
                        affected += 1;
                    }
                }
                affected
            }
            Step::Delete(filter) => {
                next.rows.retain(|row| !satisfies(filter.as_ref(), row).expect("a filter that cannot fail"));
                self.rows.len() - next.rows.len()
            }
            Step::Stage(load, rows) => {
                rows.iter().try_for_each(|row| conforms(schema, row))?;
                next.staged[*load as usize].extend(rows.iter().cloned());
                rows.len()
            }
            Step::Publish(load) => {
                let staged = std::mem::take(&mut next.staged[*load as usize]);
                let affected = staged.len();
                next.rows.extend(staged);
                affected
            }
            Step::Discard(load) => {
                next.staged[*load as usize].clear();
                0
            }
            other => unreachable!("{other:?} is no write"),
        };
        let mut keys: Vec<Vec<u8>> = next.rows.iter().map(|row| key_of(&row[..2])).collect();
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("23505".to_owned());
        }
        *self = next;
        Ok(affected)
    }

    fn matching(&self, filter: Option<&Expr>) -> Vec<Row> {
        sorted(self.rows.iter().filter(|row| satisfies(filter, row).expect("cannot fail")).cloned().collect())
    }
}

fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by_key(|row| key_of(row));
    rows
}

fn operation(step: &Step) -> Operation {
    let returning = vec![K(), S(), V()];
    let load = |number: u64| LoadId(u128::MAX - u128::from(number), number);
    match step.clone() {
        Step::Insert(rows) => Operation::Insert { table: TABLE, rows, returning },
        Step::Update(assignments, filter) => {
            Operation::Update { table: TABLE, assignments, filter, returning }
        }
        Step::Delete(filter) => Operation::Delete { table: TABLE, filter, returning },
        Step::Stage(number, rows) => Operation::Stage { table: TABLE, load: load(number), rows },
        Step::Publish(number) => Operation::Publish { table: TABLE, load: load(number), rows: 0 },
        Step::Discard(number) => Operation::Discard { table: TABLE, load: load(number) },
        other => unreachable!("{other:?} is no operation"),
    }
}

pub(crate) fn job(epoch: u64, ranges: &[KeyRange], operation: &Operation, held: bool) -> Job {
    Job { epoch: Epoch(epoch), ranges: ranges.to_vec(), operation: operation.clone(), held }
}

pub(crate) fn one(engine: &mut Twin, job: Job) -> Answer {
    let mut answers = engine.apply(&[job]);
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

/// Returns a read of every row that satisfies the filter.
pub(crate) fn plain(filter: Option<Expr>) -> Select {
    let output = Output::Rows { columns: vec![K(), S(), V()], order: vec![], limit: None, distinct: false };
    Select { table: TABLE, filter, output }
}

struct TwinEngines {
    schema: Schema,
    whole: Twin,
    halves: [Twin; 2],
    model: Model,
    epoch: u64,
    void_next: bool,
    pins: Vec<(u64, Model)>,
}

impl TwinEngines {
    fn new(hash: bool, has_checks: bool) -> TwinEngines {
        let schema = if has_checks { checked(schema(hash)) } else { schema(hash) };
        let create = Operation::CreateTable { table: TABLE, schema: schema.clone() };
        let mut whole = Twin::default();
        let mut halves = [Twin::default(), Twin::default()];
        for engine in std::iter::once(&mut whole).chain(&mut halves) {
            let answer = one(engine, job(1, &[KeyRange::ALL], &create, false));
            assert_eq!(answer, Answer::Written(vec![Written::default()]));
        }
        TwinEngines {
            schema,
            whole,
            halves,
            model: Model::default(),
            epoch: 1,
            void_next: false,
            pins: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        self.epoch += 1;
        match step {
            Step::Select(filter) => self.select(filter.as_ref()),
            Step::VoidNext => self.void_next = true,
            Step::Pin => {
                self.whole.pin(Epoch(self.epoch), Holder::Migration);
                self.pins.push((self.epoch, self.model.clone()));
            }
            Step::Release => {
                if !self.pins.is_empty() {
                    let (epoch, model) = self.pins.remove(0);
                    self.read_pinned(epoch, &model);
                    self.whole.release(Epoch(epoch), Holder::Migration);
                }
            }
            Step::Migrate(half, rows) => self.migrate(*half, *rows),
            write => self.write(write),
        }
        for (engine, range) in self.halves.iter_mut().zip(HALVES) {
            let digest = |engine: &mut Twin| engine.digest(None, &[range]).expect("the present");
            assert_eq!(
                digest(engine),
                digest(&mut self.whole),
                "a half differs from the whole behind {step:?}"
            );
        }
        let usage = self.whole.usage();
        assert_eq!(usage[0].rows, self.model.rows.len() as u64);
    }

    /// Runs a write. The engine of the whole ring must answer, range by range, like the engines of the two
    /// halves and like the model. A write that fails in one half is dropped in the other.
    fn write(&mut self, step: &Step) {
        let operation = operation(step);
        let void = std::mem::take(&mut self.void_next);
        let before = self.model.clone();
        let expected = self.model.write(&self.schema, step);
        let answer = one(&mut self.whole, job(self.epoch, &HALVES, &operation, void));
        let mut answers = Vec::new();
        for (engine, range) in self.halves.iter_mut().zip(HALVES) {
            answers.push(one(engine, job(self.epoch, &[range], &operation, true)));
        }
        let failed = answers.iter().find_map(|answer| match answer {
            Answer::Failed(failure) => Some(failure.clone()),
            _ => None,
        });
        for engine in &mut self.halves {
            engine.settle(Epoch(self.epoch), !void && failed.is_none());
        }
        if void {
            self.whole.settle(Epoch(self.epoch), false);
            self.model = before;
        }
        match (expected, answer) {
            (Ok(affected), Answer::Written(written)) => {
                assert_eq!(written.iter().map(|one| one.rows).sum::<u64>(), affected as u64, "{step:?}");
                let halves: Vec<Written> = answers
                    .into_iter()
                    .flat_map(|answer| match answer {
                        Answer::Written(written) => written,
                        other => panic!("the whole succeeds and a half answers {other:?}"),
                    })
                    .collect();
                assert_eq!(halves, written, "{step:?}");
            }
            (Err(sqlstate), Answer::Failed(failure)) => {
                let theirs = failed.expect("the whole fails and both halves succeed");
                // The order of rows decides which of several faults is reported, but some half reports it.
                let is_of_a_row = |code: &str| ["22003", "23502", "23514"].contains(&code);
                let is_any_row = matches!(step, Step::Update(..)) && is_of_a_row(&sqlstate);
                assert!(
                    failure.sqlstate == sqlstate
                        || sqlstate == "23505"
                        || failure.sqlstate == "22003"
                        || is_any_row && is_of_a_row(&failure.sqlstate),
                    "{step:?}"
                );
                assert!(!theirs.message.starts_with("malformed"), "{theirs}");
            }
            (expected, answer) => panic!("{step:?}: expected {expected:?}, answered {answer:?}"),
        }
    }

    fn select(&mut self, filter: Option<&Expr>) {
        let expected = self.model.matching(filter);
        let read =
            |output: Output| Operation::Select(Select { table: TABLE, filter: filter.cloned(), output });
        let epoch = self.epoch;
        let mut merged = |operation: Operation, finish: Finish| {
            let mut merge = Merge::new(finish);
            let mut rows = Vec::new();
            for (engine, range) in self.halves.iter_mut().zip(HALVES) {
                let answer = one(engine, job(epoch, &[range], &operation, false));
                rows.extend(merge.push(answer).expect("no failure"));
            }
            rows.extend(merge.finish().expect("no failure"));
            rows
        };
        let columns = vec![V(), K(), S()];
        let plain = Output::Rows { columns: columns.clone(), order: vec![], limit: None, distinct: false };
        let finish =
            Finish { input: Input::Rows, distinct: false, order: vec![], offset: 0, limit: None, visible: 3 };
        let rows = merged(read(plain), finish.clone());
        let turned = |row: &Row| vec![row[2].clone(), row[0].clone(), row[1].clone()];
        assert_eq!(sorted(rows), sorted(expected.iter().map(turned).collect()));

        // ORDER BY v DESC NULLS LAST, k, s OFFSET 1 LIMIT 3
        let key = |column, descending| Order { column, descending, nulls_first: false };
        let order = vec![key(0, true), key(1, false), key(2, false)];
        let top = Output::Rows { columns, order: order.clone(), limit: Some(4), distinct: false };
        let rows = merged(read(top), Finish { order, offset: 1, limit: Some(3), ..finish.clone() });
        let mut all: Vec<Row> = expected.iter().map(turned).collect();
        all.sort_by(|a, b| {
            let values = match (a[0].is_null(), b[0].is_null()) {
                (false, false) => b[0].order(&a[0]),
                _ => a[0].order(&b[0]),
            };
            values.then(a[1].order(&b[1])).then(a[2].order(&b[2]))
        });
        assert_eq!(rows, all.into_iter().skip(1).take(3).collect::<Vec<_>>());

        // SELECT DISTINCT v
        let distinct = Output::Rows { columns: vec![V()], order: vec![], limit: None, distinct: true };
        let rows = merged(read(distinct), Finish { distinct: true, visible: 1, ..finish.clone() });
        let mut all = sorted(expected.iter().map(|row| vec![row[2].clone()]).collect());
        all.dedup();
        assert_eq!(sorted(rows), all);

        // SELECT s, count(*), sum(v), count(DISTINCT k) … GROUP BY s HAVING count(*) > 1 ORDER BY s
        let aggregate = |function, argument, distinct| Aggregate { function, argument, distinct };
        let aggregates = vec![
            aggregate(AggregateFunction::Count, None, false),
            aggregate(AggregateFunction::Sum, Some(V()), false),
            aggregate(AggregateFunction::Count, Some(K()), true),
        ];
        let output = Output::Groups { keys: vec![S()], aggregates: aggregates.clone() };
        let count = Expr::Column(1, Type::Int8);
        let one = Expr::constant(Value::Int8(1), Type::Int8);
        let having = Some(Expr::binary(Binary::Greater, count.clone(), one));
        let columns = vec![
            Expr::Column(0, Type::Text),
            count,
            Expr::Column(2, Type::Int8),
            Expr::Column(3, Type::Int8),
        ];
        let input = Input::Groups { keys: 1, aggregates, having, columns };
        let order = vec![key(0, false)];
        let rows = merged(read(output), Finish { input, order, visible: 4, ..finish });
        let mut names: Vec<Row> = expected.iter().map(|row| vec![row[1].clone()]).collect();
        names.sort_by(|a, b| a[0].order(&b[0]));
        names.dedup();
        let group = |name: Row| {
            let rows: Vec<&Row> = expected.iter().filter(|row| row[1] == name[0]).collect();
            let values: Vec<i64> = rows.iter().filter_map(|row| row[2].as_integer()).collect();
            let mut keys: Vec<i64> = rows.iter().filter_map(|row| row[0].as_integer()).collect();
            keys.sort_unstable();
            keys.dedup();
            let sum = if values.is_empty() { Value::Null } else { Value::Int8(values.iter().sum()) };
            vec![name[0].clone(), Value::Int8(rows.len() as i64), sum, Value::Int8(keys.len() as i64)]
        };
        let groups: Vec<Row> =
            names.into_iter().map(group).filter(|row| row[1].order(&Value::Int8(1)).is_gt()).collect();
        assert_eq!(rows, groups);
    }

    /// Checks that a pinned version still has its rows, read at once and page by page.
    fn read_pinned(&mut self, epoch: u64, model: &Model) {
        let expected = model.matching(None);
        let answer = one(&mut self.whole, job(epoch, &HALVES, &Operation::Select(plain(None)), false));
        let Answer::Rows(rows) = answer else { panic!("a pinned read answers {answer:?}") };
        assert_eq!(sorted(rows.clone()), expected);
        let (mut paged, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.whole.page(Epoch(epoch), &HALVES, &plain(None), cursor, 3).expect("a page");
            paged.extend(page.rows);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(paged, rows);
    }

    /// Exports all rows of the whole engine to a fresh engine. The fresh engine then takes the place of the
    /// engine of one half, and drops the rows of the other half.
    fn migrate(&mut self, half: usize, rows: usize) {
        let mut fresh = Twin::default();
        self.whole.pin(Epoch(self.epoch), Holder::Migration);
        let mut cursor: Option<Cursor> = None;
        loop {
            let chunk = self.whole.export(Epoch(self.epoch), &HALVES, cursor, rows).expect("a chunk");
            assert!(chunk.rows.len() <= rows);
            cursor = chunk.next.clone();
            let bytes = postcard::to_stdvec(&chunk).expect("encodes");
            fresh.import(postcard::from_bytes(&bytes).expect("decodes")).expect("fits");
            if cursor.is_none() {
                break;
            }
        }
        self.whole.release(Epoch(self.epoch), Holder::Migration);
        assert_eq!(fresh.digest(None, &HALVES), self.whole.digest(None, &HALVES));
        fresh.forget(&[HALVES[1 - half]]);
        let there = fresh.export(Epoch(0), &HALVES, None, 1);
        assert_eq!(there.expect_err("nothing is pinned").sqlstate, "72000");
        fresh.pin(Epoch(0), Holder::Migration);
        let left = fresh.export(Epoch(0), &[HALVES[1 - half]], None, 1).expect("a chunk");
        assert!(left.rows.is_empty());
        fresh.release(Epoch(0), Holder::Migration);
        self.halves[half] = fresh;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn an_engine_equals_a_vector_of_rows(
        hash: bool, has_checks: bool, steps in prop::collection::vec(any_step(), 0..80)
    ) {
        let mut twins = TwinEngines::new(hash, has_checks);
        for step in &steps {
            twins.step(step);
        }
    }
}

#[test]
fn a_batch_stops_behind_a_held_job_and_sees_the_writes_before_each_job() {
    let mut engine = Twin::default();
    let all = [KeyRange::ALL];
    let insert = |k: i32, v: i32| {
        let rows = vec![vec![Value::Int4(k), Value::text_of("a"), Value::Int4(v)]];
        Operation::Insert { table: TABLE, rows, returning: vec![] }
    };
    let count = Operation::Select(plain(None));
    let rows = |answer: &Answer| match answer {
        Answer::Rows(rows) => rows.len(),
        other => panic!("a read answers {other:?}"),
    };
    let jobs = [
        job(1, &all, &Operation::CreateTable { table: TABLE, schema: schema(true) }, false),
        job(2, &all, &insert(1, 1), false),
        job(2, &all, &count, false),
        job(3, &all, &insert(2, 2), true),
        job(3, &all, &count, false),
    ];
    let answers = engine.apply(&jobs);
    assert_eq!(answers.len(), 4);
    assert_eq!(rows(&answers[2]), 1);
    engine.settle(Epoch(3), true);
    let answers = engine.apply(&[job(3, &all, &count, false), job(1, &all, &count, false)]);
    assert_eq!(rows(&answers[0]), 2);
    assert!(matches!(&answers[1], Answer::Failed(failure) if failure.sqlstate == "72000"));
}

#[test]
fn an_update_that_makes_a_row_too_long_is_refused() {
    let mut engine = Twin::default();
    let mut schema = schema(true);
    schema.primary_key = Vec::new();
    schema.columns.push(Column { name: "t".to_owned(), ..schema.columns[1].clone() });
    let all = [KeyRange::ALL];
    let mut epoch = 0;
    let mut apply = |operation: Operation| {
        epoch += 1;
        one(&mut engine, job(epoch, &all, &operation, false))
    };
    apply(Operation::CreateTable { table: TABLE, schema });
    let long = |bytes: usize| Value::text_of("x".repeat(bytes));
    let row = |k: i32, s: Value| vec![Value::Int4(k), s, Value::Null, Value::Null];
    let rows = vec![row(1, long(1)), row(2, long(ROW_BYTES_MAX - TEXT_BYTES_SHORT - 1))];
    apply(Operation::Insert { table: TABLE, rows, returning: vec![] });
    let mut set = |value: Value| {
        let assignments = vec![(3, Expr::constant(value, Type::Text))];
        match apply(Operation::Update { table: TABLE, assignments, filter: None, returning: vec![] }) {
            Answer::Failed(failure) => failure.sqlstate,
            _ => String::new(),
        }
    };
    assert_eq!(set(long(TEXT_BYTES_SHORT + 1)), "", "both rows may be so long");
    assert_eq!(set(long(TEXT_BYTES_SHORT + 2)), "54000", "the second may not");
    assert_eq!(set(long(TEXT_BYTES_SHORT)), "", "what is short is not counted");
}

#[test]
fn malformed_operations_are_refused() {
    let mut engine = Twin::default();
    let all = [KeyRange::ALL];
    let refused = |engine: &mut Twin, epoch: u64, operation: Operation| match one(
        engine,
        job(epoch, &all, &operation, false),
    ) {
        Answer::Failed(failure) => failure.sqlstate,
        other => panic!("{operation:?} is answered {other:?}"),
    };
    assert_eq!(refused(&mut engine, 1, Operation::DropTable { table: TABLE }), "42P01");
    let mut keyless = schema(true);
    keyless.primary_key = vec![1];
    assert_eq!(refused(&mut engine, 1, Operation::CreateTable { table: TABLE, schema: keyless }), "42P16");
    one(&mut engine, job(1, &all, &Operation::CreateTable { table: TABLE, schema: schema(true) }, false));
    let narrow = Operation::Insert { table: TABLE, rows: vec![vec![]], returning: vec![] };
    assert_eq!(refused(&mut engine, 2, narrow), "XX000");
    let row = vec![Value::Int4(1), Value::Int4(1), Value::Null];
    let other = Operation::Insert { table: TABLE, rows: vec![row], returning: vec![] };
    assert_eq!(refused(&mut engine, 2, other), "42804");
    let good = vec![Value::Int4(1), Value::text_of("a"), Value::Null];
    one(
        &mut engine,
        job(2, &all, &Operation::Insert { table: TABLE, rows: vec![good], returning: vec![] }, false),
    );
    let column = Some(Expr::Column(9, Type::Bool));
    assert_eq!(
        refused(&mut engine, 3, Operation::Delete { table: TABLE, filter: column, returning: vec![] }),
        "XX000"
    );
    let moved = vec![(0, Expr::constant(Value::Int4(2), Type::Int4))];
    let update = Operation::Update { table: TABLE, assignments: moved, filter: None, returning: vec![] };
    assert_eq!(refused(&mut engine, 3, update), "0A000");
    let mixed = Some(Expr::binary(Binary::Equal, K(), S()));
    assert_eq!(
        refused(&mut engine, 3, Operation::Delete { table: TABLE, filter: mixed, returning: vec![] }),
        "XX000"
    );
    engine.pin(Epoch(3), Holder::Migration);
    let cursor = Some(Cursor(vec![1, 2, 3]));
    assert_eq!(engine.export(Epoch(3), &all, cursor, 1).expect_err("a wrong cursor").sqlstate, "XX000");
}
