//! A stream that forgets has the same result as a check of the whole history.

use quorate_history::{
    Action, History, Operation, Options, Outcome, Report, Stream, Value, Verdict, check_with,
};
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// Returns the operations of a few clients on a few keys, sorted by end. A read may return one of several
/// older versions.
fn recorded(random: &mut impl Rng, operations: usize, stale: f64) -> Vec<Operation> {
    let clients = random.random_range(2..10usize);
    let mut now = vec![0i64; clients];
    let mut timed: Vec<(i64, Operation)> = (0..operations)
        .map(|index| {
            let client = random.random_range(0..clients);
            let start = now[client] + random.random_range(0..20);
            let finish = start + random.random_range(0..60);
            now[client] = finish;
            let is_write = random.random_bool(0.3);
            let action = if is_write { Action::Write(Value::from(index as u64)) } else { Action::Read(None) };
            let unknown = is_write && random.random_bool(0.02);
            let outcome = if unknown { Outcome::Unknown } else { Outcome::Ok };
            let key = ["a", "b"][random.random_range(0..2usize)].into();
            let at = random.random_range(start..=finish);
            (at, Operation { client: client as u64, key, action, start, finish: Some(finish), outcome })
        })
        .collect();
    timed.sort_by_key(|(at, _)| *at);
    let mut versions = std::collections::BTreeMap::<Box<str>, Vec<Option<Value>>>::new();
    for (_, operation) in &mut timed {
        let versions = versions.entry(operation.key.clone()).or_insert_with(|| vec![None]);
        match &mut operation.action {
            Action::Write(value) => versions.push(Some(value.clone())),
            Action::Read(value) => {
                let back = if random.random_bool(stale) { random.random_range(0..4) } else { 0 };
                *value = versions[versions.len().saturating_sub(1 + back)].clone();
            }
            _ => {}
        }
    }
    let mut operations: Vec<_> = timed.into_iter().map(|(_, operation)| operation).collect();
    operations.sort_by_key(|operation| operation.finish);
    // Swaps some neighbours, because files of several hosts are merged only approximately.
    for at in 1..operations.len() {
        if random.random_bool(0.2) {
            operations.swap(at - 1, at);
        }
    }
    operations
}

fn streamed(operations: &[Operation], horizon: u64, options: &Options) -> (Report, u64, u64) {
    let mut stream = Stream::new(horizon, options);
    for operation in operations {
        stream.push(operation.clone()).expect("possible");
    }
    let live = stream.live_max();
    let (report, past) = stream.finish();
    (report, past, live)
}

#[test]
fn a_stream_equals_the_whole_unless_something_falls_past_the_horizon() {
    let (mut exact, mut cut_short, mut inconsistent) = (0, 0, 0);
    for seed in 0..300 {
        let mut random = Pcg64::seed_from_u64(seed);
        let stale = if seed % 3 == 0 { 0.0 } else { 0.05 };
        let operations = recorded(&mut random, 1_500, stale);
        let history: History = operations.iter().cloned().collect();
        let options = Options { clock_error: [0, 7][(seed % 2) as usize], ..Options::default() };
        let whole = check_with(&history, &options);
        let horizon = [150, 500, 2_000][random.random_range(0..3usize)];
        let (report, past, live) = streamed(&operations, horizon, &options);
        assert_eq!((report.operations, report.keys), (whole.operations, whole.keys));
        if past > 0 {
            cut_short += 1;
            continue;
        }
        exact += 1;
        inconsistent += u32::from(whole.verdict == Verdict::NotAtomic);
        assert_eq!(report.measures, whole.measures, "seed {seed}, horizon {horizon}");
        let whole = (whole.verdict, whole.values, whole.orphan_reads);
        assert_eq!((report.verdict, report.values, report.orphan_reads), whole, "seed {seed}");
        assert!(live < 1_400, "seed {seed}: {live} of 1500 operations were held at once");
    }
    assert!(exact > 150 && inconsistent > 50 && cut_short > 5, "{exact} {inconsistent} {cut_short}");
}

/// Memory does not grow with the length of the history.
#[test]
fn the_memory_of_a_stream_does_not_grow() {
    let held = |operations| {
        let operations = recorded(&mut Pcg64::seed_from_u64(1), operations, 0.01);
        let (report, past, live) = streamed(&operations, 1_000, &Options::default());
        assert_eq!((report.operations, past), (operations.len() as u64, 0));
        live
    };
    let (short, long) = (held(5_000), held(40_000));
    assert!(long < short + 500, "{short} operations held of 5000, {long} of 40000");
}

#[test]
fn operations_after_the_horizon_are_counted() {
    let mut operations: Vec<Operation> =
        (0..1_000i64).map(|i| Operation::write(1, "x", i as u64, 10 * i, 10 * i + 5)).collect();
    operations.push(Operation::read(2, "x", Some(Value::from(3)), 9_991, 9_992));
    let (report, past, _) = streamed(&operations, 100, &Options::default());
    assert_eq!((report.verdict, past), (Verdict::NotAtomic, 1));
    // The client recorded this write long after the write had ended.
    operations.pop();
    operations.push(Operation::write(2, "x", 5_000, 12, 14));
    let (_, past, _) = streamed(&operations, 100, &Options::default());
    assert_eq!(past, 1);
}

#[test]
fn repeated_values_are_not_judged_in_a_stream() {
    let operations = [Operation::write(1, "x", "a", 0, 1), Operation::write(1, "x", "a", 2, 3)];
    let (report, _, _) = streamed(&operations, 100, &Options::default());
    assert_eq!((report.verdict, report.measures, report.operations), (Verdict::Unknown, None, 2));
}

/// One write ended at the instant at which the other began, so neither has certainly replaced the other.
#[test]
fn a_value_that_may_still_be_there_is_kept() {
    let mut operations = vec![Operation::write(1, "x", "a", 0, 10), Operation::write(2, "x", "b", 10, 20)];
    operations.extend((100..110i64).map(|at| Operation::read(3, "y", None, at, at)));
    // The stream looks for a cut between these two operations.
    operations.extend([15, 16].map(|at| Operation::read(1, "x", Some("b".into()), at, at)));
    operations.push(Operation::read(1, "x", Some("a".into()), 108, 108));
    let mut stream = Stream::new(5, &Options::default()).cut_after_operations(2);
    operations.into_iter().for_each(|operation| stream.push(operation).expect("possible"));
    let (report, past) = stream.finish();
    assert_eq!((report.verdict, report.orphan_reads, past), (Verdict::NotAtomic, 0, 0));
}

/// The stream waits for the write of an orphan read as long as the horizon, and no longer.
#[test]
fn orphan_reads_are_held_only_for_the_horizon() {
    let writes: Vec<Operation> =
        (0..10_000i64).map(|i| Operation::write(1, "x", i as u64, 10 * i, 10 * i + 5)).collect();
    // In a later piece, the value of an orphan read may be a forgotten value.
    for (after, doubtful) in [(9, 0), (300, 1)] {
        let at = 10 * after as i64 - 5;
        let mut operations = writes.clone();
        operations.insert(after, Operation::read(2, "x", Some("of nobody".into()), at, at + 1));
        let (report, past, live) = streamed(&operations, 1_000, &Options::default());
        assert!(live < 1_000, "{live} operations were held");
        assert_eq!((report.verdict, report.orphan_reads, past), (Verdict::NotAtomic, 1, doubtful));
        // The write comes too late. A check of the whole history would have used it.
        operations.push(Operation::write(3, "x", "of nobody", 99_990, 99_999));
        let (_, past, _) = streamed(&operations, 1_000, &Options::default());
        assert_eq!(past, 1);
    }
}

/// The stream waits for the write of a value until a whole horizon has passed since the start of the value's
/// last read.
#[test]
fn a_write_that_is_recorded_after_its_reads_is_in_time_within_the_horizon() {
    let outcome = |written_after: usize| {
        let mut operations: Vec<Operation> =
            (0..100i64).map(|i| Operation::write(1, "x", i as u64, 10 * i, 10 * i + 5)).collect();
        operations.insert(10, Operation::read(2, "x", Some("slow".into()), 97, 98));
        operations.insert(15, Operation::read(2, "x", Some("slow".into()), 137, 138));
        operations.insert(written_after, Operation::write(3, "x", "slow", 90, 140));
        let mut stream = Stream::new(100, &Options::default()).cut_after_operations(1);
        operations.into_iter().for_each(|operation| stream.push(operation).expect("possible"));
        let (report, past) = stream.finish();
        (report.orphan_reads, past > 0)
    };
    // The second read began at 137. It is settled once an operation ends after 237, and judged when the
    // stream next looks for a cut.
    assert_eq!(outcome(28), (0, false));
    assert_eq!(outcome(29), (2, true));
}

/// The current value has been there since 25, so the cut lies before 25.
#[test]
fn an_operation_is_late_if_it_ended_before_the_cut() {
    let past = |operation: Operation| {
        let mut stream = Stream::new(100, &Options::default()).cut_after_operations(4);
        for at in [0, 10, 20, 1_000] {
            stream.push(Operation::write(1, "x", at as u64, at, at + 5)).expect("possible");
        }
        assert_eq!(stream.past_horizon(), 0);
        stream.push(operation).expect("possible");
        stream.past_horizon()
    };
    let write = |start, finish| past(Operation::write(2, "x", "late", start, finish));
    let counts = [write(20, 23), write(24, 24), write(0, 25), write(25, 25), write(0, 1_000)];
    assert_eq!(counts, [1, 1, 0, 0, 0]);
}

/// The stream shows its worst piece, and of equally bad pieces the first.
#[test]
fn a_stream_shows_its_worst_piece() {
    let shown = |gammas: &[i64]| {
        let mut stream = Stream::new(100, &Options::default()).cut_after_operations(1);
        for (piece, gamma) in (0..).zip(gammas) {
            let (at, old, new) = (10_000 * piece, format!("old{piece}"), format!("new{piece}"));
            stream.push(Operation::write(1, "x", &*old, at, at + 10)).expect("possible");
            stream.push(Operation::write(1, "x", &*new, at + 100, at + 110)).expect("possible");
            let read = (at + 110 + gamma, at + 200);
            stream.push(Operation::read(1, "x", Some(old.into()), read.0, read.1)).expect("possible");
            stream
                .push(Operation::write(1, "x", format!("end{piece}"), at + 300, at + 310))
                .expect("possible");
        }
        let (report, past) = stream.finish();
        assert_eq!((report.operations, past), (4 * gammas.len() as u64, 0));
        let text = report.suspects[0].witness.as_ref().expect("a witness").to_string();
        text.split(',').next().expect("which values").to_string()
    };
    assert_eq!(shown(&[5, 7, 6]), "values new1 and old1 conflict");
    assert_eq!(shown(&[5, 7, 7]), "values new1 and old1 conflict");
    assert_eq!(shown(&[0, 0, 3]), "values new2 and old2 conflict");
}
