//! What an operator asks of a host: how its services stand, which replicas they have, and copies of their states.
//!
//! These things wait for others, up to a minute, and are done on threads of their own, a few at a time.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};

use super::{
    super::{host::Standing, tenant::House},
    Shared,
    fault::Fault,
    is_json, written,
};
use crate::error::Error;

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

impl Listed {
    fn new(name: String, standing: Standing) -> Listed {
        Listed {
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
        }
    }
}

pub(super) async fn services(State(shared): State<Arc<Shared>>) -> Result<Response, Fault> {
    let services = shared.house()?.services().into_iter();
    Ok(written(&services.map(|(name, standing)| Listed::new(name, standing)).collect::<Vec<_>>()))
}

pub(super) async fn service(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
) -> Result<Response, Fault> {
    listing(&*shared.house()?, name)
}

fn listing(house: &House, name: String) -> Result<Response, Fault> {
    let tenant = house.tenant(&name).ok_or_else(|| Fault::unserved(&name))?;
    Ok(written(&Listed::new(name, tenant.standing())))
}

pub(super) async fn withdraw(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
) -> Result<StatusCode, Fault> {
    let withdraw = move |house: &House| match house.withdraw(&name) {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Fault::unserved(&name)),
    };
    shared.operate(withdraw).await
}

/// A change of a service's replicas.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    /// Where the host listens that becomes one.
    new: String,
    /// Where the one is that is none from then on.
    old: Option<String>,
}

pub(super) async fn change_replicas(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Fault> {
    is_json(&headers)?;
    let Wish { new, old } =
        serde_json::from_slice(&body).map_err(|error| Fault::Malformed(error.to_string()))?;
    let change = move |house: &House| {
        if !house.serves(&name) {
            return Err(Fault::unserved(&name));
        }
        house.change(&name, old.as_deref(), &new)?;
        listing(house, name)
    };
    shared.operate(change).await
}

pub(super) async fn export(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
) -> Result<Response, Fault> {
    let export = move |house: &House| {
        let tenant = house.tenant(&name).ok_or_else(|| Fault::unserved(&name))?;
        let bytes = tenant.export()?.encode();
        Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
    };
    shared.operate(export).await
}

impl Shared {
    /// Does something that waits for others.
    async fn operate<T: Send + 'static>(
        &self,
        work: impl FnOnce(&House) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let full = || Fault::Full(format!("{OPERATIONS_MAX} changes and exports are under way here"));
        let permit = self.operations.clone().try_acquire_owned().map_err(|_| full())?;
        let house = self.house()?;
        let working = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&house)
        });
        working.await.map_err(|error| Fault::Call(Error::not_sent(format!("it panicked: {error}"))))?
    }
}

/// Changes and exports under way at this door, beyond which none is begun.
pub(super) const OPERATIONS_MAX: usize = 8;
