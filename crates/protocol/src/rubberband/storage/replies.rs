//! The ranges' memory of their writes, by which a repeated write takes effect once (S6).
//!
//! **Promise.** A range answers a repetition from memory until an ordered message lets it forget. All
//! replicas of a range remember the same at the same position, because the ordered messages to the range
//! alone decide what is kept and what is dropped.
//!
//! **Names.** A write is remembered with the hash of its statement. A range refuses a repetition with the
//! same id and another hash, so that nobody learns the result of somebody else's statement. A number that its
//! gateway uses for the first time is never refused, so a client that guesses a number in advance blocks
//! nobody.
//!
//! **Bytes.** Outcomes are small, and their number is bounded by the gateways. Rows of RETURNING are large.
//! Each range keeps at most a fixed number of bytes of answers; above that, it drops the answers of the
//! oldest writes and keeps their outcomes. Reasons of failures are counted separately, because replicas may
//! have received different reasons of one failure. A range keeps a fixed number of bytes of the newest
//! reasons, and no long reason.
//!
//! **Moves.** Each range has its own memory, which moves with it. The memory consists of blocks of
//! neighbouring numbers. A pinned memory shares its blocks with the live memory: a pin costs a pointer per
//! block, and a later write copies only the block that it changes. A process sends a pinned memory in
//! sections of message size, from a cursor on.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    ecast::Position,
    rubberband::{Range, RequestId, WriteName},
};

/// Bytes of answers that every range keeps. All replicas must use the same value.
pub(super) const REMEMBERED_BYTES_MAX: usize = 64 << 20;
/// Maximum size in bytes of an answer that counts as an outcome: it is always kept, and its bytes are not
/// counted.
const OUTCOME_BYTES_MAX: usize = 64;
/// Maximum size in bytes of a remembered reason of a failure.
const FAILURE_BYTES_MAX: usize = 4 << 10;
/// Number of low bits of a request number that select its place in a block: a block holds 256 numbers of a
/// session.
const BLOCK_BITS: u32 = 8;

/// The result of a write in a range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remembered {
    /// The position at which the write was executed.
    pub(super) at: Position,
    /// The answers by keys, or the reason of the failure. An answer or reason that was dropped is `None`.
    pub(super) results: Result<Vec<(Range, Option<Bytes>)>, Option<Bytes>>,
}

/// A range's knowledge of a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KnownReply<'a> {
    /// The write is unknown, and must be executed.
    Nothing,
    /// The write was executed.
    Done(&'a Arc<Remembered>),
    /// The id belongs to a different statement.
    OtherStatement,
}

/// A write's session, number and statement hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct ReplyKey {
    session: u128,
    number: u64,
    print: u64,
}

/// The memories of the ranges that this process holds.
#[derive(Debug)]
pub(super) struct Replies {
    ranges: BTreeMap<Range, ReplyMemory>,
    /// Writes in execution.
    pending: BTreeSet<ReplyKey>,
    bytes_max: usize,
    failure_bytes_max: usize,
}

/// The memory of one range.
#[derive(Debug, Default)]
struct ReplyMemory {
    blocks: Blocks,
    /// Writes with counted answers, oldest first.
    answers: BTreeMap<Position, ReplyKey>,
    /// Bytes of the counted answers.
    bytes: usize,
    /// Writes with kept reasons of failure, oldest first.
    failures: BTreeMap<Position, ReplyKey>,
    /// Bytes of the kept reasons of failure.
    failure_bytes: usize,
    /// Writes under made-up ids, which expire by position.
    made_up: BTreeMap<Position, ReplyKey>,
    writes: usize,
}

/// Blocks by session and the upper bits of the number.
type Blocks = BTreeMap<(u128, u64), Arc<Block>>;
type Block = BTreeMap<(u64, u64), Arc<Remembered>>;

/// The memories of some ranges at a pinned position.
#[derive(Debug, Default)]
pub(super) struct Pinned {
    ranges: BTreeMap<Range, Blocks>,
}

/// The place from which a transfer of memories continues: after this write in this range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cursor {
    range: Range,
    key: ReplyKey,
}

/// A write's memory in one range, on its way to a new replica.
#[derive(Debug, Serialize, Deserialize)]
struct ReplyEntry {
    range: Range,
    key: ReplyKey,
    remembered: Arc<Remembered>,
}

impl ReplyKey {
    fn of(name: WriteName) -> ReplyKey {
        ReplyKey { session: name.request.session, number: name.request.number, print: name.print }
    }

    fn is_made_up(self) -> bool {
        RequestId { session: self.session, number: self.number }.is_made_up()
    }

    fn block(self) -> (u128, u64) {
        (self.session, self.number >> BLOCK_BITS)
    }

    fn place(self) -> (u64, u64) {
        (self.number, self.print)
    }
}

impl Remembered {
    /// Returns the bytes of the counted answers.
    fn bytes(&self) -> usize {
        let lengths = self.results.iter().flatten().filter_map(|(_, answer)| Some(answer.as_ref()?.len()));
        lengths.filter(|bytes| *bytes > OUTCOME_BYTES_MAX).sum()
    }

    /// Returns the bytes of the reason.
    fn failure_bytes(&self) -> usize {
        self.results.as_ref().err().and_then(Option::as_ref).map_or(0, Bytes::len)
    }

    /// Drops answers and reason, and keeps the outcome.
    fn forget_answers(&mut self) {
        match &mut self.results {
            Err(failure) => *failure = None,
            Ok(answers) => {
                for (_, answer) in answers {
                    answer.take_if(|bytes| bytes.len() > OUTCOME_BYTES_MAX);
                }
            }
        }
    }
}

impl ReplyMemory {
    fn get(&self, key: ReplyKey) -> Option<&Arc<Remembered>> {
        self.blocks.get(&key.block())?.get(&key.place())
    }

    /// Whether a write under this id is known, whatever its statement.
    fn knows(&self, key: ReplyKey) -> bool {
        let block = self.blocks.get(&key.block());
        block.is_some_and(|block| block.range((key.number, 0)..=(key.number, u64::MAX)).next().is_some())
    }

    fn insert(&mut self, key: ReplyKey, remembered: Arc<Remembered>) {
        let bytes = remembered.bytes();
        if bytes > 0 {
            self.answers.insert(remembered.at, key);
            self.bytes += bytes;
        }
        let failure_bytes = remembered.failure_bytes();
        if failure_bytes > 0 {
            self.failures.insert(remembered.at, key);
            self.failure_bytes += failure_bytes;
        }
        if key.is_made_up() {
            self.made_up.insert(remembered.at, key);
        }
        let block = self.blocks.entry(key.block()).or_default();
        let before = Arc::make_mut(block).insert(key.place(), remembered);
        assert!(before.is_none(), "S6: {key:?} would be executed twice");
        self.writes += 1;
    }

    /// Drops the oldest answers and reasons until the remaining ones fit.
    fn shrink(&mut self, bytes_max: usize, failure_bytes_max: usize) {
        while self.bytes > bytes_max {
            let (_, key) =
                self.answers.pop_first().expect("answers are listed while their bytes are counted");
            self.bytes -= self.forget_answers(key).bytes();
        }
        while self.failure_bytes > failure_bytes_max {
            let (_, key) =
                self.failures.pop_first().expect("answers are listed while their bytes are counted");
            self.failure_bytes -= self.forget_answers(key).failure_bytes();
        }
    }

    /// Drops the answers of a write and keeps its outcome. Returns the write's memory with the answers, as
    /// it was before the call.
    fn forget_answers(&mut self, key: ReplyKey) -> Arc<Remembered> {
        let block = self.blocks.get_mut(&key.block()).expect("a listed answer is remembered");
        let remembered = Arc::make_mut(block).get_mut(&key.place()).expect("a listed answer is remembered");
        let before = remembered.clone();
        Arc::make_mut(remembered).forget_answers();
        before
    }

    fn forget(&mut self, session: u128, below: u64, kept: &[u64]) {
        let blocks = self.blocks.range((session, 0)..=(session, below >> BLOCK_BITS));
        let blocks: Vec<(u128, u64)> = blocks.map(|(place, _)| *place).collect();
        for place in blocks {
            let block = self.blocks.get_mut(&place).expect("just seen");
            let goes =
                |number: u64| (number < below || below == u64::MAX) && kept.binary_search(&number).is_err();
            let gone: Vec<(u64, u64)> = block.keys().copied().filter(|(number, _)| goes(*number)).collect();
            for (number, print) in gone {
                self.remove(ReplyKey { session, number, print });
            }
        }
    }

    fn expire(&mut self, through: Position) {
        while let Some(first) = self.made_up.first_entry().filter(|first| *first.key() <= through) {
            let key = *first.get();
            self.remove(key);
        }
    }

    fn remove(&mut self, key: ReplyKey) {
        let block = self.blocks.get_mut(&key.block()).expect("a removed answer was remembered");
        let remembered = Arc::make_mut(block).remove(&key.place()).expect("a removed answer was remembered");
        if block.is_empty() {
            self.blocks.remove(&key.block());
        }
        self.writes -= 1;
        if key.is_made_up() {
            self.made_up.remove(&remembered.at);
        }
        let bytes = remembered.bytes();
        if bytes > 0 {
            self.answers.remove(&remembered.at);
            self.bytes -= bytes;
        }
        let failure_bytes = remembered.failure_bytes();
        if failure_bytes > 0 {
            self.failures.remove(&remembered.at);
            self.failure_bytes -= failure_bytes;
        }
    }
}

impl Replies {
    /// Creates an empty memory. The bounds are bytes of answers and bytes of reasons, each for one range.
    pub(super) fn new(bytes_max: usize, failure_bytes_max: usize) -> Replies {
        Replies { ranges: BTreeMap::new(), pending: BTreeSet::new(), bytes_max, failure_bytes_max }
    }

    /// Whether this write, or a write with a different statement under its id, is being executed.
    pub(super) fn is_pending(&self, name: WriteName) -> bool {
        let key = ReplyKey::of(name);
        if !name.repeated {
            return self.pending.contains(&key);
        }
        let (first, last) = (ReplyKey { print: 0, ..key }, ReplyKey { print: u64::MAX, ..key });
        self.pending.range(first..=last).next().is_some()
    }

    /// Returns a range's knowledge of a write.
    pub(super) fn known(&self, name: WriteName, range: Range) -> KnownReply<'_> {
        let (key, memory) = (ReplyKey::of(name), self.ranges.get(&range));
        match memory.and_then(|memory| memory.get(key)) {
            Some(remembered) => KnownReply::Done(remembered),
            None if name.repeated && memory.is_some_and(|memory| memory.knows(key)) => {
                KnownReply::OtherStatement
            }
            None => KnownReply::Nothing,
        }
    }

    /// Returns the ranges with a memory here that share keys with `ranges`.
    pub(super) fn concerned<'a>(&'a self, ranges: &'a [Range]) -> impl Iterator<Item = Range> + 'a {
        let concerned = |held: &Range| ranges.iter().any(|range| range.intersect(*held).is_some());
        self.ranges.keys().copied().filter(concerned)
    }

    pub(super) fn begin(&mut self, name: WriteName) {
        let fresh = self.pending.insert(ReplyKey::of(name));
        assert!(fresh, "S6: {:?} would be executed twice", name.request);
    }

    /// Ends the execution of a write. The caller then remembers its results, range by range.
    pub(super) fn finish(&mut self, name: WriteName) {
        let known = self.pending.remove(&ReplyKey::of(name));
        assert!(known, "S6: only a write that has begun ends, but {:?} had not begun", name.request);
    }

    /// Remembers the result of a write in one range.
    pub(super) fn remember(&mut self, name: WriteName, range: Range, mut remembered: Remembered) {
        if let Err(failure) = &mut remembered.results {
            failure.take_if(|bytes| bytes.len() > FAILURE_BYTES_MAX);
        }
        let memory = self.ranges.entry(range).or_default();
        memory.insert(ReplyKey::of(name), Arc::new(remembered));
        memory.shrink(self.bytes_max, self.failure_bytes_max);
    }

    /// Forgets the session's numbers below `below`, except `kept`, which is sorted. The caller acts on an
    /// ordered message.
    pub(super) fn forget(&mut self, session: u128, below: u64, kept: &[u64]) {
        for memory in self.ranges.values_mut() {
            memory.forget(session, below, kept);
        }
    }

    /// Forgets writes under made-up ids up to `through`. The caller acts on an ordered message.
    pub(super) fn expire(&mut self, through: Position) {
        for memory in self.ranges.values_mut() {
            memory.expire(through);
        }
    }

    /// Drops the memories of ranges that moved away, or that will be received again.
    pub(super) fn clear(&mut self, ranges: &[Range]) {
        self.ranges.retain(|range, _| !ranges.contains(range));
    }

    /// Pins the present memories of these ranges.
    pub(super) fn pin(&self, ranges: &[Range]) -> Pinned {
        let blocks = ranges.iter().filter_map(|range| Some((*range, self.ranges.get(range)?.blocks.clone())));
        Pinned { ranges: blocks.collect() }
    }

    /// Pins the present memories of all ranges held here.
    pub(super) fn pin_all(&self) -> Pinned {
        Pinned { ranges: self.ranges.iter().map(|(range, memory)| (*range, memory.blocks.clone())).collect() }
    }

    /// Adds a section of another replica's memory. Returns `false` if the bytes are no section.
    pub(super) fn take_in(&mut self, section: &[u8]) -> bool {
        let Ok(entries) = postcard::from_bytes::<Vec<ReplyEntry>>(section) else { return false };
        for ReplyEntry { range, key, remembered } in entries {
            let memory = self.ranges.entry(range).or_default();
            memory.insert(key, remembered);
            memory.shrink(self.bytes_max, self.failure_bytes_max);
        }
        true
    }

    /// Takes over the memories that other replicas sent.
    pub(super) fn adopt(&mut self, other: Replies) {
        for (range, memory) in other.ranges {
            let before = self.ranges.insert(range, memory);
            assert!(before.is_none(), "a range is taken over only once, but {range:?} is here already");
        }
    }

    /// Returns the number of remembered writes, each counted once per range, and the bytes of their answers.
    pub(super) fn size(&self) -> (u64, u64) {
        let sum = |of: fn(&ReplyMemory) -> usize| self.ranges.values().map(|memory| of(memory) as u64).sum();
        (sum(|memory| memory.writes), sum(|memory| memory.bytes))
    }
}

impl Pinned {
    /// Returns the ranges that have a memory.
    pub(super) fn ranges(&self) -> Vec<Range> {
        self.ranges.keys().copied().collect()
    }

    /// Returns a section of these ranges' memories from the cursor on, of about `bytes_max` bytes, and the
    /// place from which the next section continues; `None` after the last section. A single longer answer
    /// makes a longer section.
    pub(super) fn section(
        &self,
        ranges: &[Range],
        cursor: Option<Cursor>,
        bytes_max: usize,
    ) -> (Bytes, Option<Cursor>) {
        let (mut entries, mut bytes): (Vec<ReplyEntry>, usize) = (Vec::new(), 0);
        let from = cursor.map_or(Range { low: 0, high: 0 }, |cursor| cursor.range);
        let moving = self.ranges.range(from..).filter(|(range, _)| ranges.contains(range));
        for (&range, blocks) in moving {
            let behind = cursor.filter(|cursor| cursor.range == range).map(|cursor| cursor.key);
            let first = behind.map_or((0, 0), ReplyKey::block);
            for (&(session, _), block) in blocks.range(first..) {
                for (&(number, print), remembered) in block.iter() {
                    let key = ReplyKey { session, number, print };
                    if behind.is_some_and(|behind| key <= behind) {
                        continue;
                    }
                    let entry = ENTRY_BYTES + remembered.bytes() + remembered.failure_bytes();
                    if bytes + entry > bytes_max
                        && let Some(ReplyEntry { range, key, .. }) = entries.last()
                    {
                        return (encode(&entries), Some(Cursor { range: *range, key: *key }));
                    }
                    bytes += entry;
                    entries.push(ReplyEntry { range, key, remembered: remembered.clone() });
                }
            }
        }
        (encode(&entries), None)
    }
}

/// Estimated size of a write's memory in bytes, in addition to long answers.
const ENTRY_BYTES: usize = 256;

fn encode(entries: &[ReplyEntry]) -> Bytes {
    postcard::to_stdvec(entries).expect("every type of this crate serialises").into()
}

#[cfg(test)]
mod tests;
