//! Transactions: random statements are tried one by one, with other writes between them, and then executed
//! together. A transaction must take effect if its statements give the results that the client received,
//! and only then.

use proptest::prelude::*;
use quorate_table::{
    engine::{Answer, Engine, Epoch, Holder, Job, Written},
    expr::{Aggregate, AggregateFunction, Binary, Expr},
    fingerprint::Fingerprint,
    operation::{
        Compared, Operation, Order, Output, ReceivedResult, SAVEPOINTS_MAX, Select, Step, TableTransaction,
        TransactionStatement, Trial,
    },
    schema::KeyRange,
    value::{Row, Type, Value},
};

use crate::{
    engine::{HALVES, K, S, TABLE, V, any_assignments, any_filter, any_rows, job, one, plain, schema},
    scan::Twin,
};

const KEY: u128 = 0x5eed << 64 | 7;

fn any_write() -> impl Strategy<Value = Operation> {
    let returning = || prop_oneof![Just(Vec::new()), Just(vec![K(), S(), V()])];
    prop_oneof![
        3 => (any_rows(3), returning())
            .prop_map(|(rows, returning)| Operation::Insert { table: TABLE, rows, returning }),
        4 => (any_assignments(), any_filter(), returning()).prop_map(|(assignments, filter, returning)| {
            Operation::Update { table: TABLE, assignments, filter, returning }
        }),
        2 => (any_filter(), returning())
            .prop_map(|(filter, returning)| Operation::Delete { table: TABLE, filter, returning }),
    ]
}

fn any_read() -> impl Strategy<Value = Operation> {
    let groups = |filter| {
        let sum = Aggregate { function: AggregateFunction::Sum, argument: Some(V()), distinct: false };
        let output = Output::Groups { keys: vec![S()], aggregates: vec![sum] };
        Operation::Select(Select { table: TABLE, filter, output })
    };
    let first = |filter| {
        let mut select = plain(filter);
        if let Output::Rows { order, limit, .. } = &mut select.output {
            *order = vec![Order { column: 2, descending: true, nulls_first: true }];
            *limit = Some(2);
        }
        Operation::Select(select)
    };
    prop_oneof![
        any_filter().prop_map(|filter| Operation::Select(plain(filter))),
        any_filter().prop_map(groups),
        any_filter().prop_map(first),
    ]
}

#[derive(Clone, Debug)]
enum Act {
    Statement(Operation),
    Savepoint,
    RollBack,
    /// Another client's write.
    Other(Operation),
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => any_write().prop_map(Act::Statement),
        3 => any_read().prop_map(Act::Statement),
        1 => Just(Act::Savepoint),
        1 => Just(Act::RollBack),
        1 => any_write().prop_map(Act::Other),
    ]
}

fn engines(count: usize) -> Vec<Twin> {
    let create = Operation::CreateTable { table: TABLE, schema: schema(true) };
    let mut engines: Vec<Twin> = (0..count).map(|_| Twin::default()).collect();
    for engine in &mut engines {
        one(engine, job(1, &[KeyRange::ALL], &create, false));
    }
    engines
}

fn statement(operation: Operation, received: Vec<(KeyRange, ReceivedResult)>) -> TransactionStatement {
    TransactionStatement { operation, compared: Compared::All, received }
}

fn step(operation: Operation, received: Vec<(KeyRange, ReceivedResult)>) -> Step {
    Step::Execute(statement(operation, received))
}

fn attempt(earlier: &[Step], operation: &Operation) -> Operation {
    let statement = statement(operation.clone(), Vec::new());
    Operation::Trial(Box::new(Trial { key: KEY, earlier: earlier.to_vec(), compares_all: true, statement }))
}

fn received(prints: Vec<(KeyRange, Fingerprint)>) -> Vec<(KeyRange, ReceivedResult)> {
    prints.into_iter().map(|(range, print)| (range, ReceivedResult::Success(print))).collect()
}

fn transaction(steps: &[Step]) -> Operation {
    Operation::Transaction(TableTransaction { key: KEY, steps: steps.to_vec() })
}

fn digest(engine: &mut Twin) -> u64 {
    engine.digest(None, &[KeyRange::ALL]).expect("the present")
}

/// Executes a write at an engine of everything and at two engines of half the ring, which exchange verdicts.
/// Returns whether the write took effect, and its answer if it did.
fn everywhere(whole: &mut Twin, halves: &mut [Twin], epoch: u64, operation: &Operation) -> Answer {
    let answer = one(whole, job(epoch, &HALVES, operation, false));
    let answers: Vec<Answer> = halves
        .iter_mut()
        .zip(HALVES)
        .map(|(engine, range)| one(engine, job(epoch, &[range], operation, true)))
        .collect();
    let failed = answers.iter().any(|answer| matches!(answer, Answer::Failed(_)));
    halves.iter_mut().for_each(|engine| engine.settle(Epoch(epoch), !failed));
    assert_eq!(
        failed,
        matches!(answer, Answer::Failed(_)),
        "the halves decide as the whole does: {answer:?}"
    );
    for (engine, range) in halves.iter_mut().zip(HALVES) {
        let of = |engine: &mut Twin| engine.digest(None, &[range]).expect("the present");
        assert_eq!(of(engine), of(whole), "a half differs behind {operation:?}");
    }
    answer
}

fn run(start: Vec<Row>, acts: Vec<Act>) {
    let mut all = engines(4);
    // The model executes the transaction's statements alone, on the state at its position.
    let (mut model, mut rest) = (all.pop().expect("four"), all);
    let mut whole = rest.pop().expect("three");
    let halves = &mut rest[..];
    let mut epoch = 2;
    let insert = |rows| Operation::Insert { table: TABLE, rows, returning: Vec::new() };
    for row in start {
        everywhere(&mut whole, halves, epoch, &insert(vec![row.clone()]));
        one(&mut model, job(epoch, &[KeyRange::ALL], &insert(vec![row]), false));
        epoch += 1;
    }
    let (mut steps, mut savepoints, mut failed_before) = (Vec::new(), Vec::new(), false);
    for act in acts {
        match act {
            Act::Other(write) => {
                everywhere(&mut whole, halves, epoch, &write);
                one(&mut model, job(epoch, &[KeyRange::ALL], &write, false));
                epoch += 1;
            }
            Act::Savepoint => savepoints.push(steps.len()),
            Act::RollBack => {
                if let Some(mark) = savepoints.pop() {
                    steps.insert(mark, Step::Savepoint);
                    steps.push(Step::RollBack);
                    failed_before = false;
                }
            }
            Act::Statement(_) if failed_before => {}
            Act::Statement(operation) => {
                let before = digest(&mut whole);
                let trial = attempt(&steps, &operation);
                let answer = one(&mut whole, job(epoch - 1, &HALVES, &trial, false));
                assert_eq!(digest(&mut whole), before, "a trial changes nothing");
                match answer {
                    Answer::Tried { received: prints, .. } => steps.push(step(operation, received(prints))),
                    Answer::TrialFailed { ranges, failure } => {
                        let failed = |range| (range, ReceivedResult::Failed(failure.sqlstate.clone()));
                        let ranges: Vec<_> = ranges.into_iter().map(failed).collect();
                        assert!(!ranges.is_empty(), "a statement fails in some range");
                        steps.push(step(operation, ranges));
                        // The client rolls back to a savepoint before it goes on.
                        match savepoints.pop() {
                            Some(mark) => {
                                steps.insert(mark, Step::Savepoint);
                                steps.push(Step::RollBack);
                            }
                            None => failed_before = true,
                        }
                    }
                    Answer::Failed(failure) => {
                        assert_eq!(failure.sqlstate, "40001");
                        return;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    if failed_before {
        return;
    }
    // The model returns the results of the statements at the present position, one by one.
    let (mut behind, mut holds) = (Vec::new(), true);
    for step in &steps {
        if let Step::Execute(statement) = step {
            let trial = attempt(&behind, &statement.operation);
            let now = match one(&mut model, job(epoch - 1, &HALVES, &trial, false)) {
                Answer::Tried { received: prints, .. } => received(prints),
                Answer::TrialFailed { ranges, failure } => ranges
                    .into_iter()
                    .map(|range| (range, ReceivedResult::Failed(failure.sqlstate.clone())))
                    .collect(),
                other => panic!("nothing is compared here: {other:?}"),
            };
            let failed = |received: &[(KeyRange, ReceivedResult)]| {
                matches!(received, [(_, ReceivedResult::Failed(_)), ..])
            };
            holds &= match failed(&statement.received) {
                true => statement.received.iter().all(|received| now.contains(received)),
                false => statement.received == now,
            };
            if !holds {
                break;
            }
            if failed(&now) {
                continue;
            }
            behind.push(self::step(statement.operation.clone(), Vec::new()));
        } else {
            behind.push(step.clone());
        }
    }
    let pinned = digest(&mut whole);
    whole.pin(Epoch(epoch - 1), Holder::Migration);
    let answer = everywhere(&mut whole, halves, epoch, &transaction(&steps));
    assert_eq!(holds, matches!(answer, Answer::Transaction(_)), "{answer:?}");
    let then = whole.digest(Some(Epoch(epoch - 1)), &[KeyRange::ALL]).expect("pinned");
    assert_eq!(then, pinned, "a pinned version stays as it was");
    whole.release(Epoch(epoch - 1), Holder::Migration);
    if holds {
        one(&mut model, job(epoch, &[KeyRange::ALL], &transaction(&behind), false));
    }
    assert_eq!(digest(&mut whole), digest(&mut model), "the statements took effect together, or not at all");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_transaction_takes_effect_if_and_only_if_it_repeats_the_results(
        start in any_rows(6),
        acts in prop::collection::vec(any_act(), 1..10),
    ) {
        run(start, acts);
    }
}

fn update(key: i32, by: i32) -> Operation {
    let filter = Some(Expr::binary(Binary::Equal, K(), Expr::constant(Value::Int4(key), Type::Int4)));
    let sum = Expr::binary(Binary::Add, V(), Expr::constant(Value::Int4(by), Type::Int4));
    Operation::Update { table: TABLE, assignments: vec![(2, sum)], filter, returning: Vec::new() }
}

fn row(key: i32, value: i32) -> Row {
    vec![Value::Int4(key), Value::text_of("a"), Value::Int4(value)]
}

fn with_rows(rows: Vec<Row>) -> Twin {
    let mut engine = engines(1).remove(0);
    let insert = Operation::Insert { table: TABLE, rows, returning: Vec::new() };
    one(&mut engine, job(2, &[KeyRange::ALL], &insert, false));
    engine
}

fn perform(engine: &mut Twin, epoch: u64, steps: &[Step]) -> Answer {
    let jobs = [Job {
        epoch: Epoch(epoch),
        ranges: vec![KeyRange::ALL],
        operation: transaction(steps),
        held: false,
    }];
    engine.apply(&jobs).remove(0)
}

#[test]
fn statements_without_results_never_conflict_and_fail_together() {
    let mut engine = with_rows(vec![row(1, 10), row(2, 20)]);
    let before = digest(&mut engine);
    let written = |rows| Written { rows, returning: Vec::new() };
    let steps = [step(update(1, -5), Vec::new()), step(update(2, 5), Vec::new())];
    assert_eq!(perform(&mut engine, 3, &steps), Answer::Transaction(vec![vec![written(1), written(1)]]));
    let changed = digest(&mut engine);
    assert_ne!(changed, before);
    let duplicate = Operation::Insert { table: TABLE, rows: vec![row(1, 0)], returning: Vec::new() };
    let Answer::Failed(failure) =
        perform(&mut engine, 4, &[step(update(2, 1), Vec::new()), step(duplicate, Vec::new())])
    else {
        panic!("the key exists")
    };
    assert_eq!(failure.sqlstate, "23505");
    assert!(failure.detail.expect("a detail").ends_with("This was statement 2 of the transaction."));
    assert_eq!(digest(&mut engine), changed);
}

#[test]
fn rows_that_one_transaction_adds_have_different_numbers() {
    let mut engine = engines(1).remove(0);
    let insert = |value| Operation::Insert { table: TABLE, rows: vec![row(value, 1)], returning: Vec::new() };
    let steps: Vec<Step> = (0..5).map(|value| step(insert(value), Vec::new())).collect();
    assert!(matches!(perform(&mut engine, 3, &steps), Answer::Transaction(_)));
    assert_eq!(engine.usage()[0].rows, 5);
}

#[test]
fn at_read_committed_only_rows_of_the_block_are_compared() {
    let read = Operation::Select(plain(None));
    let own = |operation, received| {
        Step::Execute(TransactionStatement { operation, compared: Compared::Own, received })
    };
    for (other, applies) in [(update(2, 1), true), (update(1, 1), false)] {
        let mut engine = with_rows(vec![row(1, 10), row(2, 20)]);
        let earlier = vec![step(update(1, -5), Vec::new())];
        let mut trial = Trial {
            key: KEY,
            earlier: earlier.clone(),
            compares_all: false,
            statement: statement(read.clone(), Vec::new()),
        };
        trial.statement.compared = Compared::Own;
        let asked = Operation::Trial(Box::new(trial));
        let Answer::Tried { received: prints, answer } =
            one(&mut engine, job(2, &[KeyRange::ALL], &asked, false))
        else {
            panic!("the trial succeeds")
        };
        assert_eq!(answer.as_ref(), &Answer::Rows(vec![row(1, 5), row(2, 20)]).sorted());
        assert_eq!(prints[0].1.rows, 1, "one row is the transaction's own");
        one(&mut engine, job(3, &[KeyRange::ALL], &other, false));
        let steps = [earlier[0].clone(), own(read.clone(), received(prints))];
        let answer = perform(&mut engine, 4, &steps);
        assert_eq!(matches!(answer, Answer::Transaction(_)), applies, "{answer:?}");
    }
}

trait Sorted {
    fn sorted(self) -> Self;
}

impl Sorted for Answer {
    /// Returns the rows in the order of the table.
    fn sorted(self) -> Answer {
        let Answer::Rows(rows) = self else { return self };
        let mut engine = with_rows(rows);
        one(&mut engine, job(2, &[KeyRange::ALL], &Operation::Select(plain(None)), false))
    }
}

#[test]
fn a_locked_row_is_compared_and_a_split_range_conflicts() {
    let read = |columns: Vec<Expr>| {
        let filter = Some(Expr::binary(Binary::Equal, K(), Expr::constant(Value::Int4(1), Type::Int4)));
        let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
        Operation::Select(Select { table: TABLE, filter, output })
    };
    let print = |items: usize| Fingerprint { rows: items as u64, sum: 0 };
    let mut engine = with_rows(vec![row(1, 10)]);
    let lock =
        TransactionStatement { operation: read(vec![K()]), compared: Compared::Locked, received: Vec::new() };
    let look =
        TransactionStatement { operation: read(vec![V()]), compared: Compared::Own, received: Vec::new() };
    let trial = Trial { key: KEY, earlier: vec![Step::Execute(lock)], compares_all: false, statement: look };
    let asked = Operation::Trial(Box::new(trial));
    let Answer::Tried { received: prints, .. } = one(&mut engine, job(2, &[KeyRange::ALL], &asked, false))
    else {
        panic!("the trial succeeds")
    };
    assert_eq!(prints[0].1.rows, 1);
    // The client received a result for the whole ring. This replica holds half of the ring and cannot compare
    // it.
    let received = vec![(KeyRange::ALL, ReceivedResult::Success(print(0)))];
    let half = job(3, &[HALVES[0]], &transaction(&[step(update(99, 1), received)]), false);
    let Answer::Failed(failure) = one(&mut engine, half) else { panic!("the part cannot be compared") };
    assert_eq!(failure.sqlstate, "40001");
}

#[test]
fn malformed_transactions_fail_and_change_nothing() {
    let mut engine = with_rows(vec![row(1, 10)]);
    let before = digest(&mut engine);
    let nested = transaction(&[]);
    let deep = vec![Step::Savepoint; SAVEPOINTS_MAX + 1];
    let create = Operation::CreateTable { table: TABLE, schema: schema(true) };
    for steps in [
        vec![Step::RollBack],
        deep,
        vec![step(nested, Vec::new())],
        vec![step(create, Vec::new())],
        vec![step(attempt(&[], &update(1, 1)), Vec::new())],
    ] {
        let steps: Vec<Step> = [step(update(1, 1), Vec::new())].into_iter().chain(steps).collect();
        let answer = perform(&mut engine, 3, &steps);
        assert!(matches!(&answer, Answer::Failed(failure) if failure.sqlstate == "XX000"), "{answer:?}");
        assert_eq!(digest(&mut engine), before);
    }
}
