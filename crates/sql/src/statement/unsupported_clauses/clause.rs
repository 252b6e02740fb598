//! A clause belongs to PostgreSQL or to other databases, and its refusal says to which.

use sqlparser::tokenizer::Span;

use crate::error::{Result, SqlError, code};

/// A clause: whether the statement has it, the databases that know it, and its name.
type Clause = (bool, ClauseOwner, &'static str);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ClauseOwner {
    /// PostgreSQL has the clause.
    Postgres,
    /// Only databases other than PostgreSQL have the clause.
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

/// Returns the error about a clause that only databases other than PostgreSQL have.
pub(super) fn foreign(what: &str, span: Span) -> SqlError {
    SqlError::new(code::SYNTAX_ERROR, format!("syntax error: PostgreSQL has no {what}")).at(span)
}
