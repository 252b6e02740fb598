//! Binds UNIQUE and PRIMARY KEY of CREATE TABLE.

use quorate_table::schema::{Column, Schema};
use sqlparser::ast::{self, Spanned};

use super::scope;
use crate::{
    error::{Result, SqlError, code},
    index::{EnforcedKeys, IndexDefinition, IndexKey, KEYS_MAX},
};

/// An index of a UNIQUE constraint.
#[derive(Debug)]
pub struct ProposedIndex {
    /// The definition of the index.
    pub definition: IndexDefinition,
    /// Whether the statement names the constraint. Otherwise the name is a proposal.
    pub is_named: bool,
}

/// A UNIQUE constraint as declared: its name, and the indexes of its columns.
pub(super) struct Unique {
    pub(super) name: Option<String>,
    pub(super) columns: Vec<usize>,
}

impl Unique {
    /// Binds UNIQUE behind a list of columns, or behind the column at `position`.
    pub(super) fn bind(
        unique: &ast::UniqueConstraint,
        name: Option<&ast::Ident>,
        position: Option<usize>,
        columns: &[Column],
    ) -> Result<Unique> {
        let columns = match position {
            Some(position) => vec![position],
            None => key_columns(&unique.columns, "a unique constraint", "unique constraint", columns)?,
        };
        if columns.len() > KEYS_MAX {
            let message = format!("cannot use more than {KEYS_MAX} columns in an index");
            return Err(SqlError::new("54011", message));
        }
        Ok(Unique { name: name.map(scope::fold), columns })
    }

    /// Returns the index of the constraint.
    pub(super) fn index(self, schema: &Schema) -> ProposedIndex {
        let columns = self.columns.iter().map(|&column| &schema.columns[column]);
        let names: Vec<&str> = columns.clone().map(|column| &*column.name).collect();
        let is_named = self.name.is_some();
        let name = self.name.unwrap_or_else(|| format!("{}_{}_key", schema.name, names.join("_")));
        let key = |column: &Column| IndexKey {
            column: column.name.clone(),
            class: None,
            descends: false,
            nulls_first: false,
        };
        let held = |column: &Column| Column { not_null: true, default: None, ..column.clone() };
        let enforced = EnforcedKeys { is_constraint: true, columns: columns.clone().map(held).collect() };
        let definition = IndexDefinition {
            name,
            table: schema.name.clone(),
            method: "btree".to_owned(),
            is_unique: true,
            keys: columns.map(key).collect(),
            enforced: Some(enforced),
        };
        ProposedIndex { definition, is_named }
    }
}

/// Leaves out constraints without a name that say the same as the primary key or as another constraint, as
/// PostgreSQL does.
pub(super) fn distinct(uniques: Vec<Unique>, schema: &Schema) -> impl Iterator<Item = Unique> {
    let mut seen = vec![schema.primary_key.clone()];
    seen.extend(uniques.iter().filter(|unique| unique.name.is_some()).map(|unique| unique.columns.clone()));
    uniques.into_iter().filter(move |unique| {
        let is_new = unique.name.is_some() || !seen.contains(&unique.columns);
        if unique.name.is_none() {
            seen.push(unique.columns.clone());
        }
        is_new
    })
}

/// Returns the positions of the columns of a constraint. `what` and `kind` name the constraint in errors.
pub(super) fn key_columns(
    listed: &[ast::IndexColumn],
    what: &str,
    kind: &str,
    columns: &[Column],
) -> Result<Vec<usize>> {
    let mut positions = Vec::with_capacity(listed.len());
    for column in listed {
        let ast::Expr::Identifier(ident) = &column.column.expr else {
            let error = SqlError::unsupported(format!("{what} over an expression"));
            return Err(error.at(column.column.expr.span()));
        };
        let name = scope::fold(ident);
        let Some(position) = columns.iter().position(|column| column.name == name) else {
            let message = format!("column \"{name}\" named in key does not exist");
            return Err(SqlError::new(code::UNDEFINED_COLUMN, message).at(ident.span));
        };
        if positions.contains(&position) {
            let message = format!("column \"{name}\" appears twice in {kind}");
            return Err(SqlError::new(code::DUPLICATE_COLUMN, message).at(ident.span));
        }
        positions.push(position);
    }
    Ok(positions)
}
