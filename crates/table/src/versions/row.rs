//! Rows of a table: their places, the rows that a search found, and the rows that a write changes.

use std::{borrow::Cow, sync::Arc};

use crate::{
    position::{Epoch, RowId},
    value::Value,
};

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
    /// Whether `rows` are exactly the rows that satisfy the filter now. Otherwise `rows` contains these and
    /// further rows, some of which may be gone.
    pub(crate) certain: bool,
}

/// A row outside of a table, or before its insertion.
pub(crate) type OwnedRow = Arc<[Value]>;

/// A row of a table: borrowed if it is stored whole, assembled otherwise.
pub(crate) type RowView<'a> = Cow<'a, [Value]>;

/// New values for some columns of some rows.
pub struct RowUpdate {
    /// The columns that change, in order.
    pub(crate) columns: Vec<usize>,
    pub(crate) rows: Vec<FoundRow>,
    /// The new values row by row, or one set of values for all rows.
    pub(super) values: Vec<Value>,
    /// The codes of the values for all rows, if [`Rows::prepare`](super::Rows::prepare) found them.
    pub(crate) numbers: Option<Vec<Option<u64>>>,
}

impl RowUpdate {
    /// Returns the values that all rows receive, if they are the same.
    pub(crate) fn uniform(&self) -> Option<&[Value]> {
        (self.values.len() == self.columns.len()).then_some(&self.values[..])
    }

    /// Returns the rows and the new values of each, in the order of the columns.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&FoundRow, &[Value])> {
        let width = self.columns.len();
        self.rows.iter().enumerate().map(move |(number, found)| match self.uniform() {
            Some(values) => (found, values),
            None => (found, &self.values[number * width..][..width]),
        })
    }
}
