//! The operations that users request of a coordinator, and their outcomes.

use bytes::Bytes;

use super::{entry::Value, id::MapId, stamp::Stamp};
use crate::{strength::Level, time::Duration};

/// A user's request to a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The id that the user gave the operation. Its outcome carries the id.
    pub id: u64,
    /// The map.
    pub map: MapId,
    /// The key.
    pub key: Bytes,
    /// The replicas that the operation waits for.
    pub level: Level,
    /// A smaller level that suffices if `level` cannot be met in time, or at all (004 §IV). The outcome names
    /// the level that was met.
    pub fallback: Option<Level>,
    /// An artificial delay, at most a minute. The coordinator begins a read this much later, and withholds
    /// the outcome of a finished write for as long (004 §II.A).
    pub delay: Duration,
    /// The action on the key.
    pub action: Action,
}

/// An action on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads the value.
    Read,
    /// Writes a string, which replaces all content of the key.
    Put {
        /// The string.
        value: Bytes,
        /// The time after which the string expires. `None` if it never does.
        lifetime: Option<Duration>,
    },
    /// Deletes the key.
    Delete,
    /// Writes some fields. Fields without a value are deleted.
    PutFields(Vec<(Bytes, Option<Bytes>)>),
    /// Adds this number to a counter ([`counter`](super::counter)).
    Add(i64),
}

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationOutcome {
    /// The value that a read found.
    Found {
        /// The value under the key.
        value: Value,
        /// The wall clock at which a string expires, in nanoseconds. `None` if it never does.
        expires: Option<u64>,
        /// The wall clock at which the value was read, in nanoseconds.
        wall: u64,
        /// The highest stamp that the read saw.
        newest: Stamp,
        /// The level that was met: the requested level, or the fallback.
        level: Level,
    },
    /// The write is done.
    Done {
        /// The stamp of the write.
        stamp: Stamp,
        /// The level that was met: the requested level, or the fallback.
        level: Level,
    },
    /// The increment is done.
    Counted {
        /// The count that the coordinator knew, including this increment.
        count: i64,
        /// The stamp of the increment.
        stamp: Stamp,
        /// The level that was met: the requested level, or the fallback.
        level: Level,
    },
    /// Fewer replicas can be asked than the level needs. Nothing was written.
    Unavailable,
    /// The write did not meet its level in time. It may take effect at any time from now on, or never.
    MaybeApplied,
    /// The write had no stamp yet when its time was over. Nothing was written.
    NotApplied,
    /// The read did not meet its level in time.
    Unanswered,
    /// Nothing was done, and the same operation would fail again.
    Rejected(Rejection),
}

/// The reason why an operation was not begun, or why the replicas or the key's present value refused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// This process is no cell.
    NoCell,
    /// There is no such map.
    NoMap,
    /// The key or the value is too large.
    TooLarge,
    /// Too many bytes of operations are under way.
    Busy,
    /// The coordinator's clock differs too much from the replicas' clocks.
    Skewed,
    /// The replicas have no memory left.
    Full,
    /// The key of an increment holds a hash.
    Hash,
    /// The key of an increment holds a string that is no number.
    NoNumber,
    /// The count after an increment would leave 64 bits.
    Overflow,
    /// The counter has the maximum number of tallies, and the increment would add one.
    Tallies,
}
