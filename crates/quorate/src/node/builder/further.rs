//! The addresses of a node's further processes.

use std::net::SocketAddr;

use super::Builder;
use crate::address::further_addresses;

impl Builder {
    /// Returns the addresses at which the node's further processes listen, and at which other processes reach
    /// them: at the same host, at ports that the system chooses.
    pub(in crate::node) fn further_addresses(&self, address: SocketAddr) -> (String, Option<String>) {
        further_addresses(self.advertise.as_deref(), address)
    }
}
