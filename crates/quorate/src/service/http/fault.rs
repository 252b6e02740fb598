//! Faults: the reasons that the door gives for requests that failed.

use axum::{
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use quorate_roles::services::ITEM_BYTES_MAX;

use crate::error::Error;

use super::json::written;

/// The reason why a request failed.
pub(super) enum Fault {
    Call(Error),
    Malformed(String),
    NotJson,
    /// The body of the request is too long.
    Long,
    /// The request names another host.
    Misdirected,
    /// The service or the transaction does not exist.
    Unknown(String),
    /// A call of the transaction is in progress.
    Busy,
    /// The door has as many requests in progress as its bounds allow. The text names the bound.
    Full(String),
}

impl Fault {
    /// Returns the fault that says that this host has no service of this name.
    pub(super) fn unserved(name: &str) -> Fault {
        Fault::Unknown(format!("this host serves no service `{name}`"))
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
            Fault::NotJson => String::from("the request must have the header Content-Type: application/json"),
            Fault::Long => format!("the body is longer than {ITEM_BYTES_MAX} bytes"),
            Fault::Misdirected => String::from(
                "the request's Host header is no IP address, not `localhost`, and no name of this host: use \
                 the IP address of this host",
            ),
            Fault::Busy => String::from("another call of this transaction is under way"),
        };
        let (status, error) = match self {
            Fault::Call(error) => named(&error),
            Fault::Malformed(_) => (StatusCode::BAD_REQUEST, "malformed"),
            Fault::NotJson => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "malformed"),
            Fault::Long => (StatusCode::PAYLOAD_TOO_LARGE, "malformed"),
            Fault::Misdirected => (StatusCode::MISDIRECTED_REQUEST, "malformed"),
            Fault::Unknown(_) => (StatusCode::NOT_FOUND, "unknown"),
            Fault::Busy => (StatusCode::CONFLICT, "busy"),
            Fault::Full(_) => (StatusCode::TOO_MANY_REQUESTS, "busy"),
        };
        (status, written(&Words { error, why })).into_response()
    }
}

/// Returns the status and the name of an error of a call.
fn named(error: &Error) -> (StatusCode, &'static str) {
    match error {
        Error::MaybeApplied { .. } | Error::Expired { .. } => (StatusCode::GATEWAY_TIMEOUT, "maybe_applied"),
        Error::Rejected(_) => (StatusCode::CONFLICT, "rejected"),
        Error::Aborted { .. } => (StatusCode::CONFLICT, "aborted"),
        Error::Reused => (StatusCode::UNPROCESSABLE_ENTITY, "reused"),
        Error::Mismatch { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "mismatch"),
        // All other errors mean that the call was not sent.
        _ => (StatusCode::SERVICE_UNAVAILABLE, "not_sent"),
    }
}

pub(super) fn is_json(headers: &HeaderMap) -> Result<(), Fault> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    if kind == Some("application/json") { Ok(()) } else { Err(Fault::NotJson) }
}
