//! Why an operation fails, in PostgreSQL's words.
//!
//! A [`Failure`] is part of an answer: it is deterministic, so every replica that evaluates the same operation on the
//! same rows reports the same SQLSTATE, message and detail. Texts are those of PostgreSQL 15 wherever it has one,
//! because clients match on them. An `XX000` failure means that an operation reached an engine which no binder would
//! have built; it is reported instead of panicking because operations arrive as bytes. Or it means that the engine
//! panicked at a read (`Failure::panicked`), of which one replica is asked.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::value::Type;

/// Why an operation failed: deterministic, so every replica that holds the row says the same.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Failure {
    /// The five characters of the SQLSTATE.
    pub sqlstate: String,
    /// What was wrong, with which value.
    pub message: String,
    /// More, if there is any.
    pub detail: Option<String>,
}

impl Failure {
    /// A failure without detail.
    pub fn new(sqlstate: &str, message: impl Into<String>) -> Failure {
        debug_assert_eq!(sqlstate.len(), 5, "a SQLSTATE has five characters");
        Failure { sqlstate: sqlstate.to_owned(), message: message.into(), detail: None }
    }

    /// The same with a detail.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Failure {
        self.detail = Some(detail.into());
        self
    }

    /// `53200`: a read gathered more than so many bytes. Another limit, on another day, and it is answered; what no setting
    /// can change is `54000`.
    pub(crate) fn too_much(most: u64) -> Failure {
        let what = format!("out of memory: a storage process gathers at most {most} bytes for one query");
        let detail = "ORDER BY, DISTINCT and GROUP BY gather their rows before they answer. Ask for less with LIMIT or a \
                      narrower WHERE, select fewer columns, or raise result_bytes_max of the storage processes.";
        Failure::new("53200", what).with_detail(detail)
    }

    /// `53200`: the reads of a batch gathered as much as they may together. Alone, this one can be answered.
    pub(crate) fn crowded() -> Failure {
        Failure::new("53200", CROWDED)
    }

    /// Whether it is that a read had to share its batch with others that gathered much.
    pub fn is_crowded(&self) -> bool {
        self.is_too_much() && self.message == CROWDED
    }

    /// Whether it is that a read gathered too much.
    pub fn is_too_much(&self) -> bool {
        self.sqlstate == "53200"
    }

    /// `57014`: nobody waits for the answer any more.
    pub(crate) fn withdrawn() -> Failure {
        Failure::new("57014", "canceling statement due to user request")
    }

    /// `22003`: a result that its type cannot hold.
    pub fn out_of_range(ty: Type) -> Failure {
        match ty {
            Type::Numeric => Failure::new("22003", "value overflows numeric format"),
            Type::Float8 => Failure::new("22003", "value out of range: overflow"),
            Type::Date | Type::Timestamp | Type::Timestamptz => {
                let name = if ty == Type::Date { "date" } else { "timestamp" };
                Failure::new("22008", format!("{name} out of range"))
            }
            _ => Failure::new("22003", format!("{} out of range", ty.name())),
        }
    }

    /// `22012`.
    pub fn division_by_zero() -> Failure {
        Failure::new("22012", "division by zero")
    }

    /// `22P02` (or `22007` for dates and times): text that is no value of the type.
    pub fn invalid_text(ty: Type, text: &str) -> Failure {
        let sqlstate = match ty {
            Type::Date | Type::Timestamp | Type::Timestamptz => "22007",
            _ => "22P02",
        };
        let name = if ty == Type::Timestamp { "timestamp" } else { ty.name() };
        Failure::new(sqlstate, format!("invalid input syntax for type {name}: \"{text}\""))
    }

    /// `XX000`: the engine panicked at a read, with this payload.
    fn panicked(payload: &(dyn Any + Send)) -> Failure {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let what = format!("{PANICKED}: {}", text.unwrap_or("without a message"));
        let detail = "This is a bug. It ended this query and nothing else; the storage process's log tells where it is.";
        Failure::new("XX000", what).with_detail(detail)
    }

    /// Whether it is that the engine panicked.
    pub fn is_panic(&self) -> bool {
        self.sqlstate == "XX000" && self.message.starts_with(PANICKED)
    }

    /// `XX000`: an operation that no binder builds.
    pub fn malformed(what: impl std::fmt::Display) -> Failure {
        Failure::new("XX000", format!("malformed operation: {what}"))
    }
}

/// Does what only looks, for one read or some; a panic in it comes out as a failure. What changes anything is never done
/// in here.
pub fn sheltered<T>(look: impl FnOnce() -> T) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(look)).map_err(|payload| Failure::panicked(&*payload))
}

/// What a query is told that made the engine panic.
const PANICKED: &str = "internal error: the engine of a storage process panicked at this query";
/// What a query is told that others left no room for.
const CROWDED: &str = "out of memory: the queries that came together gather as much as they may";
