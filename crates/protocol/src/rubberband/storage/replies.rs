//! What ranges remember of the writes that took effect in them, so that a repeated one takes effect once (S6).
//!
//! **Promise.** A range answers a repetition from memory as long as an ordered message has not allowed it to forget. All
//! replicas of a range remember the same at the same position: what is kept, and what is let go, follows from the messages
//! that the order delivered to the range, and from nothing else.
//!
//! **Names.** A write is remembered with the print of its statement. A repetition under the same id and another print is
//! refused, so that nobody is told what another's statement returned. A number that its gateway gives out for the first
//! time is never refused: whoever guessed it before has used up nothing.
//!
//! **Bytes.** Outcomes are small, and there are as many as gateways let stand. Rows of RETURNING are large. Each range keeps
//! at most a fixed number of bytes of what its writes answered; beyond that, what the oldest writes answered goes, and
//! their outcome stays. Reasons of failures are not counted, since replicas may have heard different ones first; a long one
//! is not remembered.
//!
//! **Moves.** Each range has a memory of its own, which moves with it. It is made of blocks of neighbouring numbers, which a
//! pinned position shares with the memory that goes on: a pin costs a pointer per block, and a write after it copies the
//! one block that it changes. A pinned memory is sent in sections, each as long as a message should be, from a cursor on.

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

/// Bytes that every range keeps of what its writes answered. It is the same at every replica.
pub(super) const REMEMBERED_BYTES_MAX: usize = 64 << 20;
/// Answers that are not longer are outcomes: they are kept, and not counted.
const OUTCOME_BYTES_MAX: usize = 64;
/// The reason of a failure is not remembered if it is longer.
const FAILURE_BYTES_MAX: usize = 4 << 10;
/// So many neighbouring numbers of a session are a block, as a power of two.
const BLOCK_BITS: u32 = 8;

/// What a write did in a range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remembered {
    /// Where it took effect.
    pub(super) at: Position,
    /// Its answers by keys, or why it failed as a whole. `None`: the answer is no longer known.
    pub(super) results: Result<Vec<(Range, Option<Bytes>)>, Option<Bytes>>,
}

/// What is known of a write in one range.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known<'a> {
    /// It is to be executed.
    Nothing,
    /// It took effect.
    Done(&'a Arc<Remembered>),
    /// The id is that of another statement.
    OtherStatement,
}

/// Session, number and print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Key {
    session: u128,
    number: u64,
    print: u64,
}

/// The memories of the ranges that are held here.
#[derive(Debug)]
pub(super) struct Replies {
    ranges: BTreeMap<Range, Memory>,
    /// Being executed.
    pending: BTreeSet<Key>,
    bytes_max: usize,
}

/// What one range remembers.
#[derive(Debug, Default)]
struct Memory {
    blocks: Blocks,
    /// The answers that count, oldest first, and their bytes.
    answers: BTreeMap<Position, Key>,
    bytes: usize,
    /// The writes under ids that applications made up, which expire by position.
    made_up: BTreeMap<Position, Key>,
    writes: usize,
}

/// By session and the upper bits of the number.
type Blocks = BTreeMap<(u128, u64), Arc<Block>>;
type Block = BTreeMap<(u64, u64), Arc<Remembered>>;

/// What some ranges remembered at a position.
#[derive(Debug, Default)]
pub(super) struct Pinned {
    ranges: BTreeMap<Range, Blocks>,
}

/// Where a transfer of memories goes on: behind this write of this range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cursor {
    range: Range,
    key: Key,
}

/// A part of what ranges remember, on its way to a new replica.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    range: Range,
    key: Key,
    remembered: Arc<Remembered>,
}

impl Key {
    fn of(name: WriteName) -> Key {
        Key { session: name.request.session, number: name.request.number, print: name.print }
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
    /// Its answers that count.
    fn bytes(&self) -> usize {
        let lengths = self.results.iter().flatten().filter_map(|(_, answer)| Some(answer.as_ref()?.len()));
        lengths.filter(|bytes| *bytes > OUTCOME_BYTES_MAX).sum()
    }

    /// Leaves its outcome.
    fn forget_answers(&mut self) {
        for (_, answer) in self.results.iter_mut().flatten() {
            answer.take_if(|bytes| bytes.len() > OUTCOME_BYTES_MAX);
        }
    }
}

impl Memory {
    fn get(&self, key: Key) -> Option<&Arc<Remembered>> {
        self.blocks.get(&key.block())?.get(&key.place())
    }

    /// Whether something is known under this id, whichever statement it was.
    fn knows(&self, key: Key) -> bool {
        let block = self.blocks.get(&key.block());
        block.is_some_and(|block| block.range((key.number, 0)..=(key.number, u64::MAX)).next().is_some())
    }

    fn insert(&mut self, key: Key, remembered: Arc<Remembered>) {
        let bytes = remembered.bytes();
        if bytes > 0 {
            self.answers.insert(remembered.at, key);
            self.bytes += bytes;
        }
        if key.is_made_up() {
            self.made_up.insert(remembered.at, key);
        }
        let block = self.blocks.entry(key.block()).or_default();
        let before = Arc::make_mut(block).insert(key.place(), remembered);
        assert!(before.is_none(), "S6: {key:?} would be executed twice");
        self.writes += 1;
    }

    /// Lets the oldest answers go until the rest fits.
    fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max {
            let (_, key) = self.answers.pop_first().expect("what is counted is listed");
            let block = self.blocks.get_mut(&key.block()).expect("what is listed is remembered");
            let remembered =
                Arc::make_mut(block).get_mut(&key.place()).expect("what is listed is remembered");
            self.bytes -= remembered.bytes();
            Arc::make_mut(remembered).forget_answers();
        }
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
                self.remove(Key { session, number, print });
            }
        }
    }

    fn expire(&mut self, through: Position) {
        while let Some(first) = self.made_up.first_entry().filter(|first| *first.key() <= through) {
            let key = *first.get();
            self.remove(key);
        }
    }

    fn remove(&mut self, key: Key) {
        let block = self.blocks.get_mut(&key.block()).expect("what is removed is remembered");
        let remembered = Arc::make_mut(block).remove(&key.place()).expect("what is removed is remembered");
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
    }
}

impl Replies {
    /// Nothing is remembered; of each range at most so many bytes of answers will be.
    pub(super) fn new(bytes_max: usize) -> Replies {
        Replies { ranges: BTreeMap::new(), pending: BTreeSet::new(), bytes_max }
    }

    /// Whether a write is being executed right now, or another statement under its id.
    pub(super) fn is_pending(&self, name: WriteName) -> bool {
        let key = Key::of(name);
        if !name.repeated {
            return self.pending.contains(&key);
        }
        let (first, last) = (Key { print: 0, ..key }, Key { print: u64::MAX, ..key });
        self.pending.range(first..=last).next().is_some()
    }

    /// What a range knows of a write.
    pub(super) fn known(&self, name: WriteName, range: Range) -> Known<'_> {
        let (key, memory) = (Key::of(name), self.ranges.get(&range));
        match memory.and_then(|memory| memory.get(key)) {
            Some(remembered) => Known::Done(remembered),
            None if name.repeated && memory.is_some_and(|memory| memory.knows(key)) => Known::OtherStatement,
            None => Known::Nothing,
        }
    }

    /// The ranges held here that remember something and have keys of these.
    pub(super) fn concerned<'a>(&'a self, ranges: &'a [Range]) -> impl Iterator<Item = Range> + 'a {
        let concerned = |held: &Range| ranges.iter().any(|range| range.intersect(*held).is_some());
        self.ranges.keys().copied().filter(concerned)
    }

    pub(super) fn begin(&mut self, name: WriteName) {
        let fresh = self.pending.insert(Key::of(name));
        assert!(fresh, "S6: {:?} would be executed twice", name.request);
    }

    /// A write that has begun took effect, or failed; this is what it did in this range, and in others more may come.
    pub(super) fn finish(&mut self, name: WriteName) {
        let known = self.pending.remove(&Key::of(name));
        assert!(known, "S6: {:?} ended without having begun", name.request);
    }

    /// A range remembers what a write did in it.
    pub(super) fn remember(&mut self, name: WriteName, range: Range, mut remembered: Remembered) {
        if let Err(failure) = &mut remembered.results {
            failure.take_if(|bytes| bytes.len() > FAILURE_BYTES_MAX);
        }
        let memory = self.ranges.entry(range).or_default();
        memory.insert(Key::of(name), Arc::new(remembered));
        memory.shrink(self.bytes_max);
    }

    /// An ordered message allows to forget the session's numbers below `below`, but for these, which are in order.
    pub(super) fn forget(&mut self, session: u128, below: u64, kept: &[u64]) {
        for memory in self.ranges.values_mut() {
            memory.forget(session, below, kept);
        }
    }

    /// An ordered message allows to forget what writes under made-up ids did up to `through`.
    pub(super) fn expire(&mut self, through: Position) {
        for memory in self.ranges.values_mut() {
            memory.expire(through);
        }
    }

    /// These ranges are another's now, or come anew.
    pub(super) fn clear(&mut self, ranges: &[Range]) {
        self.ranges.retain(|range, _| !ranges.contains(range));
    }

    /// What these ranges remember now, to be kept.
    pub(super) fn pin(&self, ranges: &[Range]) -> Pinned {
        let blocks = ranges.iter().filter_map(|range| Some((*range, self.ranges.get(range)?.blocks.clone())));
        Pinned { ranges: blocks.collect() }
    }

    /// What all ranges held here remember now, to be kept.
    pub(super) fn pin_all(&self) -> Pinned {
        Pinned { ranges: self.ranges.iter().map(|(range, memory)| (*range, memory.blocks.clone())).collect() }
    }

    /// Takes a section of another replica's memory in; `false` if it is none.
    pub(super) fn take_in(&mut self, section: &[u8]) -> bool {
        let Ok(entries) = postcard::from_bytes::<Vec<Entry>>(section) else { return false };
        for Entry { range, key, remembered } in entries {
            self.ranges.entry(range).or_default().insert(key, remembered);
        }
        true
    }

    /// Goes on with the memories that others sent.
    pub(super) fn adopt(&mut self, other: Replies) {
        for (range, memory) in other.ranges {
            let before = self.ranges.insert(range, memory);
            assert!(before.is_none(), "{range:?} was taken over, and is here already");
        }
    }

    /// How many writes are remembered, by each range that they concern, and the bytes of their answers.
    pub(super) fn size(&self) -> (u64, u64) {
        let sum = |of: fn(&Memory) -> usize| self.ranges.values().map(|memory| of(memory) as u64).sum();
        (sum(|memory| memory.writes), sum(|memory| memory.bytes))
    }
}

impl Pinned {
    /// The ranges that remembered something.
    pub(super) fn ranges(&self) -> Vec<Range> {
        self.ranges.keys().copied().collect()
    }

    /// A section of about so many bytes, from the cursor on, of these ranges; and where to go on, unless it is the last.
    /// One answer alone may be longer.
    pub(super) fn section(
        &self,
        ranges: &[Range],
        cursor: Option<Cursor>,
        bytes_max: usize,
    ) -> (Bytes, Option<Cursor>) {
        let (mut entries, mut bytes): (Vec<Entry>, usize) = (Vec::new(), 0);
        let from = cursor.map_or(Range { low: 0, high: 0 }, |cursor| cursor.range);
        let moving = self.ranges.range(from..).filter(|(range, _)| ranges.contains(range));
        for (&range, blocks) in moving {
            let behind = cursor.filter(|cursor| cursor.range == range).map(|cursor| cursor.key);
            let first = behind.map_or((0, 0), Key::block);
            for (&(session, _), block) in blocks.range(first..) {
                for (&(number, print), remembered) in block.iter() {
                    let key = Key { session, number, print };
                    if behind.is_some_and(|behind| key <= behind) {
                        continue;
                    }
                    let entry = ENTRY_BYTES + remembered.bytes();
                    if bytes + entry > bytes_max
                        && let Some(Entry { range, key, .. }) = entries.last()
                    {
                        return (encode(&entries), Some(Cursor { range: *range, key: *key }));
                    }
                    bytes += entry;
                    entries.push(Entry { range, key, remembered: remembered.clone() });
                }
            }
        }
        (encode(&entries), None)
    }
}

/// The bytes of what is remembered of a write, beside long answers: not more, mostly.
const ENTRY_BYTES: usize = 256;

fn encode(entries: &[Entry]) -> Bytes {
    postcard::to_stdvec(entries).expect("our own types always serialise").into()
}

#[cfg(test)]
mod tests;
