//! The services of a node: its host, and its client.

use std::sync::{Arc, Mutex};

use crate::{
    lock::lock,
    service::{host::Host, stub::Connection},
};

/// The node's process with replicas, and its client of services; each exists from its first use on.
#[derive(Default)]
pub(in crate::node) struct Hosting {
    pub(in crate::node) host: Mutex<Option<Arc<Host>>>,
    pub(in crate::node) calls: Mutex<Option<Connection>>,
}

impl Hosting {
    /// Ends the replicas, as if they had been killed.
    pub(super) fn end(&self) {
        drop(lock(&self.host).take());
    }
}
