//! Health, status and metrics of one process over HTTP.
//!
//! `/health` answers 200 when the process can do its work and 503, with the reason, when it can not; `/status` is one JSON
//! object, `/tables` a list of what its tables take, `/groups` one of the process groups that a router knows of, `/recent` the operations of a cell's
//! clients that ended lately; `/metrics` is in Prometheus' text format. `POST /operate` has it do what only an operator decides; it wants
//! JSON, which no web page of another origin can send without asking. A further member in the same process has the same below a
//! name of its own.

use std::{future::Future, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::net::TcpListener;

/// What a process shows. Called on the server's threads; may wait a little.
pub trait Exhibit: Send + Sync + 'static {
    /// Whether it can do its work; otherwise, why not.
    fn health(&self) -> Result<(), String>;
    /// Where it stands: one JSON object.
    fn status(&self) -> String;
    /// Its metrics, in Prometheus' text format.
    fn metrics(&self) -> String;
    /// What its tables take: a list in JSON; empty where it holds none.
    fn tables(&self) -> String {
        String::from("[]")
    }
    /// The process groups of its domain: a list in JSON; empty where it knows of none.
    fn groups(&self) -> String {
        String::from("[]")
    }
    /// The operations of its clients that ended lately: an object in JSON; none where it records none.
    fn recent(&self) -> Option<String> {
        None
    }
    /// Does what this JSON asks; answers with its status afterwards, or says why it did not come about.
    fn operate(&self, operation: &str) -> Result<String, String>;
}

/// Serves until `stop` is ready: what the process shows, and what each of these shows below its name.
pub async fn serve(
    listener: TcpListener,
    exhibit: Arc<dyn Exhibit>,
    further: Vec<(&'static str, Arc<dyn Exhibit>)>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let nest = |all: Router, (name, exhibit)| all.nest(&format!("/{name}"), routes(exhibit));
    let all = further.into_iter().fold(routes(exhibit), nest);
    axum::serve(listener, all).with_graceful_shutdown(stop).await
}

fn routes(exhibit: Arc<dyn Exhibit>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/status", get(status))
        .route("/metrics", get(metrics))
        .route("/tables", get(tables))
        .route("/groups", get(groups))
        .route("/recent", get(recent))
        .route("/operate", post(operate))
        .with_state(exhibit)
}

/// Runs what may wait for the protocol thread off the server's own threads.
async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Response> {
    let failed = |_| StatusCode::INTERNAL_SERVER_ERROR.into_response();
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

async fn health(State(exhibit): State<Arc<dyn Exhibit>>) -> Response {
    match off_thread(move || exhibit.health()).await {
        Ok(Ok(())) => "ok\n".into_response(),
        Ok(Err(why)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
        Err(response) => response,
    }
}

async fn status(State(exhibit): State<Arc<dyn Exhibit>>) -> Response {
    match off_thread(move || exhibit.status()).await {
        Ok(status) => ([(header::CONTENT_TYPE, "application/json")], status).into_response(),
        Err(response) => response,
    }
}

async fn tables(State(exhibit): State<Arc<dyn Exhibit>>) -> Response {
    match off_thread(move || exhibit.tables()).await {
        Ok(tables) => ([(header::CONTENT_TYPE, "application/json")], tables).into_response(),
        Err(response) => response,
    }
}

async fn groups(State(exhibit): State<Arc<dyn Exhibit>>) -> Response {
    match off_thread(move || exhibit.groups()).await {
        Ok(groups) => ([(header::CONTENT_TYPE, "application/json")], groups).into_response(),
        Err(response) => response,
    }
}

async fn recent(State(exhibit): State<Arc<dyn Exhibit>>) -> Response {
    match off_thread(move || exhibit.recent()).await {
        Ok(Some(recent)) => ([(header::CONTENT_TYPE, "application/json")], recent).into_response(),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(response) => response,
    }
}

async fn metrics(State(exhibit): State<Arc<dyn Exhibit>>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match off_thread(move || exhibit.metrics()).await {
        Ok(metrics) => ([(header::CONTENT_TYPE, kind)], metrics).into_response(),
        Err(response) => response,
    }
}

async fn operate(State(exhibit): State<Arc<dyn Exhibit>>, headers: HeaderMap, operation: String) -> Response {
    if headers.get(header::CONTENT_TYPE).is_none_or(|kind| kind != "application/json") {
        return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response();
    }
    match off_thread(move || exhibit.operate(&operation)).await {
        Ok(Ok(status)) => ([(header::CONTENT_TYPE, "application/json")], status).into_response(),
        Ok(Err(why)) => (StatusCode::CONFLICT, why).into_response(),
        Err(response) => response,
    }
}
