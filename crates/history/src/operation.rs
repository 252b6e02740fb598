//! What a client did: one operation on one key.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, SerializeSeq, Serializer};

/// A point in time in nanoseconds, on whatever clock the recording used.
pub type Nanos = i64;

/// Times further than this from the clock's zero are refused, so that sums never overflow. It is the year 2096 in
/// nanoseconds since 1970.
pub const NANOS_MAX: Nanos = 4_000_000_000_000_000_000;

/// A written or returned value: a text, or a list of values (what a read of an appended-to key returns).
///
/// Numbers are kept as their decimal text, so that `1` and `"1"` in a file are the same value.
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

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Value;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a string, a number, a boolean or a list of them")
            }

            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(text.into())
            }

            fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
                Ok(number.into())
            }

            fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
                Ok(number.to_string().into())
            }

            fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
                Ok(number.to_string().into())
            }

            fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
                Ok(flag.to_string().into())
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element::<Value>()? {
                    if matches!(value, Value::List(_)) {
                        return Err(A::Error::custom("lists do not nest"));
                    }
                    values.push(value);
                }
                Ok(values.into())
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// What an operation asked for and, where it is an answer that matters, what it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read, and what it returned; `None` means "there is nothing".
    Read(Option<Value>),
    /// Write this value.
    Write(Value),
    /// Compare-and-set: write `new` if the key holds `expected`.
    Cas {
        /// The value that must be there; `None` means "nothing".
        expected: Option<Value>,
        /// The value to write then.
        new: Value,
        /// Whether the comparison held. `false` is an answer too: at that moment the key held something else.
        matched: bool,
    },
    /// Write "nothing".
    Delete,
    /// Append this value to the list (or text) under the key.
    Append(Value),
    /// Add this value to the set under the key.
    Add(Value),
    /// Remove this value from the set under the key.
    Remove(Value),
    /// Put this value at the end of the queue under the key.
    Enqueue(Value),
    /// Take the first value of the queue under the key, and what was taken; `None` means that the queue was empty.
    Dequeue(Option<Value>),
}

impl Action {
    /// The operation's name in files.
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

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It took effect and was answered.
    Ok,
    /// It certainly did not take effect. Such an operation is no part of what happened and is left out.
    Failed,
    /// It may have taken effect, or may yet: a time-out, a broken connection, a client that was killed.
    Unknown,
}

/// One operation of one client on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who did it. A client is a sequence: it starts its next operation on a key after the last one ended.
    pub client: u64,
    /// On which key.
    pub key: Box<str>,
    /// What it did.
    pub action: Action,
    /// When it was sent, at the client.
    pub start: Nanos,
    /// When its answer arrived at the client; `None` if none did.
    pub finish: Option<Nanos>,
    /// How it ended.
    pub outcome: Outcome,
}

impl Operation {
    /// A write that was answered.
    pub fn write(client: u64, key: &str, value: impl Into<Value>, start: Nanos, finish: Nanos) -> Self {
        Self::answered(client, key, Action::Write(value.into()), start, finish)
    }

    /// A read that returned a value, or `None` for nothing.
    pub fn read(client: u64, key: &str, value: Option<Value>, start: Nanos, finish: Nanos) -> Self {
        Self::answered(client, key, Action::Read(value), start, finish)
    }

    /// An operation that took effect and was answered.
    pub fn answered(client: u64, key: &str, action: Action, start: Nanos, finish: Nanos) -> Self {
        Self { client, key: key.into(), action, start, finish: Some(finish), outcome: Outcome::Ok }
    }
}
