//! A host's HTTP door: services for programs in any language.
//!
//! | request | answer |
//! |---|---|
//! | `GET /services` | the services of this host, and how their replicas stand |
//! | `GET /services/NAME` | one of them |
//! | `DELETE /services/NAME` | 204: this host serves it no longer ([`Node::withdraw`](crate::Node::withdraw)) |
//! | `POST /services/NAME/replicas` | 200 and the service: the host at `new` is a replica, and the one at `old`, if that is named, is none |
//! | `GET /services/NAME/export` | 200 and a copy of the state, in the bytes of a file ([`Export`](super::Export)) |
//! | `POST /services/NAME/call` | 200 and the reply |
//! | `POST /services/NAME/transactions` | 201, `{"transaction": ID}` and where it is |
//! | `POST /services/NAME/transactions/ID/call` | 200 and the reply |
//! | `POST /services/NAME/transactions/ID/commit` | 200; sent again it finds out |
//! | `DELETE /services/NAME/transactions/ID` | 204: nothing of it takes effect |
//!
//! Requests and replies are the service's own types in JSON, as `serde` writes them. The door is a client like any other, in the
//! host's program: it finds the leader, wherever that is (`calls`). What an operator asks concerns the replica of this host (`operator`).
//!
//! **`Idempotency-Key`.** A write that bears one takes effect once, whichever host is asked and however often: the replicas remember keys, not the door
//! ([`Stub::call_keyed`]). So a program whose host dies asks another one under the same key.
//!
//! **Errors** are `{"error": NAME, "why": TEXT}`, by what may have happened:
//!
//! | status | error | what happened |
//! |---|---|---|
//! | 400 | `malformed` | nothing: the body is no request of this service, or of this door |
//! | 404 | `unknown` | nothing: this host has no such service, or the door no such transaction |
//! | 409 | `rejected` | nothing: the service refuses it, or its replicas cannot be changed so |
//! | 409 | `aborted` | nothing of the transaction takes effect; begin it again |
//! | 409 | `busy` | nothing: a call of this transaction is under way |
//! | 413, 415 | | nothing: the body is longer than 4 MiB, or is not said to be JSON |
//! | 422 | `reused` | nothing: the key was used for another request |
//! | 429 | `busy` | nothing: too many transactions are open here, or too many changes and exports under way |
//! | 500 | `mismatch` | it took effect, and the reply cannot be written as JSON |
//! | 503 | `not_sent` | nothing: send it again |
//! | 504 | `maybe_applied` | it took effect once, or will, or not at all: under its key, ask again. A change of the replicas is asked for again as it is |
//!
//! **Bodies are from outside.** They have to be said to be `application/json`, which no web page of another origin can send without asking; nor
//! can it send a `DELETE`. They are bounded, and what does not decode is refused before anything is sent.

mod calls;
mod fault;
mod operator;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, RwLock, Weak},
    thread::{self, JoinHandle},
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use quorate_protocol::service::ClientSettings;
use serde::Serialize;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, oneshot},
};
use tracing::warn;

use self::{
    calls::{Gate, Held},
    fault::Fault,
};
use super::{Service, press::ITEM_BYTES_MAX, stub::Connection, tenant::House};
use crate::error::Error;

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
    /// A permit for each thing that an operator may have under way.
    operations: Arc<Semaphore>,
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
            operations: Arc::new(Semaphore::new(operator::OPERATIONS_MAX)),
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
            // Nobody hears any more what comes of what is under way.
            runtime.shutdown_background();
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

fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/services", get(operator::services))
        .route("/services/{name}", get(operator::service).delete(operator::withdraw))
        .route("/services/{name}/replicas", post(operator::change_replicas))
        .route("/services/{name}/export", get(operator::export))
        .route("/services/{name}/call", post(calls::call))
        .route("/services/{name}/transactions", post(calls::begin))
        .route("/services/{name}/transactions/{id}/call", post(calls::deal))
        .route("/services/{name}/transactions/{id}/commit", post(calls::commit))
        .route("/services/{name}/transactions/{id}", delete(calls::abort))
        .layer(DefaultBodyLimit::max(ITEM_BYTES_MAX))
        .with_state(shared)
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
    fn house(&self) -> Result<Arc<House>, Fault> {
        self.house.upgrade().ok_or_else(|| Fault::Call(Error::wedged("the host has ended")))
    }

    fn gate(&self, name: &str) -> Result<Arc<dyn Gate>, Fault> {
        let gates = self.gates.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let gate = gates.get(name).filter(|_| self.house().is_ok_and(|house| house.serves(name)));
        gate.cloned().ok_or_else(|| Fault::unserved(name))
    }
}
