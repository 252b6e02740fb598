//! Builds HTTP answers with a JSON body.

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse, Response},
};
use serde::Serialize;

/// Returns an answer that the door makes itself, as JSON.
pub(super) fn written(value: &impl Serialize) -> Response {
    json(serde_json::to_vec(value).expect("strings, numbers and lists are JSON"))
}

pub(super) fn json(bytes: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], bytes.into()).into_response()
}
