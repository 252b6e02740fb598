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
//! together (`batch.rs`). Several statements of one transaction are executed on a copy of
//! the tables, which then replaces them (`transaction.rs`).
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
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::{Failure, RowId, Written},
    expr::Expr,
    operation::LoadId,
    schema::{KeyRange, Schema, TableId},
    value::Value,
};

mod batch;
mod budget;
mod migrate;
mod pins;
mod read;
mod row;
mod rows;
mod save;
mod staged;
mod transaction;
mod upsert;
mod write;

pub(crate) use batch::Versions;
pub(crate) use budget::MemoryBounds;
pub(crate) use read::{ReadOutput, output_of};
pub(crate) use row::{FoundRow, FoundRows, OwnedRow, RowPlace, RowUpdate, RowView, Spot};
pub(crate) use rows::{Read, RowTask, Rows, reach};

use staged::Staged;

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
        self.tables.get(&table).ok_or_else(Failure::table_ended)
    }
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

/// Returns one empty result for each range.
fn nothing_written(ranges: &[KeyRange]) -> Vec<Written> {
    vec![Written::default(); ranges.len()]
}
