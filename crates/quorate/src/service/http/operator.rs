//! An operator's requests to a host: the state of its services, their replicas, and copies of their states.
//!
//! These requests wait for other processes, up to a minute. Each runs on a thread of its own, and a few may
//! run at a time.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    super::slot::HostShared,
    DoorShared,
    fault::{Fault, is_json},
    json::written,
};
use crate::{error::Error, service::replica_status::ReplicaStatus};

/// A service, in the form in which the door shows it.
#[derive(Serialize)]
struct Listed {
    name: String,
    /// The random number of the service's set.
    set: Option<String>,
    leader: Option<String>,
    serving: bool,
    replicas: Vec<String>,
    address: Option<String>,
    changes: u64,
    lives: u64,
    last_end: Option<String>,
    ended: Option<String>,
    /// Processes whose replica ended, and whose journals the host still keeps.
    kept: Vec<String>,
}

impl Listed {
    fn new(name: String, status: ReplicaStatus) -> Listed {
        Listed {
            name,
            set: status.set.map(|set| format!("{set:016x}")),
            leader: status.leader.map(|leader| leader.to_string()),
            serving: status.serving,
            replicas: status.replicas.into_iter().map(|(_, address)| address).collect(),
            address: status.address,
            changes: status.changes,
            lives: status.lives,
            last_end: status.last_end,
            ended: status.ended,
            kept: status.kept.into_iter().map(|process| process.to_string()).collect(),
        }
    }
}

pub(super) async fn services(State(shared): State<Arc<DoorShared>>) -> Result<Response, Fault> {
    let services = shared.host_shared()?.services().into_iter();
    Ok(written(&services.map(|(name, status)| Listed::new(name, status)).collect::<Vec<_>>()))
}

pub(super) async fn service(
    State(shared): State<Arc<DoorShared>>,
    Path(name): Path<String>,
) -> Result<Response, Fault> {
    listing(&*shared.host_shared()?, name)
}

fn listing(host_shared: &HostShared, name: String) -> Result<Response, Fault> {
    let slot = host_shared.slot(&name).ok_or_else(|| Fault::unserved(&name))?;
    Ok(written(&Listed::new(name, slot.replica_status())))
}

pub(super) async fn withdraw(
    State(shared): State<Arc<DoorShared>>,
    Path(name): Path<String>,
) -> Result<StatusCode, Fault> {
    let withdraw = move |host_shared: &HostShared| match host_shared.withdraw(&name) {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Fault::unserved(&name)),
    };
    shared.operate(withdraw).await
}

/// A change of a service's replicas.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicaChange {
    /// The address of the host that becomes a replica.
    new: String,
    /// The address of the replica to remove, if the new replica replaces one.
    old: Option<String>,
}

pub(super) async fn change_replicas(
    State(shared): State<Arc<DoorShared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Fault> {
    is_json(&headers)?;
    let ReplicaChange { new, old } =
        serde_json::from_slice(&body).map_err(|error| Fault::Malformed(error.to_string()))?;
    let change = move |host_shared: &HostShared| {
        if !host_shared.serves(&name) {
            return Err(Fault::unserved(&name));
        }
        host_shared.change(&name, old.as_deref(), &new)?;
        listing(host_shared, name)
    };
    shared.operate(change).await
}

pub(super) async fn export(
    State(shared): State<Arc<DoorShared>>,
    Path(name): Path<String>,
) -> Result<Response, Fault> {
    let full =
        || Fault::Full(format!("{EXPORTS_MAX} exports are under way at this host already: try again later"));
    let share = shared.exports.clone().try_acquire_owned().map_err(|_| full())?;
    let export = move |host_shared: &HostShared| {
        let slot = host_shared.slot(&name).ok_or_else(|| Fault::unserved(&name))?;
        Ok(Exported { bytes: slot.export()?.encode(), _share: share })
    };
    let exported = Bytes::from_owner(shared.operate(export).await?);
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], exported).into_response())
}

/// An export that its caller has not taken completely.
struct Exported {
    bytes: Bytes,
    _share: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Exported {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DoorShared {
    /// Runs work that waits for other processes. If the caller hangs up, the work goes on.
    async fn operate<T: Send + 'static>(
        &self,
        work: impl FnOnce(&HostShared) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let full = || {
            Fault::Full(format!(
                "{OPERATIONS_MAX} changes and exports are under way at this host already: try again later"
            ))
        };
        let permit = self.operations.clone().try_acquire_owned().map_err(|_| full())?;
        let host_shared = self.host_shared()?;
        let working = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&host_shared)
        });
        let panicked =
            |error| Error::MaybeApplied { id: None, why: format!("the operation panicked: {error}") };
        working.await.map_err(|error| Fault::Call(panicked(error)))?
    }
}

/// Upper bound of the changes and exports in progress at this door.
pub(super) const OPERATIONS_MAX: usize = 8;

/// Upper bound of the number of exports in this door's memory. Each export is a whole state.
pub(super) const EXPORTS_MAX: usize = 2;
