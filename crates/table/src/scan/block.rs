//! Blocks: rows that lie together, in the order of their places, a chunk for each column.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    engine::{Epoch, Failure, RowId},
    saved::{self, Line, Mark, Name, Records, Saver},
    schema::KeyRange,
    versions::Place,
};

use super::{chunk::Chunk, kernel, packed::Packed};

/// The most rows of a block. A chunk of 16-bit codes is then 8 KiB, so that the columns of a signature stay in the
/// first cache while a pass looks at them again and again; and copying one for an update takes a fraction of a
/// microsecond.
pub(super) const BLOCK_ROWS: usize = 4096;

/// A key that more rows of a block have makes the block crowded.
const CROWD: usize = 16;

/// In so many steps the memory of a row is asked for, each of which needs what the one before has asked for.
pub(super) const STEPS: usize = 4;

#[derive(Clone)]
pub(super) struct Block {
    pub(super) last: Place,
    /// Whether more than a few rows have one key, or had it before rows were removed.
    pub(super) crowded: bool,
    pub(super) places: Arc<Places>,
    pub(super) columns: Vec<Arc<Chunk>>,
}

/// Where the rows of a block belong.
#[derive(Clone)]
pub(super) struct Places {
    keys: Packed,
    ties: Packed,
    epochs: Packed,
    lines: Packed,
    /// Where they are on disk.
    mark: Mark,
}

impl Places {
    pub(super) fn place(&self, index: usize) -> Place {
        let line = self.lines.number(index) as u32;
        let id = RowId { epoch: Epoch(self.epochs.number(index)), line };
        Place { key: self.keys.number(index), tie: self.ties.number(index), id }
    }

    fn numbers(&self) -> [&Packed; 4] {
        [&self.keys, &self.ties, &self.epochs, &self.lines]
    }

    fn bytes(&self) -> usize {
        size_of::<Places>() + self.numbers().map(Packed::bytes).iter().sum::<usize>()
    }
}

impl Block {
    /// Of at least one row, its places sorted; the values are asked for column by column.
    pub(super) fn new(places: &[Place], columns: impl Iterator<Item = Vec<Option<u64>>>) -> Block {
        let columns = columns.map(|values| {
            assert_eq!(values.len(), places.len(), "a value for each row");
            Arc::new(Chunk::new(&values))
        });
        Block { columns: columns.collect(), ..Block::bare(places) }
    }

    /// Of at least one row, its places sorted, and no columns yet.
    pub(super) fn bare(places: &[Place]) -> Block {
        let pack = |number: fn(&Place) -> u64| Packed::pack(&places.iter().map(number).collect::<Vec<_>>());
        let packed = Places {
            keys: pack(|place| place.key),
            ties: pack(|place| place.tie),
            epochs: pack(|place| place.id.epoch.0),
            lines: pack(|place| place.id.line.into()),
            mark: Mark::default(),
        };
        let crowded = places.windows(CROWD + 1).any(|crowd| crowd[0].key == crowd[CROWD].key);
        let last = *places.last().expect("a row");
        Block { last, crowded, places: Arc::new(packed), columns: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.places.keys.len()
    }

    pub(super) fn place(&self, index: usize) -> Place {
        self.places.place(index)
    }

    pub(super) fn key(&self, index: usize) -> u64 {
        self.places.keys.number(index)
    }

    /// Asks for the place of a row and for its values in these columns: the next step of the way there.
    pub(super) fn announce(&self, step: usize, index: usize, columns: impl Iterator<Item = usize>) {
        let chunks = columns.filter_map(|column| self.columns.get(column));
        match step {
            0 => kernel::prefetch(self),
            1 => {
                kernel::prefetch(&*self.places);
                chunks.for_each(kernel::prefetch);
            }
            2 => {
                self.places.numbers().iter().for_each(|numbers| numbers.prefetch(index));
                chunks.for_each(|chunk| chunk.prefetch());
            }
            _ => chunks.for_each(|chunk| chunk.prefetch_row(index)),
        }
    }

    pub(super) fn places(&self) -> Vec<Place> {
        (0..self.len()).map(|index| self.place(index)).collect()
    }

    /// How many rows lie before a place.
    pub(super) fn before(&self, place: &Place) -> usize {
        let keys = &self.places.keys;
        let (mut low, len) = (self.before_key(place.key), self.len());
        // Mostly few rows have one key, and they end nearby.
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

    /// The rows whose keys lie in this arc.
    pub(super) fn slice(&self, range: &KeyRange) -> std::ops::Range<usize> {
        let keys = &self.places.keys;
        // Most arcs cover whole blocks. No key lies below the base.
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

    /// How many rows have a lower key.
    fn before_key(&self, key: u64) -> usize {
        let keys = &self.places.keys;
        match () {
            _ if key <= keys.base => 0,
            _ if key > self.last.key => self.len(),
            _ => keys.partition_point_near(self.refined(self.guess(key), key), |other| other < key),
        }
    }

    /// About which row has a key, without a look at any: where rows are placed by hash their keys are spread evenly.
    pub(super) fn guess(&self, key: u64) -> usize {
        let distance = key.saturating_sub(self.places.keys.base) as f64;
        ((distance * self.density()) as usize).min(self.len() - 1)
    }

    /// The same, from the key of the row that was guessed.
    pub(super) fn refined(&self, guess: usize, key: u64) -> usize {
        let there = self.places.keys.number(guess);
        let rows = |distance: u64| (distance as f64 * self.density()) as usize;
        let refined = match key.checked_sub(there) {
            Some(above) => guess + rows(above),
            None => guess.saturating_sub(rows(there - key)),
        };
        refined.min(self.len() - 1)
    }

    /// Rows for each key of the ring.
    fn density(&self) -> f64 {
        self.len() as f64 / ((self.last.key - self.places.keys.base) as f64 + 1.0)
    }

    /// Asks for the block, ahead of its use.
    pub(super) fn prefetch(&self) {
        kernel::prefetch(self);
        kernel::prefetch(&self.columns);
    }

    /// Asks for what is known of where its rows lie, and where these columns are.
    pub(super) fn prefetch_outlines(&self, columns: impl Iterator<Item = usize>) {
        kernel::prefetch(&self.places.keys);
        columns.for_each(|column| kernel::prefetch(&self.columns[column]));
    }

    /// Asks for the key of a row.
    pub(super) fn prefetch_key(&self, index: usize) {
        self.places.keys.prefetch(index);
    }

    /// Whether two rows hold the same in these columns.
    pub(super) fn are_alike(&self, columns: &[usize], a: u32, b: u32) -> bool {
        let value = |column: usize, row: u32| self.columns[column].value(row as usize);
        columns.iter().all(|&column| value(column, a) == value(column, b))
    }

    /// Makes a place for a row that is not here, and says which row that is now. Its values are to be put into each column.
    pub(super) fn admit(&mut self, place: Place) -> usize {
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

    /// Takes a row away, which must not be the only one.
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
        saver.line(&Line::Block { crowded: self.crowded, places, columns });
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
        let places = Places { keys, ties, epochs, lines, mark: Mark::of(places) };
        let chunk =
            |name: &Name| Chunk::decode(saved::fragment(records, *name)?, Mark::of(*name)).map(Arc::new);
        let columns = columns.iter().map(chunk).collect::<Result<Vec<_>, _>>()?;
        let all = places.numbers().into_iter().chain(columns.iter().map(|chunk| &chunk.numbers));
        if rows == 0 || all.into_iter().any(|numbers| numbers.len() != rows) {
            return Err(saved::malformed());
        }
        let last = places.place(rows - 1);
        Ok(Block { last, crowded, places: Arc::new(places), columns })
    }

    pub(super) fn bytes_beside(&self, counted: &mut BTreeSet<usize>) -> usize {
        let places = if counted.insert(Arc::as_ptr(&self.places).addr()) { self.places.bytes() } else { 0 };
        let apart = self.columns.iter().filter(|chunk| counted.insert(Arc::as_ptr(chunk).addr()));
        self.frame_bytes() + places + apart.map(|chunk| chunk.bytes()).sum::<usize>()
    }

    /// The bytes that are no part of another block, which may be what has become of this one.
    pub(super) fn bytes_apart(&self, other: Option<&Block>) -> usize {
        let Some(other) = other else { return self.bytes_beside(&mut BTreeSet::new()) };
        let places = if Arc::ptr_eq(&self.places, &other.places) { 0 } else { self.places.bytes() };
        let apart = self.columns.iter().zip(&other.columns).filter(|(own, other)| !Arc::ptr_eq(own, other));
        self.frame_bytes() + places + apart.map(|(own, _)| own.bytes()).sum::<usize>()
    }

    fn frame_bytes(&self) -> usize {
        size_of::<Block>() + self.columns.len() * size_of::<usize>()
    }
}
