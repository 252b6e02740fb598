//! Random small histories, where everything the crate computes can be had by trying everything.

use quorate_history::{Measures, Score, Verdict, check};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::twins::{Tiny, all, history, is_atomic, reads_earlier, stretched, tiny};

/// How many histories: some seconds' worth without optimisation.
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
    // The histories are no use unless they are of both kinds.
    assert!(
        inconsistent > HISTORIES / 10 && inconsistent < HISTORIES * 9 / 10,
        "{inconsistent} inconsistent"
    );
}

fn measures(report: &quorate_history::Report) -> Measures {
    report.measures.expect("distinct values are measured")
}

/// The clusters as bit sets of operations.
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

/// A history stretched by Γ passes, by Γ − 1 fails.
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

/// With reads begun Δ earlier it passes, Δ − 1 earlier it fails.
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
