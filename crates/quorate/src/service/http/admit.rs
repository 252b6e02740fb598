//! Admits requests to the HTTP door within the door's bounds.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{ConnectInfo, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::web::{Connection, is_own_host};

use super::{DoorShared, fault::Fault};

/// Handles each request before its own handler does: checks that the request names this door, and reads its
/// body.
pub(super) async fn admit(
    State(shared): State<Arc<DoorShared>>,
    ConnectInfo(connection): ConnectInfo<Connection>,
    request: Request,
    next: Next,
) -> Response {
    if !is_own_host(request.uri(), request.headers(), &shared.names) {
        return Fault::Misdirected.into_response();
    }
    let (head, body) = request.into_parts();
    let (body, _share) = match shared.bounds.body(body).await {
        Ok(body) => body,
        Err(fault) => return fault.into_response(),
    };
    let _answering = connection.answering();
    next.run(Request::from_parts(head, Body::from(body))).await
}
