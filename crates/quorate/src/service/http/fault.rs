//! Why something came to nothing, as the door says it.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::written;
use crate::error::Error;

/// Why something came to nothing.
pub(super) enum Fault {
    Call(Error),
    Malformed(String),
    NotJson,
    /// There is no such service, or no such transaction.
    Unknown(String),
    /// The transaction is being called.
    Busy,
    /// This is all that may be under way here.
    Full(String),
}

impl Fault {
    /// This host has no service of this name.
    pub(super) fn unserved(name: &str) -> Fault {
        Fault::Unknown(format!("this host serves no `{name}`"))
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Call(error)
    }
}

#[derive(Serialize)]
struct Words {
    error: &'static str,
    why: String,
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let why = match &self {
            Fault::Call(error) => error.to_string(),
            Fault::Malformed(why) | Fault::Unknown(why) | Fault::Full(why) => why.clone(),
            Fault::NotJson => String::from("the body has to be said to be application/json"),
            Fault::Busy => String::from("a call of this transaction is under way"),
        };
        let (status, error) = match self {
            Fault::Call(error) => named(&error),
            Fault::Malformed(_) => (StatusCode::BAD_REQUEST, "malformed"),
            Fault::NotJson => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "malformed"),
            Fault::Unknown(_) => (StatusCode::NOT_FOUND, "unknown"),
            Fault::Busy => (StatusCode::CONFLICT, "busy"),
            Fault::Full(_) => (StatusCode::TOO_MANY_REQUESTS, "busy"),
        };
        (status, written(&Words { error, why })).into_response()
    }
}

/// The status and the name of an error of a call.
fn named(error: &Error) -> (StatusCode, &'static str) {
    match error {
        Error::MaybeApplied { .. } | Error::Expired { .. } => (StatusCode::GATEWAY_TIMEOUT, "maybe_applied"),
        Error::Rejected(_) => (StatusCode::CONFLICT, "rejected"),
        Error::Aborted { .. } => (StatusCode::CONFLICT, "aborted"),
        Error::Reused => (StatusCode::UNPROCESSABLE_ENTITY, "reused"),
        Error::Mismatch { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "mismatch"),
        // The others are of calls that were not sent.
        _ => (StatusCode::SERVICE_UNAVAILABLE, "not_sent"),
    }
}
