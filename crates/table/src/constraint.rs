//! Constraints of a table other than its primary key and NOT NULL.
//!
//! The engine enforces a [`Check`], because a row alone decides it. The engine only keeps a [`Reference`],
//! which concerns rows of two tables. Gateways enforce references with steps of transactions.

use serde::{Deserialize, Serialize};

use crate::expr::Expr;

/// A constraint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Constraint {
    /// A CHECK.
    Check(Check),
    /// The name of the primary key, if the statement gives one.
    KeyName(String),
    /// REFERENCES or FOREIGN KEY.
    Reference(Reference),
}

/// A condition that no row may make false. NULL is permitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The constraint's name.
    pub name: String,
    /// The condition, over a row of the table.
    pub condition: Expr,
    /// The condition in SQL, for catalogs.
    pub text: String,
}

/// Columns whose values must exist as a key of another table, unless one of them is NULL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// The constraint's name.
    pub name: String,
    /// The indexes of the referencing columns.
    pub columns: Vec<usize>,
    /// The name of the referenced table.
    pub parent: String,
    /// The names of the referenced columns, in the order of `columns`.
    pub parent_columns: Vec<String>,
    /// The effect of ON DELETE.
    pub on_delete: ReferenceAction,
    /// The effect of ON UPDATE.
    pub on_update: ReferenceAction,
    /// The moment of the check, as declared.
    pub deferral: Deferral,
}

/// The effect on referencing rows of a change of the key that they refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReferenceAction {
    /// Fails at the end of the transaction if referencing rows remain.
    NoAction,
    /// Fails if there are referencing rows.
    Restrict,
    /// Deletes the referencing rows, or gives them the new key.
    Cascade,
    /// Sets the referencing columns to NULL.
    SetNull,
    /// Sets the referencing columns to their defaults.
    SetDefault,
}

/// The moment at which a constraint is checked, as declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deferral {
    /// NOT DEFERRABLE: at the end of the statement.
    Immediate,
    /// DEFERRABLE INITIALLY IMMEDIATE.
    Deferrable,
    /// DEFERRABLE INITIALLY DEFERRED: at COMMIT.
    Deferred,
}

impl Constraint {
    /// Returns the constraint's name.
    pub fn name(&self) -> &str {
        match self {
            Constraint::Check(check) => &check.name,
            Constraint::KeyName(name) => name,
            Constraint::Reference(reference) => &reference.name,
        }
    }
}
