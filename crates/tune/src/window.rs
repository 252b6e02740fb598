//! Windows: what clients got in a short while, with how sure that is, judged while they work.
//!
//! **Promise.** Each operation that ended in a window is counted once, in that window, and is inconsistent if it belongs to a value without
//! which the rest is atomic ([`quorate_history::inconsistent_values`]). Nobody is waited for: a window is judged from what has come.
//!
//! **How.** The values that a window's reads may return are known from the writes of the last [`MEMORY`], and of each key's last.
//! A read of a value whose write is not known yet (its client has not been answered, or has not handed its tape over) waits
//! for the next window, at most for [`MEMORY`]; then it counts as one of a value that nobody wrote.
//!
//! **Differs** from judging the whole history at once: a conflict that only reads of two windows show is not seen.

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

/// How long ago a value may have been replaced, and a read of it still be recognised.
pub const MEMORY: Duration = Duration::from_secs(15);

/// Latencies and consistency that clients got in a while.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// How long it was.
    pub span: Duration,
    /// Latencies of answered operations in nanoseconds, ascending.
    latencies: Vec<u64>,
    /// Γ of the value that each read returned, in nanoseconds, ascending; 0 where it is consistent.
    gammas: Vec<u64>,
    shares: FxHashMap<Box<str>, KeyShare>,
    /// Operations that did not do what was asked.
    pub failed: u64,
}

/// A number that was measured, and the interval in which it lies with a confidence of 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The measured value.
    pub value: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// Judges windows one after another.
#[derive(Debug, Default)]
pub struct Judge {
    /// Operations that have not been counted.
    waiting: Vec<Operation>,
    /// Writes that reads of later windows may return, by key.
    writes: FxHashMap<Box<str>, Vec<Operation>>,
}

/// 97.5 % of a normal distribution lie below so many deviations.
const DEVIATIONS: f64 = 1.96;

impl Judge {
    /// Takes what was done before the first window.
    pub fn begin(&mut self, before: Tape) {
        for operation in before.operations {
            self.writes.entry(operation.key.clone()).or_default().push(operation);
        }
    }

    /// The window from one instant to another, in nanoseconds of the load's clock: of the operations that ended until then and were
    /// in no earlier one. `tape` is what clients told since the last call.
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
            // Later windows know this window's writes, but not twice those that wait.
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

/// The writes that ended after an instant, and the last one.
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
                    // Of the two values of a conflict one can stay.
                    _ if !values.contains(&value.cloned()) => 0,
                    Score::Finite(gamma) => gamma,
                    Score::Infinite => u64::MAX,
                };
                self.gammas.extend(std::iter::repeat_n(gamma, reads as usize));
            }
        }
        self.shares.insert(key.into(), share);
    }

    /// One of these latencies, whose operations are on a key each.
    #[cfg(test)]
    pub(crate) fn made(span: Duration, mut latencies: Vec<u64>, inconsistent: Vec<u64>) -> Window {
        latencies.sort_unstable();
        let share = |inconsistent| KeyShare { operations: 1, inconsistent };
        let shares = inconsistent.into_iter().enumerate();
        let shares =
            shares.map(|(key, inconsistent)| (key.to_string().into(), share(inconsistent))).collect();
        Window { span, latencies, shares, ..Window::default() }
    }

    /// Puts another window at its end.
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

    /// Operations that were judged.
    pub fn operations(&self) -> u64 {
        sorted(&self.shares).map(|(_, share)| share.operations).sum()
    }

    /// The measured proportion of inconsistent operations, without its interval, which costs a thousand times as much.
    pub fn inconsistent(&self) -> f64 {
        let inconsistent: u64 = sorted(&self.shares).map(|(_, share)| share.inconsistent).sum();
        inconsistent as f64 / self.operations().max(1) as f64
    }

    /// The proportion of inconsistent operations.
    pub fn proportion(&self) -> Estimate {
        let shares: Vec<KeyShare> = sorted(&self.shares).map(|(_, share)| share).collect();
        let operations = self.operations().max(1) as f64;
        let value = self.inconsistent();
        let mut random = Pcg64Mcg::seed_from_u64(4);
        let interval = confidence(&shares, RESAMPLES, |below| random.random_range(0..below));
        let (low, high) = interval.unwrap_or((value, value));
        // None among n leaves room for 3/n, with a confidence of 95 %.
        Estimate { value, low, high: high.max(3.0 / operations) }
    }

    /// The latency below which this part of the operations stayed, in seconds. One that failed took for ever.
    pub fn latency(&self, part: f64) -> Estimate {
        order_statistic(&self.latencies, self.failed, part)
    }

    /// The mean latency of answered operations, in seconds; infinite if there are none.
    pub fn mean(&self) -> Estimate {
        if self.latencies.is_empty() {
            return Estimate { value: f64::INFINITY, low: f64::INFINITY, high: f64::INFINITY };
        }
        let count = self.latencies.len() as f64;
        let mean = self.latencies.iter().map(|it| *it as f64).sum::<f64>() / count;
        let square = self.latencies.iter().map(|it| (*it as f64 - mean).powi(2)).sum::<f64>() / count;
        let error = DEVIATIONS * (square / count).sqrt();
        Estimate { value: mean / 1e9, low: (mean - error) / 1e9, high: (mean + error) / 1e9 }
    }

    /// Γ below which this part of the reads stayed, in seconds.
    pub fn gamma(&self, part: f64) -> Estimate {
        order_statistic(&self.gammas, 0, part)
    }

    /// Answered operations a second.
    pub fn throughput(&self) -> Estimate {
        let (count, seconds) = (self.latencies.len() as f64, self.span.as_secs_f64().max(1e-9));
        let error = DEVIATIONS * count.sqrt();
        Estimate { value: count / seconds, low: (count - error) / seconds, high: (count + error) / seconds }
    }
}

/// Hash order would make the numbers of two equal windows differ.
fn sorted(shares: &FxHashMap<Box<str>, KeyShare>) -> impl Iterator<Item = (&str, KeyShare)> {
    let mut shares: Vec<(&str, KeyShare)> = shares.keys().map(|key| (&**key, shares[key])).collect();
    shares.sort_unstable_by_key(|(key, _)| *key);
    shares.into_iter()
}

/// A quantile, with `endless` ones beyond all these, and the interval that the ranks around it give (a rank's deviation is that of a binomial distribution).
fn order_statistic(nanoseconds: &[u64], endless: u64, part: f64) -> Estimate {
    let count = (nanoseconds.len() as u64 + endless).max(1) as f64;
    let error = DEVIATIONS * (part * (1.0 - part) / count).sqrt();
    // Of the finite ones alone, the rank is at a larger part.
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

    #[test]
    fn an_old_value_of_an_earlier_window_is_stale_and_a_new_one_waits_for_its_write() {
        let mut judge = Judge::default();
        judge.begin(tape(vec![write("a", 0, 1)]));
        let first = judge.window(tape(vec![read("a", 10, 20), write("b", 30, 40)]), 0, 100 * MS);
        assert_eq!((first.operations(), first.proportion().value), (2, 0.0));
        // "a" was replaced 170 ms before it is read again; nobody has told of "c" yet.
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
        // A value that nobody ever writes is stale in the end.
        let late = 300 + MEMORY.as_millis() as i64;
        let fourth = judge.window(tape(vec![read("d", 290, 299)]), 300 * MS, late * MS);
        assert_eq!(fourth.operations(), 1);
        assert_eq!(fourth.proportion().value, 1.0);
    }

    /// A store that answers nobody is not fast.
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

    /// Without conflicts over the ends of windows, the sum of the windows is what the whole history shows.
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
    fn bounds_hold_what_was_measured_between_them() {
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
