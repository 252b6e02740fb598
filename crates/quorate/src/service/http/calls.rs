//! Calls of the services of a host, and transactions that were begun at its door.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use quorate_runtime::chance::Chance;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    super::{CallId, Service, Stub, Transaction, process::lock},
    Shared,
    fault::Fault,
    is_json, json, written,
};
use crate::error::{Error, Name};

/// A service, whatever its types: JSON in, JSON out.
pub(super) trait Gate: Send + Sync {
    /// The request is decoded before this returns.
    fn call(&self, request: &[u8], key: Option<&str>) -> Later<'static>;
    fn begin(&self) -> Box<dyn Dealing>;
    fn committed(&self, commit: CallId) -> Later<'static>;
}

/// A transaction of it.
pub(super) trait Dealing: Send {
    fn call(&mut self, request: &[u8]) -> Later<'_>;
    fn commit(self: Box<Self>) -> Later<'static>;
}

/// What will come of a call.
pub(super) type Later<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, Fault>> + Send + 'a>>;

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
pub(super) struct Held {
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

pub(super) async fn call(
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

pub(super) async fn begin(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
) -> Result<Response, Fault> {
    let gate = shared.gate(&name)?;
    let mut chance = Chance::new();
    let id = format!("{:016x}{:016x}", chance.bits(), chance.bits());
    let stage = tokio::sync::Mutex::new(Stage::Open(gate.begin()));
    let held = Held { service: name.clone(), used: Mutex::new(Instant::now()), stage };
    {
        let mut transactions = lock(&shared.transactions);
        transactions.retain(|_, held| lock(&held.used).elapsed() < HELD_MAX);
        if transactions.len() >= TRANSACTIONS_MAX {
            return Err(Fault::Full(format!("{TRANSACTIONS_MAX} transactions are open here")));
        }
        transactions.insert(id.clone(), Arc::new(held));
    }
    let place = format!("/services/{name}/transactions/{id}");
    let begun = BTreeMap::from([("transaction", id)]);
    Ok((StatusCode::CREATED, [(header::LOCATION, place)], written(&begun)).into_response())
}

pub(super) async fn deal(
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

pub(super) async fn commit(
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

pub(super) async fn abort(
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

impl Shared {
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
