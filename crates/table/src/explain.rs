//! Explanations of reads. The engine runs a read to be explained like any other read, with its batch, and
//! returns a report of how its rows were found, instead of the rows.
//!
//! The report has no times, because engines read no clock. The engine's caller knows how long the batch ran
//! and waited.

use serde::{Deserialize, Serialize};

use crate::position::Epoch;

/// A report of how one replica found the rows of a read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The version that was read.
    pub epoch: Epoch,
    /// The number of operations that shared the pass, this read included.
    pub batch: u64,
    /// The way in which the statement's rows were found.
    pub strategy: Strategy,
    /// The number of conditions on single columns that the engine decided by comparing codes.
    pub conditions: u64,
    /// Whether the engine also evaluated the filter, for the rows that passed the conditions on codes.
    pub evaluated: bool,
    /// The number of blocks of the table at this replica.
    pub blocks: u64,
    /// The number of blocks whose rows were looked at; bounds and filters excluded the other blocks.
    pub visited: u64,
    /// The number of result rows or groups.
    pub rows: u64,
}

/// A way to find the rows of a read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// The filter is evaluated for every row.
    RowByRow,
    /// No row can satisfy the filter, or the limit is zero.
    Nothing,
    /// Rows at single keys of the ring are looked up by their place.
    Points,
    /// The read looks at blocks by itself, and compares their codes with the most selective condition first.
    Alone,
    /// The read shares a hash table with other reads of its signature; a hash of each row finds the reads
    /// that the row concerns.
    Group {
        /// The columns compared for equality.
        equal: Vec<usize>,
        /// A column compared with a range.
        range: Option<usize>,
        /// The number of queries in the group.
        queries: u64,
    },
}
