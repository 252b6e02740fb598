//! All recorded transactions, packed.
//!
//! A step takes 16 bytes, and 4 more bytes for the number of its transaction. When a read of a list is added,
//! the history compares it with the longest read of the key. A read that is a prefix of the longest read, or
//! continues it, is stored as a length. So memory and time are linear in the elements that were read, and
//! each list is stored once.

use rustc_hash::FxHashMap;
use thiserror::Error;

use super::atoms::{Atom, Atoms};
use super::transaction::RecordedTransaction;
use crate::operation::{Action, NANOS_MAX, Nanos, Outcome, Value};

/// A transaction that cannot be judged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RefusedTransaction {
    /// The transaction ended before it began.
    #[error("the transaction finishes at {finish}, before its start at {start}")]
    FinishBeforeStart {
        /// Recorded start.
        start: Nanos,
        /// Recorded finish.
        finish: Nanos,
    },
    /// A time is beyond `NANOS_MAX`, so calculations could overflow.
    #[error("time {0} is out of range: nanoseconds must lie within ±{NANOS_MAX}")]
    TimeOutOfRange(Nanos),
    /// A transaction of outcome ok has no finish time.
    #[error("a transaction with outcome ok needs a finish time")]
    FinishMissing,
    /// A step is neither a read nor a write nor an append.
    #[error("expected reads, writes and appends in a transaction, found {0}")]
    OtherStep(&'static str),
    /// A write or an append has a list as its value.
    #[error("expected a single value to be written to key {0:?}, found a list")]
    ListWritten(Box<str>),
    /// A key is used both as a list and as a register.
    #[error("key {0:?} is used as a list and as a register")]
    MixedKinds(Box<str>),
    /// Two transactions wrote the same value to a key, so a read does not say whose value it saw.
    #[error("value {value} is written to key {key:?} twice; the judge needs values that are written once")]
    WrittenTwice {
        /// The key.
        key: Box<str>,
        /// The value.
        value: String,
    },
    /// Two transactions that write have the same position. Only the judge by position reports this error.
    #[error("two transactions that write have position {0}")]
    PositionTwice(u64),
    /// An answered transaction has no position. Only the judge by position reports this error.
    #[error("the transaction has no position; to judge by position, every answered transaction needs one")]
    PositionMissing,
    /// A transaction comes too late in the files to be put in order. Only the judge by position reports this
    /// error.
    #[error(
        "position {position} comes too late: position {applied} is applied already, and a window of more than \
         {window} transactions is needed"
    )]
    BeyondWindow {
        /// Position of the late transaction.
        position: u64,
        /// The last position that was applied.
        applied: u64,
        /// Number of transactions of the window.
        window: usize,
    },
    /// The history has more steps than their numbers can hold.
    #[error("a history has at most {STEPS_MAX} steps")]
    TooLong,
}

/// Largest number of steps of a history, over all transactions. The graph of a longer history might have more
/// edges than 32-bit numbers can count.
pub const STEPS_MAX: usize = 1 << 27;

/// The kind of object that a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyKind {
    Register,
    List,
}

/// One step of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepVerb {
    /// A read whose answer is not known.
    Unanswered,
    /// A read of a register, or of a key that nobody had written.
    Value(Atom),
    /// A read of a list that returned the first elements of the key's order. The field is their number.
    Prefix(u32),
    /// A read of a list that is no prefix of the key's order. The field is the index of the list in `strays`.
    Stray(u32),
    Write(Atom),
    Append(Atom),
}

/// A step and its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedStep {
    pub(super) key: u32,
    pub(super) verb: StepVerb,
}

/// A transaction whose steps are in the history's common list.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedTransaction {
    pub(super) client: u64,
    pub(super) start: Nanos,
    pub(super) finish: Option<Nanos>,
    pub(super) position: Option<u64>,
    pub(super) outcome: Outcome,
    /// Number of the transaction's first step.
    pub(super) first: u32,
}

/// A key with the longest list that a read of it returned.
#[derive(Clone, Debug)]
pub(super) struct TransactionKey {
    pub(super) name: Box<str>,
    pub(super) kind: Option<KeyKind>,
    pub(super) order: Vec<Atom>,
}

/// The recorded transactions of any number of clients.
#[derive(Clone, Debug, Default)]
pub struct TransactionHistory {
    pub(super) transactions: Vec<PackedTransaction>,
    pub(super) steps: Vec<PackedStep>,
    /// The transaction of each step.
    pub(super) owners: Vec<u32>,
    pub(super) keys: Vec<TransactionKey>,
    // Bounded by the history, which a user hands in.
    key_numbers: FxHashMap<Box<str>, u32>,
    /// Lists that were read and are no prefix of their key's order.
    pub(super) strays: Vec<Vec<Atom>>,
    pub(super) atoms: Atoms,
    /// The list that `pack` compares. The history keeps it to use its memory again.
    list: Vec<Atom>,
}

impl TransactionHistory {
    /// Creates a history without transactions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of transactions, failed ones included.
    pub fn len(&self) -> usize {
        self.transactions.len()
    }

    /// Whether there are no transactions.
    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }

    /// Adds one transaction. Transactions of one client that began at the same time must be added in the
    /// order in which the client began them. Otherwise the order does not matter.
    pub fn push(&mut self, transaction: &RecordedTransaction) -> Result<(), RefusedTransaction> {
        admit(transaction)?;
        if self.steps.len() + transaction.steps.len() > STEPS_MAX {
            return Err(RefusedTransaction::TooLong);
        }
        let first = self.steps.len() as u32;
        let owner = self.transactions.len() as u32;
        for (key, action) in &transaction.steps {
            let number = self.key(key);
            let packed = self.pack(number, action, transaction.outcome == Outcome::Ok);
            let verb = match packed {
                Ok(verb) => verb,
                Err(refused) => {
                    self.steps.truncate(first as usize);
                    self.owners.truncate(first as usize);
                    return Err(refused);
                }
            };
            self.steps.push(PackedStep { key: number, verb });
            self.owners.push(owner);
        }
        let RecordedTransaction { client, start, finish, position, outcome, .. } = *transaction;
        let finish = finish.filter(|_| outcome == Outcome::Ok);
        self.transactions.push(PackedTransaction { client, start, finish, position, outcome, first });
        Ok(())
    }

    fn key(&mut self, name: &str) -> u32 {
        if let Some(number) = self.key_numbers.get(name) {
            return *number;
        }
        let number = self.keys.len() as u32;
        self.keys.push(TransactionKey { name: name.into(), kind: None, order: Vec::new() });
        self.key_numbers.insert(name.into(), number);
        number
    }

    fn pack(&mut self, key: u32, action: &Action, answered: bool) -> Result<StepVerb, RefusedTransaction> {
        let log = &mut self.keys[key as usize];
        let mut is = |kind| match *log.kind.get_or_insert(kind) == kind {
            true => Ok(()),
            false => Err(RefusedTransaction::MixedKinds(log.name.clone())),
        };
        Ok(match action {
            Action::Read(_) if !answered => StepVerb::Unanswered,
            Action::Read(None) => StepVerb::Value(Atom::NOTHING),
            Action::Read(Some(Value::List(list))) if list.is_empty() => {
                is(KeyKind::List)?;
                StepVerb::Prefix(0)
            }
            Action::Read(Some(Value::List(list))) => {
                is(KeyKind::List)?;
                self.list.clear();
                self.list.extend(list.iter().map(|value| self.atoms.intern(value)));
                let order = &mut log.order;
                let common = order.len().min(self.list.len());
                if order[..common] == self.list[..common] {
                    order.extend_from_slice(&self.list[common..]);
                    StepVerb::Prefix(self.list.len() as u32)
                } else {
                    self.strays.push(self.list.clone());
                    StepVerb::Stray(self.strays.len() as u32 - 1)
                }
            }
            Action::Read(Some(value)) => {
                is(KeyKind::Register)?;
                StepVerb::Value(self.atoms.intern(value))
            }
            Action::Write(Value::List(_)) | Action::Append(Value::List(_)) => {
                return Err(RefusedTransaction::ListWritten(log.name.clone()));
            }
            Action::Write(value) => {
                is(KeyKind::Register)?;
                StepVerb::Write(self.atoms.intern(value))
            }
            Action::Append(value) => {
                is(KeyKind::List)?;
                StepVerb::Append(self.atoms.intern(value))
            }
            other => return Err(RefusedTransaction::OtherStep(other.name())),
        })
    }

    /// Returns the numbers of the steps of a transaction.
    pub(super) fn step_range(&self, transaction: u32) -> std::ops::Range<usize> {
        let end = self
            .transactions
            .get(transaction as usize + 1)
            .map_or(self.steps.len(), |next| next.first as usize);
        self.transactions[transaction as usize].first as usize..end
    }

    /// Returns the list that a read of a list returned. A read of "nothing" returned the empty list.
    pub(super) fn list(&self, step: PackedStep) -> Option<&[Atom]> {
        match step.verb {
            StepVerb::Prefix(length) => Some(&self.keys[step.key as usize].order[..length as usize]),
            StepVerb::Stray(stray) => Some(&self.strays[stray as usize]),
            StepVerb::Value(Atom::NOTHING) => Some(&[]),
            _ => None,
        }
    }

    /// Returns a step as text, such as `append x 1` or `read y [1 2]`.
    pub(super) fn step_text(&self, step: PackedStep) -> String {
        let key = &self.keys[step.key as usize].name;
        match step.verb {
            StepVerb::Unanswered => format!("read {key}, unanswered"),
            StepVerb::Value(atom) => format!("read {key} {}", self.atoms.text(atom)),
            StepVerb::Prefix(_) | StepVerb::Stray(_) => {
                format!("read {key} {}", self.atoms.list_text(self.list(step).unwrap_or_default()))
            }
            StepVerb::Write(atom) => format!("write {key} {}", self.atoms.text(atom)),
            StepVerb::Append(atom) => format!("append {key} {}", self.atoms.text(atom)),
        }
    }

    /// Returns the last value that a transaction wrote or appended to a key.
    pub(super) fn written(&self, transaction: u32, key: u32) -> Option<Atom> {
        let steps = &self.steps[self.step_range(transaction)];
        steps.iter().rev().filter(|step| step.key == key).find_map(|step| match step.verb {
            StepVerb::Write(atom) | StepVerb::Append(atom) => Some(atom),
            _ => None,
        })
    }

    /// Returns a transaction as text, such as `T3 of client 2: append x 1, read y [4]`.
    pub(super) fn text(&self, transaction: u32) -> String {
        let packed = &self.transactions[transaction as usize];
        let range = self.step_range(transaction);
        let hidden = range.len().saturating_sub(STEPS_SHOWN_MAX);
        let shown = self.steps[range].iter().take(STEPS_SHOWN_MAX);
        let mut steps: Vec<String> = shown.map(|step| self.step_text(*step)).collect();
        if hidden > 0 {
            steps.push(format!("and {hidden} more steps"));
        }
        let outcome = match packed.outcome {
            Outcome::Ok => "",
            Outcome::Failed => " (failed)",
            Outcome::Unknown => " (outcome unknown)",
        };
        format!("{} of client {}{outcome}: {}", name(transaction), packed.client, steps.join(", "))
    }
}

/// Returns a transaction's name in reports. Transactions count from 1, in the order of the files.
pub(super) fn name(transaction: u32) -> String {
    format!("T{}", transaction + 1)
}

/// Largest number of steps of a transaction that a text shows.
const STEPS_SHOWN_MAX: usize = 16;

/// Checks the times of a transaction.
pub(super) fn admit(transaction: &RecordedTransaction) -> Result<(), RefusedTransaction> {
    let RecordedTransaction { start, finish, outcome, .. } = transaction;
    for time in [Some(*start), *finish].into_iter().flatten() {
        if !(-NANOS_MAX..=NANOS_MAX).contains(&time) {
            return Err(RefusedTransaction::TimeOutOfRange(time));
        }
    }
    match finish {
        Some(finish) if finish < start => {
            Err(RefusedTransaction::FinishBeforeStart { start: *start, finish: *finish })
        }
        None if *outcome == Outcome::Ok => Err(RefusedTransaction::FinishMissing),
        _ => Ok(()),
    }
}
