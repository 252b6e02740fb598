//! What an engine tells of a read that it is asked to explain: the read is carried out like any other, with the batch
//! that it came in, and instead of its rows there is a report of how they were found.
//!
//! Times are no part of it, since engines read no clock: whoever calls the engine knows how long the batch took and how
//! long it waited.

use serde::{Deserialize, Serialize};

use crate::engine::Epoch;

/// How one replica found the rows of a read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// The version that was read.
    pub epoch: Epoch,
    /// How many operations shared the pass, this one included.
    pub batch: u64,
    /// How its rows were found.
    pub strategy: Strategy,
    /// How many conditions on single columns were decided by codes.
    pub conditions: u64,
    /// Whether the filter was evaluated for the rows that passed them.
    pub evaluated: bool,
    /// Blocks of the table at this replica.
    pub blocks: u64,
    /// Blocks whose rows were looked at; bounds and filters ruled the others out.
    pub visited: u64,
    /// Result rows or groups.
    pub rows: u64,
}

/// How the rows of a read are found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// The filter is evaluated for every row.
    RowByRow,
    /// No row can satisfy the filter, or the limit is zero.
    Nothing,
    /// Rows at single keys of the ring, found by their place.
    Points,
    /// Block by block, by itself: codes are compared with the most selective condition first.
    Alone,
    /// Together with others of its signature: a hash of each row finds those that it concerns.
    Group {
        /// The columns compared for equality.
        equal: Vec<usize>,
        /// A column compared with a range.
        range: Option<usize>,
        /// How many queries the group has.
        queries: u64,
    },
}
