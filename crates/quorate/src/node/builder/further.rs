//! The addresses of a node's further processes.

use std::net::SocketAddr;

use super::Builder;

impl Builder {
    /// Returns the addresses at which the node's further processes listen, and at which others reach them: at
    /// the same host, at ports that the system chooses.
    pub(in crate::node) fn further_addresses(&self, address: SocketAddr) -> (String, Option<String>) {
        let host = self.advertise.as_deref().and_then(|told| told.rsplit_once(':'));
        (SocketAddr::new(address.ip(), 0).to_string(), host.map(|(host, _)| format!("{host}:0")))
    }
}
