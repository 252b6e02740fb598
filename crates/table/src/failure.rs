//! Failures of operations, in PostgreSQL's words.
//!
//! A [`Failure`] is part of an answer. It is deterministic: every replica that evaluates the same operation
//! on the same rows reports the same SQLSTATE, message and detail. The texts are those of PostgreSQL 15 where
//! PostgreSQL has such a text, because clients match on them. A failure with `XX000` has one of two causes.
//! An operation that no binder builds reached the engine; the engine reports it instead of panicking, because
//! operations arrive as bytes. Or the engine panicked in a read (`Failure::panicked`), which only one replica
//! runs.
//!
//! **Bounds.** A client chooses the values that a failure shows, and every process concerned keeps the
//! failure, in memory and on disk. So a value takes at most [`SHOWN_BYTES_MAX`] bytes, and a message and a
//! detail at most [`TEXT_BYTES_MAX`] each, although PostgreSQL shows such texts in full. The end of a longer
//! text is replaced with `…`.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::types::Type;

/// Maximum size of a message or a detail, in bytes.
pub const TEXT_BYTES_MAX: usize = 480;

/// Maximum size of one value in a message or a detail, in bytes.
pub const SHOWN_BYTES_MAX: usize = 256;

/// The reason why an operation failed. It is deterministic: every replica that holds the row reports the
/// same.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Failure {
    /// The five characters of the SQLSTATE.
    pub sqlstate: String,
    /// The fault, and the value at fault.
    pub message: String,
    /// Further text, if there is any.
    pub detail: Option<String>,
}

impl Failure {
    /// The SQLSTATE of a transaction that may succeed if it is tried again.
    pub const CONFLICT: &str = "40001";

    /// The message of an operation on a table that was dropped, or altered, after the operation was bound.
    pub const TABLE_ENDED: &str = "the table no longer exists";

    /// Returns the failure (42P01) of an operation whose table was dropped or altered.
    pub fn table_ended() -> Failure {
        Failure::new("42P01", Failure::TABLE_ENDED)
    }

    /// Creates a failure without detail.
    pub fn new(sqlstate: &str, message: impl Into<String>) -> Failure {
        debug_assert_eq!(sqlstate.len(), 5, "a SQLSTATE has five characters");
        let message = cut(message.into(), TEXT_BYTES_MAX);
        Failure { sqlstate: sqlstate.to_owned(), message, detail: None }
    }

    /// Adds a detail.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Failure {
        self.detail = Some(cut(detail.into(), TEXT_BYTES_MAX));
        self
    }

    /// Returns the failure (`53200`) of a read that gathered more than `most` bytes. With a higher limit the
    /// read might succeed. A bound that no setting can change has the code `54000` instead.
    pub(crate) fn too_much(most: u64) -> Failure {
        let what = format!("out of memory: a storage process gathers at most {most} bytes for one query");
        let detail = "ORDER BY, DISTINCT and GROUP BY gather their rows before they answer. Ask for less with LIMIT or a \
                      narrower WHERE, select fewer columns, or raise result_bytes_max of the storage processes.";
        Failure::new("53200", what).with_detail(detail)
    }

    /// Returns the failure (`53200`) of a read whose batch exhausted its budget. Alone, the read can succeed.
    pub(crate) fn crowded() -> Failure {
        Failure::new("53200", CROWDED)
    }

    /// Whether a read failed because other reads of its batch exhausted the budget.
    pub fn is_crowded(&self) -> bool {
        self.is_too_much() && self.message == CROWDED
    }

    /// Whether a read gathered too much.
    pub fn is_too_much(&self) -> bool {
        self.sqlstate == "53200"
    }

    /// Returns the failure (`57014`) of a query whose client no longer waits for the answer.
    pub(crate) fn withdrawn() -> Failure {
        Failure::new("57014", "canceling statement due to user request")
    }

    /// Returns the failure (`22003`, or `22008` for dates and times) of a result that its type cannot hold.
    pub fn out_of_range(ty: Type) -> Failure {
        match ty {
            Type::Numeric => Failure::new("22003", "value overflows numeric format"),
            Type::Float4 | Type::Float8 => Failure::new("22003", "value out of range: overflow"),
            Type::Date | Type::Timestamp | Type::Timestamptz => {
                let name = if ty == Type::Date { "date" } else { "timestamp" };
                Failure::new("22008", format!("{name} out of range"))
            }
            _ => Failure::new("22003", format!("{} out of range", ty.name())),
        }
    }

    /// Returns the failure of a division by zero (`22012`).
    pub fn division_by_zero() -> Failure {
        Failure::new("22012", "division by zero")
    }

    /// Returns the failure (`22P02`, or `22007` for dates and times) of a text that is not a value of the
    /// type.
    pub fn invalid_text(ty: Type, text: &str) -> Failure {
        let sqlstate = match ty {
            Type::Date | Type::Timestamp | Type::Timestamptz | Type::Time => "22007",
            _ => "22P02",
        };
        let name = match ty {
            Type::Timestamp => "timestamp",
            Type::Time => "time",
            ty => ty.name(),
        };
        let text = shown(text);
        Failure::new(sqlstate, format!("invalid input syntax for type {name}: \"{text}\""))
    }

    /// Returns the failure (`XX000`) of a read in which the engine panicked with this payload.
    fn panicked(payload: &(dyn Any + Send)) -> Failure {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let what = format!("{PANICKED}: {}", text.unwrap_or("without a message"));
        let detail =
            "This is a bug in Quorate. Only this query failed; the log of the storage process has the place.";
        Failure::new("XX000", what).with_detail(detail)
    }

    /// Whether the engine panicked.
    pub fn is_panic(&self) -> bool {
        self.sqlstate == "XX000" && self.message.starts_with(PANICKED)
    }

    /// Returns the failure (`XX000`) of an operation that no binder builds.
    pub fn malformed(what: impl std::fmt::Display) -> Failure {
        Failure::new("XX000", format!("malformed operation: {what}"))
    }
}

/// Returns a value's text for a message or a detail, cut to [`SHOWN_BYTES_MAX`].
pub(crate) fn shown(text: &str) -> String {
    // Cutting before copying avoids a copy of a long text.
    let most = text.ceil_char_boundary(SHOWN_BYTES_MAX + 1);
    cut(text[..most].to_owned(), SHOWN_BYTES_MAX)
}

/// Replaces the end of a text of more than `bytes_max` bytes with `…`.
fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max - ELLIPSIS.len()));
        text.push_str(ELLIPSIS);
        text.shrink_to_fit();
    }
    text
}

const ELLIPSIS: &str = "…";

/// Runs `look`, which must not change any shared state, and turns a panic in it into a failure.
pub fn catch_panic<T>(look: impl FnOnce() -> T) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(look)).map_err(|payload| Failure::panicked(&*payload))
}

/// The message of a query that made the engine panic.
const PANICKED: &str = "internal error: the engine of a storage process panicked in this query";
/// The message of a query for which other queries left no memory.
const CROWDED: &str =
    "out of memory: queries that ran together gathered more bytes than a storage process allows";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        for length in [0, 1, SHOWN_BYTES_MAX - 1, SHOWN_BYTES_MAX] {
            assert_eq!(shown(&"x".repeat(length)), "x".repeat(length));
        }
        for letter in ["x", "é", "€", "𝄞"] {
            for before in 0..4 {
                let text = "-".repeat(before) + &letter.repeat(1_000);
                let told = shown(&text);
                assert!(told.len() <= SHOWN_BYTES_MAX && told.len() > SHOWN_BYTES_MAX - 4, "{told}");
                let kept = told.strip_suffix(ELLIPSIS).expect("it says that there was more");
                assert!(text.starts_with(kept));
            }
        }
        let long = Failure::new("22P02", "x".repeat(1 << 20)).with_detail("y".repeat(1 << 20));
        assert_eq!((long.message.len(), long.detail.map(|it| it.len())), (480, Some(480)));
        let told = Failure::invalid_text(Type::Int4, &"1".repeat(1 << 20)).message;
        assert!(told.ends_with("1…\"") && told.len() < 300, "{told}");
    }
}
