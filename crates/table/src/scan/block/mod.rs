//! Blocks: neighbouring rows in the order of their places, with a chunk for each column. `change` inserts,
//! deletes and updates rows in them.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    engine::{Epoch, Failure, RowId},
    saved::{self, Name, NameCell, OutlineLine, Records, Saver},
    scan::code::{chunk::Chunk, hint, packed::Packed},
    schema::KeyRange,
    versions::RowPlace,
};

pub(super) mod change;

/// Maximum number of rows of a block. A chunk of 16-bit codes is then 8 KiB. The columns of a signature
/// therefore stay in the first-level cache while a pass reads them repeatedly, and copying a chunk for an
/// update takes a fraction of a microsecond.
pub(super) const BLOCK_ROWS: usize = 4096;

/// Maximum number of rows that one key may have in a block that is not crowded.
const CROWD: usize = 16;

/// The number of dependent memory accesses on the way to a row: each step prefetches an address that the step
/// before makes known.
pub(super) const STEPS: usize = 4;

#[derive(Clone)]
pub(super) struct Block {
    pub(super) last: RowPlace,
    /// Whether some key has, or had before deletes, more than `CROWD` rows.
    pub(super) crowded: bool,
    pub(super) places: Arc<Places>,
    pub(super) columns: Vec<Arc<Chunk>>,
}

/// The places of the rows of a block, packed by component.
#[derive(Clone)]
pub(super) struct Places {
    keys: Packed,
    ties: Packed,
    epochs: Packed,
    lines: Packed,
    /// The name of the places' fragment on disk; a change clears it.
    mark: NameCell,
}

impl Places {
    pub(super) fn place(&self, index: usize) -> RowPlace {
        let line = self.lines.number(index) as u32;
        let id = RowId { epoch: Epoch(self.epochs.number(index)), line };
        RowPlace { key: self.keys.number(index), tie: self.ties.number(index), id }
    }

    fn numbers(&self) -> [&Packed; 4] {
        [&self.keys, &self.ties, &self.epochs, &self.lines]
    }

    fn bytes(&self) -> usize {
        size_of::<Places>() + self.numbers().map(Packed::bytes).iter().sum::<usize>()
    }
}

impl Block {
    /// Builds a block of at least one row from sorted places, and from the numbers of each column in turn.
    pub(super) fn new(places: &[RowPlace], columns: impl Iterator<Item = Vec<Option<u64>>>) -> Block {
        let columns = columns.map(|values| {
            assert_eq!(values.len(), places.len(), "a value for each row");
            Arc::new(Chunk::new(&values))
        });
        Block { columns: columns.collect(), ..Block::bare(places) }
    }

    /// Builds a block of at least one row from sorted places, still without columns.
    pub(super) fn bare(places: &[RowPlace]) -> Block {
        let pack =
            |number: fn(&RowPlace) -> u64| Packed::pack(&places.iter().map(number).collect::<Vec<_>>());
        let packed = Places {
            keys: pack(|place| place.key),
            ties: pack(|place| place.tie),
            epochs: pack(|place| place.id.epoch.0),
            lines: pack(|place| place.id.line.into()),
            mark: NameCell::default(),
        };
        let crowded = places.windows(CROWD + 1).any(|crowd| crowd[0].key == crowd[CROWD].key);
        let last = *places.last().expect("a row");
        Block { last, crowded, places: Arc::new(packed), columns: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.places.keys.len()
    }

    pub(super) fn place(&self, index: usize) -> RowPlace {
        self.places.place(index)
    }

    pub(super) fn key(&self, index: usize) -> u64 {
        self.places.keys.number(index)
    }

    /// Prefetches one step, from 0 to `STEPS - 1`, of the way to a row's place and its values in these
    /// columns.
    pub(super) fn prefetch_step(&self, step: usize, index: usize, columns: impl Iterator<Item = usize>) {
        let chunks = columns.filter_map(|column| self.columns.get(column));
        match step {
            0 => hint::prefetch(self),
            1 => {
                hint::prefetch(&*self.places);
                chunks.for_each(hint::prefetch);
            }
            2 => {
                self.places.numbers().iter().for_each(|numbers| numbers.prefetch(index));
                chunks.for_each(|chunk| chunk.prefetch());
            }
            _ => chunks.for_each(|chunk| chunk.prefetch_row(index)),
        }
    }

    pub(super) fn places(&self) -> Vec<RowPlace> {
        (0..self.len()).map(|index| self.place(index)).collect()
    }

    /// Returns the number of rows before a place.
    pub(super) fn before(&self, place: &RowPlace) -> usize {
        let keys = &self.places.keys;
        let (mut low, len) = (self.before_key(place.key), self.len());
        // Few rows usually share a key, so the search for their end doubles its step.
        let mut step = 1;
        while low + step < len && keys.number(low + step) <= place.key {
            step *= 2;
        }
        let mut high = keys.partition_point(low, (low + step).min(len), |key| key <= place.key);
        while low < high {
            let middle = (low + high) / 2;
            if self.place(middle) < *place {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns the rows whose keys lie in this arc.
    pub(super) fn slice(&self, range: &KeyRange) -> std::ops::Range<usize> {
        let keys = &self.places.keys;
        // Most arcs cover whole blocks. They need no search here, because no key lies below the base.
        let low = if range.low <= keys.base { 0 } else { self.before_key(range.low) };
        if self.last.key <= range.high {
            return low..self.len();
        }
        if range.low == range.high && !self.crowded {
            let mut high = low;
            while high < self.len() && keys.number(high) == range.high {
                high += 1;
            }
            return low..high;
        }
        low..self.before_key(range.high + 1).max(low)
    }

    /// Returns the number of rows with a key lower than `key`.
    fn before_key(&self, key: u64) -> usize {
        let keys = &self.places.keys;
        match () {
            _ if key <= keys.base => 0,
            _ if key > self.last.key => self.len(),
            _ => keys.partition_point_near(self.refined(self.guess(key), key), |other| other < key),
        }
    }

    /// Estimates the index of a key without reading any key. Hashed keys are spread evenly, so the estimate
    /// is close.
    pub(super) fn guess(&self, key: u64) -> usize {
        let distance = key.saturating_sub(self.places.keys.base) as f64;
        ((distance * self.density()) as usize).min(self.len() - 1)
    }

    /// Improves an estimated index by the key of the row at that index.
    pub(super) fn refined(&self, guess: usize, key: u64) -> usize {
        let there = self.places.keys.number(guess);
        let rows = |distance: u64| (distance as f64 * self.density()) as usize;
        let refined = match key.checked_sub(there) {
            Some(above) => guess + rows(above),
            None => guess.saturating_sub(rows(there - key)),
        };
        refined.min(self.len() - 1)
    }

    /// Returns the average number of rows per key of the ring.
    fn density(&self) -> f64 {
        self.len() as f64 / ((self.last.key - self.places.keys.base) as f64 + 1.0)
    }

    /// Prefetches the block's header.
    pub(super) fn prefetch(&self) {
        hint::prefetch(self);
        hint::prefetch(&self.columns);
    }

    /// Prefetches the header of the keys, and the pointers to these columns.
    pub(super) fn prefetch_outlines(&self, columns: impl Iterator<Item = usize>) {
        hint::prefetch(&self.places.keys);
        columns.for_each(|column| hint::prefetch(&self.columns[column]));
    }

    /// Prefetches the key of a row.
    pub(super) fn prefetch_key(&self, index: usize) {
        self.places.keys.prefetch(index);
    }

    /// Whether two rows are equal in these columns.
    pub(super) fn are_alike(&self, columns: &[usize], a: u32, b: u32) -> bool {
        let value = |column: usize, row: u32| self.columns[column].value(row as usize);
        columns.iter().all(|&column| value(column, a) == value(column, b))
    }

    /// Inserts the place of a row that the block lacks, and returns the row's index. The caller must then
    /// insert a value into each column.
    pub(super) fn admit(&mut self, place: RowPlace) -> usize {
        let index = self.before(&place);
        assert!(index == self.len() || self.place(index) != place, "two rows have one number: {place:?}");
        let places = Arc::make_mut(&mut self.places);
        places.mark.clear();
        places.keys.insert(index, place.key);
        places.ties.insert(index, place.tie);
        places.epochs.insert(index, place.id.epoch.0);
        places.lines.insert(index, place.id.line.into());
        self.last = self.last.max(place);
        let keys = &self.places.keys;
        let first = index.saturating_sub(CROWD);
        let near =
            (first..self.len().min(index + CROWD + 1)).filter(|&other| keys.number(other) == place.key);
        self.crowded |= near.count() > CROWD;
        index
    }

    /// Removes a row, which must not be the only one.
    pub(super) fn remove(&mut self, index: usize) {
        let places = Arc::make_mut(&mut self.places);
        places.mark.clear();
        for numbers in [&mut places.keys, &mut places.ties, &mut places.epochs, &mut places.lines] {
            numbers.remove(index);
        }
        for chunk in &mut self.columns {
            Arc::make_mut(chunk).remove(index);
        }
        self.last = self.place(self.len() - 1);
    }

    pub(super) fn save(&self, saver: &mut Saver<'_>) {
        let places = saver.marked(&self.places.mark, |out| {
            self.places.numbers().into_iter().for_each(|numbers| numbers.encode(out))
        });
        let columns = self.columns.iter().map(|chunk| saver.marked(&chunk.mark, |out| chunk.encode(out)));
        let columns = columns.collect();
        saver.line(&OutlineLine::Block { crowded: self.crowded, places, columns });
    }

    pub(super) fn restored(
        crowded: bool,
        places: Name,
        columns: &[Name],
        records: &Records,
    ) -> Result<Block, Failure> {
        let mut input = saved::fragment(records, places)?;
        let mut numbers = || Packed::decode(&mut input);
        let (keys, ties, epochs, lines) = (numbers()?, numbers()?, numbers()?, numbers()?);
        input.end()?;
        let rows = keys.len();
        let places = Places { keys, ties, epochs, lines, mark: NameCell::of(places) };
        let chunk =
            |name: &Name| Chunk::decode(saved::fragment(records, *name)?, NameCell::of(*name)).map(Arc::new);
        let columns = columns.iter().map(chunk).collect::<Result<Vec<_>, _>>()?;
        let all = places.numbers().into_iter().chain(columns.iter().map(|chunk| &chunk.numbers));
        if rows == 0 || all.into_iter().any(|numbers| numbers.len() != rows) {
            return Err(saved::malformed());
        }
        let last = places.place(rows - 1);
        Ok(Block { last, crowded, places: Arc::new(places), columns })
    }

    pub(super) fn bytes_uncounted(&self, counted: &mut BTreeSet<usize>) -> usize {
        let places = if counted.insert(Arc::as_ptr(&self.places).addr()) { self.places.bytes() } else { 0 };
        let apart = self.columns.iter().filter(|chunk| counted.insert(Arc::as_ptr(chunk).addr()));
        self.frame_bytes() + places + apart.map(|chunk| chunk.bytes()).sum::<usize>()
    }

    /// Returns the memory that this block does not share with its successor in a newer version, in bytes.
    pub(super) fn bytes_unshared(&self, other: Option<&Block>) -> usize {
        let Some(other) = other else { return self.bytes_uncounted(&mut BTreeSet::new()) };
        let places = if Arc::ptr_eq(&self.places, &other.places) { 0 } else { self.places.bytes() };
        let apart = self.columns.iter().zip(&other.columns).filter(|(own, other)| !Arc::ptr_eq(own, other));
        self.frame_bytes() + places + apart.map(|(own, _)| own.bytes()).sum::<usize>()
    }

    fn frame_bytes(&self) -> usize {
        size_of::<Block>() + self.columns.len() * size_of::<usize>()
    }
}
