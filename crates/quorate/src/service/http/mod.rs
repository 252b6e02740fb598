//! A host's HTTP door: services for programs in any language.
//!
//! | request | answer |
//! |---|---|
//! | `GET /services` | the services of this host, and the present states of their replicas |
//! | `GET /services/NAME` | one of these services |
//! | `DELETE /services/NAME` | 204: not served here ([`Node::withdraw`](crate::Node::withdraw)) |
//! | `POST /services/NAME/replicas` | 200 and the service: `new` replaces `old`, if `old` is named |
//! | `GET /services/NAME/export` | 200 and the state, as a file's bytes ([`Export`](super::Export)) |
//! | `POST /services/NAME/call` | 200 and the reply |
//! | `POST /services/NAME/transactions` | 201, `{"transaction": ID}` and its address |
//! | `POST /services/NAME/transactions/ID/call` | 200 and the reply |
//! | `POST /services/NAME/transactions/ID/commit` | 200; a repeated commit finds the outcome of the first |
//! | `DELETE /services/NAME/transactions/ID` | 204: nothing of the transaction takes effect |
//!
//!
//! Requests and replies are the service's own types in JSON, as `serde` encodes them. The door is a client
//! like any other, in the host's program: it finds the leader, wherever that is (`calls`). An operator's
//! requests concern the replica of this host (`operator`).
//!
//! **`Idempotency-Key`.** A write with a key takes effect once, however often and at whichever host it is
//! sent, because the replicas remember the keys and the door does not ([`Stub::call_keyed`]). So if a host
//! dies, a program sends the request to another host with the same key.
//!
//! **Errors** have the form `{"error": NAME, "why": TEXT}`. They differ by the possible effect of the
//! request:
//!
//! | status | error | what happened |
//! |---|---|---|
//! | 400 | `malformed` | nothing: the body is no request of this service, or of this door |
//! | 404 | `unknown` | nothing: this host has no such service, or the door no such transaction |
//! | 409 | `rejected` | nothing: the service refuses it, or its replicas cannot be changed so |
//! | 409 | `aborted` | nothing of the transaction takes effect; begin it again |
//! | 409 | `busy` | nothing: a call of this transaction is under way |
//! | 413, 415 | `malformed` | nothing: the body is longer than 4 MiB, or is not said to be JSON |
//! | 421 | `malformed` | nothing: another `Host` ([`is_own_host`](crate::web::is_own_host)) |
//! | 422 | `reused` | nothing: the key was used for another request |
//! | 429 | `busy` | nothing: too many transactions, calls, bodies, changes or exports |
//! | 500 | `mismatch` | it took effect; the reply is no JSON, or longer than 16 MiB as JSON |
//! | 503 | `not_sent` | nothing: send it again |
//! | 504 | `maybe_applied` | the request takes effect once or not at all: repeat it with its key |
//!
//!
//! After `maybe_applied`, an operator repeats a change of the replicas unchanged, without a key.
//!
//! **Callers that hang up.** The handler's work is dropped, unless the caller may have to ask for its
//! outcome: a commit and an operator's request go on. A call that was sent goes on at the replicas. A
//! transaction whose caller hung up during a call is aborted: that caller does not know the reply, and would
//! repeat the call.
//!
//! | request sent again | effect |
//! |---|---|
//! | call | it is a second call; the caller only knows `maybe_applied` of the first |
//! | call with a key | it has the reply of the first |
//! | begin | it begins another transaction; the first transaction ends after 60 s |
//! | call in a transaction | 409 `aborted`, as for the commit, unless nothing of the dropped call was sent |
//! | commit | it waits for the first, and has its outcome |
//! | abort | 404: the first abort took effect |
//!
//!
//! The bounds of the data that a door holds for callers are in `bounds`.
//!
//! **Bodies are from outside.** A request must declare its body as `application/json`, which no web page of
//! another origin can send without permission; nor can it send a `DELETE`. The request that begins a
//! transaction must have this declaration, too, although it has no body. Bodies are bounded, and a body that
//! does not decode is refused before anything is sent.

mod access;
pub(super) mod admit;
pub(super) mod bounds;
mod calls;
mod fault;
mod json;
mod operator;
mod shared;
mod transaction_slot;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, RwLock},
    thread::{self, JoinHandle},
    time::Duration,
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware,
    routing::{delete, get, post},
};
use quorate_protocol::service::ClientSettings;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, oneshot},
};
use tracing::warn;

use self::{
    access::ServiceAccess,
    bounds::{Bounds, DoorLimits},
};
use super::{Service, slot::HostShared, stub};
use crate::{
    error::Error,
    web::{Connection, Connections, host_of},
};

use shared::DoorShared;

/// An open door. Dropping it closes it.
pub(super) struct Door {
    shared: Arc<DoorShared>,
    address: SocketAddr,
    /// The sender whose drop stops the server.
    stop: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<()>>,
}

impl Door {
    /// Opens a door that listens at `address` and calls the services of the hosts at `hosts`. Requests may
    /// also address the door by the name in `address`, and by the name at which other processes reach the
    /// host.
    pub(super) fn open(
        address: &str,
        (insecure, limits): (bool, DoorLimits),
        (host_shared, hosts, domain): (&Arc<HostShared>, Vec<String>, &str),
    ) -> Result<Door, Error> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::start(format!("the HTTP door cannot listen on {address}: {error}"))
        };
        let listener = std::net::TcpListener::bind(address).map_err(|error| failed(&error))?;
        listener.set_nonblocking(true).map_err(Error::start)?;
        let bound = listener.local_addr().map_err(Error::start)?;
        if !insecure && !bound.ip().is_loopback() {
            return Err(failed(
                &"only loopback addresses are allowed, unless the node is set to be insecure",
            ));
        }
        let names = [address, host_shared.address.as_str()].map(|own| host_of(own).to_owned());
        let names = names.into_iter().filter(|name| !name.is_empty()).collect();
        let connections = limits.connections.clone();
        let wait = ClientSettings::default().wait;
        let connection = stub::Connection::start(domain, hosts, wait)?;
        let shared = Arc::new(DoorShared {
            host_shared: Arc::downgrade(host_shared),
            connection,
            services: RwLock::default(),
            transactions: Mutex::default(),
            operations: Arc::new(Semaphore::new(operator::OPERATIONS_MAX)),
            exports: Arc::new(Semaphore::new(operator::EXPORTS_MAX)),
            bounds: Bounds::new(limits),
            names,
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::start)?;
        let (stop, stopped) = oneshot::channel();
        let routes = routes(shared.clone()).into_make_service_with_connect_info::<Connection>();
        let serve = async move {
            let listener = Connections::new(TcpListener::from_std(listener)?, connections);
            let (ending, ends) = oneshot::channel();
            let serving = axum::serve(listener, routes).with_graceful_shutdown(async move {
                let _ = stopped.await;
                let _ = ending.send(());
            });
            let last_answers = async move {
                let _ = ends.await;
                tokio::time::sleep(LAST_ANSWERS_MAX).await;
            };
            tokio::select! {
                served = serving => served,
                () = last_answers => Ok(()),
            }
        };
        let serve = move || {
            if let Err(error) = runtime.block_on(serve) {
                warn!(%error, "the HTTP door of services has failed, and is closed");
            }
            // Requests that are still in progress get no answer.
            runtime.shutdown_background();
        };
        let server = thread::Builder::new().name(String::from("http")).spawn(serve).map_err(Error::start)?;
        Ok(Door { shared, address: bound, stop: Some(stop), server: Some(server) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes a service of the host callable through the door.
    pub(super) fn admit<S: Service>(&self, name: &str) {
        let access: Arc<dyn ServiceAccess> = Arc::new(self.shared.connection.service::<S>(name));
        let mut services = self.shared.services.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        services.insert(name.to_owned(), access);
    }
}

/// Longest time that the door stays open for the answers to requests in progress when the host ends. One of
/// these answers may be the answer to the withdrawal that ended the host.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(2);

impl Drop for Door {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(server) = self.server.take() {
            // If the thread has panicked, it has printed its panic.
            let _ = server.join();
        }
    }
}

fn routes(shared: Arc<DoorShared>) -> Router {
    Router::new()
        .route("/services", get(operator::services))
        .route("/services/{name}", get(operator::service).delete(operator::withdraw))
        .route("/services/{name}/replicas", post(operator::change_replicas))
        .route("/services/{name}/export", get(operator::export))
        .route("/services/{name}/call", post(calls::call))
        .route("/services/{name}/transactions", post(calls::begin))
        .route("/services/{name}/transactions/{id}/call", post(calls::call_in_transaction))
        .route("/services/{name}/transactions/{id}/commit", post(calls::commit))
        .route("/services/{name}/transactions/{id}", delete(calls::abort))
        .layer(middleware::from_fn_with_state(shared.clone(), admit::admit))
        .layer(DefaultBodyLimit::disable())
        .with_state(shared)
}
