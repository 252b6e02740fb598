//! Tables: columns, keys, and how rows find their place on the ring.

use serde::{Deserialize, Serialize};

use crate::{
    expr::Expr,
    value::{Type, Value},
};

/// A table's number, given once by the order and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TableId(pub u32);

/// A column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its name, as stored (lower case unless quoted).
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// Whether NULL is refused.
    pub not_null: bool,
    /// What an INSERT that leaves the column out stores; constant.
    pub default: Option<Expr>,
}

/// A table's definition. Travels in the total order, so every process holds the same one at the same position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schema {
    /// Table name, as stored.
    pub name: String,
    /// Columns in order.
    pub columns: Vec<Column>,
    /// Positions of the primary key's columns; empty when there is none. Contains the partition column.
    pub primary_key: Vec<usize>,
    /// How a row's ring key is computed.
    pub partition: Partition,
}

/// How a row's place on the ring follows from its partition column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Partition {
    /// A stable hash of the column's value; equality on the column prunes to one point.
    Hash {
        /// Which column.
        column: usize,
    },
    /// A monotone map of the column's value, so that intervals prune to an arc. Values at or below `low` map to 0,
    /// at or above `high` to the top, linearly between; without bounds the type's own order-preserving projection.
    Range {
        /// Which column.
        column: usize,
        /// Where the ring starts.
        low: Option<Value>,
        /// Where the ring ends.
        high: Option<Value>,
    },
}

/// A closed arc of ring keys, `low <= key <= high`; never wraps (an arc that wraps is two of these).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyRange {
    /// First key.
    pub low: u64,
    /// Last key.
    pub high: u64,
}

impl KeyRange {
    /// The whole ring.
    pub const ALL: KeyRange = KeyRange { low: 0, high: u64::MAX };

    /// Whether `key` lies in this arc.
    pub fn contains(&self, key: u64) -> bool {
        self.low <= key && key <= self.high
    }
}
