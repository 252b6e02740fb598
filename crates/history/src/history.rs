//! All recorded operations, grouped by key and packed.
//!
//! Linearizability is local: a history is linearizable exactly if the operations on each key are
//! linearizable. So memory layout, checks and parallelism all work by key. Values are numbered within their
//! key, and an operation takes 40 bytes.

use std::collections::BTreeMap;

use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashMap};
use thiserror::Error;

use crate::format::Record;
use crate::operation::{Action, NANOS_MAX, Nanos, Operation, Outcome, Value};

/// An operation that cannot occur in any history.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Impossible {
    /// The operation ended before it began.
    #[error("the operation finishes at {finish}, before its start at {start}")]
    FinishBeforeStart {
        /// Recorded start.
        start: Nanos,
        /// Recorded finish.
        finish: Nanos,
    },
    /// A time is beyond `NANOS_MAX`, so calculations could overflow.
    #[error("time {0} is out of range: nanoseconds must lie within ±{NANOS_MAX}")]
    TimeOutOfRange(Nanos),
    /// An answered operation has no finish time.
    #[error("an operation with outcome ok needs a finish time")]
    FinishMissing,
    /// A transaction stands where an operation is expected.
    #[error("expected an operation, found a transaction")]
    Transaction,
    /// No kind of object offers all operations found on one key.
    #[error(
        "key {key:?} has the operation {found} in addition to {others}, and no single kind of object offers all of them"
    )]
    MixedKinds {
        /// The key.
        key: Box<str>,
        /// Name of this operation.
        found: &'static str,
        /// Names of the earlier operations on the key.
        others: String,
    },
}

/// The kind of object that a key is, judged by the operations on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Register,
    /// A text, which is appended to and read.
    Text,
    /// A list, which is appended to and read.
    List,
    Set,
    Queue,
}

/// One bit for each kind of operation. The bits of a key tell which kinds of operations occur on it.
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

    /// The sets of kinds that a register, a text or a list, a set, and a queue offer.
    pub(super) const KINDS: [u8; 4] = [READ | WRITE | CAS, READ | WRITE | APPEND, READ | SET, QUEUE];
}

/// Number of a value within its key.
pub(crate) type ValueId = u32;

/// Number of "nothing", which a key holds at first and after a delete.
pub(crate) const NOTHING: ValueId = 0;

/// A time before all other times, and (`FOREVER`) a time after all other times.
pub(crate) const BEGINNING: Nanos = Nanos::MIN;
pub(crate) const FOREVER: Nanos = Nanos::MAX;

/// The kind of a packed operation. The operation's values are in `value` and `other` of its [`KeyStep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Read,
    Write,
    /// Writes `value` if the key holds `other`.
    Cas,
    /// A compare-and-set whose answer was that the key does not hold `other`.
    CasRefused,
    /// A compare-and-set of unknown outcome.
    CasUnknown,
    Append,
    Add,
    Remove,
    Enqueue,
    Dequeue,
    /// A dequeue of unknown outcome: the dequeue may have taken a value, but nobody knows which value.
    DequeueUnknown,
}

/// A packed operation. Failed operations and unanswered reads are not kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyStep {
    pub start: Nanos,
    /// End of the operation, or [`FOREVER`] if its outcome is unknown.
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
    /// The values. The value at index `i` has number `i + 1`, because zero is [`NOTHING`].
    values: IndexSet<Value, FxBuildHasher>,
    pub(crate) steps: Vec<KeyStep>,
    /// Whether zones can decide: all operations are reads and writes, no value is written twice, and no write
    /// deletes.
    pub(crate) distinct: bool,
    written: Vec<bool>,
    /// Bits of [`offer`] for the operations that occur.
    offers: u8,
    /// Whether some operation read or wrote a list.
    lists: bool,
    /// Whether the key held "nothing" at first. A stream splits a history into pieces; this is false for all
    /// of them except the first.
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

    /// Returns the key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the number of operations, without failed operations and unanswered reads.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether the history has no operation except failed ones and unanswered reads.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether all operations are reads and writes and no value was written twice, so that zones decide and
    /// measure.
    pub fn has_distinct_writes(&self) -> bool {
        self.distinct
    }

    /// Splits off the reads and writes for which `leaves` is true.
    pub(crate) fn take(&mut self, leaves: impl Fn(&KeyStep) -> bool) -> Self {
        let mut pieces = [Self::new(&self.key), Self::new(&self.key)];
        for step in &self.steps {
            let piece = &mut pieces[usize::from(leaves(step))];
            let value = piece.number_of(self.value(step.value).cloned());
            if step.verb == Verb::Write {
                piece.written[value as usize] = true;
            }
            piece.steps.push(KeyStep { value, ..*step });
        }
        let [stay, mut leave] = pieces;
        leave.from_nothing = self.from_nothing;
        *self = Self { from_nothing: false, offers: self.offers, lists: self.lists, ..stay };
        leave
    }

    /// Iterates over the operations, without failed ones and unanswered reads, in the order in which they
    /// were pushed.
    pub fn operations(&self) -> impl Iterator<Item = Operation> {
        self.steps.iter().map(|step| {
            let value = |id| self.value(id).cloned();
            // A compare-and-set may write an empty list, which is stored as "nothing".
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

    /// Returns the value with this number, or `None` for [`NOTHING`].
    pub(crate) fn value(&self, id: ValueId) -> Option<&Value> {
        self.values.get_index((id as usize).checked_sub(1)?)
    }

    pub(crate) fn number_if_known(&self, value: &Value) -> Option<ValueId> {
        let index = self.values.get_index_of(value)?;
        Some(ValueId::try_from(index + 1).expect("a key has fewer than 2^32 values"))
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

    /// Returns how many numbers of values are in use, including [`NOTHING`].
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
        ValueId::try_from(index + 1).expect("a key has fewer than 2^32 values")
    }

    /// Returns the number of a value read or written. An empty list is "nothing", because that is the state
    /// of a key before the first append.
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
        self.steps.push(KeyStep { start, finish, value, other, client, verb });
        Ok(())
    }
}

/// The recorded operations of any number of clients and keys.
#[derive(Clone, Debug, Default)]
pub struct History {
    keys: Vec<KeyHistory>,
    key_numbers: FxHashMap<Box<str>, usize>,
    left_out: u64,
    clocks: BTreeMap<String, u64>,
}

impl History {
    /// Creates a history without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one operation. Operations may come in any order.
    ///
    /// A failed operation did not happen, and a read without an answer proves nothing. Such operations are
    /// counted in [`left_out`](Self::left_out) and dropped. An update of unknown outcome is kept as an
    /// operation without an end.
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

    /// Adds one record of a file.
    pub fn record(&mut self, record: Record) -> Result<(), Impossible> {
        match record {
            Record::Operation(operation) => self.push(operation),
            Record::Transaction(_) => Err(Impossible::Transaction),
            Record::Clock { host, error } => {
                self.declare_clock(&host, error);
                Ok(())
            }
        }
    }

    /// Declares the clock error of `host`: the largest deviation from true time in nanoseconds, in either
    /// direction.
    pub fn declare_clock(&mut self, host: &str, error: u64) {
        let known = self.clocks.entry(host.into()).or_default();
        *known = error.max(*known);
    }

    /// Returns ε, the largest error of the difference of two recorded times: the sum of the two largest clock
    /// errors. All times of one host come from one clock, so ε is zero with fewer than two hosts.
    pub fn clock_error(&self) -> u64 {
        let mut errors: Vec<u64> = self.clocks.values().copied().collect();
        errors.sort_unstable_by(|a, b| b.cmp(a));
        match errors[..] {
            [first, second, ..] => first.saturating_add(second),
            _ => 0,
        }
    }

    /// Returns the keys in the order of their first operation.
    pub fn keys(&self) -> &[KeyHistory] {
        &self.keys
    }

    /// Returns the number of operations over all keys, without failed operations and unanswered reads.
    pub fn len(&self) -> usize {
        self.keys.iter().map(KeyHistory::len).sum()
    }

    /// Whether the history has no operation except failed ones and unanswered reads.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the number of operations that were pushed and are left out: failed operations and unanswered
    /// reads.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

/// Returns the end of the operation for the check. Returns `None` if the check leaves the operation out: a
/// failed operation or an unanswered read.
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
    /// If an operation is [`Impossible`].
    fn from_iter<I: IntoIterator<Item = Operation>>(operations: I) -> Self {
        let mut history = Self::new();
        for operation in operations {
            history.push(operation).expect("a program adds only operations that are possible in a history");
        }
        history
    }
}
