//! The result of a check.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::bootstrap::KeyShare;
use crate::session::SessionViolations;
use crate::witness::Witness;

/// Whether a history is atomic (linearizable).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The history is atomic.
    Atomic,
    /// Undecided: the search ran out of steps, or the clocks' error could explain every violation.
    Unknown,
    /// The history is not atomic.
    NotAtomic,
}

impl Serialize for Verdict {
    /// Serializes as `true`, `false` or `"unknown"`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Atomic => serializer.serialize_bool(true),
            Self::NotAtomic => serializer.serialize_bool(false),
            Self::Unknown => serializer.serialize_str("unknown"),
        }
    }
}

/// A score that may be infinite: a time in nanoseconds, or k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Score {
    /// A finite amount.
    Finite(u64),
    /// No amount suffices: a read returned a value that nobody wrote, or (for Δ and k) a value whose write
    /// began only after the read ended.
    Infinite,
}

impl Score {
    /// Returns the amount, or `None` if the score is infinite.
    pub fn finite(self) -> Option<u64> {
        match self {
            Self::Finite(amount) => Some(amount),
            Self::Infinite => None,
        }
    }
}

impl fmt::Display for Score {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finite(amount) => write!(out, "{amount}"),
            Self::Infinite => out.write_str("∞"),
        }
    }
}

impl Serialize for Score {
    /// Serializes as a number or as `"infinity"`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Finite(amount) => serializer.serialize_u64(*amount),
            Self::Infinite => serializer.serialize_str("infinity"),
        }
    }
}

/// The measures of one key, or of many keys together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measures {
    /// Number of operations in a lightest set of whole clusters without which the rest is atomic (004 §II.B).
    pub inconsistent_operations: u64,
    /// Number of values in a smallest set of whole clusters without which the rest is atomic.
    pub inconsistent_values: u64,
    /// Γ in nanoseconds: stretching every operation by γ/2 at either end makes the history atomic exactly if
    /// γ ≥ Γ.
    pub gamma: Score,
    /// Γ in nanoseconds, computed without the reads of values that nobody wrote.
    pub gamma_finite: u64,
    /// Δ in nanoseconds: letting every read begin δ earlier makes the history atomic exactly if δ ≥ Δ.
    pub delta: Score,
    /// Lower bound of the smallest k for which some order lets every read return one of the last k values
    /// written. The bound is 1 exactly if the history is atomic.
    pub k: Score,
    /// Number of reads whose answer a regular register could not give.
    pub irregular_reads: u64,
    /// Number of broken session guarantees.
    pub sessions: SessionViolations,
    /// Lower bound of the number of inconsistent operations, for any clock errors within the given bound.
    pub certain_operations: u64,
    /// Upper bound of the number of inconsistent operations, for any clock errors within the given bound.
    pub possible_operations: u64,
}

impl Measures {
    /// The measures of atomic operations.
    pub(crate) const ATOMIC: Self = Self {
        inconsistent_operations: 0,
        inconsistent_values: 0,
        gamma: Score::Finite(0),
        gamma_finite: 0,
        delta: Score::Finite(0),
        k: Score::Finite(1),
        irregular_reads: 0,
        sessions: SessionViolations { read_your_writes: 0, monotonic_reads: 0 },
        certain_operations: 0,
        possible_operations: 0,
    };

    pub(crate) fn merge(&mut self, other: &Self) {
        self.inconsistent_operations += other.inconsistent_operations;
        self.inconsistent_values += other.inconsistent_values;
        self.gamma = self.gamma.max(other.gamma);
        self.gamma_finite = self.gamma_finite.max(other.gamma_finite);
        self.delta = self.delta.max(other.delta);
        self.k = self.k.max(other.k);
        self.irregular_reads += other.irregular_reads;
        self.sessions.read_your_writes += other.sessions.read_your_writes;
        self.sessions.monotonic_reads += other.sessions.monotonic_reads;
        self.certain_operations += other.certain_operations;
        self.possible_operations += other.possible_operations;
    }
}

/// The method that decided a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Zones, for reads and writes of values that are written once.
    Zones,
    /// A search for an order, because values repeat or the key has operations other than reads and writes.
    Search,
}

/// The result for one key.
#[derive(Clone, Debug)]
pub struct KeyReport {
    /// The key.
    pub key: Box<str>,
    /// Number of judged operations.
    pub operations: u64,
    /// Number of distinct values. "Nothing" is one of them if a read returned it.
    pub values: u64,
    /// Method that decided the key.
    pub method: Method,
    /// Whether the key is atomic.
    pub verdict: Verdict,
    /// Number of reads of values that nobody wrote.
    pub orphan_reads: u64,
    /// Measures of the key. A search decides without measuring, so it gives measures only for an atomic key.
    pub measures: Option<Measures>,
    /// Evidence that the key is not atomic.
    pub witness: Option<Witness>,
}

impl KeyReport {
    /// Adds the result for a later piece of the same key's history.
    pub(crate) fn append_piece(&mut self, later: Self) {
        let gamma = |report: &Self| report.measures.map(|measures| measures.gamma);
        if gamma(&later) > gamma(self) {
            self.witness = later.witness;
        }
        self.operations += later.operations;
        self.values += later.values;
        self.verdict = self.verdict.max(later.verdict);
        self.orphan_reads += later.orphan_reads;
        if let (Some(measures), Some(later)) = (&mut self.measures, later.measures) {
            measures.merge(&later);
        }
    }
}

/// The result for a whole history.
#[derive(Clone, Debug)]
pub struct Report {
    /// Number of judged operations.
    pub operations: u64,
    /// Number of distinct values, over all keys.
    pub values: u64,
    /// Number of keys.
    pub keys: u64,
    /// Number of keys that needed the general search.
    pub searched_keys: u64,
    /// Whether every key is atomic.
    pub verdict: Verdict,
    /// Number of reads of values that nobody wrote.
    pub orphan_reads: u64,
    /// Measures of all keys together, or `None` if some key could not be measured.
    pub measures: Option<Measures>,
    /// Contribution of each measured key to the proportion, for [`confidence`](crate::confidence).
    pub shares: Vec<KeyShare>,
    /// Reports on the keys that are undecided or not atomic. After `rank`, the worst key is the first.
    pub suspects: Vec<KeyReport>,
}

impl Report {
    /// Creates the report on an empty history.
    pub fn new() -> Self {
        Self {
            operations: 0,
            values: 0,
            keys: 0,
            searched_keys: 0,
            verdict: Verdict::Atomic,
            orphan_reads: 0,
            measures: Some(Measures::ATOMIC),
            shares: Vec::new(),
            suspects: Vec::new(),
        }
    }

    /// Adds the result for a key.
    pub fn add(&mut self, key: KeyReport) {
        self.operations += key.operations;
        self.values += key.values;
        self.keys += 1;
        self.searched_keys += u64::from(key.method == Method::Search);
        self.verdict = self.verdict.max(key.verdict);
        self.orphan_reads += key.orphan_reads;
        self.shares.extend(key.measures.map(|measures| KeyShare {
            operations: key.operations,
            inconsistent: measures.inconsistent_operations,
        }));
        self.measures = self.measures.zip(key.measures).map(|(mut all, measures)| {
            all.merge(&measures);
            all
        });
        if key.verdict != Verdict::Atomic {
            self.suspects.push(key);
        }
    }

    /// Sorts the suspects, the worst first: by verdict, Γ, inconsistent operations and name.
    pub fn rank(&mut self) {
        self.suspects.sort_by(|a, b| {
            let badness = |report: &KeyReport| {
                let measures = report.measures.as_ref();
                (report.verdict, measures.map(|m| (m.gamma, m.inconsistent_operations)))
            };
            badness(b).cmp(&badness(a)).then_with(|| a.key.cmp(&b.key))
        });
    }

    /// Returns the proportion of inconsistent operations (004), or `None` if some key could not be measured.
    pub fn proportion(&self) -> Option<f64> {
        Some(ratio(self.measures?.inconsistent_operations, self.operations))
    }

    /// Returns the proportion of inconsistent values, or `None` if some key could not be measured.
    pub fn proportion_values(&self) -> Option<f64> {
        Some(ratio(self.measures?.inconsistent_values, self.values))
    }

    /// For tests: panics with the witness unless the history is atomic.
    #[track_caller]
    pub fn assert_atomic(&self) {
        assert!(self.verdict == Verdict::Atomic, "{self}");
    }
}

impl Default for Report {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Atomic => "atomic",
            Verdict::NotAtomic => "not atomic",
            Verdict::Unknown => "unknown whether atomic",
        };
        write!(out, "{} operations on {} keys: {verdict}", self.operations, self.keys)?;
        if let (Some(measures), true) = (self.measures, self.verdict == Verdict::NotAtomic) {
            write!(
                out,
                "; {} operations inconsistent, Γ = {} ns",
                measures.inconsistent_operations, measures.gamma
            )?;
        }
        if let Some(suspect) = self.suspects.first() {
            write!(out, "\nkey {:?}", suspect.key)?;
            if let Some(witness) = &suspect.witness {
                write!(out, ": {witness}")?;
            }
        }
        Ok(())
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
