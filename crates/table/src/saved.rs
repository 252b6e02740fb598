//! Saved versions: what an engine holds as bytes for a disk, and the engine that holds the same again.
//!
//! **Promise.** An engine that takes in all that was saved of a version holds the rows of that version, with their numbers,
//! and what its loads had put aside. What has not changed since it was saved before is not saved again.
//!
//! **Source.** Copy on write (002 §3) tells what has changed without a look at it; naming what is on disk already is the shadow
//! page of Lorie, *Physical Integrity in a Large Segmented Database* (1977).
//!
//! **Form.** A version is saved as *fragments*: the values of one column in one block, the places of a block's rows, a run of a
//! dictionary. Fragments are written many to a *record*, and a fragment's [`Name`] is its record and its number in it. An *outline* says
//! which fragments make up the version. It is short beside them, and whole each time.
//!
//! ```text
//! record 7: fragments 0 … 90       outline: table 3, its definition
//! record 8: fragments 0 … 34                dictionary of column 2: 7.0, 7.1, 9.4
//! record 9: fragments 0 … 12                block: places 7.2; columns 7.3, 9.0, 7.5
//! ```
//!
//! **Invariants.**
//! - *A fragment that has a name is on disk as it is.* Each fragment in memory has a [`Mark`] with the name under which it was saved.
//!   Whoever changes the fragment takes the name away. A copy that is made in order to be changed has the name until then.
//! - *A name is given once.* The caller numbers the records, and never uses a number again.
//! - *A record is needed as long as an outline that counts names one of its fragments.* [`Saved::named`] says how many of which
//!   record. A record of which few are named is better *carried*: the caller lists it, and its fragments are saved anew.
//!
//! **Attacks considered.**
//! - *A fragment is changed while the version is saved:* the version is pinned, so that it is copied first, and the copy loses its name.
//! - *A version was saved in part, and the rest never came:* names were given to what is on disk all the same. The next outline
//!   may use them, as long as their records are kept until it is whole.
//! - *An old version comes back under a newer one's names:* the present never goes back. Only versions that readers keep
//!   are put together from what was overwritten, and these lose the names of what is put back.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    engine::{Cursor, Failure},
    operation::LoadId,
    schema::{Schema, TableId},
};

/// Into which record is saved, and what is not there yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saving {
    /// The number of the record. No other ever has it.
    pub record: u64,
    /// Records with lower numbers are not on this disk.
    pub since: u64,
    /// Records whose fragments are saved anew.
    pub carried: Arc<BTreeSet<u64>>,
}

/// Some of a version.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// A record: fragments that no earlier one holds.
    pub fragments: Vec<u8>,
    /// How many of them there are.
    pub count: u32,
    /// The next piece of the outline.
    pub outline: Vec<u8>,
    /// How many fragments of which record it names.
    pub named: Vec<(u64, u32)>,
    /// Where to go on; `None` when this was the last.
    pub next: Option<Cursor>,
}

/// Records by their numbers.
pub type Records = BTreeMap<u64, Bytes>;

/// Where a fragment is on disk. 0 is nowhere: records are numbered from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name(u64);

impl Name {
    fn new(record: u64, number: usize) -> Name {
        Name(record << NUMBER_BITS | number as u64)
    }

    fn record(self) -> u64 {
        self.0 >> NUMBER_BITS
    }

    fn number(self) -> usize {
        (self.0 & ((1 << NUMBER_BITS) - 1)) as usize
    }
}

const NUMBER_BITS: u32 = 16;

/// The name of what it stands in.
#[derive(Debug, Default)]
pub(crate) struct Mark(AtomicU64);

impl Clone for Mark {
    fn clone(&self) -> Mark {
        Mark(AtomicU64::new(self.0.load(Relaxed)))
    }
}

impl Mark {
    pub(crate) fn of(name: Name) -> Mark {
        Mark(AtomicU64::new(name.0))
    }

    /// What it stands in is about to change.
    #[inline]
    pub(crate) fn clear(&mut self) {
        *self.0.get_mut() = 0;
    }
}

/// The names of a list that only grows: of so many values each, from the first on. Copies of the list share them.
#[derive(Debug, Default)]
pub(crate) struct Runs(Mutex<Vec<(Name, u32)>>);

impl Runs {
    pub(crate) fn of(runs: Vec<(Name, u32)>) -> Runs {
        Runs(Mutex::new(runs))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Name, u32)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A line of an outline. What follows belongs to the section that was begun last.
#[derive(Debug, Serialize, Deserialize)]
pub enum Line {
    /// A table begins, and the section of its rows.
    Table(TableId, Schema),
    /// A run of rows that a load has put aside.
    Staged(TableId, LoadId),
    /// The dictionary of a column.
    Dictionary {
        column: u32,
        /// Whether the sorted part and the tail hold texts in one heap.
        heaps: [bool; 2],
        sorted: Vec<(Name, u32)>,
        tail: Vec<(Name, u32)>,
    },
    /// Rows that lie together.
    Block { crowded: bool, places: Name, columns: Vec<Name> },
    /// Rows that lie together and whole.
    Rows(Name),
}

/// Gathers what is saved.
pub struct Saver<'a> {
    saving: &'a Saving,
    ends: Vec<u32>,
    fragments: Vec<u8>,
    outline: Vec<u8>,
    named: BTreeMap<u64, u32>,
    lines: usize,
}

impl<'a> Saver<'a> {
    pub(crate) fn new(saving: &'a Saving) -> Saver<'a> {
        let Saving { record, since, .. } = *saving;
        assert!((1..=record).contains(&since), "records are numbered from 1: {saving:?}");
        assert!(record < 1 << (64 - NUMBER_BITS), "{record} is no number of a record");
        let named = BTreeMap::new();
        Saver { saving, ends: Vec::new(), fragments: Vec::new(), outline: Vec::new(), named, lines: 0 }
    }

    /// Whether it is enough for one record, or for one look.
    pub(crate) fn is_full(&self) -> bool {
        self.fragments.len() >= FRAGMENTS_BYTES || self.lines >= LINES || self.ends.len() >= FRAGMENTS
    }

    /// Whether something can begin, and more than its first line.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_full() && self.lines + 1 < LINES
    }

    fn must_save(&self, name: Name) -> bool {
        name.record() < self.saving.since || self.saving.carried.contains(&name.record())
    }

    fn fragment(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Name {
        encode(&mut self.fragments);
        self.ends.push(u32::try_from(self.fragments.len()).expect("a record has fewer than 2^32 bytes"));
        Name::new(self.saving.record, self.ends.len() - 1)
    }

    fn name(&mut self, name: Name) -> Name {
        *self.named.entry(name.record()).or_default() += 1;
        name
    }

    /// The name of a marked fragment, which is saved if it has none.
    pub(crate) fn marked(&mut self, mark: &Mark, encode: impl FnOnce(&mut Vec<u8>)) -> Name {
        let mut name = Name(mark.0.load(Relaxed));
        if self.must_save(name) {
            name = self.fragment(encode);
            mark.0.store(name.0, Relaxed);
        }
        self.name(name)
    }

    /// Saves a list of `len` values from its run number `at` on, where `encode` writes those from one position to another,
    /// and `fits` tells up to which position a run may reach. Where to go on if it is full before the end.
    pub(crate) fn list(
        &mut self,
        runs: &Runs,
        len: usize,
        mut at: usize,
        fits: impl Fn(usize) -> usize,
        encode: impl Fn(usize, usize, &mut Vec<u8>),
    ) -> Option<usize> {
        let mut runs = runs.lock();
        let saved: usize = runs.iter().map(|(_, count)| *count as usize).sum();
        assert!(saved <= len, "a list that only grows has {len} values, of which {saved} are saved");
        let mut start: usize = runs[..at].iter().map(|(_, count)| *count as usize).sum();
        loop {
            if start == len && at == runs.len() {
                return None;
            }
            if self.is_full() {
                return Some(at);
            }
            self.lines += 1;
            match runs.get(at).copied() {
                Some((name, count)) => {
                    let end = start + count as usize;
                    if self.must_save(name) {
                        runs[at].0 = self.fragment(|out| encode(start, end, out));
                    }
                    start = end;
                }
                None => {
                    let end = fits(start);
                    assert!(start < end && end <= len, "a run has values");
                    runs.push((self.fragment(|out| encode(start, end, out)), (end - start) as u32));
                    start = end;
                }
            }
            at += 1;
        }
    }

    /// The names of a list that is saved.
    pub(crate) fn names(&mut self, runs: &Runs) -> Vec<(Name, u32)> {
        runs.lock().iter().map(|(name, count)| (self.name(*name), *count)).collect()
    }

    /// The next line of the outline.
    pub(crate) fn line(&mut self, line: &Line) {
        let outline = std::mem::take(&mut self.outline);
        self.outline = postcard::to_extend(line, outline).expect("our own types always serialise");
        self.lines += 1;
    }

    pub(crate) fn finish(self, next: Option<Cursor>) -> Saved {
        let count = self.ends.len() as u32;
        let mut fragments = Vec::with_capacity(4 + self.ends.len() * 4 + self.fragments.len());
        if count > 0 {
            put_u32(&mut fragments, self.ends.len());
            self.ends.iter().for_each(|end| fragments.extend_from_slice(&end.to_le_bytes()));
            fragments.extend_from_slice(&self.fragments);
        }
        Saved { fragments, count, outline: self.outline, named: self.named.into_iter().collect(), next }
    }
}

/// The lines of a piece of an outline.
pub(crate) fn lines(mut outline: &[u8]) -> Result<Vec<Line>, Failure> {
    let mut lines = Vec::new();
    while !outline.is_empty() {
        let (line, rest) = postcard::take_from_bytes(outline).map_err(|_| malformed())?;
        lines.push(line);
        outline = rest;
    }
    Ok(lines)
}

/// The fragment of this name.
pub(crate) fn fragment(records: &Records, name: Name) -> Result<Input<'_>, Failure> {
    let record = records.get(&name.record()).ok_or_else(malformed)?;
    let mut input = Input(record);
    let count = input.u32()? as usize;
    let ends = input.take(count.checked_mul(4).ok_or_else(malformed)?)?;
    let end = |number: usize| -> Option<usize> {
        let bytes = ends.get(number * 4..number * 4 + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let start = name.number().checked_sub(1).map_or(Some(0), end);
    let range = start.zip(end(name.number())).map(|(start, end)| start..end);
    range.and_then(|range| input.0.get(range)).map(Input).ok_or_else(malformed)
}

/// Bytes of a fragment that are not read yet.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn take(&mut self, bytes: usize) -> Result<&'a [u8], Failure> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or_else(malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Failure> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Failure> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Failure> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    pub(crate) fn u64s(&mut self, count: usize) -> Result<Vec<u64>, Failure> {
        let bytes = self.take(count.checked_mul(8).ok_or_else(malformed)?)?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// All that is left, as one value.
    pub(crate) fn rest<T: DeserializeOwned>(self) -> Result<T, Failure> {
        postcard::from_bytes(self.0).map_err(|_| malformed())
    }

    pub(crate) fn end(self) -> Result<(), Failure> {
        if self.0.is_empty() { Ok(()) } else { Err(malformed()) }
    }
}

pub(crate) fn put_u32(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&u32::try_from(number).expect("fewer than 2^32").to_le_bytes());
}

pub(crate) fn put_u64s(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

pub(crate) fn put_rest<T: Serialize>(out: &mut Vec<u8>, value: &T) {
    let whole = postcard::to_extend(value, std::mem::take(out));
    *out = whole.expect("our own types always serialise");
}

pub(crate) fn malformed() -> Failure {
    Failure::malformed("a saved version")
}

/// A record is full with so many bytes of fragments.
const FRAGMENTS_BYTES: usize = 1 << 20;
/// With so many fragments.
const FRAGMENTS: usize = 1 << 15;
/// One look saves so many lines at most, changed or not.
const LINES: usize = 2048;
