//! Requests to a map, and answers.

use std::time::Duration;

use bytes::Bytes;
use quorate_protocol::partial::{Kind, Value};
use serde::{Deserialize, Serialize};

/// A request to a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The values under these keys. Answered by [`Answer::Found`].
    Read(Vec<Bytes>),
    /// Gives keys these strings: all of them, or none. Counts 1 if it did.
    Put {
        /// Keys and values. Of a key that is there twice the last one counts.
        pairs: Vec<(Bytes, Bytes)>,
        /// For how long.
        life: Life,
        /// On which condition.
        when: When,
        /// Tells what was under the first key, which must be a string then.
        tell: bool,
    },
    /// Deletes keys. Counts those that were there.
    Delete {
        /// The keys.
        keys: Vec<Bytes>,
        /// Tells what was under the first key, which must be a string then.
        tell: bool,
    },
    /// Changes the life of what is under a key. Counts 1 if it did.
    Live {
        /// The key.
        key: Bytes,
        /// Its life from now on.
        life: Life,
        /// On which condition.
        only: Only,
        /// Tells what is under the key, which must be a string then.
        tell: bool,
    },
    /// Adds to a string of digits, and counts what it comes to.
    Add {
        /// The key.
        key: Bytes,
        /// The number to add.
        added: i64,
    },
    /// Puts this behind a string, and counts its bytes.
    Append {
        /// The key.
        key: Bytes,
        /// The bytes to put behind.
        tail: Bytes,
    },
    /// Gives fields of a hash these values. Counts those that were not there.
    PutFields {
        /// The key.
        key: Bytes,
        /// Names and values.
        fields: Vec<(Bytes, Bytes)>,
        /// Only if none of the fields is there.
        absent: bool,
    },
    /// Deletes fields of a hash. Counts those that were there.
    DeleteFields {
        /// The key.
        key: Bytes,
        /// Their names.
        names: Vec<Bytes>,
    },
    /// Adds to a field of digits, and counts what it comes to.
    AddField {
        /// The key.
        key: Bytes,
        /// The name of the field.
        name: Bytes,
        /// The number to add.
        added: i64,
    },
    /// Some of the keys. Answered by [`Answer::Keys`].
    Scan {
        /// Those whose hashes are above this one; none: from the beginning.
        behind: Option<u64>,
        /// About so many.
        limit: u32,
    },
    /// Counts the keys.
    Size,
}

/// The life of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Life {
    /// Until it is replaced.
    Unlimited,
    /// As long as the one before.
    Kept,
    /// For this long.
    For(Duration),
    /// Until this time, in nanoseconds since 1970.
    Until(u64),
}

/// The condition of a write of strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum When {
    /// None.
    Always,
    /// Nothing is under any of the keys.
    Absent,
    /// Something is under each of them.
    Present,
}

/// The condition of a change of a life. A life without limit counts as longer than any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Only {
    /// None.
    Always,
    /// It has no limit.
    Unlimited,
    /// It has a limit.
    Limited,
    /// It becomes longer.
    Longer,
    /// It becomes shorter.
    Shorter,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// A value for each key, and when its life is over, in nanoseconds since 1970.
    Found(Vec<(Value, Option<u64>)>),
    /// It was done, and changed so much.
    Done {
        /// The count that [`Request`] describes.
        count: i64,
        /// The value before, if that was to be told.
        before: Value,
    },
    /// Some of the keys.
    Keys {
        /// The keys, and what is under them.
        keys: Vec<(Bytes, Kind)>,
        /// Behind which hash the others are; none: these were the last.
        next: Option<u64>,
    },
    /// Nothing was changed.
    Refused(Refusal),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// A string where a hash is, or the other way.
    WrongType,
    /// A string that is no whole number.
    NoNumber,
    /// A field that is no whole number.
    NoNumberInField,
    /// The sum leaves 64 bits.
    Overflow,
    /// The value, or the hash, would have more than [`VALUE_BYTES_MAX`](super::VALUE_BYTES_MAX).
    TooLarge,
    /// The map would have more than [`BYTES_MAX`](super::BYTES_MAX).
    Full,
}

impl Life {
    /// The time at which it is over, of a value that takes the place of one whose life is over at `before`.
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
    /// True if it changes nothing, whatever is there.
    pub fn is_read(&self) -> bool {
        matches!(self, Request::Read(_) | Request::Scan { .. } | Request::Size)
    }

    /// Bytes of its keys and values, about.
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
            }
    }

    /// The keys that it names.
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
            Request::Scan { .. } | Request::Size => Vec::new(),
        }
    }
}
