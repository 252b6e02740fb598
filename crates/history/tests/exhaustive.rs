//! Compares every result of the crate with exhaustive search, on random small histories.

use quorate_history::{Measures, Options, Score, Stream, Verdict, check, check_with, fewest_operations};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::twins::{Tiny, all, history, is_atomic, operation, reads_earlier, stretched, tiny};

/// Number of histories: a few seconds of work in a debug build.
const HISTORIES: u64 = 120_000;

fn check_all(claim: impl Fn(&[Tiny], &quorate_history::Report)) {
    let mut inconsistent = 0;
    for seed in 0..HISTORIES {
        let mut random = Pcg64::seed_from_u64(seed);
        let operations = random.random_range(1..=8);
        let ops = tiny(&mut random, operations);
        let report = check(&history(&ops));
        inconsistent += u64::from(report.verdict == Verdict::NotAtomic);
        let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| claim(&ops, &report)));
        assert!(attempt.is_ok(), "seed {seed}: {ops:#?}\n{report:#?}");
    }
    // The histories are useful only if many are consistent and many are not.
    assert!(
        inconsistent > HISTORIES / 10 && inconsistent < HISTORIES * 9 / 10,
        "{inconsistent} inconsistent"
    );
}

fn measures(report: &quorate_history::Report) -> Measures {
    report.measures.expect("distinct values are measured")
}

/// Returns the clusters as bit sets of operations.
fn clusters(ops: &[Tiny]) -> Vec<u32> {
    let bits = |value| (0..ops.len()).filter(|&i| ops[i].value == value).fold(0, |bits, i| bits | 1 << i);
    (0..=ops.len() as u64 + 1).map(bits).filter(|bits| *bits != 0).collect()
}

#[test]
fn decision() {
    check_all(|ops, report| {
        assert_eq!(report.verdict == Verdict::Atomic, is_atomic(ops, all(ops)));
        let measures = measures(report);
        let clean = measures.gamma == Score::Finite(0)
            && measures.delta == Score::Finite(0)
            && measures.k == Score::Finite(1)
            && measures.inconsistent_operations == 0;
        assert_eq!(report.verdict == Verdict::Atomic, clean);
    });
}

#[test]
fn cluster_removal() {
    check_all(|ops, report| {
        let clusters = clusters(ops);
        let (mut operations, mut values) = (u32::MAX, u32::MAX);
        for removed in 0u32..1 << clusters.len() {
            let which = (0..clusters.len()).filter(|i| removed & (1 << i) != 0);
            let gone = which.fold(0, |bits, i| bits | clusters[i]);
            if (gone.count_ones() < operations || removed.count_ones() < values)
                && is_atomic(ops, all(ops) & !gone)
            {
                operations = operations.min(gone.count_ones());
                values = values.min(removed.count_ones());
            }
        }
        assert_eq!(measures(report).inconsistent_operations, u64::from(operations));
        assert_eq!(measures(report).inconsistent_values, u64::from(values));
        assert_eq!(report.values, clusters.len() as u64);
        assert_eq!(report.operations, ops.len() as u64);
    });
}

/// A history is atomic if it is stretched by Γ, and not if it is stretched by Γ − 1.
#[test]
fn gamma() {
    check_all(|ops, report| match measures(report).gamma {
        Score::Infinite => assert!(!is_atomic(&stretched(ops, 1_000), all(ops))),
        Score::Finite(gamma) => {
            let gamma = i64::try_from(gamma).expect("small");
            assert!(is_atomic(&stretched(ops, gamma), all(ops)));
            assert!(gamma == 0 || !is_atomic(&stretched(ops, gamma - 1), all(ops)));
        }
    });
}

/// A history is atomic if its reads begin Δ earlier, and not if they begin Δ − 1 earlier.
#[test]
fn delta() {
    check_all(|ops, report| match measures(report).delta {
        Score::Infinite => assert!(!is_atomic(&reads_earlier(ops, 1_000), all(ops))),
        Score::Finite(delta) => {
            let delta = i64::try_from(delta).expect("small");
            assert!(is_atomic(&reads_earlier(ops, delta), all(ops)));
            assert!(delta == 0 || !is_atomic(&reads_earlier(ops, delta - 1), all(ops)));
        }
    });
}

#[test]
fn operation_removal() {
    check_all(|ops, report| {
        let key = history(ops);
        let found = fewest_operations(&key.keys()[0], 100_000).expect("small");
        if report.verdict == Verdict::Atomic {
            assert_eq!(found, 0);
            return;
        }
        let removals = 1..=all(ops);
        let fewest = removals.filter(|gone| is_atomic(ops, all(ops) & !gone)).map(u32::count_ones).min();
        assert_eq!(found, u64::from(fewest.expect("nothing at all is atomic")));
        assert!(found <= measures(report).inconsistent_operations);
    });
}

/// Whether some order that respects real time lets every read return one of the last `k` values written.
fn is_k_atomic(ops: &[Tiny], k: usize) -> bool {
    fn extend(ops: &[Tiny], left: u32, k: usize, written: &mut Vec<u64>) -> bool {
        let indices = || (0..ops.len()).filter(move |i| left & (1 << i) != 0);
        if indices().all(|i| ops[i].finish == i64::MAX) {
            return true;
        }
        indices().any(|i| {
            let op = ops[i];
            if indices().any(|j| ops[j].finish < op.start) {
                return false;
            }
            if op.is_write {
                written.push(op.value);
                let extends = extend(ops, left & !(1 << i), k, written);
                written.pop();
                extends
            } else {
                written.iter().rev().take(k).any(|value| *value == op.value)
                    && extend(ops, left & !(1 << i), k, written)
            }
        })
    }
    extend(ops, all(ops), k, &mut vec![0])
}

#[test]
fn k_is_a_lower_bound() {
    let mut tight = 0;
    let mut loose = 0;
    for seed in 0..30_000 {
        let mut random = Pcg64::seed_from_u64(seed);
        let operations = random.random_range(1..=8);
        let ops = tiny(&mut random, operations);
        let report = check(&history(&ops));
        match measures(&report).k {
            Score::Infinite => assert!(!is_k_atomic(&ops, 99), "seed {seed}"),
            Score::Finite(k) => {
                let k = usize::try_from(k).expect("small");
                assert!(k == 1 || !is_k_atomic(&ops, k - 1), "seed {seed}");
                if is_k_atomic(&ops, k) { tight += 1 } else { loose += 1 }
            }
        }
    }
    assert!(loose * 20 < tight, "tight {tight}, loose {loose}");
}

/// Regularity, session guarantees and clock errors agree with their definitions.
#[test]
fn regularity_and_session_guarantees_agree_with_their_definitions() {
    check_all(|ops, report| {
        let measures = measures(report);
        let write_of = |value| ops.iter().find(|op| op.is_write && op.value == value);
        // Returns the start and finish of a value's write. The initial value was there before everything.
        let written = |value| match value {
            0 => Some((i64::MIN, i64::MIN)),
            value => write_of(value).map(|write| (write.start, write.finish)),
        };
        let (mut irregular, mut own, mut back) = (0, 0, 0);
        for (index, read) in ops.iter().enumerate().filter(|(_, op)| !op.is_write) {
            let Some((write_start, write_finish)) = written(read.value) else {
                irregular += 1;
                continue;
            };
            let between =
                |write: &Tiny| write.is_write && write.start > write_finish && write.finish < read.start;
            irregular += u64::from(write_start > read.finish || ops.iter().any(between));
            // The operations of a client are in its order, even at equal times.
            let before = || ops[..index].iter().filter(|op| op.client == read.client && op.finish < i64::MAX);
            own += u64::from(before().any(|op| op.is_write && write_finish < op.start));
            let newer =
                |op: &Tiny| !op.is_write && written(op.value).is_some_and(|(start, _)| write_finish < start);
            back += u64::from(before().any(newer));
        }
        assert_eq!(measures.irregular_reads, irregular);
        assert_eq!(measures.sessions.read_your_writes, own);
        assert_eq!(measures.sessions.monotonic_reads, back);
    });
}

/// The clocks of two hosts differ by up to ε. The true numbers lie within the reported bounds.
#[test]
fn clock_errors_bound_the_truth() {
    let mut certain = 0;
    for seed in 0..40_000 {
        let mut random = Pcg64::seed_from_u64(seed);
        let operations = random.random_range(1..=8);
        let truth = tiny(&mut random, operations);
        let error = random.random_range(1..=4i64);
        let offsets: Vec<i64> = (0..4).map(|_| random.random_range(0..=error)).collect();
        let shift = |op: &Tiny| {
            let by = 2 * offsets[op.client as usize];
            let finish = if op.finish == i64::MAX { i64::MAX } else { op.finish + by };
            Tiny { start: op.start + by, finish, ..*op }
        };
        let recorded: Vec<Tiny> = truth.iter().map(shift).collect();
        let options = Options { clock_error: error.unsigned_abs(), ..Options::default() };
        let report = check_with(&history(&recorded), &options);
        let (found, true_report) = (measures(&report), check(&history(&truth)));
        let actual = measures(&true_report);
        let within = found.certain_operations..=found.possible_operations;
        assert!(within.contains(&actual.inconsistent_operations), "seed {seed}: {within:?} {actual:?}");
        assert!(within.contains(&found.inconsistent_operations), "seed {seed}");
        assert!(found.gamma_finite.abs_diff(actual.gamma_finite) <= error.unsigned_abs(), "seed {seed}");
        assert!(
            report.verdict != Verdict::NotAtomic || true_report.verdict == Verdict::NotAtomic,
            "seed {seed}"
        );
        certain += u64::from(report.verdict == Verdict::NotAtomic);
    }
    assert!(certain > 4_000, "only {certain} histories are certainly inconsistent");
}

/// A stream that forgets as early as its horizon allows has the same result as a check of the whole history.
#[test]
fn streaming() {
    let (mut exact, mut forgot) = (0u64, 0u64);
    for seed in 0..HISTORIES {
        let mut random = Pcg64::seed_from_u64(seed);
        let operations = random.random_range(1..=8);
        let ops = tiny(&mut random, operations);
        let mut recorded = ops.clone();
        recorded.sort_by_key(|op| if op.finish == i64::MAX { op.start } else { op.finish });
        let horizon = random.random_range(0..8);
        let mut stream = Stream::new(horizon, &Options::default()).cut_after_operations(2);
        recorded.iter().for_each(|op| stream.push(operation(op)).expect("possible"));
        let held = stream.live_max();
        let (report, past) = stream.finish();
        if past > 0 {
            continue;
        }
        let whole = check(&history(&ops));
        let summary = |report: &quorate_history::Report| {
            (report.verdict, report.operations, report.values, report.orphan_reads, report.measures)
        };
        assert_eq!(summary(&report), summary(&whole), "seed {seed}, horizon {horizon}: {ops:#?}");
        exact += 1;
        forgot += u64::from(held < operations as u64);
    }
    assert!(
        exact > 100_000 && forgot > 4_000,
        "{exact} histories within the horizon, {forgot} forgotten in part"
    );
}
