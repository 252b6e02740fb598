//! All recorded operations, grouped by key and packed.
//!
//! Consistency is a property of each key alone (linearizability is local), so the key is the unit of everything: of
//! memory layout, of checking, of parallelism. Values are numbered within their key; an operation is 40 bytes.

use std::collections::BTreeMap;

use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashMap};
use thiserror::Error;

use crate::format::Record;
use crate::operation::{Action, NANOS_MAX, Nanos, Operation, Outcome, Value};

/// An operation that cannot be part of any history.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Impossible {
    /// It ended before it began.
    #[error("finish {finish} is before start {start}")]
    FinishBeforeStart {
        /// Recorded start.
        start: Nanos,
        /// Recorded finish.
        finish: Nanos,
    },
    /// A time too large to calculate with.
    #[error("time {0} is out of range: nanoseconds must lie within ±{NANOS_MAX}")]
    TimeOutOfRange(Nanos),
    /// An answered operation without the time of its answer.
    #[error("an operation of outcome ok needs its finish time")]
    FinishMissing,
    /// No model has all of these.
    #[error("key {key:?} has {found} beside {others}, which no one kind of object offers")]
    MixedKinds {
        /// The key.
        key: Box<str>,
        /// What this operation does.
        found: &'static str,
        /// What the ones before it do.
        others: String,
    },
}

/// What kind of object a key is, by what is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Register,
    /// Appends and reads of texts.
    Text,
    /// Appends and reads of lists.
    List,
    Set,
    Queue,
}

/// Which operations occur together; one bit each.
mod offer {
    pub(super) const READ: u8 = 1;
    pub(super) const WRITE: u8 = 2;
    pub(super) const CAS: u8 = 4;
    pub(super) const APPEND: u8 = 8;
    pub(super) const SET: u8 = 16;
    pub(super) const QUEUE: u8 = 32;

    pub(super) const NAMES: [(u8, &str); 6] = [
        (READ, "read"),
        (WRITE, "write or delete"),
        (CAS, "cas"),
        (APPEND, "append"),
        (SET, "add or remove"),
        (QUEUE, "enqueue or dequeue"),
    ];

    /// Registers, texts and lists, sets, queues.
    pub(super) const KINDS: [u8; 4] = [READ | WRITE | CAS, READ | WRITE | APPEND, READ | SET, QUEUE];
}

/// A value's number within its key.
pub(crate) type ValueId = u32;

/// "Nothing": what a key holds at first and after a delete.
pub(crate) const NOTHING: ValueId = 0;

/// Before and after everything.
pub(crate) const BEGINNING: Nanos = Nanos::MIN;
pub(crate) const FOREVER: Nanos = Nanos::MAX;

/// What a packed operation did; the values are in `value` and `other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Read,
    Write,
    /// `value` is written if `other` is there.
    Cas,
    /// A compare-and-set that was answered "something else than `other` is there".
    CasRefused,
    /// A compare-and-set of unknown outcome.
    CasUnknown,
    Append,
    Add,
    Remove,
    Enqueue,
    Dequeue,
    /// Nobody knows whether something was taken, nor what.
    DequeueUnknown,
}

/// A packed operation. Those that failed and reads that were never answered are not kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub start: Nanos,
    /// [`FOREVER`] if the outcome is unknown.
    pub finish: Nanos,
    pub value: ValueId,
    pub other: ValueId,
    pub client: u64,
    pub verb: Verb,
}

/// The operations on one key.
#[derive(Clone, Debug)]
pub struct KeyHistory {
    pub(crate) key: Box<str>,
    /// Value `v` has number `v`'s position plus one; zero is [`NOTHING`].
    values: IndexSet<Value, FxBuildHasher>,
    pub(crate) steps: Vec<Step>,
    /// Whether zones can decide: only reads and writes, every value written at most once, never "nothing".
    pub(crate) distinct: bool,
    written: Vec<bool>,
    /// Which operations occur.
    offers: u8,
    /// Whether a list was read or written.
    lists: bool,
    /// Whether the key held "nothing" at first. Not so where this is a later piece of a stream.
    pub(crate) from_nothing: bool,
}

impl KeyHistory {
    pub(crate) fn new(key: &str) -> Self {
        Self {
            key: key.into(),
            values: IndexSet::default(),
            steps: Vec::new(),
            distinct: true,
            written: vec![false],
            offers: 0,
            lists: false,
            from_nothing: true,
        }
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How many operations count: those that failed and reads that were never answered do not.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether no operation counts.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether it consists of reads and writes only and no value was written twice, so that zones decide and measure it.
    pub fn has_distinct_writes(&self) -> bool {
        self.distinct
    }

    /// Takes out the reads and writes that `leaves` names.
    pub(crate) fn take(&mut self, leaves: impl Fn(&Step) -> bool) -> Self {
        let mut pieces = [Self::new(&self.key), Self::new(&self.key)];
        for step in &self.steps {
            let piece = &mut pieces[usize::from(leaves(step))];
            let value = piece.number_of(self.value(step.value).cloned());
            if step.verb == Verb::Write {
                piece.written[value as usize] = true;
            }
            piece.steps.push(Step { value, ..*step });
        }
        let [stay, mut leave] = pieces;
        leave.from_nothing = self.from_nothing;
        *self = Self { from_nothing: false, offers: self.offers, lists: self.lists, ..stay };
        leave
    }

    /// The operations that count, in the order in which they were pushed.
    pub fn operations(&self) -> impl Iterator<Item = Operation> {
        self.steps.iter().map(|step| {
            let value = |id| self.value(id).cloned();
            // A compare-and-set may write an empty list, which is nothing.
            let written = |id| value(id).unwrap_or_else(|| Vec::new().into());
            let action = match step.verb {
                Verb::Read => Action::Read(value(step.value)),
                Verb::Write => value(step.value).map_or(Action::Delete, Action::Write),
                Verb::Cas | Verb::CasRefused | Verb::CasUnknown => Action::Cas {
                    expected: value(step.other),
                    new: written(step.value),
                    matched: step.verb != Verb::CasRefused,
                },
                Verb::Append => Action::Append(written(step.value)),
                Verb::Add => Action::Add(written(step.value)),
                Verb::Remove => Action::Remove(written(step.value)),
                Verb::Enqueue => Action::Enqueue(written(step.value)),
                Verb::Dequeue | Verb::DequeueUnknown => Action::Dequeue(value(step.value)),
            };
            let unknown = step.finish == FOREVER;
            Operation {
                client: step.client,
                key: self.key.clone(),
                action,
                start: step.start,
                finish: (!unknown).then_some(step.finish),
                outcome: if unknown { Outcome::Unknown } else { Outcome::Ok },
            }
        })
    }

    /// The value behind a number; `None` behind [`NOTHING`].
    pub(crate) fn value(&self, id: ValueId) -> Option<&Value> {
        self.values.get_index((id as usize).checked_sub(1)?)
    }

    pub(crate) fn number_if_known(&self, value: &Value) -> Option<ValueId> {
        let index = self.values.get_index_of(value)?;
        Some(ValueId::try_from(index + 1).expect("fewer than 2^32 values of a key"))
    }

    pub(crate) fn family(&self) -> Family {
        match self.offers {
            offers if offers & offer::QUEUE != 0 => Family::Queue,
            offers if offers & offer::SET != 0 => Family::Set,
            offers if offers & offer::APPEND != 0 && self.lists => Family::List,
            offers if offers & offer::APPEND != 0 => Family::Text,
            _ => Family::Register,
        }
    }

    /// How many numbers are in use, [`NOTHING`] included.
    pub(crate) fn numbers(&self) -> usize {
        self.values.len() + 1
    }

    fn number(&mut self, value: Value) -> ValueId {
        if let Value::List(elements) = &value {
            for element in elements {
                self.number(element.clone());
            }
        }
        let (index, new) = self.values.insert_full(value);
        if new {
            self.written.push(false);
        }
        ValueId::try_from(index + 1).expect("fewer than 2^32 values of a key")
    }

    /// What was read or written: an empty list is nothing, as a key holds it before the first append.
    fn number_of(&mut self, value: Option<Value>) -> ValueId {
        let value = value.filter(|value| !matches!(value, Value::List(values) if values.is_empty()));
        value.map_or(NOTHING, |value| self.number(value))
    }

    pub(crate) fn push(
        &mut self,
        client: u64,
        action: Action,
        start: Nanos,
        finish: Nanos,
        outcome: Outcome,
    ) -> Result<(), Impossible> {
        let offer = match &action {
            Action::Read(_) => offer::READ,
            Action::Write(_) | Action::Delete => offer::WRITE,
            Action::Cas { .. } => offer::CAS,
            Action::Append(_) => offer::APPEND,
            Action::Add(_) | Action::Remove(_) => offer::SET,
            Action::Enqueue(_) | Action::Dequeue(_) => offer::QUEUE,
        };
        let offers = self.offers | offer;
        if !offer::KINDS.iter().any(|kind| offers & !kind == 0) {
            let others = offer::NAMES.iter().filter(|(bit, _)| self.offers & bit != 0);
            let others: Vec<&str> = others.map(|(_, name)| *name).collect();
            let (key, found) = (self.key.clone(), action.name());
            return Err(Impossible::MixedKinds { key, found, others: others.join(", ") });
        }
        self.offers = offers;
        self.lists |= matches!(&action, Action::Read(Some(Value::List(_))) | Action::Write(Value::List(_)));
        let unknown = outcome == Outcome::Unknown;
        let (verb, value, other) = match action {
            Action::Read(value) => (Verb::Read, self.number_of(value), NOTHING),
            Action::Write(value) => (Verb::Write, self.number_of(Some(value)), NOTHING),
            Action::Delete => (Verb::Write, NOTHING, NOTHING),
            Action::Cas { expected, new, matched } => {
                let (new, expected) = (self.number_of(Some(new)), self.number_of(expected));
                let verb = match (unknown, matched) {
                    (true, _) => Verb::CasUnknown,
                    (false, true) => Verb::Cas,
                    (false, false) => Verb::CasRefused,
                };
                (verb, new, expected)
            }
            Action::Append(value) => (Verb::Append, self.number(value), NOTHING),
            Action::Add(value) => (Verb::Add, self.number(value), NOTHING),
            Action::Remove(value) => (Verb::Remove, self.number(value), NOTHING),
            Action::Enqueue(value) => (Verb::Enqueue, self.number(value), NOTHING),
            Action::Dequeue(_) if unknown => (Verb::DequeueUnknown, NOTHING, NOTHING),
            Action::Dequeue(value) => (Verb::Dequeue, self.number_of(value), NOTHING),
        };
        match verb {
            Verb::Read => {}
            Verb::Write => {
                let again = std::mem::replace(&mut self.written[value as usize], true);
                self.distinct &= !again && value != NOTHING;
            }
            _ => self.distinct = false,
        }
        self.steps.push(Step { start, finish, value, other, client, verb });
        Ok(())
    }
}

/// Recorded operations of any number of clients and keys.
#[derive(Clone, Debug, Default)]
pub struct History {
    keys: Vec<KeyHistory>,
    key_numbers: FxHashMap<Box<str>, usize>,
    left_out: u64,
    clocks: BTreeMap<String, u64>,
}

impl History {
    /// A history without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one operation, in any order.
    ///
    /// One that failed did not happen, and a read without an answer says nothing: both are counted as
    /// [`left_out`](Self::left_out) and not kept. An update of unknown outcome is kept as ending never.
    pub fn push(&mut self, operation: Operation) -> Result<(), Impossible> {
        let Some(finish) = admit(&operation)? else {
            self.left_out += 1;
            return Ok(());
        };
        let Operation { client, key, action, start, outcome, .. } = operation;
        let index = match self.key_numbers.get(&key) {
            Some(index) => *index,
            None => {
                self.keys.push(KeyHistory::new(&key));
                self.key_numbers.insert(key, self.keys.len() - 1);
                self.keys.len() - 1
            }
        };
        self.keys[index].push(client, action, start, finish, outcome)
    }

    /// Adds what a line of a file said.
    pub fn record(&mut self, record: Record) -> Result<(), Impossible> {
        match record {
            Record::Operation(operation) => self.push(operation),
            Record::Clock { host, error } => {
                self.declare_clock(&host, error);
                Ok(())
            }
        }
    }

    /// Says how far the clock of `host` may be off true time, in either direction.
    pub fn declare_clock(&mut self, host: &str, error: u64) {
        let known = self.clocks.entry(host.into()).or_default();
        *known = error.max(*known);
    }

    /// ε: how wrong the difference of two times may be, which is the sum of the two largest errors of different hosts.
    pub fn clock_error(&self) -> u64 {
        let mut errors: Vec<u64> = self.clocks.values().copied().collect();
        errors.sort_unstable_by(|a, b| b.cmp(a));
        match errors[..] {
            [first, second, ..] => first.saturating_add(second),
            _ => 0,
        }
    }

    /// The keys in the order of their first operation.
    pub fn keys(&self) -> &[KeyHistory] {
        &self.keys
    }

    /// How many operations count.
    pub fn len(&self) -> usize {
        self.keys.iter().map(KeyHistory::len).sum()
    }

    /// Whether no operation counts.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// How many operations were pushed and do not count: failed ones, and reads that were never answered.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

/// When the operation ends for those that judge it; `None` if it does not count.
pub(crate) fn admit(operation: &Operation) -> Result<Option<Nanos>, Impossible> {
    let Operation { start, finish, outcome, action, .. } = operation;
    for time in [Some(*start), *finish].into_iter().flatten() {
        if !(-NANOS_MAX..=NANOS_MAX).contains(&time) {
            return Err(Impossible::TimeOutOfRange(time));
        }
    }
    if let Some(finish) = finish.filter(|finish| finish < start) {
        return Err(Impossible::FinishBeforeStart { start: *start, finish });
    }
    match (outcome, finish) {
        (Outcome::Ok, None) => Err(Impossible::FinishMissing),
        (Outcome::Ok, Some(finish)) => Ok(Some(*finish)),
        (Outcome::Failed, _) => Ok(None),
        (Outcome::Unknown, _) if matches!(action, Action::Read(_)) => Ok(None),
        (Outcome::Unknown, _) => Ok(Some(FOREVER)),
    }
}

impl FromIterator<Operation> for History {
    /// Collects operations that are known to be possible.
    ///
    /// # Panics
    /// If one is [`Impossible`].
    fn from_iter<I: IntoIterator<Item = Operation>>(operations: I) -> Self {
        let mut history = Self::new();
        for operation in operations {
            history.push(operation).expect("operations of a program's own making are possible");
        }
        history
    }
}
