//! What a setting of the dial gives: rates, latencies, and the verdict on its own history.

use hdrhistogram::Histogram;
use quorate_history::{self as history, History, Verdict};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

use super::load::Done;

/// The figures of one setting.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    /// Answered operations a second.
    pub(super) per_second: f64,
    pub(super) failed: u64,
    pub(super) read: Latencies,
    pub(super) write: Latencies,
    pub(super) history: Judged,
}

/// Latencies in microseconds, from the instant at which an operation was due.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Latencies {
    pub(super) count: u64,
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p95_us: f64,
    pub(super) p99_us: f64,
    pub(super) max_us: f64,
}

/// The verdict on a history.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Judged {
    /// Whether it is atomic: true, false, or "unknown".
    pub(super) atomic: Verdict,
    pub(super) operations: u64,
    /// The proportion of inconsistent operations (004 §II.B), and the middle 95 % of it over sets of keys.
    pub(super) proportion: f64,
    pub(super) proportion_low: f64,
    pub(super) proportion_high: f64,
    /// Reads that returned what was replaced before they began, or what nobody wrote.
    pub(super) stale_reads: u64,
    /// Γ of the keys that are not atomic, in milliseconds: the least, the quartiles, and the most.
    pub(super) gamma_ms: Option<[f64; 5]>,
}

impl Figures {
    pub(super) fn of(done: Done) -> Figures {
        let answered = done.reads.len() + done.writes.len();
        Figures {
            per_second: answered as f64 / done.seconds,
            failed: done.failed,
            read: Latencies::of(&done.reads),
            write: Latencies::of(&done.writes),
            history: Judged::of(&done.operations.into_iter().collect()),
        }
    }
}

impl Latencies {
    fn of(histogram: &Histogram<u64>) -> Latencies {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Latencies {
            count: histogram.len(),
            mean_us: histogram.mean() / 1e3,
            p50_us: at(0.5),
            p95_us: at(0.95),
            p99_us: at(0.99),
            max_us: histogram.max() as f64 / 1e3,
        }
    }
}

const RESAMPLES: usize = 1_000;

impl Judged {
    pub(super) fn of(history: &History) -> Judged {
        let report = history::check(history);
        let mut random = Pcg64Mcg::seed_from_u64(4);
        let proportion = report.proportion().unwrap_or(0.0);
        let interval = history::confidence(&report.shares, RESAMPLES, |below| random.random_range(0..below));
        let (proportion_low, proportion_high) = interval.unwrap_or((proportion, proportion));
        let measures = report.suspects.iter().filter_map(|key| key.measures);
        let mut gammas: Vec<u64> = measures.map(|it| it.gamma_finite).filter(|it| *it > 0).collect();
        gammas.sort_unstable();
        let at = |quarter: usize| gammas[(gammas.len() - 1) * quarter / 4] as f64 / 1e6;
        Judged {
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
    fn what_is_stale_is_counted_with_its_gamma() {
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
        let judged = Judged::of(&history);
        assert_eq!(judged.atomic, Verdict::NotAtomic);
        assert_eq!((judged.operations, judged.stale_reads), (6, 1));
        assert!((judged.proportion - 2.0 / 6.0).abs() < 1e-9, "{judged:?}");
        assert!(judged.proportion_low <= judged.proportion && judged.proportion <= judged.proportion_high);
        assert_eq!(judged.gamma_ms, Some([5.0; 5]));
        let atomic = Judged::of(&History::new());
        assert_eq!((atomic.atomic, atomic.proportion, atomic.gamma_ms), (Verdict::Atomic, 0.0, None));
    }
}
