//! The rows of one table as an engine stores them, and the operations on these rows that the common part of
//! all engines needs.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    alter::Alteration,
    engine::Answer,
    explain::Explanation,
    expr::Expr,
    failure::Failure,
    host::Host,
    operation::Select,
    saved::{OutlineLine, Records, Saver},
    schema::{KeyRange, Schema},
    value::Value,
};

use super::{
    budget::MemoryBounds,
    row::{FoundRow, FoundRows, OwnedRow, RowPlace, RowUpdate, RowView},
};

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

impl Read<'_> {
    /// Returns the arcs that the read must look at.
    pub(crate) fn reach(&self, schema: &Schema) -> Vec<KeyRange> {
        reach(schema, self.ranges, self.select.filter.as_ref())
    }
}

/// The work that an operation needs from the rows.
pub enum RowTask<'a> {
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

/// The rows of one table in one version, in the order of their places. A clone is a further version of the
/// rows: cloning is cheap, and later changes of the original do not affect the clone. A caller that changes
/// rows may pass a log, which receives the overwritten data.
pub trait Rows: Clone + Send {
    /// Makes an empty set of rows for a table with this definition.
    fn new(schema: &Arc<Schema>) -> Self;

    /// Collects rows of a table with this definition that arrived together. A caller never searches the
    /// result, but may `join` it to other rows.
    fn gathered<'a>(schema: &Arc<Schema>, rows: impl Iterator<Item = (RowPlace, &'a [Value])>) -> Self;

    /// Returns the rows of an altered table, at the same places.
    fn altered(&self, schema: &Arc<Schema>, alteration: &Alteration) -> Self;

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

    /// Returns the rows with this ring key and this hash of their primary key (`tie`), with at least the
    /// columns of their primary keys.
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

    /// Returns the size of overwritten data, in bytes.
    fn undo_bytes(undo: &Self::Undo) -> usize;

    /// Inserts rows at unoccupied places.
    fn insert(&mut self, rows: Vec<(RowPlace, OwnedRow)>, log: Option<&mut Vec<Self::Undo>>);

    /// Inserts all rows of `others`, which belong to the same table and to unoccupied places.
    fn join(&mut self, others: Vec<Arc<Self>>);

    /// Removes rows, all of which must exist.
    fn remove(&mut self, places: &[RowPlace], log: Option<&mut Vec<Self::Undo>>);

    /// Looks up the data of the present rows that a change needs. The result is valid until
    /// [`Rows::merge_due_tails`] is called.
    fn prepare(&self, _change: &mut RowUpdate) {}

    /// Updates rows in place.
    fn change(&mut self, change: &RowUpdate, log: Option<&mut Vec<Self::Undo>>);

    /// Reverses the changes of a log, the last change first.
    fn undo(&mut self, log: &[Self::Undo]);

    /// Whether the rows have a code for a value of this column, or need none.
    fn has_code(&self, _column: usize, _value: &Value) -> bool {
        true
    }

    /// Gives a code to a value that is about to be written to a column.
    fn expect(&mut self, _column: usize, _value: &Value) {}

    /// Saves the data that has changed since it was last saved, from the position `from`, which `save`
    /// itself defines. If the saver becomes full, returns the position at which the next call continues.
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

    /// Whether one search for the writes and reads of a batch together is cheaper than one search for each of
    /// them.
    const SHARED: bool;

    /// The results of a batch's operations in the version before the batch.
    type BatchResults<'a>;

    /// The cost, on this machine, of each way to find rows; no result depends on these costs.
    type Costs: Default + Send + Sync;

    /// Searches the rows for all tasks, with the result of each as if it ran alone. `corrected_later` says
    /// that the caller will note the writes of the batch. The search drops tasks that are withdrawn
    /// meanwhile.
    fn search_batch<'a>(
        &self,
        schema: &Schema,
        tasks: &[RowTask<'a>],
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

/// Returns the parts of `ranges` that can hold a row satisfying the filter.
pub(crate) fn reach(schema: &Schema, ranges: &[KeyRange], filter: Option<&Expr>) -> Vec<KeyRange> {
    match filter.map(|filter| schema.partition.ranges(filter)) {
        Some(reach) if ranges == [KeyRange::ALL] => reach,
        Some(reach) => KeyRange::intersection(&KeyRange::union(ranges.to_vec()), &reach),
        None => KeyRange::union(ranges.to_vec()),
    }
}
