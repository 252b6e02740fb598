//! The scan engine: columns of narrow codes, and one pass over them for all reads that wait.
//!
//! Promise: it returns the answers, digests and cursors of the plain engine ([`crate::plain`]), its twin. The
//! cost of a pass hardly depends on the predicates of its reads, even with thousands of them.
//!
//! Source: 002 §3.1 (Crescando: all operations that wait share a scan, and short-lived indexes over their
//! predicates take the place of indexes over the data).
//!
//! | file | what |
//! |---|---|
//! | `ordinal`, `dictionary` | values as numbers of the same order |
//! | `texts`, `positions` | the texts of a dictionary, and the index that finds them |
//! | `packed`, `chunk`, `block` | numbers as narrow codes; a column of a block; a block |
//! | `change` | inserts, deletes and updates of rows, and their undo |
//! | `compile` | filters as terms over numbers |
//! | `costs` | measured costs of the ways to find rows, for the planner |
//! | `query`, `group`, `block_set` | a query; queries found by one hash; the blocks that they look at |
//! | `pass`, `kernel` | one walk over the blocks for all reads, and its inner loops |
//! | `find`, `marks` | the rows of one block that one query wants; rows of a block as bits |
//! | `prefetch`, `points` | prefetching: of the next blocks, and of single keys |
//! | `segment` | the parts of a table that several threads look at in parallel |
//! | `batch_results` | the results of the pass, kept up to date with the writes of the batch |
//! | `results` | the rows that queries receive, gathered by column |
//!
//! A block holds up to 4,096 rows in the order of their places, so the ring is the cluster key. An arc is
//! therefore a slice, a binary search finds a point of the ring, and a table partitioned by range of a column
//! is pruned by that column. A block holds a chunk for each column. Versions share chunks, and an update
//! copies the chunks that it writes.
//!
//! Differs:
//! - 002 indexes one attribute of the queries. Here one hash covers all attributes that a query binds by
//!   equality and the upper bits of one that it binds by a range, so that almost all candidates match.
//! - Crescando keeps free slots in place of deleted rows. Here rows close up, because export, paging and
//!   uniqueness rely on their order. Two neighbouring blocks that then fill at most half of one block
//!   together are joined (`change`), so deletes leave no row of almost empty blocks.
//! - Crescando probes a record again after each update. Here one pass over the version before the batch
//!   answers for the whole batch. Each write then notes the rows that it touches at the queries that they
//!   concern (`batch_results`).

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use rustc_hash::FxHashSet;

use crate::{
    engine::{Answer, Failure},
    explain::Explanation,
    expr::Expr,
    host::Host,
    saved::{self, OutlineLine, Records, Saver},
    schema::{KeyRange, Schema},
    value::{Row, Type, Value},
    versions::{FoundRow, FoundRows, OwnedRow, RowPlace, RowUpdate, RowView, Rows, Spot, Task, Versions},
};

mod batch_results;
mod block;
mod block_set;
mod change;
mod chunk;
mod compile;
mod costs;
mod dictionary;
mod find;
mod group;
pub mod kernel;
mod marks;
mod ordinal;
mod packed;
mod pass;
mod points;
mod positions;
mod prefetch;
mod query;
mod results;
mod segment;
mod texts;

pub use costs::Costs;

use batch_results::BatchResults;
use block::Block;
use change::Undo;
use dictionary::Dictionary;

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

    /// Returns the present spot of a row that an earlier search found. The remembered spot is mostly still
    /// right.
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

    /// Returns, in order, the slices of blocks that lie in sorted, disjoint arcs, each with its block's
    /// index.
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

impl Rows for Columns {
    fn new(schema: &Arc<Schema>) -> Columns {
        let mut columns = Columns {
            schema: schema.clone(),
            dictionaries: Vec::new(),
            blocks: Vec::new(),
            rows: 0,
            merge_due: false,
        };
        columns.dictionaries =
            columns.types().map(|ty| ordinal::needs_dictionary(ty).then(Arc::default)).collect();
        columns
    }

    fn gathered<'a>(schema: &Arc<Schema>, rows: impl Iterator<Item = (RowPlace, &'a [Value])>) -> Columns {
        let mut columns = Columns::new(schema);
        columns.insert_values(rows);
        columns
    }

    fn len(&self) -> usize {
        self.rows
    }

    fn bytes_uncounted(&self, counted: &mut BTreeSet<usize>) -> usize {
        let dictionaries: usize = self
            .dictionaries
            .iter()
            .flatten()
            .map(|dictionary| match counted.insert(Arc::as_ptr(dictionary).addr()) {
                true => dictionary.bytes_uncounted(counted),
                false => 0,
            })
            .sum();
        let apart = self.blocks.iter().filter(|block| counted.insert(Arc::as_ptr(block).addr()));
        let apart: Vec<&Arc<Block>> = apart.collect();
        dictionaries + apart.into_iter().map(|block| block.bytes_uncounted(counted)).sum::<usize>()
    }

    fn bytes_unshared(&self, newer: &Columns) -> usize {
        let shared: FxHashSet<*const Block> = newer.blocks.iter().map(Arc::as_ptr).collect();
        let blocks = self.blocks.iter().filter(|block| !shared.contains(&Arc::as_ptr(block)));
        // A changed block has the same last place as before, and shares most of its chunks.
        let blocks = blocks.map(|block| {
            block.bytes_unshared(newer.blocks.get(newer.block_of(&block.last)).map(|newer| &**newer))
        });
        let dictionaries = self.dictionaries.iter().zip(&newer.dictionaries);
        let dictionaries = dictionaries.filter_map(|(own, newer)| own.as_ref().zip(newer.as_ref()));
        let dictionaries = dictionaries.filter(|(own, newer)| !Arc::ptr_eq(own, newer));
        let dictionaries = dictionaries.map(|(own, newer)| own.bytes_unshared(newer));
        blocks.sum::<usize>() + dictionaries.sum::<usize>()
    }

    fn places(&self) -> impl Iterator<Item = RowPlace> {
        self.blocks.iter().flat_map(|block| (0..block.len()).map(|index| block.place(index)))
    }

    fn has(&self, place: &RowPlace) -> bool {
        self.find(place).is_some()
    }

    fn within<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        start: RowPlace,
    ) -> impl Iterator<Item = (RowPlace, RowView<'a>)> {
        let first = self.block_of(&start);
        self.slices(ranges).filter(move |(number, _)| *number >= first).flat_map(move |(number, slice)| {
            let block = &*self.blocks[number];
            let from = if number == first { block.before(&start) } else { 0 };
            (slice.start.max(from)..slice.end)
                .map(move |index| (block.place(index), Cow::Owned(self.row(block, index))))
        })
    }

    fn tied(&self, key: u64, tie: u64) -> Vec<(RowPlace, RowView<'_>)> {
        let first = RowPlace { tie, ..RowPlace::first(key) };
        let mut rows = Vec::new();
        for block in &self.blocks[self.block_of(&first)..] {
            for index in block.before(&first)..block.len() {
                let place = block.place(index);
                if (place.key, place.tie) != (key, tie) {
                    return rows;
                }
                rows.push((place, self.seen(block, index, &self.schema.primary_key)));
            }
        }
        rows
    }

    fn candidates<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        filter: Option<&Expr>,
        columns: &'a [usize],
    ) -> impl Iterator<Item = (FoundRow, RowView<'a>)> {
        let mut plan = compile::compile(&self.schema, &self.dictionaries, filter);
        self.arrange(&mut plan.terms);
        let ranges = if plan.is_empty() { &[] } else { ranges };
        self.slices(ranges).flat_map(move |(number, slice)| {
            let mut matches = Vec::new();
            let block = &*self.blocks[number];
            find::find(block, &plan.terms, slice, &Costs::default(), &mut matches);
            matches.into_iter().map(move |row| {
                let spot = Spot { block: number as u32, row };
                let found = FoundRow { place: block.place(row as usize), spot };
                (found, self.seen(block, row as usize, columns))
            })
        })
    }

    fn at(&self, found: &FoundRow, columns: &[usize]) -> Option<(FoundRow, RowView<'_>)> {
        let spot = self.spot_of(found)?;
        let block = &self.blocks[spot.block as usize];
        Some((FoundRow { spot, ..*found }, self.seen(block, spot.row as usize, columns)))
    }

    type Undo = Undo;

    fn undo_bytes(undo: &Undo) -> usize {
        undo.bytes()
    }

    fn insert(&mut self, rows: Vec<(RowPlace, OwnedRow)>, log: Option<&mut Vec<Undo>>) {
        if let Some(log) = log {
            log.extend(rows.iter().map(|(place, _)| Undo::Insert(*place)));
        }
        self.insert_values(rows.iter().map(|(place, row)| (*place, &row[..])));
        (0..self.width()).for_each(|column| self.order_tail(column));
    }

    fn join(&mut self, others: Vec<Arc<Columns>>) {
        Columns::join(self, &others);
        (0..self.width()).for_each(|column| self.order_tail(column));
    }

    fn remove(&mut self, places: &[RowPlace], log: Option<&mut Vec<Undo>>) {
        if let Some(log) = log {
            log.extend(places.iter().map(|place| {
                let (block, index) = self.find(place).expect("a row that is removed is in a block");
                let numbers = block.columns.iter().map(|chunk| chunk.value(index));
                Undo::Delete(*place, numbers.collect())
            }));
        }
        self.take(places);
    }

    fn prepare(&self, change: &mut RowUpdate) {
        change.numbers = change.uniform().and_then(|values| {
            let values = change.columns.iter().zip(values);
            values.map(|(&column, value)| self.known_number(column, value)).collect()
        });
    }

    fn change(&mut self, change: &RowUpdate, log: Option<&mut Vec<Undo>>) {
        Columns::change(self, change, log);
    }

    fn undo(&mut self, log: &[Undo]) {
        Columns::undo(self, log);
    }

    fn has_code(&self, column: usize, value: &Value) -> bool {
        let dictionary = self.dictionaries.get(column).and_then(Option::as_ref);
        dictionary.is_none_or(|dictionary| value.is_null() || dictionary.find(value).is_some())
    }

    fn expect(&mut self, column: usize, value: &Value) {
        if value.fits(self.schema.columns[column].ty) {
            self.number(column, value);
            self.order_tail(column);
        }
    }

    fn save(&self, (first, mut run): (usize, usize), saver: &mut Saver<'_>) -> Option<(usize, usize)> {
        let width = self.width();
        for at in first..width + self.blocks.len() {
            if saver.is_full() {
                return Some((at, run));
            }
            match at.checked_sub(width) {
                None => {
                    if let Some(dictionary) = &self.dictionaries[at]
                        && let Some(run) = dictionary.save(at, run, saver)
                    {
                        return Some((at, run));
                    }
                }
                Some(block) => self.blocks[block].save(saver),
            }
            run = 0;
        }
        None
    }

    fn restore(&mut self, line: OutlineLine, records: &Records) -> Result<(), Failure> {
        match line {
            OutlineLine::Dictionary { column, heaps, sorted, tail } => {
                let there = self.dictionaries.get_mut(column as usize).and_then(Option::as_mut);
                let restored = Dictionary::restored(heaps, sorted, tail, records)?;
                *there.ok_or_else(saved::malformed)? = Arc::new(restored);
            }
            OutlineLine::Block { crowded, places, columns } => {
                let block = Block::restored(crowded, places, &columns, records)?;
                let known = |(chunk, dictionary): (&Arc<chunk::Chunk>, &Option<Arc<Dictionary>>)| {
                    dictionary.as_ref().is_none_or(|dictionary| chunk.high < dictionary.len().max(1) as u64)
                };
                let first = block.place(0);
                let behind = self.blocks.last().is_none_or(|before| before.last < first);
                let all_known = block.columns.iter().zip(&self.dictionaries).all(known);
                if block.columns.len() != self.width() || !behind || !all_known {
                    return Err(saved::malformed());
                }
                self.rows += block.len();
                self.blocks.push(Arc::new(block));
            }
            OutlineLine::Table(..) | OutlineLine::Staged(..) | OutlineLine::Rows(_) => {
                return Err(saved::malformed());
            }
        }
        Ok(())
    }

    fn is_tidy(&self) -> bool {
        !self.merge_due
    }

    fn merge_due_tails(&mut self) {
        self.merge_tails();
    }

    const SHARED: bool = true;

    type BatchResults<'a> = BatchResults<'a>;

    type Costs = Costs;

    fn search_batch<'a>(
        &self,
        schema: &Schema,
        tasks: &[Task<'a>],
        corrected_later: bool,
        costs: &Costs,
        host: &dyn Host,
    ) -> BatchResults<'a> {
        Columns::search_batch(self, schema, tasks, corrected_later, costs, host)
    }

    fn answer(&self, batch_results: &mut BatchResults<'_>, task: usize) -> Option<Result<Answer, Failure>> {
        batch_results.answer(self, task)
    }

    fn explain(&self, batch_results: &BatchResults<'_>, task: usize) -> Explanation {
        batch_results.explain(self, task)
    }

    fn found_rows(&self, batch_results: &mut BatchResults<'_>, task: usize) -> Option<FoundRows> {
        batch_results.rows(self, task)
    }

    fn note(
        &self,
        batch_results: &mut BatchResults<'_>,
        rows: &[FoundRow],
        changing: Option<&[usize]>,
        again: bool,
    ) {
        Columns::note(self, batch_results, rows, changing, again);
    }
}
