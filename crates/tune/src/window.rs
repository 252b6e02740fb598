//! Windows: the latency and consistency that clients got in a short time, with confidence intervals, judged
//! while they work.
//!
//! **Promise.** Each operation that ended in a window counts once, in that window. It is inconsistent if it
//! belongs to a value without which the rest is atomic ([`quorate_history::inconsistent_values`]). The judge
//! waits for no client: it judges a window from the operations that have arrived.
//!
//! **How.** The judge remembers the writes of the last [`MEMORY`] and the last write of each key. These are
//! the values that reads may return. The write of a value may be unknown at first, because its client has not
//! been answered or has not handed its tape over. A read of such a value waits for later windows, at most for
//! [`MEMORY`]. Then it counts as a read of a value that nobody wrote.
//!
//! **Differs** from judging the whole history at once: the judge does not see a conflict that shows only if
//! the reads of two windows are put together.

use std::time::Duration;

use quorate_history::{
    self as history, Action, History, KeyShare, Operation, Score, Value, confidence, gammas,
    inconsistent_values,
};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    figures::{RESAMPLES, quantile},
    load::Tape,
};

/// Longest time after which a read of a replaced value is still recognised.
pub const MEMORY: Duration = Duration::from_secs(15);

/// The latency and consistency that clients got in a span.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Length of the window.
    pub span: Duration,
    /// Latencies of answered operations in nanoseconds, ascending.
    latencies: Vec<u64>,
    /// Γ of the value that each read returned, in nanoseconds, ascending. Γ of a consistent value is 0.
    gammas: Vec<u64>,
    shares: FxHashMap<Box<str>, KeyShare>,
    /// Number of operations that failed.
    pub failed: u64,
}

/// A measured value, with its interval at a confidence of 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Measured value.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Judges windows one after another.
#[derive(Debug, Default)]
pub struct Judge {
    /// Operations not yet counted.
    waiting: Vec<Operation>,
    /// Writes whose values later reads may return, by key.
    writes: FxHashMap<Box<str>, Vec<Operation>>,
}

/// Standard deviations below which 97.5 % of a normal distribution lie.
const DEVIATIONS: f64 = 1.96;

impl Judge {
    /// Adds the operations from before the first window.
    pub fn begin(&mut self, before: Tape) {
        for operation in before.operations {
            self.writes.entry(operation.key.clone()).or_default().push(operation);
        }
    }

    /// Returns the window from `from` to `to`, in nanoseconds of the load's clock. The window has the
    /// operations that ended by `to` and were in no earlier window. `tape` holds the operations that clients
    /// handed over since the last call.
    pub fn window(&mut self, tape: Tape, from: i64, to: i64) -> Window {
        self.waiting.extend(tape.operations);
        let mut by_key: FxHashMap<Box<str>, Vec<Operation>> = FxHashMap::default();
        for operation in std::mem::take(&mut self.waiting) {
            by_key.entry(operation.key.clone()).or_default().push(operation);
        }
        let memory = MEMORY.as_nanos() as i64;
        let mut window = Window {
            span: Duration::from_nanos((to - from).max(0) as u64),
            latencies: [tape.reads, tape.writes].concat(),
            failed: tape.failed,
            ..Window::default()
        };
        window.latencies.sort_unstable();
        let mut keys: Vec<_> = by_key.into_iter().collect();
        keys.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (key, operations) in keys {
            let writes = self.writes.entry(key.clone()).or_default();
            let known: FxHashSet<Value> =
                writes.iter().chain(&operations).filter_map(written).cloned().collect();
            let (mut own, mut context) = (Vec::new(), std::mem::take(writes));
            for operation in operations {
                let finish = operation.finish.unwrap_or(operation.start);
                let awaited = match &operation.action {
                    Action::Read(Some(value)) => !known.contains(value) && to - finish < memory,
                    _ => false,
                };
                if finish > to || awaited {
                    // A value can be read before its write is answered.
                    context.extend(written(&operation).is_some().then(|| operation.clone()));
                    self.waiting.push(operation);
                } else if operation.finish.is_some() {
                    own.push(operation);
                } else if written(&operation).is_some() {
                    context.push(operation);
                }
            }
            window.add(&key, &own, &context);
            // Later windows need the writes of this window. Writes that end after the window are in
            // `waiting`, and the next call adds them to `context` again, so they are dropped from it here.
            context.retain(|operation| operation.finish.unwrap_or(operation.start) <= to);
            context.extend(own.into_iter().filter(|operation| written(operation).is_some()));
            *writes = remembered(context, to - memory);
        }
        window.gammas.sort_unstable();
        window
    }
}

fn written(operation: &Operation) -> Option<&Value> {
    match &operation.action {
        Action::Write(value) => Some(value),
        _ => None,
    }
}

/// Returns the writes that ended after `after`, and the last write.
fn remembered(mut writes: Vec<Operation>, after: i64) -> Vec<Operation> {
    let end = |operation: &Operation| operation.finish.unwrap_or(operation.start);
    let last = writes.iter().filter(|it| it.finish.is_some()).map(end).max().unwrap_or(i64::MIN);
    writes.retain(|operation| end(operation) > after || end(operation) == last);
    writes
}

impl Window {
    fn add(&mut self, key: &str, own: &[Operation], context: &[Operation]) {
        if own.is_empty() {
            return;
        }
        let reads = own.iter().filter(|operation| matches!(operation.action, Action::Read(_))).count();
        let all: History = context.iter().chain(own).cloned().collect();
        let Some(recorded) = all.keys().first() else { return };
        let mut share = KeyShare { operations: own.len() as u64, inconsistent: 0 };
        if history::check(&all).verdict == history::Verdict::Atomic {
            self.gammas.extend(std::iter::repeat_n(0, reads));
        } else {
            let values: FxHashSet<Option<Value>> =
                inconsistent_values(recorded).into_iter().map(|value| value.cloned()).collect();
            let is_inconsistent = |operation: &&Operation| match &operation.action {
                Action::Read(value) => values.contains(value),
                _ => values.contains(&written(operation).cloned()),
            };
            share.inconsistent = own.iter().filter(is_inconsistent).count() as u64;
            for (value, reads, gamma) in gammas(recorded) {
                let gamma = match gamma {
                    // Only one of two conflicting values counts as inconsistent. The other may stay.
                    _ if !values.contains(&value.cloned()) => 0,
                    Score::Finite(gamma) => gamma,
                    Score::Infinite => u64::MAX,
                };
                self.gammas.extend(std::iter::repeat_n(gamma, reads as usize));
            }
        }
        self.shares.insert(key.into(), share);
    }

    /// Returns a window of these latencies, each on its own key.
    #[cfg(test)]
    pub(crate) fn made(span: Duration, mut latencies: Vec<u64>, inconsistent: Vec<u64>) -> Window {
        latencies.sort_unstable();
        let share = |inconsistent| KeyShare { operations: 1, inconsistent };
        let shares = inconsistent.into_iter().enumerate();
        let shares =
            shares.map(|(key, inconsistent)| (key.to_string().into(), share(inconsistent))).collect();
        Window { span, latencies, shares, ..Window::default() }
    }

    /// Appends another window.
    pub fn append(&mut self, other: &Window) {
        self.span += other.span;
        self.latencies.extend(&other.latencies);
        self.latencies.sort_unstable();
        self.gammas.extend(&other.gammas);
        self.gammas.sort_unstable();
        for (key, share) in sorted(&other.shares) {
            let sum = self.shares.entry(key.into()).or_insert(KeyShare { operations: 0, inconsistent: 0 });
            sum.operations += share.operations;
            sum.inconsistent += share.inconsistent;
        }
        self.failed += other.failed;
    }

    /// Returns the number of judged operations.
    pub fn operations(&self) -> u64 {
        sorted(&self.shares).map(|(_, share)| share.operations).sum()
    }

    /// Returns the measured proportion of inconsistent operations. The interval of [`Self::proportion`] costs
    /// a thousand times as much.
    pub fn inconsistent(&self) -> f64 {
        let inconsistent: u64 = sorted(&self.shares).map(|(_, share)| share.inconsistent).sum();
        inconsistent as f64 / self.operations().max(1) as f64
    }

    /// Returns the proportion of inconsistent operations, with its interval.
    pub fn proportion(&self) -> Estimate {
        let shares: Vec<KeyShare> = sorted(&self.shares).map(|(_, share)| share).collect();
        let operations = self.operations().max(1) as f64;
        let value = self.inconsistent();
        let mut random = Pcg64Mcg::seed_from_u64(4);
        let interval = confidence(&shares, RESAMPLES, |below| random.random_range(0..below));
        let (low, high) = interval.unwrap_or((value, value));
        // If none of n operations was inconsistent, the proportion is at most 3/n with a confidence of 95 %,
        // and never above 1.
        Estimate { value, low, high: high.max(3.0 / operations).min(1.0) }
    }

    /// Returns the latency in seconds that the fraction `part` of the operations did not exceed. A failed
    /// operation has an infinite latency.
    pub fn latency(&self, part: f64) -> Estimate {
        order_statistic(&self.latencies, self.failed, part)
    }

    /// Returns the mean latency of answered operations in seconds. It is infinite without answers.
    pub fn mean(&self) -> Estimate {
        if self.latencies.is_empty() {
            return Estimate { value: f64::INFINITY, low: f64::INFINITY, high: f64::INFINITY };
        }
        let count = self.latencies.len() as f64;
        let mean = self.latencies.iter().map(|it| *it as f64).sum::<f64>() / count;
        let square = self.latencies.iter().map(|it| (*it as f64 - mean).powi(2)).sum::<f64>() / count;
        let error = DEVIATIONS * (square / count).sqrt();
        Estimate { value: mean / 1e9, low: (mean - error).max(0.0) / 1e9, high: (mean + error) / 1e9 }
    }

    /// Returns Γ in seconds that the fraction `part` of the reads did not exceed.
    pub fn gamma(&self, part: f64) -> Estimate {
        order_statistic(&self.gammas, 0, part)
    }

    /// Returns the answered operations a second.
    pub fn throughput(&self) -> Estimate {
        let (count, seconds) = (self.latencies.len() as f64, self.span.as_secs_f64().max(1e-9));
        let error = DEVIATIONS * count.sqrt();
        let low = (count - error).max(0.0) / seconds;
        Estimate { value: count / seconds, low, high: (count + error) / seconds }
    }
}

/// Returns the shares in the order of keys. In hash order, the numbers of two equal windows could differ.
fn sorted(shares: &FxHashMap<Box<str>, KeyShare>) -> impl Iterator<Item = (&str, KeyShare)> {
    let mut shares: Vec<(&str, KeyShare)> = shares.keys().map(|key| (&**key, shares[key])).collect();
    shares.sort_unstable_by_key(|(key, _)| *key);
    shares.into_iter()
}

/// Returns a quantile of `nanoseconds` together with `endless` infinite values. The interval comes from the
/// ranks around the quantile's rank, whose deviation is that of a binomial distribution.
fn order_statistic(nanoseconds: &[u64], endless: u64, part: f64) -> Estimate {
    let count = (nanoseconds.len() as u64 + endless).max(1) as f64;
    let error = DEVIATIONS * (part * (1.0 - part) / count).sqrt();
    // A rank is a larger fraction of the finite values than of all values.
    let at = |part: f64| match part.clamp(0.0, 1.0) * count / nanoseconds.len() as f64 {
        part if part <= 1.0 => quantile(nanoseconds, part) / 1e9,
        _ => f64::INFINITY,
    };
    Estimate { value: at(part), low: at(part - error), high: at(part + error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn tape(operations: Vec<Operation>) -> Tape {
        let reads = operations.iter().filter(|it| written(it).is_none()).map(|_| 1_000).collect();
        Tape { operations, reads, ..Tape::default() }
    }

    fn write(value: &str, start: i64, finish: i64) -> Operation {
        Operation::write(1, "x", value, start * MS, finish * MS)
    }

    fn read(value: &str, start: i64, finish: i64) -> Operation {
        Operation::read(2, "x", Some(value.into()), start * MS, finish * MS)
    }

    /// A few operations leave a wide interval, but not wider than the possible values.
    #[test]
    fn an_interval_ends_at_all_and_at_nothing() {
        for inconsistent in [vec![0], vec![0, 0], vec![1], vec![0, 1]] {
            let latencies = inconsistent.iter().map(|which| 1 + 1_000_000 * which).collect();
            let window = Window::made(Duration::from_secs(1), latencies, inconsistent);
            for Estimate { value, low, high } in [window.proportion(), window.mean(), window.throughput()] {
                assert!(0.0 <= low && low <= value && value <= high, "{low} {value} {high}");
            }
            assert!(window.proportion().high <= 1.0, "{}", window.proportion().high);
        }
    }

    #[test]
    fn an_old_value_of_an_earlier_window_is_stale_and_a_new_one_waits_for_its_write() {
        let mut judge = Judge::default();
        judge.begin(tape(vec![write("a", 0, 1)]));
        let first = judge.window(tape(vec![read("a", 10, 20), write("b", 30, 40)]), 0, 100 * MS);
        assert_eq!((first.operations(), first.proportion().value), (2, 0.0));
        // "a" was replaced 170 ms before it is read again, and no client has reported "c" yet.
        let second = judge.window(
            tape(vec![read("a", 150, 160), read("b", 162, 165), read("c", 170, 180)]),
            100 * MS,
            200 * MS,
        );
        assert_eq!(second.operations(), 2);
        assert_eq!(second.proportion().value, 0.5);
        assert!(second.gamma(1.0).value > 0.1 && second.gamma(0.5).value == 0.0, "{:?}", second.gamma(1.0));
        let third = judge.window(tape(vec![write("c", 168, 250)]), 200 * MS, 300 * MS);
        assert_eq!(
            (third.operations(), third.proportion().value),
            (2, 0.0),
            "the read that waited, and the write"
        );
        // A read of a value that nobody ever writes counts as stale in the end.
        let late = 300 + MEMORY.as_millis() as i64;
        let fourth = judge.window(tape(vec![read("d", 290, 299)]), 300 * MS, late * MS);
        assert_eq!(fourth.operations(), 1);
        assert_eq!(fourth.proportion().value, 1.0);
    }

    /// A store that answers no operation does not count as fast.
    #[test]
    fn failures_are_no_fast_answers() {
        let tape = |answered: u64, failed| Tape {
            reads: vec![1_000_000; answered as usize],
            failed,
            ..Tape::default()
        };
        let window = |answered, failed| Judge::default().window(tape(answered, failed), 0, 1_000 * MS);
        let dead = window(0, 7);
        assert!([dead.latency(0.5), dead.mean(), dead.gamma(0.99)].iter().all(|it| it.low > 1e6), "{dead:?}");
        assert_eq!(dead.throughput().value, 0.0);
        let tenth = window(900, 100);
        assert!(
            tenth.latency(0.95).low > 1e6 && tenth.latency(0.5).high < 0.002,
            "{:?}",
            tenth.latency(0.95)
        );
        assert_eq!((tenth.mean().value, tenth.throughput().value), (0.001, 900.0));
        let nobody = window(0, 0);
        assert!(nobody.latency(0.5).low > 1e6 && nobody.mean().low > 1e6);
    }

    /// Without conflicts across the ends of windows, the windows add up to the whole history.
    #[test]
    fn windows_add_up_to_the_whole() {
        let mut random = Pcg64Mcg::seed_from_u64(9);
        let (mut all, mut previous) = (Vec::new(), 0);
        for turn in 0..400i64 {
            let at = turn * 10;
            all.push(write(&turn.to_string(), at, at + 1));
            let stale = random.random_range(0..10) == 0;
            all.push(read(&(if stale { previous } else { turn }).to_string(), at + 3, at + 4));
            previous = turn;
        }
        let whole = history::check(&all.iter().cloned().collect()).measures.unwrap().inconsistent_operations;
        let (mut judge, mut sum) = (Judge::default(), Window::default());
        for part in 0..4 {
            let own = all.iter().filter(|it| it.start / (1_000 * MS) == part).cloned().collect();
            sum.append(&judge.window(tape(own), part * 1_000 * MS, (part + 1) * 1_000 * MS));
        }
        assert_eq!(sum.operations(), 800);
        let counted = sum.proportion().value * 800.0;
        assert!((counted - whole as f64).abs() <= 4.0, "{counted} instead of {whole}");
    }

    #[test]
    fn confidence_bounds_enclose_the_measured_value() {
        let window = Window {
            span: Duration::from_secs(1),
            latencies: (1..=10_000).map(|it| it * 1_000).collect(),
            shares: [("x".into(), KeyShare { operations: 10_000, inconsistent: 0 })].into_iter().collect(),
            ..Window::default()
        };
        for (estimate, value) in
            [(window.latency(0.95), 9.5e-3), (window.mean(), 5.0005e-3), (window.throughput(), 10_000.0)]
        {
            assert!((estimate.value - value).abs() < 1e-6 * value.max(1.0), "{estimate:?}");
            assert!(
                estimate.low < value && value < estimate.high && estimate.high < value * 1.03,
                "{estimate:?}"
            );
        }
        assert_eq!(window.proportion(), Estimate { value: 0.0, low: 0.0, high: 3e-4 });
    }
}
