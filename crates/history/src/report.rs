//! What a check found.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::bootstrap::KeyShare;
use crate::session::SessionViolations;
use crate::witness::Witness;

/// Whether a history is atomic (linearizable).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It is.
    Atomic,
    /// The search ran out of steps, or the clocks' error could explain what is wrong.
    Unknown,
    /// It is not.
    NotAtomic,
}

impl Serialize for Verdict {
    /// `true`, `false` or `"unknown"`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Atomic => serializer.serialize_bool(true),
            Self::NotAtomic => serializer.serialize_bool(false),
            Self::Unknown => serializer.serialize_str("unknown"),
        }
    }
}

/// A score that may be beyond any number: a length in nanoseconds, or k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Score {
    /// This much.
    Finite(u64),
    /// No amount mends it: somebody read a value that nobody wrote, or (for Δ and k) before it was written.
    Infinite,
}

impl Score {
    /// The number, unless infinite.
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
    /// A number, or `"infinity"`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Finite(amount) => serializer.serialize_u64(*amount),
            Self::Infinite => serializer.serialize_str("infinity"),
        }
    }
}

/// The numbers, for one key or for many together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measures {
    /// The size of a lightest set of operations, made of whole clusters, without which the rest is atomic (004 §II.B).
    pub inconsistent_operations: u64,
    /// The size of a smallest set of values with the same effect.
    pub inconsistent_values: u64,
    /// Γ: the history is atomic once every operation is stretched by γ/2 at either end, exactly if γ ≥ Γ.
    pub gamma: Score,
    /// Γ without the reads of values that nobody wrote.
    pub gamma_finite: u64,
    /// Δ: the history is atomic once every read begins δ earlier, exactly if δ ≥ Δ.
    pub delta: Score,
    /// A lower bound on k, where every read returns one of the last k values written. 1 exactly if atomic.
    pub k: Score,
    /// Reads that a regular register could not have answered so.
    pub irregular_reads: u64,
    /// Broken session guarantees.
    pub sessions: SessionViolations,
    /// Inconsistent operations whatever the clocks' error was, and at most with it.
    pub certain_operations: u64,
    /// An upper bound of the inconsistent operations, had every clock error hidden what it can.
    pub possible_operations: u64,
}

impl Measures {
    /// Of operations that are atomic.
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

/// How a key was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By zones: reads and writes, every value written once.
    Zones,
    /// By searching for an order, because values repeat or there are other operations than reads and writes.
    Search,
}

/// What was found about one key.
#[derive(Clone, Debug)]
pub struct KeyReport {
    /// The key.
    pub key: Box<str>,
    /// Operations that count.
    pub operations: u64,
    /// Distinct values, of which "nothing" is one if it was read.
    pub values: u64,
    /// How it was decided.
    pub method: Method,
    /// Whether it is atomic.
    pub verdict: Verdict,
    /// Reads of values that nobody wrote.
    pub orphan_reads: u64,
    /// The numbers. A search decides without measuring: there are none unless it found the key atomic.
    pub measures: Option<Measures>,
    /// What shows that it is not atomic.
    pub witness: Option<Witness>,
}

impl KeyReport {
    /// Adds what was found about a later piece of the same key.
    pub(crate) fn join(&mut self, later: Self) {
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

/// What was found about a whole history.
#[derive(Clone, Debug)]
pub struct Report {
    /// Operations that count.
    pub operations: u64,
    /// Distinct values over all keys.
    pub values: u64,
    /// Keys.
    pub keys: u64,
    /// Keys that needed the general search.
    pub searched_keys: u64,
    /// Whether every key is atomic.
    pub verdict: Verdict,
    /// Reads of values that nobody wrote.
    pub orphan_reads: u64,
    /// The numbers, unless some key could not be measured.
    pub measures: Option<Measures>,
    /// What each measured key adds to the proportion, for [`confidence`](crate::confidence).
    pub shares: Vec<KeyShare>,
    /// The keys that are not atomic or not decided, the worst first.
    pub suspects: Vec<KeyReport>,
}

impl Report {
    /// A report on no operations.
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

    /// Adds what was found about a key.
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

    /// Puts the worst suspects first: by Γ, then by inconsistent operations, then by name.
    pub fn rank(&mut self) {
        self.suspects.sort_by(|a, b| {
            let badness = |report: &KeyReport| {
                let measures = report.measures.as_ref();
                (report.verdict, measures.map(|m| (m.gamma, m.inconsistent_operations)))
            };
            badness(b).cmp(&badness(a)).then_with(|| a.key.cmp(&b.key))
        });
    }

    /// The proportion of inconsistent operations, 004's measure.
    pub fn proportion(&self) -> Option<f64> {
        Some(ratio(self.measures?.inconsistent_operations, self.operations))
    }

    /// The proportion of inconsistent values.
    pub fn proportion_values(&self) -> Option<f64> {
        Some(ratio(self.measures?.inconsistent_values, self.values))
    }

    /// Panics with the witness unless the history is atomic: for tests.
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
