//! Calls of a host's services, and transactions that were begun at the host's door.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use quorate_runtime::chance::Chance;

use super::{
    DoorShared,
    fault::{Fault, is_json},
    json::written,
    transaction_slot::{TransactionSlot, TransactionStage, unknown},
};
use crate::{error::Error, lock::lock};

pub(super) async fn call(
    State(shared): State<Arc<DoorShared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Fault> {
    let access = shared.access(&name)?;
    is_json(&headers)?;
    let key = match headers.get("idempotency-key").map(|key| key.to_str()) {
        None => None,
        Some(Ok(key)) if (1..=KEY_BYTES_MAX).contains(&key.len()) => Some(key),
        Some(_) => {
            let why = format!("an Idempotency-Key has 1 to {KEY_BYTES_MAX} visible characters");
            return Err(Fault::Malformed(why));
        }
    };
    let _turn = shared.bounds.turn().await?;
    let reply = access.call(&body, key).await?;
    shared.bounds.answer(&*access, reply).await
}

pub(super) async fn begin(
    State(shared): State<Arc<DoorShared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let access = shared.access(&name)?;
    is_json(&headers)?;
    let mut chance = Chance::new();
    let id = format!("{:016x}{:016x}", chance.bits(), chance.bits());
    let stage = Arc::new(tokio::sync::Mutex::new(TransactionStage::Open(access.begin())));
    let (used, commits) = (Mutex::new(Instant::now()), AtomicBool::new(false));
    let slot = TransactionSlot { service: name.clone(), used, stage, commits };
    {
        let mut transactions = lock(&shared.transactions);
        transactions.retain(|_, slot| lock(&slot.used).elapsed() < HELD_MAX);
        if transactions.len() >= TRANSACTIONS_MAX {
            return Err(Fault::Full(format!(
                "{TRANSACTIONS_MAX} transactions are open at this host already: try again later"
            )));
        }
        transactions.insert(id.clone(), Arc::new(slot));
    }
    let place = format!("/services/{name}/transactions/{id}");
    let begun = BTreeMap::from([("transaction", id)]);
    Ok((StatusCode::CREATED, [(header::LOCATION, place)], written(&begun)).into_response())
}

/// Calls a service in a transaction. If the caller hangs up, the server drops this future. Then
/// [`Transaction::call`](crate::service::Transaction::call) aborts the transaction at its next call or
/// commit, because the caller does not know the reply and might repeat the call.
pub(super) async fn call_in_transaction(
    State(shared): State<Arc<DoorShared>>,
    Path((name, id)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Fault> {
    is_json(&headers)?;
    let (access, slot) = (shared.access(&name)?, shared.slot(&name, &id)?);
    let mut stage = slot.stage.try_lock().map_err(|_| Fault::Busy)?;
    let _turn = shared.bounds.turn().await?;
    let TransactionStage::Open(transaction) = &mut *stage else { return Err(stage.closed()) };
    let reply = match transaction.call(&body).await {
        Ok(reply) => reply,
        Err(fault) => {
            if matches!(fault, Fault::Call(Error::Aborted { .. })) {
                *stage = TransactionStage::Aborted;
            }
            return Err(fault);
        }
    };
    match shared.bounds.answer(&*access, reply).await {
        // The call was executed, and its caller never gets the reply.
        Err(Fault::Call(Error::MaybeApplied { why, .. })) => {
            *stage = TransactionStage::Aborted;
            Err(Fault::Call(Error::Aborted { why }))
        }
        answer => answer,
    }
}

/// Commits a transaction. Once the commit was sent, its outcome must not be lost if the caller hangs up. So
/// the commit goes on in a task of the door, and the caller's next attempt finds the outcome.
pub(super) async fn commit(
    State(shared): State<Arc<DoorShared>>,
    Path((name, id)): Path<(String, String)>,
) -> Result<Response, Fault> {
    let (access, slot) = (shared.access(&name)?, shared.slot(&name, &id)?);
    let mut stage = match slot.stage.clone().try_lock_owned() {
        Ok(stage) => stage,
        Err(_) if slot.commits.load(Ordering::Relaxed) => slot.stage.clone().lock_owned().await,
        Err(_) => return Err(Fault::Busy),
    };
    let committing = tokio::spawn(async move {
        slot.commits.store(true, Ordering::Relaxed);
        let outcome = stage.commit(&*access).await;
        slot.commits.store(false, Ordering::Relaxed);
        outcome
    });
    let panicked = |_| Fault::Call(unknown("the HTTP door failed during the commit: send the commit again"));
    committing.await.map_err(panicked)??;
    Ok(written(&BTreeMap::from([("committed", true)])))
}

pub(super) async fn abort(
    State(shared): State<Arc<DoorShared>>,
    Path((name, id)): Path<(String, String)>,
) -> Result<StatusCode, Fault> {
    let slot = shared.slot(&name, &id)?;
    let stage = match slot.stage.try_lock() {
        Ok(stage) => Some(stage),
        Err(_) if slot.commits.load(Ordering::Relaxed) => Some(slot.stage.lock().await),
        // A call is in progress, and the transaction ends with it.
        Err(_) => None,
    };
    match stage.as_deref() {
        None | Some(TransactionStage::Open(_) | TransactionStage::Aborted) => {
            lock(&shared.transactions).remove(&id);
            Ok(StatusCode::NO_CONTENT)
        }
        Some(closed @ (TransactionStage::Unknown(_) | TransactionStage::Committed)) => Err(closed.closed()),
    }
}

impl DoorShared {
    fn slot(&self, name: &str, id: &str) -> Result<Arc<TransactionSlot>, Fault> {
        let slot = lock(&self.transactions).get(id).filter(|slot| slot.service == name).cloned();
        let slot = slot.ok_or_else(|| {
            Fault::Unknown(format!("the service `{name}` has no transaction {id} at this host"))
        })?;
        *lock(&slot.used) = Instant::now();
        Ok(slot)
    }
}

/// Upper bound of the number of transactions that were begun at this door.
const TRANSACTIONS_MAX: usize = 1024;

/// Time for which the door remembers a transaction after its last use.
const HELD_MAX: Duration = Duration::from_secs(60);

/// Upper bound of a key, in bytes.
const KEY_BYTES_MAX: usize = 255;
