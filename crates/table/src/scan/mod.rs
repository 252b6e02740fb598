//! The scan engine: columns of narrow codes, and one pass over them for all reads that wait.
//!
//! Promise: the engine returns the answers, digests and cursors of the plain engine ([`crate::plain`]), its
//! twin. The cost of a pass hardly depends on the predicates of its reads, even with thousands of them.
//!
//! Source: 002 §3.1 (Crescando: all operations that wait share a scan, and short-lived indexes over their
//! predicates take the place of indexes over the data).
//!
//! A module imports only [`Columns`] and modules above it in this table. `batch` says in which order a batch
//! uses them.
//!
//! | where | what |
//! |---|---|
//! | `code/` | values as numbers, and columns of numbers as narrow codes |
//! | `block/` | blocks of rows; inserts, deletes and updates of their rows, and their undo |
//! | `query/` | first, each operation becomes a query, and a plan says how to find its rows |
//! | `pass/` | second, one walk over the blocks finds the rows of all queries |
//! | `batch_results` | third, each write of the batch corrects the results of the operations behind it |
//! | `batch` | these steps, for one batch |
//! | `alter` | the same rows under another definition |
//! | `rows` | the columns as the rows of a table, for `versions`, which brings the batches |
//!
//! A block holds up to 4,096 rows in the order of their places, so the ring is the cluster key. An arc is
//! therefore a slice, a binary search finds a point of the ring, and a table partitioned by range of a column
//! is pruned by that column. A block holds a chunk for each column. Versions share chunks, and an update
//! copies the chunks that it writes.
//!
//! Differences from the source:
//! - 002 indexes one attribute of the queries. Here one hash covers all attributes that a query binds by
//!   equality and the upper bits of one attribute that it binds by a range, so that almost all candidates
//!   match.
//! - Crescando keeps free slots in place of deleted rows. Here rows close up, because export, paging and
//!   uniqueness rely on their order. Two neighbouring blocks that then fill at most half of one block
//!   together are joined (`block/change`), so deletes leave no row of almost empty blocks.
//! - Crescando probes a record again after each update. Here one pass over the version before the batch
//!   answers for the whole batch. Each write then notes the rows that it touches at the queries that they
//!   concern (`batch_results`).

use std::{borrow::Cow, sync::Arc};

use crate::{
    schema::{KeyRange, Schema},
    value::{Row, Type, Value},
    versions::{FoundRow, RowPlace, RowView, Spot, Versions},
};

mod alter;
mod batch;
mod batch_results;
mod block;
mod code;
mod pass;
mod query;
mod rows;

pub use code::kernel;
pub use query::costs::Costs;

use block::Block;
use code::{dictionary::Dictionary, ordinal};

/// The engine that production uses.
pub type ScanEngine = Versions<Columns>;

/// The rows of a table, column by column.
#[derive(Clone)]
pub struct Columns {
    schema: Arc<Schema>,
    /// The dictionary of each column; `None` if the column's type fits 64 bits without one.
    dictionaries: Vec<Option<Arc<Dictionary>>>,
    /// The blocks in order: none is empty, and all places of a block precede those of the next.
    blocks: Vec<Arc<Block>>,
    rows: usize,
    /// Whether the tail of some dictionary is long enough to be merged.
    merge_due: bool,
}

impl Columns {
    fn types(&self) -> impl Iterator<Item = Type> {
        self.schema.columns.iter().map(|column| column.ty)
    }

    fn width(&self) -> usize {
        self.schema.columns.len()
    }

    /// Returns the index of the block that a place belongs in; the number of blocks if the place is behind
    /// them all.
    fn block_of(&self, place: &RowPlace) -> usize {
        self.blocks.partition_point(|block| block.last < *place)
    }

    fn spot(&self, place: &RowPlace) -> Option<Spot> {
        let number = self.block_of(place);
        let block = self.blocks.get(number)?;
        let index = block.before(place);
        let there = index < block.len() && block.place(index) == *place;
        there.then_some(Spot { block: number as u32, row: index as u32 })
    }

    /// Returns the present spot of a row that an earlier search found. The spot that the search found is
    /// mostly still right, so it is tried first.
    fn spot_of(&self, FoundRow { place, spot }: &FoundRow) -> Option<Spot> {
        let (block, row) = (self.blocks.get(spot.block as usize), spot.row as usize);
        match block.is_some_and(|block| row < block.len() && block.place(row) == *place) {
            true => Some(*spot),
            false => self.spot(place),
        }
    }

    /// Returns the block and index of the row at a place.
    fn find(&self, place: &RowPlace) -> Option<(&Block, usize)> {
        let Spot { block, row } = self.spot(place)?;
        Some((&self.blocks[block as usize], row as usize))
    }

    #[inline]
    fn value(&self, block: &Block, column: usize, index: usize) -> Value {
        self.value_of(column, block.columns[column].value(index))
    }

    #[inline]
    fn value_of(&self, column: usize, number: Option<u64>) -> Value {
        match (number, &self.dictionaries[column]) {
            (None, _) => Value::Null,
            (Some(code), Some(dictionary)) => dictionary.value(code),
            (Some(number), None) => ordinal::value(self.schema.columns[column].ty, number),
        }
    }

    fn row(&self, block: &Block, index: usize) -> Row {
        (0..self.width()).map(|column| self.value(block, column, index)).collect()
    }

    /// Returns a row with the values of `columns`; its other values are NULL.
    fn seen(&self, block: &Block, index: usize, columns: &[usize]) -> RowView<'_> {
        if columns.is_empty() {
            return Cow::Borrowed(&[]);
        }
        let mut row = vec![Value::Null; self.width()];
        for &column in columns.iter().filter(|column| **column < self.width()) {
            row[column] = self.value(block, column, index);
        }
        Cow::Owned(row)
    }

    fn number(&mut self, column: usize, value: &Value) -> Option<u64> {
        match &mut self.dictionaries[column] {
            _ if value.is_null() => None,
            Some(dictionary) => Some(dictionary.find(value).unwrap_or_else(|| {
                let dictionary = Arc::make_mut(dictionary);
                let code = dictionary.add(value);
                self.merge_due |= dictionary.wants_merge();
                code
            })),
            None => ordinal::ordinal(value),
        }
    }

    /// Returns the number of a value, `Some(None)` for NULL, and `None` if the dictionary has no code for the
    /// value.
    fn known_number(&self, column: usize, value: &Value) -> Option<Option<u64>> {
        match &self.dictionaries[column] {
            _ if value.is_null() => Some(None),
            Some(dictionary) => dictionary.find(value).map(Some),
            None => Some(ordinal::ordinal(value)),
        }
    }

    /// Sorts a dictionary's tail if many of its values are unsorted. Each caller of `number` does this after
    /// it has added values.
    fn order_tail(&mut self, column: usize) {
        if let Some(dictionary) =
            self.dictionaries[column].as_mut().filter(|dictionary| dictionary.is_unsorted())
        {
            Arc::make_mut(dictionary).order_tail();
        }
    }

    /// Returns the parts of blocks that lie in `ranges`, in order, each with the index of its block. The
    /// ranges are sorted and disjoint.
    fn slices<'a>(
        &'a self,
        ranges: &'a [KeyRange],
    ) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> + 'a {
        ranges.iter().flat_map(move |range| {
            let first = self.block_of(&RowPlace::first(range.low));
            let blocks = self.blocks.iter().enumerate().skip(first);
            blocks
                .map(move |(number, block)| (number, block.slice(range), block.len()))
                .scan(false, |over, (number, slice, len)| {
                    if *over {
                        return None;
                    }
                    *over = slice.end < len;
                    Some((number, slice))
                })
                .filter(|(_, slice)| !slice.is_empty())
        })
    }
}
