//! Health, status and metrics of one process over HTTP.
//!
//! | path | answer |
//! |---|---|
//! | `/` | a page with links to the paths below |
//! | `/health` | 200 if the process can do its work, otherwise 503 with the reason |
//! | `/status` | one JSON object |
//! | `/tables` | a JSON list: rows and bytes of each table that the process holds |
//! | `/groups` | a JSON list: the process groups that a router knows of |
//! | `/recent` | a JSON object: the latest operations of a cell's clients |
//! | `/metrics` | metrics in Prometheus' text format |
//! | `POST /operate` | carries out a decision of an operator, and answers with the status |
//!
//! The paths of another member in the same process begin with that member's name.
//!
//! **Browsers.** A web page of another origin can read nothing and change nothing here. A request that
//! changes something must be JSON, and a browser asks the server before a page may send JSON. A request is
//! refused if its `Host` is a name that anybody can register ([`is_own_host`]). So no page can make a browser
//! take this door for the page's own server.
//!
//! **Bounds.** [`Settings`] bounds connections and their times ([`Limits`]), the bytes of a request, and the
//! bytes of answers that clients have not received yet. An answer that does not fit is refused with 503.

mod page;
mod view;

use std::{convert::Infallible, future::Future, sync::Arc};

use axum::{
    Router,
    body::{self, Body, Bytes},
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::stream;
use quorate::web::{Connection, Connections, Limits, is_own_host};
use quorate_runtime::metrics::Metrics;
use tokio::{net::TcpListener, sync::Semaphore};

pub use self::view::{AdminPage, AdminView};

/// The bounds of an HTTP door.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Limits on the number of connections and on their times.
    pub limits: Limits,
    /// Largest body of a request, in bytes.
    pub request_bytes_max: usize,
    /// Upper bound of the answers that clients have not received yet, over all connections, in bytes.
    pub answers_bytes_max: usize,
    /// Host names that requests may use. Requests may also use the process's addresses, and names that nobody
    /// else can register.
    pub names: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            limits: Limits { connections_max: 128, ..Limits::default() },
            request_bytes_max: 64 << 10,
            answers_bytes_max: 64 << 20,
            names: Vec::new(),
        }
    }
}

/// The process whose views are shown, and the memory budget for its answers.
struct AdminEndpoint {
    admin_view: Arc<dyn AdminView>,
    /// The path under which this process is served. `other_members` has the names of the other members in the
    /// same process.
    path_prefix: String,
    other_members: Vec<&'static str>,
    budget: Arc<AnswerBudget>,
}

/// The memory budget for answers.
struct AnswerBudget {
    /// Memory that is free for answers, in kibibytes.
    free: Arc<Semaphore>,
    bytes_max: usize,
    /// Limits how many answers are made at the same time, because the size of an answer is unknown until it
    /// is made.
    answers_in_progress: Semaphore,
}

/// Maximum number of answers that are made at the same time.
const ANSWERS_IN_PROGRESS_MAX: usize = 4;

/// Serves requests until `stop` is ready: `admin_view` at the root, and each of `other_members` below its
/// name.
pub async fn serve(
    listener: TcpListener,
    settings: Settings,
    admin_view: Arc<dyn AdminView>,
    other_members: Vec<(&'static str, Arc<dyn AdminView>)>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let budget = Arc::new(AnswerBudget {
        free: Arc::new(Semaphore::new(settings.answers_bytes_max.div_ceil(KIB))),
        bytes_max: settings.answers_bytes_max,
        answers_in_progress: Semaphore::new(ANSWERS_IN_PROGRESS_MAX),
    });
    let admission = Admission { names: settings.names.into(), request_bytes_max: settings.request_bytes_max };
    let door = |admin_view, path_prefix: &str, other_members| {
        Arc::new(AdminEndpoint {
            admin_view,
            path_prefix: String::from(path_prefix),
            other_members,
            budget: budget.clone(),
        })
    };
    let others = other_members.iter().map(|(name, _)| *name).collect();
    let mut all = routes(door(admin_view, "", others));
    for (name, admin_view) in other_members {
        let path_prefix = format!("/{name}");
        all = all.nest(&path_prefix, routes(door(admin_view, &path_prefix, Vec::new())));
    }
    let all = all.layer(middleware::from_fn_with_state(admission, admit));
    let connections = Connections::new(listener, settings.limits);
    let service = all.into_make_service_with_connect_info::<Connection>();
    axum::serve(connections, service).with_graceful_shutdown(stop).await
}

fn routes(door: Arc<AdminEndpoint>) -> Router {
    Router::new()
        .route("/", get(home))
        .route("/health", get(health))
        .route("/status", get(status))
        .route("/metrics", get(metrics))
        .route("/tables", get(tables))
        .route("/groups", get(groups))
        .route("/recent", get(recent))
        .route("/operate", post(operate))
        .with_state(door)
}

/// The requirements that each request must meet.
#[derive(Clone)]
struct Admission {
    names: Arc<[String]>,
    request_bytes_max: usize,
}

/// Refuses a request for a foreign host name. Reads the body of any other request, and marks the connection
/// as waiting for an answer, so that the client may be silent meanwhile.
async fn admit(
    State(Admission { names, request_bytes_max }): State<Admission>,
    ConnectInfo(connection): ConnectInfo<Connection>,
    request: Request,
    next: Next,
) -> Response {
    if !is_own_host(request.uri(), request.headers(), &names) {
        let host = request.headers().get(header::HOST).map_or(&b""[..], |host| host.as_bytes());
        let why = format!(
            "this process does not serve requests for host {:?}: use an address of the process, or add the host name to http_names in the configuration of the process\n",
            String::from_utf8_lossy(host)
        );
        return (StatusCode::MISDIRECTED_REQUEST, why).into_response();
    }
    let (head, body) = request.into_parts();
    let Ok(body) = body::to_bytes(body, request_bytes_max).await else {
        let why = format!(
            "the body of the request is longer than {request_bytes_max} bytes, or the client did not send all of it: send at most {request_bytes_max} bytes\n"
        );
        return (StatusCode::PAYLOAD_TOO_LARGE, why).into_response();
    };
    let _answering = connection.answering();
    next.run(Request::from_parts(head, Body::from(body))).await
}

impl AdminEndpoint {
    /// Makes an answer, and sends the answer if there is memory for it. `make` runs on a blocking thread,
    /// because it may wait for the protocol thread.
    async fn answer(
        self: Arc<AdminEndpoint>,
        kind: &'static str,
        make: impl FnOnce(&dyn AdminView) -> Result<String, Box<Response>> + Send + 'static,
    ) -> Response {
        let budget = self.budget.clone();
        let making =
            budget.answers_in_progress.acquire().await.expect("the semaphore of answers is never closed");
        let door = self.clone();
        let made = tokio::task::spawn_blocking(move || make(&*door.admin_view)).await;
        let answer = match made {
            Ok(Ok(text)) => budget.sent(kind, text),
            Ok(Err(response)) => *response,
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        };
        drop(making);
        answer
    }
}

impl AnswerBudget {
    /// Returns a response that holds its share of the memory budget until it is sent, or 503 if the budget is
    /// used up.
    fn sent(&self, kind: &'static str, text: String) -> Response {
        let length = text.len();
        let permits = u32::try_from(length.div_ceil(KIB)).ok();
        let taken = permits.and_then(|permits| self.free.clone().try_acquire_many_owned(permits).ok());
        let Some(taken) = taken else {
            let why = format!(
                "the answer has {length} bytes, and this process holds at most {} bytes of answers that clients have not received yet: ask again later\n",
                self.bytes_max
            );
            return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
        };
        let pieces = stream::unfold((Bytes::from(text), taken), |(mut rest, taken)| async move {
            let piece = rest.split_to(rest.len().min(PIECE));
            (!piece.is_empty()).then_some((Ok::<_, Infallible>(piece), (rest, taken)))
        });
        let head = [(header::CONTENT_TYPE, kind.to_owned()), (header::CONTENT_LENGTH, length.to_string())];
        (head, Body::from_stream(pieces)).into_response()
    }
}

const KIB: usize = 1 << 10;

/// Bytes of an answer that the connection gets at a time.
const PIECE: usize = 16 << 10;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

async fn home(State(door): State<Arc<AdminEndpoint>>) -> Response {
    let (path_prefix, other_members) = (door.path_prefix.clone(), door.other_members.clone());
    door.answer(HTML, move |admin_view| Ok(page::page(admin_view, &path_prefix, &other_members))).await
}

async fn health(State(door): State<Arc<AdminEndpoint>>) -> Response {
    let unwell =
        |why: String| Box::new((StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response());
    door.answer(TEXT, move |admin_view| admin_view.health().map(|()| String::from("ok\n")).map_err(unwell))
        .await
}

async fn status(State(door): State<Arc<AdminEndpoint>>) -> Response {
    door.answer(JSON, |admin_view| Ok(admin_view.status())).await
}

async fn tables(State(door): State<Arc<AdminEndpoint>>) -> Response {
    door.answer(JSON, |admin_view| Ok(admin_view.tables())).await
}

async fn groups(State(door): State<Arc<AdminEndpoint>>) -> Response {
    door.answer(JSON, |admin_view| Ok(admin_view.groups())).await
}

async fn recent(State(door): State<Arc<AdminEndpoint>>) -> Response {
    let none = || Box::new(StatusCode::NOT_FOUND.into_response());
    door.answer(JSON, move |admin_view| admin_view.recent().ok_or_else(none)).await
}

async fn metrics(State(door): State<Arc<AdminEndpoint>>, headers: HeaderMap) -> Response {
    let kind = metrics_kind(&headers);
    door.answer(kind, |admin_view| Ok(admin_view.metrics())).await
}

/// Returns the media type of metrics: OpenMetrics, which Prometheus asks for. A client that accepts only
/// other text types gets plain text, because browsers show plain text but download a type that they do not
/// know.
fn metrics_kind(headers: &HeaderMap) -> &'static str {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let kinds = accepted
        .flat_map(|accept| accept.split(','))
        .map(|range| range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    let (mut named, mut text) = (false, false);
    for kind in kinds {
        named |= kind == "application/openmetrics-text";
        text |= matches!(kind.as_str(), "text/html" | "text/plain" | "text/*");
    }
    if text && !named { TEXT } else { Metrics::MEDIA_TYPE }
}

async fn operate(State(door): State<Arc<AdminEndpoint>>, headers: HeaderMap, operation: String) -> Response {
    if !is_json(&headers) {
        let why = "an operation must be JSON: send the request with Content-Type: application/json\n";
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, why).into_response();
    }
    // An operation takes no permit of `answers_in_progress`, so that other requests do not wait for it.
    let admin_view = door.admin_view.clone();
    match tokio::task::spawn_blocking(move || admin_view.operate(&operation)).await {
        Ok(Ok(status)) => door.budget.sent(JSON, status),
        Ok(Err(why)) => (StatusCode::CONFLICT, why).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Whether the body is declared as JSON. A browser sends no JSON for a web page of another origin without
/// asking the server first.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(JSON))
}
