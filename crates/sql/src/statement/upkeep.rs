//! The constraints of a table that its rows alone do not decide, for the writes of the table.
//!
//! A bound write carries them, so the session knows at once which other tables the write
//! concerns.

use std::sync::Arc;

use quorate_table::{schema::Schema, value::Row};

use super::action::Action;
use crate::{
    backend::{Catalog, Table},
    index::{self, IndexDefinition},
};

/// The constraints that writes of a table have to keep.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// The unique keys other than the primary key.
    pub uniques: Vec<UniqueKey>,
}

/// A unique key other than the primary key.
#[derive(Debug)]
pub struct UniqueKey {
    /// The table of the index, with one row for each row that has the key.
    pub index: Arc<Table>,
    /// The key's columns, as indexes of the table's columns.
    pub columns: Vec<usize>,
}

impl UniqueKey {
    /// Returns the rows of the index's table for rows of the table.
    pub fn rows_of(&self, rows: &[Row]) -> Vec<Row> {
        let key = |row: &Row| self.columns.iter().map(|&column| row[column].clone()).collect();
        rows.iter().filter_map(|row| IndexDefinition::row(&self.index.schema, key(row))).collect()
    }
}

impl Upkeep {
    /// Returns the constraints of a table. `None` if it has none.
    pub fn of(catalog: &Catalog, schema: &Schema) -> Option<Arc<Upkeep>> {
        let indexes = index::all(catalog).filter(|(_, index)| index.table == schema.name);
        let key = |(table, index): (&Arc<Table>, IndexDefinition)| {
            index.enforced.as_ref()?;
            let position =
                |key: &index::IndexKey| schema.columns.iter().position(|column| column.name == key.column);
            let columns = index.keys.iter().map(position).collect::<Option<_>>()?;
            Some(UniqueKey { index: table.clone(), columns })
        };
        let uniques: Vec<UniqueKey> = indexes.filter_map(key).collect();
        (!uniques.is_empty()).then(|| Arc::new(Upkeep { uniques }))
    }

    /// Whether a change of the table concerns a constraint.
    pub fn concerns(&self, action: &Action) -> bool {
        let Action::Update { assignments, .. } = action else { return true };
        let is_assigned = |column: &usize| assignments.iter().any(|(assigned, _)| assigned == column);
        self.uniques.iter().any(|unique| unique.columns.iter().any(is_assigned))
    }
}
