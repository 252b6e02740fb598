//! The catalog: relations that describe the tables, and a simple evaluator for queries of them.
//!
//! Clients query the catalog with all of SQL: joins, unions, correlated sub-selects, arrays, regular
//! expressions. These queries are small and rare, so their evaluator is simple rather than fast: nested loops
//! over rows that are made on the spot (`relations`). A query is bound once (`binder`) to a tree (`plan`).
//! The tree is evaluated row by row (`run` for queries, `eval` for expressions, `functions` for calls).
//! Expressions are bound and evaluated as those over tables are; this module adds the forms and types that
//! only queries of the catalog have. A query is executed here if it names a relation of the catalog. No query
//! is recognised by its text.
//!
//! Differs from PostgreSQL: there is one database, which has the name that the client asked for, and one
//! role, the client's. `reg…` types print as names and are sent as text. A column that is neither grouped nor
//! aggregated has its value from the first row of the group.

mod binder;
mod builtin;
pub mod datum;
mod eval;
mod functions;
pub(crate) mod identifier;
mod oid;
mod plan;
mod relations;
mod run;

use std::sync::Arc;

use crate::{
    backend::{Catalog, Table},
    error::Result,
    index::is_index,
    sequence::is_sequence,
    statement::parameters::Arguments,
};

pub use binder::bind;
pub use oid::{index_oid, table_oid};
pub use plan::CatalogPlan;

/// Whether an unqualified name is a relation of the catalog.
pub fn is_relation(name: &str) -> bool {
    relations::find(None, name).is_some()
}

/// A function that assigns a setting. Its arguments are the name, the value or `None` for the default, and
/// whether the value lasts only until the block ends. It returns the new value.
pub type Assign<'a> = dyn Fn(&str, Option<&str>, bool) -> Result<String> + Sync + 'a;

/// The surroundings of a query of the catalog.
pub struct CatalogContext<'a> {
    /// The tables that the relations of the catalog describe.
    pub catalog: Arc<Catalog>,
    /// The name of the session's user.
    pub user: &'a str,
    /// The database's name.
    pub database: &'a str,
    /// The session's settings, by name.
    pub setting: &'a (dyn Fn(&str) -> Option<String> + Sync),
    /// Assigns settings, once the query has ended.
    pub assign: &'a Assign<'a>,
    /// The values of parameters and of the session.
    pub arguments: &'a Arguments<'a>,
}

impl CatalogContext<'_> {
    /// Returns the tables that are neither sequences nor indexes.
    fn user_tables(&self) -> impl Iterator<Item = &Table> {
        let tables = self.catalog.tables.iter().map(|table| &**table);
        tables.filter(|table| !is_sequence(&table.schema) && !is_index(&table.schema))
    }

    /// Returns the user's tables that have a primary key.
    fn keyed_tables(&self) -> impl Iterator<Item = &Table> {
        self.user_tables().filter(|table| !table.schema.primary_key.is_empty())
    }
}
