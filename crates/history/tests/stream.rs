//! A stream that forgets says the same as a check of everything.

use quorate_history::{
    Action, History, Operation, Options, Outcome, Report, Stream, Value, Verdict, check_with,
};
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// Some clients on a few keys of a store where a read may be some versions old, in the order in which they ended.
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
    // Files of several hosts are merged only roughly.
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
fn what_is_held_at_once_does_not_grow() {
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
fn what_comes_after_the_horizon_is_counted() {
    let mut operations: Vec<Operation> =
        (0..1_000i64).map(|i| Operation::write(1, "x", i as u64, 10 * i, 10 * i + 5)).collect();
    operations.push(Operation::read(2, "x", Some(Value::from(3)), 9_991, 9_992));
    let (report, past, _) = streamed(&operations, 100, &Options::default());
    assert_eq!((report.verdict, past), (Verdict::NotAtomic, 1));
    // A write recorded long after it ended.
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
