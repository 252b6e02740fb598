//! The outcome of an operation on a map, in the form that all strategies return.

use std::{pin::Pin, time::SystemTime};

use thiserror::Error as ThisError;

use crate::error::Error;

use super::keyspace::KeyspaceAnswer;

/// The reason why a request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
pub enum RequestError {
    /// Maps of this strategy do not support the request.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// Nothing was read, and nothing was written, now or later.
    #[error("nothing was done: {0}")]
    NotDone(String),
    /// The request may take effect at any time from now on, or never.
    #[error("the request may take effect: {0}")]
    MaybeApplied(String),
}

impl RequestError {
    pub(super) fn of(error: Error) -> RequestError {
        match error {
            Error::MaybeApplied { why, .. } | Error::Expired { why } => RequestError::MaybeApplied(why),
            // The call took effect, although its reply has another type.
            Error::Mismatch { .. } => RequestError::MaybeApplied(error.to_string()),
            other => RequestError::NotDone(other.to_string()),
        }
    }
}

/// The outcome of a request.
pub type Outcome = Result<KeyspaceAnswer, RequestError>;

/// A request in progress, as the future of its outcome.
pub(super) type OutcomeFuture = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Returns the time of day, in nanoseconds since 1970.
pub(super) fn wall() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
