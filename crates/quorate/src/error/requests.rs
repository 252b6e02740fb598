//! Errors of requests, as tables, groups and services make them.

use std::path::Path;

use super::Error;
#[cfg(any(feature = "tables", feature = "services"))]
use super::Rejection;

impl Error {
    pub(crate) fn not_sent(why: impl ToString) -> Error {
        Error::NotSent { why: why.to_string() }
    }

    pub(crate) fn wedged(why: impl ToString) -> Error {
        Error::Wedged { why: why.to_string() }
    }

    pub(crate) fn file(file: &Path, why: impl ToString) -> Error {
        Error::File { file: file.to_owned(), why: why.to_string() }
    }

    pub(crate) fn mismatch(what: impl Into<String>, why: impl ToString) -> Error {
        Error::Mismatch { what: what.into(), why: why.to_string() }
    }

    /// Makes the error of a refusal without an SQLSTATE.
    #[cfg(any(feature = "tables", feature = "services"))]
    pub(crate) fn rejected(message: impl Into<String>) -> Error {
        let message = message.into();
        Error::Rejected(Box::new(Rejection { sqlstate: None, message, detail: None, hint: None }))
    }
}
