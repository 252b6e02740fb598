//! State that all requests of the HTTP door share.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, RwLock, Weak},
};

use tokio::sync::Semaphore;

use crate::{
    error::Error,
    service::{slot::HostShared, stub},
};

use super::{access::ServiceAccess, bounds::Bounds, fault::Fault, transaction_slot::TransactionSlot};

pub(super) struct DoorShared {
    /// The host's replicas, which the door does not keep alive.
    pub(super) host_shared: Weak<HostShared>,
    pub(super) connection: stub::Connection,
    pub(super) services: RwLock<BTreeMap<String, Arc<dyn ServiceAccess>>>,
    pub(super) transactions: Mutex<BTreeMap<String, Arc<TransactionSlot>>>,
    /// Permits for an operator's requests in progress.
    pub(super) operations: Arc<Semaphore>,
    /// Permits for exports that are being made, or that their callers have not taken.
    pub(super) exports: Arc<Semaphore>,
    pub(super) bounds: Bounds,
    /// Names by which a request may address this door, apart from addresses and `localhost`.
    pub(super) names: Vec<String>,
}

impl DoorShared {
    pub(super) fn host_shared(&self) -> Result<Arc<HostShared>, Fault> {
        self.host_shared.upgrade().ok_or_else(|| Fault::Call(Error::wedged("the host has ended")))
    }

    pub(super) fn access(&self, name: &str) -> Result<Arc<dyn ServiceAccess>, Fault> {
        let services = self.services.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let access = services
            .get(name)
            .filter(|_| self.host_shared().is_ok_and(|host_shared| host_shared.serves(name)));
        access.cloned().ok_or_else(|| Fault::unserved(name))
    }
}
