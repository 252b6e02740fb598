//! Operations on a table, as they travel in the total order and to the engine.

use serde::{Deserialize, Serialize};

use crate::{
    expr::{Aggregate, Expr},
    schema::{Schema, TableId},
    value::Row,
};

/// One operation. Expressions are bound and without parameters by the time it reaches an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// A table begins to exist.
    CreateTable {
        /// Its number.
        table: TableId,
        /// Its definition.
        schema: Schema,
    },
    /// A table ceases to exist.
    DropTable {
        /// Which one.
        table: TableId,
    },
    /// Rows are added. An engine keeps those whose ring key lies in the job's ranges.
    Insert {
        /// Where.
        table: TableId,
        /// Full rows in schema order.
        rows: Vec<Row>,
        /// Expressions over each inserted row.
        returning: Vec<Expr>,
    },
    /// Rows that satisfy the filter change. The partition column is never assigned.
    Update {
        /// Where.
        table: TableId,
        /// Column and the expression over the old row.
        assignments: Vec<(usize, Expr)>,
        /// Which rows; all when absent.
        filter: Option<Expr>,
        /// Expressions over each new row.
        returning: Vec<Expr>,
    },
    /// Rows that satisfy the filter go.
    Delete {
        /// Where.
        table: TableId,
        /// Which rows; all when absent.
        filter: Option<Expr>,
        /// Expressions over each deleted row.
        returning: Vec<Expr>,
    },
    /// Rows of a bulk load are put aside, invisible until published.
    Stage {
        /// Where.
        table: TableId,
        /// Which load.
        load: LoadId,
        /// Full rows in schema order.
        rows: Vec<Row>,
    },
    /// All staged rows of a load become visible at once.
    Publish {
        /// Where.
        table: TableId,
        /// Which load.
        load: LoadId,
        /// How many rows were staged over all ranges (the answer's count is per range).
        rows: u64,
    },
    /// A load's staged rows are thrown away.
    Discard {
        /// Where.
        table: TableId,
        /// Which load.
        load: LoadId,
    },
    /// A read.
    Select(Select),
}

/// A bulk load (one COPY), unique over all gateways and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LoadId(pub u128, pub u64);

/// A read of one table, as far as one replica can compute it; [`crate::merge`] finishes it at the gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Select {
    /// Where.
    pub table: TableId,
    /// Which rows; all when absent.
    pub filter: Option<Expr>,
    /// What of them.
    pub output: Output,
}

/// What a read returns from one replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Output {
    /// Rows of expressions over each matching row.
    Rows {
        /// The expressions.
        columns: Vec<Expr>,
        /// Order by these output columns (indexes into `columns`); with `limit` a top-k.
        order: Vec<Order>,
        /// At most so many from this replica (LIMIT + OFFSET of the statement).
        limit: Option<u64>,
        /// Without duplicates.
        distinct: bool,
    },
    /// One partial row per group: the keys, then one partial state per aggregate.
    Groups {
        /// Grouping expressions; empty means one group over everything (which exists even with no rows).
        keys: Vec<Expr>,
        /// The aggregates.
        aggregates: Vec<Aggregate>,
    },
}

/// One sort key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Index into the output columns.
    pub column: usize,
    /// DESC.
    pub descending: bool,
    /// NULLS FIRST (the default for DESC, as in PostgreSQL).
    pub nulls_first: bool,
}
