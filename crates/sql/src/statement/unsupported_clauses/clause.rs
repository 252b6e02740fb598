//! A clause belongs to PostgreSQL or to other databases, and the refusal says which.

use sqlparser::tokenizer::Span;

use crate::error::{Result, SqlError, code};

/// A clause: whether it is present, which databases have it, and its name.
type Clause = (bool, ClauseOwner, &'static str);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ClauseOwner {
    /// PostgreSQL has the clause.
    Postgres,
    /// Only other databases have the clause.
    Others,
}
pub(super) use ClauseOwner::{Others, Postgres};

pub(super) fn absent(clauses: &[Clause], span: Span) -> Result<()> {
    match clauses.iter().find(|(present, ..)| *present) {
        None => Ok(()),
        Some((_, Postgres, what)) => Err(SqlError::unsupported(what).at(span)),
        Some((_, Others, what)) => Err(foreign(what, span)),
    }
}

/// Returns the error about a clause of another database.
pub(super) fn foreign(what: &str, span: Span) -> SqlError {
    SqlError::new(code::SYNTAX_ERROR, format!("syntax error: PostgreSQL has no {what}")).at(span)
}
