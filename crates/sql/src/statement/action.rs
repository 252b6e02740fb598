//! The changes of tables that statements ask for.

use quorate_table::{expr::Expr, operation::Conflict};

/// ON CONFLICT of an INSERT.
#[derive(Debug)]
pub struct OnConflict {
    /// The keys whose conflicts are handled.
    pub arbiter: Arbiter,
    /// The treatment of a row whose key exists already.
    pub conflict: Conflict,
}

/// The keys whose conflicts ON CONFLICT handles. A conflict of another key is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arbiter {
    /// All unique keys.
    Any,
    /// The primary key.
    PrimaryKey,
    /// The unique key with this number ([`Upkeep::uniques`](super::upkeep::Upkeep::uniques)).
    Unique(usize),
}

/// The change of a table.
#[derive(Debug)]
pub enum Action {
    /// INSERT: full rows in the order of the table's columns.
    Insert {
        /// The rows.
        rows: Vec<Vec<Expr>>,
        /// The action for a row whose key exists already.
        conflict: Option<OnConflict>,
        /// Whether a row has a value that each execution draws again: a number of a sequence, or a random
        /// value. Known only if there is RETURNING.
        draws: bool,
    },
    /// UPDATE.
    Update {
        /// Columns, and expressions over the old row.
        assignments: Vec<(usize, Expr)>,
        /// The condition on the rows.
        filter: Option<Expr>,
    },
    /// DELETE.
    Delete {
        /// The condition on the rows.
        filter: Option<Expr>,
    },
    /// TRUNCATE, which removes all rows without counting them.
    Truncate,
}

impl Action {
    /// Returns the verb of the action.
    pub fn verb(&self) -> &'static str {
        match self {
            Action::Insert { .. } => "INSERT",
            Action::Update { .. } => "UPDATE",
            Action::Delete { .. } => "DELETE",
            Action::Truncate => "TRUNCATE TABLE",
        }
    }
}
