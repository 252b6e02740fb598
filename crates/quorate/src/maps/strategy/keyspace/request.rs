//! Requests to a map, and answers.

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::partial::{Kind, Value};
use serde::{Deserialize, Serialize};

/// A request to a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Reads the values of these keys. Answered by [`KeyspaceAnswer::Found`].
    Read(Vec<Bytes>),
    /// Sets the strings of keys: all of them, or none. The count is 1 if they were set.
    Put {
        /// Keys and values. If a key occurs twice, its last value counts.
        pairs: Vec<(Bytes, Bytes)>,
        /// The life of the strings.
        life: Life,
        /// The condition of the write.
        when: When,
        /// Whether to return the former value of the first key, which must then be a string.
        return_old: bool,
    },
    /// Deletes keys. The count is the number of keys that existed.
    Delete {
        /// The keys.
        keys: Vec<Bytes>,
        /// Whether to return the former value of the first key, which must then be a string.
        return_old: bool,
    },
    /// Changes the life of a key's value. The count is 1 if the life was changed.
    Live {
        /// The key.
        key: Bytes,
        /// The new life.
        life: Life,
        /// The condition of the change.
        only: Only,
        /// Whether to return the value of the key, which must then be a string.
        return_old: bool,
    },
    /// Adds to a string of digits. The count is the sum.
    Add {
        /// The key.
        key: Bytes,
        /// The number to add.
        added: i64,
    },
    /// Appends bytes to a string. The count is the string's new length in bytes.
    Append {
        /// The key.
        key: Bytes,
        /// The bytes to append.
        tail: Bytes,
    },
    /// Sets fields of a hash. The count is the number of fields that did not exist.
    PutFields {
        /// The key.
        key: Bytes,
        /// Names and values.
        fields: Vec<(Bytes, Bytes)>,
        /// Whether the write requires that none of the fields exists.
        absent: bool,
    },
    /// Deletes fields of a hash. The count is the number of fields that existed.
    DeleteFields {
        /// The key.
        key: Bytes,
        /// The fields' names.
        names: Vec<Bytes>,
    },
    /// Adds to a field of digits. The count is the sum.
    AddField {
        /// The key.
        key: Bytes,
        /// The name of the field.
        name: Bytes,
        /// The number to add.
        added: i64,
    },
    /// Lists some of the keys. Answered by [`KeyspaceAnswer::Keys`].
    Scan {
        /// The hash after which the list begins, or `None` to list from the beginning.
        behind: Option<u64>,
        /// Approximate number of keys.
        limit: u32,
    },
    /// Counts the keys.
    Size,
    /// Executes a request at most once for this id. A repetition gets the first answer, as long as the id is
    /// remembered ([`REMEMBERED_FOR`](super::REMEMBERED_FOR)).
    Once {
        /// The client's name for the request.
        id: Bytes,
        /// The encoded request. An encoded request cannot contain itself, so no message makes its reader
        /// recurse.
        request: Bytes,
    },
}

/// The life of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Life {
    /// The value lives until it is replaced.
    Unlimited,
    /// The value keeps the limit of the former value.
    Kept,
    /// The value lives for this time.
    For(Duration),
    /// The value lives until this time, in nanoseconds since 1970.
    Until(u64),
}

/// The condition of a write of strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum When {
    /// No condition.
    Always,
    /// None of the keys exists.
    Absent,
    /// Each of the keys exists.
    Present,
}

/// The condition on which the life of a value is changed. A life without limit counts as longer than any
/// other life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Only {
    /// No condition.
    Always,
    /// The value's present life has no limit.
    Unlimited,
    /// The value's present life has a limit.
    Limited,
    /// The value's new life is longer than its present life.
    Longer,
    /// The value's new life is shorter than its present life.
    Shorter,
    /// The value's present life has a limit, and its new life is shorter.
    LimitedShorter,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyspaceAnswer {
    /// A value for each key, and the end of its life, in nanoseconds since 1970.
    Found(Vec<(Value, Option<u64>)>),
    /// Success.
    Done {
        /// The count that [`Request`] describes.
        count: i64,
        /// The former value, if the request wanted it.
        before: Value,
    },
    /// Some of the keys.
    Keys {
        /// The keys, and the kinds of their values.
        keys: Vec<(Bytes, Kind)>,
        /// The hash after which the list continues; `None` after the last key.
        next: Option<u64>,
    },
    /// A refusal, without a change.
    Refused(Refusal),
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// A key has a string where the request needs a hash, or the reverse.
    WrongType,
    /// A string is not a whole number.
    NoNumber,
    /// A field is not a whole number.
    NoNumberInField,
    /// The sum does not fit into 64 bits.
    Overflow,
    /// The value, or the hash, would exceed [`VALUE_BYTES_MAX`](super::VALUE_BYTES_MAX).
    TooLarge,
    /// The map would exceed [`BYTES_MAX`](super::BYTES_MAX).
    Full,
    /// The answer would exceed [`ANSWER_BYTES_MAX`](super::ANSWER_BYTES_MAX).
    Answer,
    /// The id belongs to another request.
    OtherRequest,
}

impl Life {
    /// Returns the end of a new value's life; `before` is the end of the former value's life.
    pub(super) fn end(self, before: Option<u64>, now: u64) -> Option<u64> {
        match self {
            Life::Unlimited => None,
            Life::Kept => before,
            Life::For(time) => Some(now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))),
            Life::Until(time) => Some(time),
        }
    }
}

impl Request {
    /// Wraps a request so that it takes effect at most once for an id. `None` if the request changes nothing,
    /// or has an id already.
    pub fn once(id: Bytes, request: &Request) -> Option<Request> {
        let is_fit = !request.is_read() && !matches!(request, Request::Once { .. });
        let request = Bytes::from(postcard::to_stdvec(request).ok()?);
        is_fit.then_some(Request::Once { id, request })
    }

    /// Whether the request changes nothing, whatever the keys are.
    pub fn is_read(&self) -> bool {
        matches!(self, Request::Read(_) | Request::Scan { .. } | Request::Size)
    }

    /// Returns the approximate size of the request's keys and values, in bytes.
    pub(in super::super) fn bytes(&self) -> usize {
        let pair = |(key, value): &(Bytes, Bytes)| key.len() + value.len();
        let all = |keys: &[Bytes]| keys.iter().map(Bytes::len).sum::<usize>();
        size_of::<Request>()
            + match self {
                Request::Read(keys) | Request::Delete { keys, .. } => all(keys),
                Request::Put { pairs, .. } => pairs.iter().map(pair).sum(),
                Request::Live { key, .. } | Request::Add { key, .. } => key.len(),
                Request::Append { key, tail } => key.len() + tail.len(),
                Request::PutFields { key, fields, .. } => key.len() + fields.iter().map(pair).sum::<usize>(),
                Request::DeleteFields { key, names } => key.len() + all(names),
                Request::AddField { key, name, .. } => key.len() + name.len(),
                Request::Scan { .. } | Request::Size => 0,
                Request::Once { id, request } => id.len() + request.len(),
            }
    }

    /// Returns the keys that the request names.
    pub fn keys(&self) -> Vec<&Bytes> {
        match self {
            Request::Read(keys) | Request::Delete { keys, .. } => keys.iter().collect(),
            Request::Put { pairs, .. } => pairs.iter().map(|(key, _)| key).collect(),
            Request::Live { key, .. }
            | Request::Add { key, .. }
            | Request::Append { key, .. }
            | Request::PutFields { key, .. }
            | Request::DeleteFields { key, .. }
            | Request::AddField { key, .. } => vec![key],
            // The inner request is encoded here. Without keys, the request counts as a request on all keys.
            Request::Scan { .. } | Request::Size | Request::Once { .. } => Vec::new(),
        }
    }
}
