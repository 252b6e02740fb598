//! The constraints of a table that its rows alone do not decide, for the writes of the table.
//!
//! A bound write carries them, so the session knows at once which other tables the write
//! concerns.

use std::sync::Arc;

use quorate_table::{constraint::Reference, expr::Expr, operation::Conflict, schema::Schema, value::Row};

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
    /// The references to other tables.
    pub parents: Vec<ParentReference>,
    /// The references of other tables to this one.
    pub children: Vec<ChildReference>,
}

/// A reference of the table to a parent table.
#[derive(Debug)]
pub struct ParentReference {
    /// The reference.
    pub reference: Reference,
    /// The referenced table. `None` if it does not exist.
    pub parent: Option<Arc<Table>>,
    /// The referenced columns, as indexes of the parent's columns.
    pub parent_columns: Vec<usize>,
}

/// A reference of a child table to the table.
#[derive(Debug)]
pub struct ChildReference {
    /// The reference.
    pub reference: Reference,
    /// The referencing table.
    pub child: Arc<Table>,
    /// The referenced columns, as indexes of the table's columns.
    pub columns: Vec<usize>,
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
        let parents: Vec<ParentReference> =
            schema.references().map(|reference| ParentReference::of(catalog, reference)).collect();
        let children: Vec<ChildReference> =
            catalog.tables.iter().flat_map(|child| ChildReference::all(child, schema)).collect();
        let is_bare = uniques.is_empty() && parents.is_empty() && children.is_empty();
        (!is_bare).then(|| Arc::new(Upkeep { uniques, parents, children }))
    }

    /// Whether a change of the table concerns a constraint.
    pub fn concerns(&self, action: &Action) -> bool {
        let assigns = |assignments: &[(usize, Expr)], columns: &[usize]| {
            columns.iter().any(|column| assignments.iter().any(|(assigned, _)| assigned == column))
        };
        let changes_referenced = |assignments: &[(usize, Expr)]| {
            self.children.iter().any(|child| assigns(assignments, &child.columns))
        };
        match action {
            Action::Insert { conflict, .. } => {
                let changes = match conflict.as_ref().map(|on| &on.conflict) {
                    Some(Conflict::Update { assignments, .. }) => changes_referenced(assignments),
                    Some(Conflict::Skip) | None => false,
                };
                !self.uniques.is_empty() || !self.parents.is_empty() || changes
            }
            Action::Update { assignments, .. } => {
                self.uniques.iter().any(|unique| assigns(assignments, &unique.columns))
                    || self.parents.iter().any(|parent| assigns(assignments, &parent.reference.columns))
                    || changes_referenced(assignments)
            }
            Action::Delete { .. } | Action::Truncate => !self.uniques.is_empty() || !self.children.is_empty(),
        }
    }
}

impl ParentReference {
    fn of(catalog: &Catalog, reference: &Reference) -> ParentReference {
        let parent = catalog.table(&reference.parent).cloned();
        let columns = parent.as_ref().and_then(|parent| positions(&parent.schema, &reference.parent_columns));
        let parent_columns = columns.clone().unwrap_or_default();
        ParentReference {
            reference: reference.clone(),
            parent: parent.filter(|_| columns.is_some()),
            parent_columns,
        }
    }
}

impl ChildReference {
    /// Returns the references of a table to the table of a schema.
    fn all<'a>(child: &'a Arc<Table>, schema: &'a Schema) -> impl Iterator<Item = ChildReference> + 'a {
        let own = child.schema.references().filter(|reference| reference.parent == schema.name);
        own.filter_map(|reference| {
            let columns = positions(schema, &reference.parent_columns)?;
            Some(ChildReference { reference: reference.clone(), child: child.clone(), columns })
        })
    }
}

/// Returns the indexes of the columns with these names. `None` if one does not exist.
pub fn positions(schema: &Schema, names: &[String]) -> Option<Vec<usize>> {
    let position = |name: &String| schema.columns.iter().position(|column| column.name == *name);
    names.iter().map(position).collect()
}
