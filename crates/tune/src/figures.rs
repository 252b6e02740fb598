//! Results of a setting: rates, latencies, and the verdict on the recorded history.

use std::time::Duration;

use quorate_history::{self as history, History, Verdict};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

use crate::load::Tape;

/// The results of one setting.
#[derive(Clone, Debug, Serialize)]
pub struct SettingResults {
    /// Number of answered operations a second.
    pub per_second: f64,
    /// Number of operations that failed.
    pub failed: u64,
    /// Latencies of reads.
    pub read: Latencies,
    /// Latencies of writes.
    pub write: Latencies,
    /// Verdict on the history.
    pub history: HistoryResults,
}

/// Latencies in microseconds, from the time at which an operation was due.
#[derive(Clone, Debug, Serialize)]
pub struct Latencies {
    /// Number of answered operations.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Maximum.
    pub max_us: f64,
}

/// The verdict on a history.
#[derive(Clone, Debug, Serialize)]
pub struct HistoryResults {
    /// Whether the history is atomic: true, false, or "unknown".
    pub atomic: Verdict,
    /// Number of judged operations.
    pub operations: u64,
    /// Proportion of inconsistent operations (004 §II.B).
    pub proportion: f64,
    /// Lower end of the 95 % interval of the proportion, by bootstrap over keys.
    pub proportion_low: f64,
    /// Upper end of the 95 % interval of the proportion, by the same bootstrap.
    pub proportion_high: f64,
    /// Number of reads that returned a value replaced before they began, or a value that nobody wrote.
    pub stale_reads: u64,
    /// Γ of the keys that are not atomic, in milliseconds: minimum, quartiles and maximum.
    pub gamma_ms: Option<[f64; 5]>,
}

impl SettingResults {
    /// Computes the results of `tape`, the clients' operations during `took`. `before` holds the earlier
    /// operations on the keys.
    pub fn of(before: Tape, tape: Tape, took: Duration) -> SettingResults {
        let answered = tape.reads.len() + tape.writes.len();
        SettingResults {
            per_second: answered as f64 / took.as_secs_f64(),
            failed: tape.failed,
            read: Latencies::of(tape.reads),
            write: Latencies::of(tape.writes),
            history: HistoryResults::of(&before.operations.into_iter().chain(tape.operations).collect()),
        }
    }
}

impl Latencies {
    fn of(mut nanoseconds: Vec<u64>) -> Latencies {
        nanoseconds.sort_unstable();
        let sum: f64 = nanoseconds.iter().map(|it| *it as f64).sum();
        Latencies {
            count: nanoseconds.len() as u64,
            mean_us: sum / nanoseconds.len().max(1) as f64 / 1e3,
            p50_us: quantile(&nanoseconds, 0.5) / 1e3,
            p95_us: quantile(&nanoseconds, 0.95) / 1e3,
            p99_us: quantile(&nanoseconds, 0.99) / 1e3,
            max_us: quantile(&nanoseconds, 1.0) / 1e3,
        }
    }
}

/// Returns the smallest value that at least the fraction `part` of all values does not exceed. Returns zero
/// for no values.
pub(crate) fn quantile(sorted: &[u64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank.min(sorted.len()).wrapping_sub(1)).map_or(0.0, |it| *it as f64)
}

/// Number of resamples for a confidence interval.
pub(crate) const RESAMPLES: usize = 1_000;

impl HistoryResults {
    /// Judges a history.
    pub fn of(history: &History) -> HistoryResults {
        let report = history::check(history);
        let mut random = Pcg64Mcg::seed_from_u64(4);
        let proportion = report.proportion().unwrap_or(0.0);
        let interval = history::confidence(&report.shares, RESAMPLES, |below| random.random_range(0..below));
        let (proportion_low, proportion_high) = interval.unwrap_or((proportion, proportion));
        let measures = report.suspects.iter().filter_map(|key| key.measures);
        let mut gammas: Vec<u64> = measures.map(|it| it.gamma_finite).filter(|it| *it > 0).collect();
        gammas.sort_unstable();
        let at = |quarter: usize| gammas[(gammas.len() - 1) * quarter / 4] as f64 / 1e6;
        HistoryResults {
            atomic: report.verdict,
            operations: report.operations,
            proportion,
            proportion_low,
            proportion_high,
            stale_reads: report.measures.map_or(0, |measures| measures.irregular_reads),
            gamma_ms: (!gammas.is_empty()).then(|| [0, 1, 2, 3, 4].map(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_history::Operation;

    use super::*;

    #[test]
    fn stale_reads_are_counted_with_their_gamma() {
        let ms = 1_000_000;
        let history: History = [
            Operation::write(1, "x", "old", 0, 10 * ms),
            Operation::write(1, "x", "new", 20 * ms, 30 * ms),
            Operation::read(2, "x", Some("new".into()), 32 * ms, 34 * ms),
            Operation::read(2, "x", Some("old".into()), 35 * ms, 40 * ms),
            Operation::write(1, "y", "only", 0, 10),
            Operation::read(1, "y", Some("only".into()), 20, 30),
        ]
        .into_iter()
        .collect();
        let judged = HistoryResults::of(&history);
        assert_eq!(judged.atomic, Verdict::NotAtomic);
        assert_eq!((judged.operations, judged.stale_reads), (6, 1));
        assert!((judged.proportion - 2.0 / 6.0).abs() < 1e-9, "{judged:?}");
        assert!(judged.proportion_low <= judged.proportion && judged.proportion <= judged.proportion_high);
        assert_eq!(judged.gamma_ms, Some([5.0; 5]));
        let atomic = HistoryResults::of(&History::new());
        assert_eq!((atomic.atomic, atomic.proportion, atomic.gamma_ms), (Verdict::Atomic, 0.0, None));
    }

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!([0.5, 0.95, 0.99, 1.0].map(|part| quantile(&hundred, part)), [50.0, 95.0, 99.0, 100.0]);
        assert_eq!((quantile(&[7], 0.01), quantile(&[], 0.5)), (7.0, 0.0));
    }
}
