//! The catalog: relations that describe the tables, and a plain evaluator for queries of them.
//!
//! Clients ask the catalog in all of SQL: joins, unions, correlated sub-selects, arrays, regular expressions. Those
//! queries are small and rare, so they get an evaluator that is easy to believe rather than fast: nested loops over
//! rows made on the spot (`relations`), bound once (`binder`) to a tree (`plan`) that is walked row by row (`run` for
//! queries, `eval` for expressions, `functions` for calls).
//! Whether a query comes here follows from the relations it names; no query is recognised by its text.
//!
//! Differs from PostgreSQL: there is one database, which has the name the client asked for, and one role, the
//! client's; `reg…` types print as names and are sent as text; a column that is neither grouped nor aggregated takes
//! its value from the first row of the group.

mod binder;
pub mod datum;
mod eval;
mod functions;
mod plan;
mod relations;
mod run;

use std::sync::Arc;

use quorate_table::schema::TableId;

use crate::{backend::Catalog, error::Result, statement::parameters::Arguments};

pub use binder::bind;
pub use plan::Plan;

/// The first object id that is the user's.
const FIRST_USER_OID: u32 = 16_384;

/// The object id of a table.
pub fn table_oid(table: TableId) -> u32 {
    FIRST_USER_OID + 2 * table.0
}

/// The object id of the index that a table's primary key has.
pub fn index_oid(table: TableId) -> u32 {
    table_oid(table) + 1
}

/// Whether the catalog has a relation that goes by this name alone.
pub fn is_relation(name: &str) -> bool {
    relations::find(None, name).is_some()
}

/// Assigns a setting: its name, a value or its default, and whether only until the block ends. Tells what it is then.
pub type Assign<'a> = dyn Fn(&str, Option<&str>, bool) -> Result<String> + Sync + 'a;

/// What a query of the catalog sees.
pub struct World<'a> {
    /// The tables.
    pub catalog: Arc<Catalog>,
    /// The session's user.
    pub user: &'a str,
    /// The database.
    pub database: &'a str,
    /// The session's settings.
    pub setting: &'a (dyn Fn(&str) -> Option<String> + Sync),
    /// Assigns settings, once the query is done.
    pub assign: &'a Assign<'a>,
    /// Parameters and session values.
    pub arguments: &'a Arguments<'a>,
}
