//! Positions: of a version in the total order, of a row among all rows, and of a long read.

use serde::{Deserialize, Serialize};

/// The position of a version of the data in the total order: the position of the version's last write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// A row's number: the place of its insertion in the total order. The number is the same on every replica,
/// and updates and migration keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowId {
    /// The position of the operation that inserted the row.
    pub epoch: Epoch,
    /// The row's index among the operation's rows.
    pub line: u32,
}

/// The position of an export or a long read; opaque.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor(pub Vec<u64>);
