//! Constraints of a table other than its primary key and NOT NULL.
//!
//! The engine enforces a [`Check`], because a row alone decides it.

use serde::{Deserialize, Serialize};

use crate::expr::Expr;

/// A constraint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Constraint {
    /// A CHECK.
    Check(Check),
    /// The name of the primary key, if the statement gives one.
    KeyName(String),
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

impl Constraint {
    /// Returns the constraint's name.
    pub fn name(&self) -> &str {
        match self {
            Constraint::Check(check) => &check.name,
            Constraint::KeyName(name) => name,
        }
    }
}
