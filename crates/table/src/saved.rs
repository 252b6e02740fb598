//! Saved versions: the bytes of an engine's data on a disk, and their restoration.
//!
//! **Promise.** An engine that restores all saved parts of a version holds the rows of that version, with
//! their numbers, and the staged rows of its loads. Data that has not changed since an earlier save is not
//! saved again.
//!
//! **Source.** Copy on write (002 §3) shows the changes without comparing data. The names of data that is
//! already on disk are the shadow pages of Lorie, *Physical Integrity in a Large Segmented Database* (1977).
//!
//! **Form.** A version is saved as *fragments*: the values of one column in one block, the places of a
//! block's rows, a run of a dictionary. A *record* holds many fragments, and a fragment's [`Name`] is its
//! record's number and its index in the record. An *outline* lists the fragments of the version. An outline
//! is short relative to its fragments, and every save writes the whole outline.
//!
//! ```text
//! record 7: fragments 0 … 90       outline: table 3, its definition
//! record 8: fragments 0 … 34                dictionary of column 2: 7.0, 7.1, 9.4
//! record 9: fragments 0 … 12                block: places 7.2; columns 7.3, 9.0, 7.5
//! ```
//!
//! **Invariants.**
//! - *A fragment that has a name is unchanged on disk.* Each fragment in memory has a [`NameCell`] with the
//!   name under which it was saved. Code that changes the fragment clears the name. A copy keeps the name
//!   until the copy is changed.
//! - *A name is used once.* The caller numbers the records, and never uses a number again.
//! - *A record is needed as long as a valid outline names one of its fragments.* [`SavedPart::named`] counts
//!   the named fragments of each record. If few fragments of a record are named, the caller may have this
//!   record *carried*: the caller lists the record, and the engine saves these fragments again.
//!
//! **Attacks considered.**
//! - *A fragment is changed while the version is saved:* the version is pinned, so the fragment is copied
//!   before the change, and the copy loses its name.
//! - *A version is saved in part, and the rest never follows:* the saved fragments keep their names. The next
//!   outline may use these names, as long as the records are kept until that outline is complete.
//! - *An old version returns under the names of a newer one:* an engine never returns its present version to
//!   an earlier state. It assembles only pinned versions from undo logs, and a fragment that an undo changes
//!   loses its name.

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
    failure::Failure,
    operation::LoadId,
    position::Cursor,
    schema::{Schema, TableId},
};

/// The target of a save: the record to write, and the records that it may rely on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaveTarget {
    /// The number of the record, which no other record ever has.
    pub record: u64,
    /// The first record on this disk. Fragments of earlier records must be saved again.
    pub since: u64,
    /// The records whose fragments must be saved again.
    pub carried: Arc<BTreeSet<u64>>,
}

/// A part of a saved version.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedPart {
    /// The contents of the record: the fragments that no earlier record holds.
    pub fragments: Vec<u8>,
    /// The number of these fragments.
    pub count: u32,
    /// The next piece of the outline.
    pub outline: Vec<u8>,
    /// The number of fragments that the outline names, by record.
    pub named: Vec<(u64, u32)>,
    /// The position of the next part; `None` after the last one.
    pub next: Option<Cursor>,
}

/// Records of a disk, by their numbers.
pub type Records = BTreeMap<u64, Bytes>;

/// The name of a fragment: its record and its index there. 0 is no name, because records are numbered from 1.
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

/// The name of the fragment on disk that holds a piece of data, kept with that piece; 0 if no fragment holds
/// it.
#[derive(Debug, Default)]
pub(crate) struct NameCell(AtomicU64);

impl Clone for NameCell {
    fn clone(&self) -> NameCell {
        NameCell(AtomicU64::new(self.0.load(Relaxed)))
    }
}

impl NameCell {
    pub(crate) fn of(name: Name) -> NameCell {
        NameCell(AtomicU64::new(name.0))
    }

    /// Clears the name, because the fragment is about to change.
    #[inline]
    pub(crate) fn clear(&mut self) {
        *self.0.get_mut() = 0;
    }
}

/// The saved runs of a list that only grows, from its start on: the name of each run, and the number of its
/// values. Copies of the list share these runs.
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

/// A line of an outline. A line that is not the start of a section belongs to the section that started last.
#[derive(Debug, Serialize, Deserialize)]
pub enum OutlineLine {
    /// The start of a table, and of the section of its rows.
    Table(TableId, Schema),
    /// The start of a section: a run of staged rows of a load.
    Staged(TableId, LoadId),
    /// The dictionary of a column.
    Dictionary {
        column: u32,
        /// Whether the sorted part and the tail hold their texts in one heap.
        heaps: [bool; 2],
        sorted: Vec<(Name, u32)>,
        tail: Vec<(Name, u32)>,
    },
    /// A block of the scan engine.
    Block { crowded: bool, places: Name, columns: Vec<Name> },
    /// A block of the plain engine, as one fragment.
    Rows(Name),
}

/// Collects the fragments and the outline of a save.
pub struct Saver<'a> {
    saving: &'a SaveTarget,
    ends: Vec<u32>,
    fragments: Vec<u8>,
    outline: Vec<u8>,
    named: BTreeMap<u64, u32>,
    lines: usize,
}

impl<'a> Saver<'a> {
    pub(crate) fn new(saving: &'a SaveTarget) -> Saver<'a> {
        let SaveTarget { record, since, .. } = *saving;
        assert!((1..=record).contains(&since), "records are numbered from 1: {saving:?}");
        assert!(record < 1 << (64 - NUMBER_BITS), "{record} is no number of a record");
        let named = BTreeMap::new();
        Saver { saving, ends: Vec::new(), fragments: Vec::new(), outline: Vec::new(), named, lines: 0 }
    }

    /// Whether the record is full, or the call has handled its maximum number of lines and runs.
    pub(crate) fn is_full(&self) -> bool {
        self.fragments.len() >= FRAGMENTS_BYTES || self.lines >= LINES || self.ends.len() >= FRAGMENTS
    }

    /// Whether a section can start, with room for more than its first line.
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

    /// Returns the name of a fragment. Saves the fragment if the name in `mark` is not valid for this save.
    pub(crate) fn marked(&mut self, mark: &NameCell, encode: impl FnOnce(&mut Vec<u8>)) -> Name {
        let mut name = Name(mark.0.load(Relaxed));
        if self.must_save(name) {
            name = self.fragment(encode);
            mark.0.store(name.0, Relaxed);
        }
        self.name(name)
    }

    /// Saves a list of `len` values, from its run number `at` on. `encode` writes the values between two
    /// positions, and `fits` returns the end of a run from its start. If the saver becomes full, returns
    /// the number of the run at which the next call continues.
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

    /// Returns the runs of a saved list, and counts their names.
    pub(crate) fn names(&mut self, runs: &Runs) -> Vec<(Name, u32)> {
        runs.lock().iter().map(|(name, count)| (self.name(*name), *count)).collect()
    }

    /// Adds a line to the outline.
    pub(crate) fn line(&mut self, line: &OutlineLine) {
        let outline = std::mem::take(&mut self.outline);
        self.outline = postcard::to_extend(line, outline).expect("our own types always serialise");
        self.lines += 1;
    }

    pub(crate) fn finish(self, next: Option<Cursor>) -> SavedPart {
        let count = self.ends.len() as u32;
        let mut fragments = Vec::with_capacity(4 + self.ends.len() * 4 + self.fragments.len());
        if count > 0 {
            put_u32(&mut fragments, self.ends.len());
            self.ends.iter().for_each(|end| fragments.extend_from_slice(&end.to_le_bytes()));
            fragments.extend_from_slice(&self.fragments);
        }
        SavedPart { fragments, count, outline: self.outline, named: self.named.into_iter().collect(), next }
    }
}

/// Decodes the lines of a piece of an outline. Fails if it is malformed.
pub(crate) fn lines(mut outline: &[u8]) -> Result<Vec<OutlineLine>, Failure> {
    let mut lines = Vec::new();
    while !outline.is_empty() {
        let (line, rest) = postcard::take_from_bytes(outline).map_err(|_| malformed())?;
        lines.push(line);
        outline = rest;
    }
    Ok(lines)
}

/// Returns the fragment of this name. Fails if the records lack it.
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

/// The unread bytes of a fragment.
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

    /// Decodes all remaining bytes as one value.
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
    Failure::malformed("a saved version of tables cannot be decoded")
}

/// Number of bytes of fragments at which a record is full.
const FRAGMENTS_BYTES: usize = 1 << 20;
/// Number of fragments at which a record is full.
const FRAGMENTS: usize = 1 << 15;
/// Maximum number of lines and runs that one call handles, changed or not.
const LINES: usize = 2048;
