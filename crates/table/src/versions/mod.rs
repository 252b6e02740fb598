//! Versions of tables: the part that all engines share, over rows that each engine stores in its own way.
//!
//! Promise: the operations of a batch take effect exactly as if they ran one after another, and a statement
//! takes effect wholly or not at all. Replicas that run the same operations for a range hold the same rows of
//! it.
//!
//! A write is evaluated against the present version into an `Effect` (`write.rs`), which is then applied or
//! dropped. So a failed statement has changed nothing, and a held statement is an effect that waits. A
//! version maps each table to its rows ([`Rows`]). The present changes in place, and pinned versions keep the
//! data that it overwrites (`pins.rs`). Operations that stand together in a batch are passed to the rows
//! together (`batch.rs`).
//!
//! A row's [`RowPlace`] is its ring key, then a hash of its primary key, then its number. So the rows of an
//! arc lie together (migration and pruning use slices), and rows that may have equal primary keys lie
//! together (the order is the unique index). Every replica visits rows in the same order, whatever order they
//! arrived in and however they are stored. A deleted row leaves no free slot, and a new row goes to its place
//! and not to a free one: uniqueness, paging and migration all rely on this order.
//!
//! Uniqueness is checked at the end of the statement, as the SQL standard says. PostgreSQL checks row by row
//! and refuses some updates that end without duplicates (`SET k = k + 1`). Row by row, the outcome would
//! depend on the storage order of the rows.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::{Answer, Epoch, Failure, RowId, Written},
    explain::Explanation,
    expr::Expr,
    host::Host,
    operation::{LoadId, Select},
    saved::{OutlineLine, Records, Saver},
    schema::{KeyRange, Schema, TableId},
    value::Value,
};

mod batch;
mod budget;
mod migrate;
mod pins;
mod read;
mod save;
mod staged;
mod upsert;
mod write;

pub(crate) use batch::Versions;
pub(crate) use budget::MemoryBounds;
pub(crate) use read::{ReadOutput, output_of};
pub(crate) use write::RowUpdate;

use staged::Staged;

/// The place of a row among all rows of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowPlace {
    pub(crate) key: u64,
    pub(crate) tie: u64,
    pub(crate) id: RowId,
}

impl RowPlace {
    /// Returns the place before every row of this ring key.
    pub(crate) fn first(key: u64) -> RowPlace {
        RowPlace { key, tie: 0, id: RowId { epoch: Epoch(0), line: 0 } }
    }
}

/// The storage location of a row in a table. Inserts and deletes invalidate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    pub(crate) block: u32,
    pub(crate) row: u32,
}

/// A row that a search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRow {
    pub(crate) place: RowPlace,
    pub(crate) spot: Spot,
}

impl FoundRow {
    /// Returns a row whose location is unknown.
    pub(crate) fn somewhere(place: RowPlace) -> FoundRow {
        FoundRow { place, spot: Spot { block: u32::MAX, row: u32::MAX } }
    }
}

/// Rows that a search found for a write ahead of its turn.
pub struct FoundRows {
    pub(crate) rows: Vec<FoundRow>,
    /// Whether `rows` are exactly the rows that satisfy the filter now. Otherwise `rows` contains them, and
    /// some others may be gone.
    pub(crate) certain: bool,
}

/// A row outside of a table, or before its insertion.
pub(crate) type OwnedRow = Arc<[Value]>;

/// A row of a table: borrowed if it is stored whole, assembled otherwise.
pub(crate) type RowView<'a> = Cow<'a, [Value]>;

/// A read of rows of one version.
pub struct Read<'a> {
    /// The arcs that the read covers.
    pub ranges: &'a [KeyRange],
    /// The filter and the output of the read.
    pub select: &'a Select,
    /// The job's index in the batch, by which the host identifies it.
    pub job: usize,
    /// The memory that the read may use.
    pub memory_bounds: MemoryBounds<'a>,
}

/// The work that an operation needs from the rows.
pub enum Task<'a> {
    /// The answer to a read.
    Read(Read<'a>),
    /// The search for rows that a write may change.
    Find {
        /// The arcs that the write covers.
        ranges: &'a [KeyRange],
        /// The filter of the write.
        filter: Option<&'a Expr>,
        /// The columns that the write assigns, and their expressions; empty for a delete.
        assigned: &'a [(usize, Expr)],
    },
    /// Nothing: the operation only adds rows.
    Nothing,
}

/// The rows of one table in one version, in the order of their places. A clone is another version: it is
/// cheap, and later changes of the original do not affect it. A caller that changes rows may pass a log,
/// which receives the overwritten data.
pub trait Rows: Clone + Send {
    /// Makes an empty set of rows for a table with this definition.
    fn new(schema: &Arc<Schema>) -> Self;

    /// Collects rows of a table with this definition that arrived together. A caller never searches the
    /// result, but may `join` it to other rows.
    fn gathered<'a>(schema: &Arc<Schema>, rows: impl Iterator<Item = (RowPlace, &'a [Value])>) -> Self;

    /// Returns the number of rows.
    fn len(&self) -> usize;

    /// Returns the memory of the rows in bytes, without parts that are already in `counted`. Adds the other
    /// parts to `counted`.
    fn bytes_uncounted(&self, counted: &mut BTreeSet<usize>) -> usize;

    /// Estimates the memory that a newer version of the same rows does not share, in bytes.
    fn bytes_unshared(&self, newer: &Self) -> usize;

    /// Returns the places of all rows, in order.
    fn places(&self) -> impl Iterator<Item = RowPlace>;

    /// Whether there is a row at this place.
    fn has(&self, place: &RowPlace) -> bool;

    /// Returns the rows of sorted, disjoint arcs, from a place on.
    fn within<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        start: RowPlace,
    ) -> impl Iterator<Item = (RowPlace, RowView<'a>)>;

    /// Returns the rows with this ring key and tie, with at least the columns of their primary keys.
    fn tied(&self, key: u64, tie: u64) -> Vec<(RowPlace, RowView<'_>)>;

    /// Returns the rows in these sorted, disjoint arcs that may satisfy the filter or make it fail, with at
    /// least these columns.
    fn candidates<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        filter: Option<&Expr>,
        columns: &'a [usize],
    ) -> impl Iterator<Item = (FoundRow, RowView<'a>)>;

    /// Returns a row that an earlier search found, with at least these columns; `None` if the row is gone.
    fn at(&self, found: &FoundRow, columns: &[usize]) -> Option<(FoundRow, RowView<'_>)>;

    /// The data that one change of one row overwrote.
    type Undo: Send;

    /// Returns the size of such data, in bytes.
    fn undo_bytes(undo: &Self::Undo) -> usize;

    /// Inserts rows at unoccupied places.
    fn insert(&mut self, rows: Vec<(RowPlace, OwnedRow)>, log: Option<&mut Vec<Self::Undo>>);

    /// Inserts all rows of `others`, which belong to the same table and to unoccupied places.
    fn join(&mut self, others: Vec<Arc<Self>>);

    /// Removes rows, all of which must exist.
    fn remove(&mut self, places: &[RowPlace], log: Option<&mut Vec<Self::Undo>>);

    /// Looks up the data that a change needs of the present rows; the result is valid until the rows are
    /// tidied.
    fn prepare(&self, _change: &mut RowUpdate) {}

    /// Updates rows in place.
    fn change(&mut self, change: &RowUpdate, log: Option<&mut Vec<Self::Undo>>);

    /// Reverses changes, the last one first.
    fn undo(&mut self, log: &[Self::Undo]);

    /// Whether the rows have a code for a value of this column, or need none.
    fn has_code(&self, _column: usize, _value: &Value) -> bool {
        true
    }

    /// Gives a code to a value that is about to be written to a column.
    fn expect(&mut self, _column: usize, _value: &Value) {}

    /// Saves the data that has changed since it was last saved, from the position `from`, which `save` itself
    /// defines. Returns the position to go on from if the saver is full.
    fn save(&self, from: (usize, usize), saver: &mut Saver<'_>) -> Option<(usize, usize)>;

    /// Restores the data that a line of an outline names, behind the data restored before. Fails if it is
    /// malformed.
    fn restore(&mut self, line: OutlineLine, records: &Records) -> Result<(), Failure>;

    /// Whether there is no work to do between batches.
    fn is_tidy(&self) -> bool {
        true
    }

    /// Does the work that accumulates during batches.
    fn merge_due_tails(&mut self) {}

    /// Whether one search for the writes and reads of a batch together is cheaper than one for each.
    const SHARED: bool;

    /// The results of a batch's operations in the version before the batch.
    type BatchResults<'a>;

    /// The costs of the ways to find rows on this machine; no result depends on them.
    type Costs: Default + Send + Sync;

    /// Searches the rows for all tasks, with the result of each as if it ran alone. `corrected_later` says
    /// that the caller will note the writes of the batch. The search drops tasks that are withdrawn
    /// meanwhile.
    fn search_batch<'a>(
        &self,
        schema: &Schema,
        tasks: &[Task<'a>],
        corrected_later: bool,
        costs: &Self::Costs,
        host: &dyn Host,
    ) -> Self::BatchResults<'a>;

    /// Returns the present answer of a read, once; `None` if the read must run again.
    fn answer(
        &self,
        batch_results: &mut Self::BatchResults<'_>,
        task: usize,
    ) -> Option<Result<Answer, Failure>>;

    /// Explains the execution of a read that has not been answered yet, except for the number of its rows.
    fn explain(&self, batch_results: &Self::BatchResults<'_>, task: usize) -> Explanation;

    /// Returns the rows that a write must look at, once.
    fn found_rows(&self, batch_results: &mut Self::BatchResults<'_>, task: usize) -> Option<FoundRows>;

    /// Notes that rows are about to change in these columns, or have just changed. Without columns, the rows
    /// are about to be removed, or have just been inserted. `again` says that the rows were noted before the
    /// same change, too.
    fn note(
        &self,
        batch_results: &mut Self::BatchResults<'_>,
        rows: &[FoundRow],
        changing: Option<&[usize]>,
        again: bool,
    );
}

/// All tables at one position of the order.
#[derive(Clone)]
struct Version<R> {
    tables: BTreeMap<TableId, Arc<Table<R>>>,
}

impl<R> Default for Version<R> {
    fn default() -> Version<R> {
        Version { tables: BTreeMap::new() }
    }
}

#[derive(Clone)]
struct Table<R> {
    schema: Arc<Schema>,
    rows: R,
    /// The rows of unpublished loads.
    staged: BTreeMap<LoadId, Staged<R>>,
}

impl<R> Version<R> {
    fn table(&self, table: TableId) -> Result<&Arc<Table<R>>, Failure> {
        self.tables.get(&table).ok_or_else(|| no_table(table))
    }
}

fn no_table(table: TableId) -> Failure {
    Failure::new("42P01", format!("table {} does not exist", table.0))
}

impl<R: Rows> Table<R> {
    fn new(schema: Schema) -> Table<R> {
        let schema = Arc::new(schema);
        Table { rows: R::new(&schema), schema, staged: BTreeMap::new() }
    }

    /// Returns the place of a row with this number.
    fn place(&self, row: &[Value], id: RowId) -> RowPlace {
        RowPlace { key: self.schema.partition.key(row), tie: self.schema.primary_key_hash(row), id }
    }

    fn reach(&self, ranges: &[KeyRange], filter: Option<&Expr>) -> Vec<KeyRange> {
        reach(&self.schema, ranges, filter)
    }

    /// Returns the table's memory in bytes, without parts already in `counted`.
    fn bytes_uncounted(&self, counted: &mut BTreeSet<usize>) -> usize {
        let staged = self.staged.values().map(|staged| staged.bytes_uncounted(counted)).sum::<usize>();
        staged + self.rows.bytes_uncounted(counted)
    }

    /// Estimates the memory that a newer version of the table does not share, in bytes.
    fn bytes_unshared(&self, newer: Option<&Table<R>>) -> usize {
        let Some(newer) = newer else { return self.bytes_uncounted(&mut BTreeSet::new()) };
        let staged = self.staged.iter().map(|(load, staged)| match newer.staged.get(load) {
            Some(newer) => staged.bytes_unshared(newer),
            None => staged.bytes_uncounted(&mut BTreeSet::new()),
        });
        staged.sum::<usize>() + self.rows.bytes_unshared(&newer.rows)
    }
}

impl Read<'_> {
    /// Returns the arcs that the read must look at.
    pub(crate) fn reach(&self, schema: &Schema) -> Vec<KeyRange> {
        reach(schema, self.ranges, self.select.filter.as_ref())
    }
}

/// Returns the parts of `ranges` that can hold a row satisfying the filter.
pub(crate) fn reach(schema: &Schema, ranges: &[KeyRange], filter: Option<&Expr>) -> Vec<KeyRange> {
    match filter.map(|filter| schema.partition.ranges(filter)) {
        Some(reach) if ranges == [KeyRange::ALL] => reach,
        Some(reach) => KeyRange::intersection(&KeyRange::union(ranges.to_vec()), &reach),
        None => KeyRange::union(ranges.to_vec()),
    }
}

/// Returns one empty result for each range.
fn nothing_written(ranges: &[KeyRange]) -> Vec<Written> {
    vec![Written::default(); ranges.len()]
}
