//! A host's HTTP door: services for programs in any language.
//!
//! | request | answer |
//! |---|---|
//! | `GET /services` | the services of this host, and how their replicas stand |
//! | `POST /services/NAME/call` | 200 and the reply |
//! | `POST /services/NAME/transactions` | 201, `{"transaction": ID}` and where it is |
//! | `POST /services/NAME/transactions/ID/call` | 200 and the reply |
//! | `POST /services/NAME/transactions/ID/commit` | 200; sent again it finds out |
//! | `DELETE /services/NAME/transactions/ID` | 204: nothing of it takes effect |
//!
//! Requests and replies are the service's own types in JSON, as `serde` writes them. The door is a client like any other, in the
//! host's program: it finds the leader, wherever that is.
//!
//! **`Idempotency-Key`.** A write that bears one takes effect once, whichever host is asked and however often: the replicas remember keys, not the door
//! ([`Stub::call_keyed`]). So a program whose host dies asks another one under the same key.
//!
//! **Errors** are `{"error": NAME, "why": TEXT}`, by what may have happened:
//!
//! | status | error | what happened |
//! |---|---|---|
//! | 400 | `malformed` | nothing: the body is no request of this service |
//! | 404 | `unknown` | nothing: this host has no such service, or the door no such transaction |
//! | 409 | `rejected` | nothing: the service refuses it |
//! | 409 | `aborted` | nothing of the transaction takes effect; begin it again |
//! | 409 | `busy` | nothing: a call of this transaction is under way |
//! | 413, 415 | | nothing: the body is longer than 4 MiB, or is not said to be JSON |
//! | 422 | `reused` | nothing: the key was used for another request |
//! | 429 | `busy` | nothing: too many transactions are open here |
//! | 500 | `mismatch` | it took effect, and the reply cannot be written as JSON |
//! | 503 | `not_sent` | nothing: send it again |
//! | 504 | `maybe_applied` | it took effect once, or will, or not at all: under its key, ask again |
//!
//! **Bodies are from outside.** They have to be said to be `application/json`, which no web page of another origin can send without asking.
//! They are bounded, and what does not decode is refused before anything is sent.

use std::{
    collections::BTreeMap,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, RwLock, Weak},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use quorate_protocol::service::ClientSettings;
use quorate_runtime::chance::Chance;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::TcpListener, sync::oneshot};
use tracing::warn;

use super::{
    CallId, Service, Stub, Transaction, host::Standing, press::ITEM_BYTES_MAX, process::lock,
    stub::Connection, tenant::House,
};
use crate::error::{Error, Name};

/// A door that is open. Dropped, it closes.
pub(super) struct Door {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Dropped, it has the server stop.
    stop: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<()>>,
}

struct Shared {
    /// The host's replicas.
    house: Weak<House>,
    connection: Connection,
    gates: RwLock<BTreeMap<String, Arc<dyn Gate>>>,
    transactions: Mutex<BTreeMap<String, Arc<Held>>>,
}

impl Door {
    /// Listens at `address`, and calls the services of hosts at `hosts`.
    pub(super) fn open(
        address: &str,
        insecure: bool,
        (house, hosts, domain): (&Arc<House>, Vec<String>, &str),
    ) -> Result<Door, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::start(format!("{address}: {error}"));
        let listener = std::net::TcpListener::bind(address).map_err(|error| failed(&error))?;
        listener.set_nonblocking(true).map_err(Error::start)?;
        let bound = listener.local_addr().map_err(Error::start)?;
        if !insecure && !bound.ip().is_loopback() {
            return Err(failed(
                &"only loopback addresses may be listened at, unless it is said to be insecure",
            ));
        }
        let wait = ClientSettings::default().wait;
        let connection = Connection::start(domain, hosts, wait)?;
        let shared = Arc::new(Shared {
            house: Arc::downgrade(house),
            connection,
            gates: RwLock::default(),
            transactions: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::start)?;
        let (stop, stopped) = oneshot::channel();
        let routes = routes(shared.clone());
        let serve = async move {
            let listener = TcpListener::from_std(listener)?;
            tokio::select! {
                served = axum::serve(listener, routes) => served,
                _ = stopped => Ok(()),
            }
        };
        let serve = move || {
            if let Err(error) = runtime.block_on(serve) {
                warn!(%error, "the HTTP door of services is closed");
            }
        };
        let server = thread::Builder::new().name(String::from("http")).spawn(serve).map_err(Error::start)?;
        Ok(Door { shared, address: bound, stop: Some(stop), server: Some(server) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets a service of the host be called.
    pub(super) fn admit<S: Service>(&self, name: &str) {
        let gate: Arc<dyn Gate> = Arc::new(self.shared.connection.service::<S>(name));
        let mut gates = self.shared.gates.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        gates.insert(name.to_owned(), gate);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(server) = self.server.take() {
            // A panic has been printed by its own thread.
            let _ = server.join();
        }
    }
}

/// A service, whatever its types: JSON in, JSON out.
trait Gate: Send + Sync {
    /// The request is decoded before this returns.
    fn call(&self, request: &[u8], key: Option<&str>) -> Later<'static>;
    fn begin(&self) -> Box<dyn Dealing>;
    fn committed(&self, commit: CallId) -> Later<'static>;
}

/// A transaction of it.
trait Dealing: Send {
    fn call(&mut self, request: &[u8]) -> Later<'_>;
    fn commit(self: Box<Self>) -> Later<'static>;
}

/// What will come of a call.
type Later<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, Fault>> + Send + 'a>>;

impl<S: Service> Gate for Stub<S> {
    fn call(&self, request: &[u8], key: Option<&str>) -> Later<'static> {
        let pending = match decoded::<S::Request>(request) {
            Ok(request) => match key {
                Some(key) => self.call_keyed(key, &request),
                None => Stub::call(self, &request),
            },
            Err(fault) => return Box::pin(async { Err(fault) }),
        };
        Box::pin(async move { encoded(&pending.await?) })
    }

    fn begin(&self) -> Box<dyn Dealing> {
        Box::new(Stub::begin(self))
    }

    fn committed(&self, commit: CallId) -> Later<'static> {
        let pending = Stub::committed(self, commit);
        Box::pin(async move { Ok(pending.await.map(|()| Vec::new())?) })
    }
}

impl<S: Service> Dealing for Transaction<S> {
    fn call(&mut self, request: &[u8]) -> Later<'_> {
        match decoded::<S::Request>(request) {
            Ok(request) => {
                let pending = Transaction::call(self, &request);
                Box::pin(async move { encoded(&pending.await?) })
            }
            Err(fault) => Box::pin(async { Err(fault) }),
        }
    }

    fn commit(self: Box<Self>) -> Later<'static> {
        Box::pin(async move { Ok(Transaction::commit(*self).await.map(|()| Vec::new())?) })
    }
}

fn decoded<T: DeserializeOwned>(json: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(json).map_err(|error| Fault::Malformed(error.to_string()))
}

fn encoded(reply: &impl Serialize) -> Result<Vec<u8>, Fault> {
    serde_json::to_vec(reply).map_err(|error| Fault::Call(Error::mismatch("the reply", error)))
}

/// A transaction that was begun here.
struct Held {
    service: String,
    /// When it was used last.
    used: Mutex<Instant>,
    stage: tokio::sync::Mutex<Stage>,
}

enum Stage {
    Open(Box<dyn Dealing>),
    /// Its commit may have taken effect.
    Unknown(CallId),
    Committed,
    Over,
}

/// Why something came to nothing.
enum Fault {
    Call(Error),
    Malformed(String),
    NotJson,
    /// There is no such service, or no such transaction.
    Unknown(String),
    /// The transaction is being called.
    Busy,
    /// Too many transactions are open.
    Full,
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
            Fault::Malformed(why) | Fault::Unknown(why) => why.clone(),
            Fault::NotJson => String::from("the body has to be said to be application/json"),
            Fault::Busy => String::from("a call of this transaction is under way"),
            Fault::Full => format!("{TRANSACTIONS_MAX} transactions are open here"),
        };
        let (status, error) = match self {
            Fault::Call(error) => named(&error),
            Fault::Malformed(_) => (StatusCode::BAD_REQUEST, "malformed"),
            Fault::NotJson => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "malformed"),
            Fault::Unknown(_) => (StatusCode::NOT_FOUND, "unknown"),
            Fault::Busy => (StatusCode::CONFLICT, "busy"),
            Fault::Full => (StatusCode::TOO_MANY_REQUESTS, "busy"),
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
        // What is left is of calls that were not sent.
        _ => (StatusCode::SERVICE_UNAVAILABLE, "not_sent"),
    }
}

fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/services", get(services))
        .route("/services/{name}/call", post(call))
        .route("/services/{name}/transactions", post(begin))
        .route("/services/{name}/transactions/{id}/call", post(deal))
        .route("/services/{name}/transactions/{id}/commit", post(commit))
        .route("/services/{name}/transactions/{id}", delete(abort))
        .layer(DefaultBodyLimit::max(ITEM_BYTES_MAX))
        .with_state(shared)
}

/// A service, for those who look.
#[derive(Serialize)]
struct Listed {
    name: String,
    /// The random number of its set.
    set: Option<String>,
    leader: Option<String>,
    serving: bool,
    replicas: Vec<String>,
    address: Option<String>,
    changes: u64,
    lives: u64,
    last_end: Option<String>,
    ended: Option<String>,
}

async fn services(State(shared): State<Arc<Shared>>) -> Response {
    let Some(house) = shared.house.upgrade() else {
        return Fault::Call(Error::wedged("the host has ended")).into_response();
    };
    let listed = |(name, standing): (String, Standing)| Listed {
        name,
        set: standing.set.map(|set| format!("{set:016x}")),
        leader: standing.leader.map(|leader| leader.to_string()),
        serving: standing.serving,
        replicas: standing.replicas.into_iter().map(|(_, address)| address).collect(),
        address: standing.address,
        changes: standing.changes,
        lives: standing.lives,
        last_end: standing.last_end,
        ended: standing.ended,
    };
    written(&house.services().into_iter().map(listed).collect::<Vec<_>>())
}

async fn call(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Fault> {
    let gate = shared.gate(&name)?;
    is_json(&headers)?;
    let key = match headers.get("idempotency-key").map(|key| key.to_str()) {
        None => None,
        Some(Ok(key)) if (1..=KEY_BYTES_MAX).contains(&key.len()) => Some(key),
        Some(_) => {
            let why = format!("an Idempotency-Key is 1 to {KEY_BYTES_MAX} visible characters");
            return Err(Fault::Malformed(why));
        }
    };
    Ok(json(gate.call(&body, key).await?))
}

async fn begin(State(shared): State<Arc<Shared>>, Path(name): Path<String>) -> Result<Response, Fault> {
    let gate = shared.gate(&name)?;
    let mut chance = Chance::new();
    let id = format!("{:016x}{:016x}", chance.bits(), chance.bits());
    let stage = tokio::sync::Mutex::new(Stage::Open(gate.begin()));
    let held = Held { service: name.clone(), used: Mutex::new(Instant::now()), stage };
    {
        let mut transactions = lock(&shared.transactions);
        transactions.retain(|_, held| lock(&held.used).elapsed() < HELD_MAX);
        if transactions.len() >= TRANSACTIONS_MAX {
            return Err(Fault::Full);
        }
        transactions.insert(id.clone(), Arc::new(held));
    }
    let place = format!("/services/{name}/transactions/{id}");
    let begun = BTreeMap::from([("transaction", id)]);
    Ok((StatusCode::CREATED, [(header::LOCATION, place)], written(&begun)).into_response())
}

async fn deal(
    State(shared): State<Arc<Shared>>,
    Path((name, id)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Fault> {
    is_json(&headers)?;
    let held = shared.held(&name, &id)?;
    let mut stage = held.stage.try_lock().map_err(|_| Fault::Busy)?;
    let Stage::Open(dealing) = &mut *stage else { return Err(over()) };
    let outcome = dealing.call(&body).await;
    if matches!(outcome, Err(Fault::Call(Error::Aborted { .. }))) {
        *stage = Stage::Over;
    }
    Ok(json(outcome?))
}

async fn commit(
    State(shared): State<Arc<Shared>>,
    Path((name, id)): Path<(String, String)>,
) -> Result<Response, Fault> {
    let (gate, held) = (shared.gate(&name)?, shared.held(&name, &id)?);
    let mut stage = held.stage.try_lock().map_err(|_| Fault::Busy)?;
    // Should whoever asks go away meanwhile, nobody is told what became of it.
    let outcome = match std::mem::replace(&mut *stage, Stage::Over) {
        Stage::Open(dealing) => dealing.commit().await,
        Stage::Unknown(commit) => gate.committed(commit).await,
        Stage::Committed => Ok(Vec::new()),
        Stage::Over => return Err(over()),
    };
    match &outcome {
        Ok(_) => *stage = Stage::Committed,
        Err(Fault::Call(Error::MaybeApplied { id: Some(Name::Call(commit)), .. })) => {
            *stage = Stage::Unknown(*commit)
        }
        Err(_) => {}
    }
    outcome?;
    Ok(written(&BTreeMap::from([("committed", true)])))
}

async fn abort(
    State(shared): State<Arc<Shared>>,
    Path((name, id)): Path<(String, String)>,
) -> Result<StatusCode, Fault> {
    drop(shared.held(&name, &id)?);
    lock(&shared.transactions).remove(&id);
    Ok(StatusCode::NO_CONTENT)
}

fn over() -> Fault {
    Fault::Call(Error::Aborted { why: String::from("it was aborted before, or its commit was given up") })
}

fn is_json(headers: &HeaderMap) -> Result<(), Fault> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    if kind == Some("application/json") { Ok(()) } else { Err(Fault::NotJson) }
}

/// What the door itself has to say.
fn written(value: &impl Serialize) -> Response {
    json(serde_json::to_vec(value).expect("strings, numbers and lists are JSON"))
}

fn json(bytes: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], bytes).into_response()
}

impl Shared {
    fn gate(&self, name: &str) -> Result<Arc<dyn Gate>, Fault> {
        let gates = self.gates.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        gates.get(name).cloned().ok_or_else(|| Fault::Unknown(format!("this host serves no `{name}`")))
    }

    fn held(&self, name: &str, id: &str) -> Result<Arc<Held>, Fault> {
        let held = lock(&self.transactions).get(id).filter(|held| held.service == name).cloned();
        let held = held.ok_or_else(|| Fault::Unknown(format!("`{name}` has no transaction {id} here")))?;
        *lock(&held.used) = Instant::now();
        Ok(held)
    }
}

/// Transactions that were begun here, beyond which none is.
const TRANSACTIONS_MAX: usize = 1024;

/// For so long after its last use the end of a transaction is remembered.
const HELD_MAX: Duration = Duration::from_secs(60);

/// No key is longer.
const KEY_BYTES_MAX: usize = 255;
