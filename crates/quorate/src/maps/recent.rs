//! Operations of a cell's clients that ended recently, for `quorate watch` to judge.
//!
//! **Promise.** For a sample of keys, this module has every operation of the cell's clients that ended in the
//! last minute. It has the interval of each operation, from the request to the outcome at this cell. Stamps
//! distinguish values, so that writing one value twice makes two values. A hash distinguishes keys. So a
//! viewer sees neither values nor keys. All cells sample the same keys.
//!
//! **Source.** 004 §II.A records operations at the client. Here the cell to which the client sent the
//! operation records it, so the intervals leave out the time between client and cell.
//!
//! **How.** A key belongs to the sample if its hash ends in a given number of zero bits. When there is no
//! room for an operation, this number of bits rises by one if the sample still has many keys. With few keys
//! the oldest operation goes instead, and the record covers less than a minute. While few operations are
//! remembered, the number of bits falls by one each second.
//!
//! **Bounds.** [`OPERATIONS_MAX`] operations of about 64 bytes each. An operation on a key outside the sample
//! costs only a hash of the key.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use quorate_protocol::{
    Time,
    partial::{MapId, Stamp},
};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Time for which an operation is remembered.
const SPAN: Duration = Duration::from_secs(60);

/// Upper bound of the remembered operations.
const OPERATIONS_MAX: usize = 1 << 15;

/// Number of keys below which the sample does not shrink.
const KEYS_MIN: usize = 64;

/// Number of remembered operations below which the sample grows, the interval of its growth, and the number
/// of operations outside the sample after which the growth is checked.
const OPERATIONS_FEW: usize = OPERATIONS_MAX / 8;
const GROW_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY: u64 = 64;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationKind {
    /// A read of a string, or of an absent one.
    Read,
    /// A write of a string.
    Write,
    /// A deletion of the key.
    Delete,
    /// Another operation (on a counter, or on fields of a hash), after which the stamp does not identify the
    /// value.
    Other,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationEnd {
    /// Success. The stamp belongs to the value that was written or read; it is zero if no value was found.
    Done(Stamp),
    /// A write that may have taken effect, or may yet.
    Unknown,
    /// Nothing was written, or nothing was read.
    Failed,
}

/// An operation that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedOperation {
    /// The number that the cell gave the client.
    pub client: u64,
    /// Time of the request.
    pub began: Time,
    /// Time at which the operation's outcome was known.
    pub ended: Time,
    /// The operation's kind.
    pub deed: OperationKind,
    /// The operation's end.
    pub ending: OperationEnd,
    /// Whether the operation's value has a limited life.
    pub mortal: bool,
}

/// An operation in the form in which the cell reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentOperation {
    /// A hash of map and key.
    pub key: u64,
    /// The number that the cell gave the client.
    pub client: u64,
    /// The beginning of the operation's interval, in nanoseconds of Unix time by the cell's wall clock.
    pub start_ns: i64,
    /// The end of the operation's interval, in nanoseconds of Unix time by the cell's wall clock.
    pub end_ns: i64,
    /// The operation's kind.
    pub deed: OperationKind,
    /// The operation's end.
    pub ending: OperationEnd,
    /// Whether the operation's value has a limited life.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mortal: bool,
}

/// Operations that ended recently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentOperations {
    /// Ratio of all keys to the keys in the sample.
    pub one_in: u64,
    /// Time from which the record of the sampled keys is complete, in nanoseconds of Unix time by the cell's
    /// wall clock.
    pub since_ns: i64,
    /// The present time, in nanoseconds of Unix time by the cell's wall clock.
    pub now_ns: i64,
    /// The operations, in the order in which they ended.
    pub operations: Vec<RecentOperation>,
}

/// A cell's memory of operations that ended. Clones share it.
#[derive(Clone, Debug)]
pub struct Recent(Arc<RecentShared>);

#[derive(Debug)]
struct RecentShared {
    /// The mask of the sample: a key is in it if its hash has none of these bits.
    mask: AtomicU64,
    /// Number of operations on keys outside the sample.
    passed: AtomicU64,
    buffer: Mutex<RecentBuffer>,
}

#[derive(Debug)]
struct RecentBuffer {
    /// The operations, with the hashes of their keys.
    operations: VecDeque<(u64, EndedOperation)>,
    /// Time from which the operations are complete.
    since: Time,
    /// Number of further operations to take before the keys are counted again.
    unlooked: usize,
    grown: Time,
}

impl Recent {
    /// Makes an empty memory.
    pub fn new(now: Time) -> Recent {
        let buffer = RecentBuffer { operations: VecDeque::new(), since: now, unlooked: 0, grown: now };
        Recent(Arc::new(RecentShared {
            mask: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            buffer: Mutex::new(buffer),
        }))
    }

    /// Notes that an operation on a key has ended.
    pub fn take(&self, map: MapId, key: &[u8], ended: impl FnOnce() -> EndedOperation) {
        let (hash, mask) = (xxh3_64_with_seed(key, map.0.into()), self.0.mask.load(Ordering::Relaxed));
        let is_outside = hash & mask != 0;
        if is_outside && !self.0.passed.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY) {
            return;
        }
        let ended = ended();
        let mut buffer = self.buffer();
        let mut mask = buffer.forget(ended.ended, self.0.mask.load(Ordering::Relaxed));
        if hash & mask == 0 {
            mask = buffer.make_room(mask);
        }
        if hash & mask == 0 {
            buffer.operations.push_back((hash, ended));
        }
        self.0.mask.store(mask, Ordering::Relaxed);
    }

    /// Returns the remembered operations. `offset` is the wall clock less the boot-time clock, in
    /// nanoseconds.
    pub fn snapshot(&self, now: Time, offset: i64) -> RecentOperations {
        let wall = |time: Time| time.0 as i64 + offset;
        let (operations, mask, since) = {
            let mut buffer = self.buffer();
            let mask = buffer.forget(now, self.0.mask.load(Ordering::Relaxed));
            self.0.mask.store(mask, Ordering::Relaxed);
            (buffer.operations.clone(), mask, buffer.since)
        };
        let recent_operation = |(key, ended): (u64, EndedOperation)| RecentOperation {
            key,
            client: ended.client,
            start_ns: wall(ended.began),
            end_ns: wall(ended.ended),
            deed: ended.deed,
            ending: ended.ending,
            mortal: ended.mortal,
        };
        RecentOperations {
            one_in: mask + 1,
            since_ns: wall(since),
            now_ns: wall(now),
            operations: operations.into_iter().map(recent_operation).collect(),
        }
    }

    fn buffer(&self) -> MutexGuard<'_, RecentBuffer> {
        // The memory is valid at every step, so a panic elsewhere does no harm.
        self.0.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecentBuffer {
    /// Forgets operations that ended too long ago. Returns the mask of the sample, which may have grown.
    fn forget(&mut self, now: Time, mask: u64) -> u64 {
        let since = Time(now.0.saturating_sub(SPAN.as_nanos() as u64));
        while self.operations.pop_front_if(|(_, ended)| ended.ended < since).is_some() {}
        self.since = self.since.max(since);
        if mask == 0 || self.operations.len() >= OPERATIONS_FEW {
            self.grown = now;
            return mask;
        }
        let steps = now.since(self.grown).as_nanos() / GROW_EVERY.as_nanos();
        if steps > 0 {
            // The sample grows. For its new keys, no operation before this moment is known.
            (self.grown, self.since) = (now, now);
        }
        mask.checked_shr(u32::try_from(steps).unwrap_or(u32::MAX)).unwrap_or(0)
    }

    /// Makes room for one more operation. Returns the mask of the sample, which may have shrunk.
    fn make_room(&mut self, mask: u64) -> u64 {
        self.unlooked = self.unlooked.saturating_sub(1);
        if self.operations.len() < OPERATIONS_MAX {
            return mask;
        }
        if self.unlooked == 0 {
            self.unlooked = OPERATIONS_MAX / 4;
            let mut keys = FxHashSet::default();
            let are_many = |hash: u64| keys.insert(hash) && keys.len() >= KEYS_MIN;
            if self.operations.iter().map(|(hash, _)| *hash).any(are_many) {
                let mask = mask << 1 | 1;
                self.operations.retain(|(hash, _)| hash & mask == 0);
                return mask;
            }
        }
        if let Some((_, oldest)) = self.operations.pop_front() {
            self.since = self.since.max(oldest.ended);
        }
        mask
    }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::partial::CellNumber;

    use super::*;

    const MS: u64 = 1_000_000;
    const MAP: MapId = MapId(1);

    fn read(at: u64) -> EndedOperation {
        let stamp = Stamp { time: at, cell: CellNumber(1) };
        EndedOperation {
            client: 7,
            began: Time(at - MS),
            ended: Time(at),
            deed: OperationKind::Read,
            ending: OperationEnd::Done(stamp),
            mortal: false,
        }
    }

    #[test]
    fn the_last_minute_is_given_in_wall_clock_time() {
        let recent = Recent::new(Time(0));
        for second in 1..=90 {
            recent.take(MAP, b"key", || read(second * 1_000 * MS));
        }
        let snapshot = recent.snapshot(Time(90_000 * MS), 5);
        assert_eq!(
            (snapshot.one_in, snapshot.since_ns, snapshot.now_ns),
            (1, 30_000 * MS as i64 + 5, 90_000 * MS as i64 + 5)
        );
        assert_eq!(snapshot.operations.len(), 61);
        let first = snapshot.operations[0];
        assert_eq!((first.start_ns, first.end_ns), (29_999 * MS as i64 + 5, 30_000 * MS as i64 + 5));
        assert!(recent.snapshot(Time(200_000 * MS), 5).operations.is_empty());
        // The key of the same name in another map is another key.
        recent.take(MapId(2), b"key", || read(200_000 * MS));
        assert_ne!(recent.snapshot(Time(200_000 * MS), 5).operations[0].key, first.key);
    }

    #[test]
    fn many_keys_are_sampled_whole_and_few_keys_keep_their_newest_operations() {
        let recent = Recent::new(Time(0));
        let many = 10 * OPERATIONS_MAX as u64;
        for number in 0..many {
            recent.take(MAP, &(number % 1_000).to_le_bytes(), || read(number + MS));
        }
        let snapshot = recent.snapshot(Time(many + MS), 0);
        assert!(
            snapshot.one_in >= 8 && snapshot.since_ns == 0,
            "{} since {}",
            snapshot.one_in,
            snapshot.since_ns
        );
        let keys: FxHashSet<u64> = snapshot.operations.iter().map(|operation| operation.key).collect();
        assert!(keys.iter().all(|key| key & (snapshot.one_in - 1) == 0));
        assert_eq!(
            snapshot.operations.len() as u64,
            keys.len() as u64 * many / 1_000,
            "each key's are whole"
        );
        // The sample grows again once fewer operations come.
        let later = SPAN.as_nanos() as u64 + many + 10_000 * MS;
        for number in 0..20 * LOOK_EVERY {
            recent.take(MAP, &number.to_le_bytes(), || read(later + number * 1_000 * MS / LOOK_EVERY));
        }
        let snapshot = recent.snapshot(Time(later + 20_000 * MS), 0);
        assert!(
            snapshot.one_in == 1 && snapshot.operations.len() as u64 > 10 * LOOK_EVERY,
            "{}",
            snapshot.one_in
        );

        let recent = Recent::new(Time(0));
        for number in 0..many {
            recent.take(MAP, b"key", || read(number + MS));
        }
        let snapshot = recent.snapshot(Time(many + MS), 0);
        assert_eq!((snapshot.one_in, snapshot.operations.len()), (1, OPERATIONS_MAX));
        assert_eq!(snapshot.since_ns as u64, many + MS - OPERATIONS_MAX as u64 - 1);
    }
}
