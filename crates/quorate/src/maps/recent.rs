//! Operations of a cell's clients that ended lately: what `quorate watch` judges.
//!
//! **Promise.** Of a sample of keys every operation that a client of this cell asked for, and that ended in the last minute, is here, with
//! the interval in which it took place as the cell saw it. Values are told apart by their stamps, so that writing one twice is two
//! values, and keys by a hash: who may look sees neither. All cells sample the same keys.
//!
//! **Source.** 004 §II.A, which records at the client; here the cell that a client asks records for it, and the way between the two is left out.
//!
//! **How.** A key belongs to the sample if its hash ends in so many zeros. While more operations come than there is room for, one zero more is
//! asked for, as long as many keys are left; with few keys the oldest operations go instead, and less than a minute is told. While few are
//! remembered, one zero less is asked for with each second.
//!
//! **Bounds.** [`OPERATIONS_MAX`] operations of about 64 bytes each. An operation on a key outside the sample costs a hash of the key.

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

/// An operation is remembered for so long.
const SPAN: Duration = Duration::from_secs(60);

/// So many operations are remembered.
const OPERATIONS_MAX: usize = 1 << 15;

/// The sample grows no smaller while it has fewer keys than this.
const KEYS_MIN: usize = 64;

/// The sample grows again while fewer operations than this are remembered, by one step in this time. It is looked whether it does once so many
/// operations have passed it by.
const OPERATIONS_FEW: usize = OPERATIONS_MAX / 8;
const GROW_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY: u64 = 64;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Deed {
    /// It read a string, or that there is none.
    Read,
    /// It gave the key a string.
    Write,
    /// It deleted the key.
    Delete,
    /// It did something else, after which stamps do not tell values apart: with fields of a hash, or a counter.
    Other,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// With this stamp: of the value that was written or read; zero if none was ever read.
    Done(Stamp),
    /// A write that may have taken effect, or may yet.
    Unknown,
    /// Nothing was done, or nothing was read.
    Failed,
}

/// An operation that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The client, by a number of its cell's.
    pub client: u64,
    /// The moment at which it was asked for.
    pub began: Time,
    /// The moment at which its outcome was known.
    pub ended: Time,
    /// Its kind.
    pub deed: Deed,
    /// Its end.
    pub ending: Ending,
    /// Its value has a limited life.
    pub mortal: bool,
}

/// The same, as others are told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// A hash of map and key.
    pub key: u64,
    /// The client, by a number of its cell's.
    pub client: u64,
    /// The interval of the operation, in nanoseconds of Unix time by the cell's wall clock.
    pub start_ns: i64,
    /// The end of the interval.
    pub end_ns: i64,
    /// Its kind.
    pub deed: Deed,
    /// Its end.
    pub ending: Ending,
    /// Its value has a limited life.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mortal: bool,
}

/// Operations that ended lately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lately {
    /// One key in so many is in the sample.
    pub one_in: u64,
    /// From then on every operation on these that ended is here, in nanoseconds of Unix time by the cell's wall clock.
    pub since_ns: i64,
    /// This very moment.
    pub now_ns: i64,
    /// The operations, in the order in which they ended.
    pub operations: Vec<Told>,
}

/// A cell's memory of operations that ended. Clones share it.
#[derive(Clone, Debug)]
pub struct Recent(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// A key is in the sample if its hash has none of these bits.
    mask: AtomicU64,
    /// Operations on keys that are not.
    passed: AtomicU64,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    /// With the hashes of their keys.
    operations: VecDeque<(u64, Ended)>,
    /// Operations since then are here.
    since: Time,
    /// So many more are taken before it is looked again how many keys there are.
    unlooked: usize,
    grown: Time,
}

impl Recent {
    /// Nothing yet.
    pub fn new(now: Time) -> Recent {
        let kept = Kept { operations: VecDeque::new(), since: now, unlooked: 0, grown: now };
        Recent(Arc::new(Shared {
            mask: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            kept: Mutex::new(kept),
        }))
    }

    /// An operation on a key has ended.
    pub fn take(&self, map: MapId, key: &[u8], ended: impl FnOnce() -> Ended) {
        let (hash, mask) = (xxh3_64_with_seed(key, map.0.into()), self.0.mask.load(Ordering::Relaxed));
        let is_outside = hash & mask != 0;
        if is_outside && !self.0.passed.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY) {
            return;
        }
        let ended = ended();
        let mut kept = self.kept();
        let mut mask = kept.forget(ended.ended, self.0.mask.load(Ordering::Relaxed));
        if hash & mask == 0 {
            mask = kept.make_room(mask);
        }
        if hash & mask == 0 {
            kept.operations.push_back((hash, ended));
        }
        self.0.mask.store(mask, Ordering::Relaxed);
    }

    /// Tells what is remembered now. `offset` is the wall clock less the boot-time clock, in nanoseconds.
    pub fn tell(&self, now: Time, offset: i64) -> Lately {
        let wall = |time: Time| time.0 as i64 + offset;
        let (operations, mask, since) = {
            let mut kept = self.kept();
            let mask = kept.forget(now, self.0.mask.load(Ordering::Relaxed));
            self.0.mask.store(mask, Ordering::Relaxed);
            (kept.operations.clone(), mask, kept.since)
        };
        let told = |(key, ended): (u64, Ended)| Told {
            key,
            client: ended.client,
            start_ns: wall(ended.began),
            end_ns: wall(ended.ended),
            deed: ended.deed,
            ending: ended.ending,
            mortal: ended.mortal,
        };
        Lately {
            one_in: mask + 1,
            since_ns: wall(since),
            now_ns: wall(now),
            operations: operations.into_iter().map(told).collect(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // The memory is whole at every step.
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Forgets what ended too long ago. Returns the mask of the sample, which may have grown.
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
            // Of the keys that come in nothing before is known.
            (self.grown, self.since) = (now, now);
        }
        mask.checked_shr(u32::try_from(steps).unwrap_or(u32::MAX)).unwrap_or(0)
    }

    /// Has room for one more. Returns the mask of the sample, which may have shrunk.
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

    fn read(at: u64) -> Ended {
        let stamp = Stamp { time: at, cell: CellNumber(1) };
        Ended {
            client: 7,
            began: Time(at - MS),
            ended: Time(at),
            deed: Deed::Read,
            ending: Ending::Done(stamp),
            mortal: false,
        }
    }

    #[test]
    fn a_minute_is_told_by_the_wall_clock() {
        let recent = Recent::new(Time(0));
        for second in 1..=90 {
            recent.take(MAP, b"key", || read(second * 1_000 * MS));
        }
        let told = recent.tell(Time(90_000 * MS), 5);
        assert_eq!(
            (told.one_in, told.since_ns, told.now_ns),
            (1, 30_000 * MS as i64 + 5, 90_000 * MS as i64 + 5)
        );
        assert_eq!(told.operations.len(), 61);
        let first = told.operations[0];
        assert_eq!((first.start_ns, first.end_ns), (29_999 * MS as i64 + 5, 30_000 * MS as i64 + 5));
        assert!(recent.tell(Time(200_000 * MS), 5).operations.is_empty());
        // Another map's key of this name is another key.
        recent.take(MapId(2), b"key", || read(200_000 * MS));
        assert_ne!(recent.tell(Time(200_000 * MS), 5).operations[0].key, first.key);
    }

    #[test]
    fn of_many_keys_some_are_told_whole_and_of_few_the_newest() {
        let recent = Recent::new(Time(0));
        let many = 10 * OPERATIONS_MAX as u64;
        for number in 0..many {
            recent.take(MAP, &(number % 1_000).to_le_bytes(), || read(number + MS));
        }
        let told = recent.tell(Time(many + MS), 0);
        assert!(told.one_in >= 8 && told.since_ns == 0, "{} since {}", told.one_in, told.since_ns);
        let keys: FxHashSet<u64> = told.operations.iter().map(|told| told.key).collect();
        assert!(keys.iter().all(|key| key & (told.one_in - 1) == 0));
        assert_eq!(told.operations.len() as u64, keys.len() as u64 * many / 1_000, "each key's are whole");
        // The sample grows again once less is asked for.
        let later = SPAN.as_nanos() as u64 + many + 10_000 * MS;
        for number in 0..20 * LOOK_EVERY {
            recent.take(MAP, &number.to_le_bytes(), || read(later + number * 1_000 * MS / LOOK_EVERY));
        }
        let told = recent.tell(Time(later + 20_000 * MS), 0);
        assert!(told.one_in == 1 && told.operations.len() as u64 > 10 * LOOK_EVERY, "{}", told.one_in);

        let recent = Recent::new(Time(0));
        for number in 0..many {
            recent.take(MAP, b"key", || read(number + MS));
        }
        let told = recent.tell(Time(many + MS), 0);
        assert_eq!((told.one_in, told.operations.len()), (1, OPERATIONS_MAX));
        assert_eq!(told.since_ns as u64, many + MS - OPERATIONS_MAX as u64 - 1);
    }
}
