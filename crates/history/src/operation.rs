//! One operation of a client on a key.

use std::fmt;

use serde::ser::{Serialize, SerializeSeq, Serializer};

/// A point in time in nanoseconds, on the clock of the recording.
pub type Nanos = i64;

/// Largest accepted distance of a time from the clock's zero, so that sums never overflow. In nanoseconds
/// since 1970 it is the year 2096.
pub const NANOS_MAX: Nanos = 4_000_000_000_000_000_000;

/// A written or returned value: a text, or the list of values that a read of an appendable key returns.
///
/// A number counts as the text that stands in the file, digit by digit: `1` and `"1"` are the same value, `1`
/// and `1.0` are two.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// A single value.
    Text(Box<str>),
    /// An ordered list of values.
    List(Box<[Value]>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Text(number.to_string().into())
    }
}

impl From<Vec<Value>> for Value {
    fn from(list: Vec<Value>) -> Self {
        Self::List(list.into())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => out.write_str(text),
            Self::List(values) => {
                out.write_str("[")?;
                for (index, value) in values.iter().enumerate() {
                    write!(out, "{}{value}", if index == 0 { "" } else { " " })?;
                }
                out.write_str("]")
            }
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(values) => {
                let mut list = serializer.serialize_seq(Some(values.len()))?;
                for value in values {
                    list.serialize_element(value)?;
                }
                list.end()
            }
        }
    }
}

/// The request of an operation and, if the check needs it, the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A read with the value it returned. `None` means "nothing".
    Read(Option<Value>),
    /// Writes this value.
    Write(Value),
    /// Compare-and-set: writes `new` if the key holds `expected`.
    Cas {
        /// Value that the key must hold. `None` means "nothing".
        expected: Option<Value>,
        /// Value to write.
        new: Value,
        /// Whether the key held `expected`. `false` is an answer, too: the key held another value at that
        /// moment.
        matched: bool,
    },
    /// Writes "nothing".
    Delete,
    /// Appends this value to the list or text under the key.
    Append(Value),
    /// Adds this value to the set under the key.
    Add(Value),
    /// Removes this value from the set under the key.
    Remove(Value),
    /// Puts this value at the end of the queue under the key.
    Enqueue(Value),
    /// Takes the first value of the queue under the key. Holds the value taken, or `None` if the queue was
    /// empty.
    Dequeue(Option<Value>),
}

impl Action {
    /// Returns the operation's name in files.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::Cas { .. } => "cas",
            Self::Delete => "delete",
            Self::Append(_) => "append",
            Self::Add(_) => "add",
            Self::Remove(_) => "remove",
            Self::Enqueue(_) => "enqueue",
            Self::Dequeue(_) => "dequeue",
        }
    }
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The operation took effect and was answered.
    Ok,
    /// The operation certainly did not take effect. The check leaves it out.
    Failed,
    /// The operation may have taken effect, or may take effect later, for example after a time-out, a broken
    /// connection or the kill of a client.
    Unknown,
}

/// One operation of one client on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Number of the client. A client starts an operation on a key only after its previous operation on that
    /// key has ended.
    pub client: u64,
    /// The key.
    pub key: Box<str>,
    /// The request, with its answer.
    pub action: Action,
    /// Time at which the client sent the request.
    pub start: Nanos,
    /// Time at which the client received the answer, or `None` if it received none.
    pub finish: Option<Nanos>,
    /// The outcome of the operation.
    pub outcome: Outcome,
}

impl Operation {
    /// Returns an answered write.
    pub fn write(client: u64, key: &str, value: impl Into<Value>, start: Nanos, finish: Nanos) -> Self {
        Self::answered(client, key, Action::Write(value.into()), start, finish)
    }

    /// Returns an answered read. `value` is `None` if the read found nothing.
    pub fn read(client: u64, key: &str, value: Option<Value>, start: Nanos, finish: Nanos) -> Self {
        Self::answered(client, key, Action::Read(value), start, finish)
    }

    /// Returns an operation that took effect and was answered.
    pub fn answered(client: u64, key: &str, action: Action, start: Nanos, finish: Nanos) -> Self {
        Self { client, key: key.into(), action, start, finish: Some(finish), outcome: Outcome::Ok }
    }
}
