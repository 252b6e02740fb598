//! The settings of a node's access to tables, and of its storage process.

use std::{net::SocketAddr, time::Duration};

use quorate_protocol::Role;

use super::Builder;
use crate::node::{member::Member, roles::storage::StorageOptions};

impl Builder {
    /// Sets the limits of the node's storage process.
    pub fn storage(mut self, options: StorageOptions) -> Self {
        self.options.tables.storage = options;
        self
    }

    /// Sets the time that a write waits for a majority of the routers; the default is 3 s. After this time,
    /// the write fails as not sent or as maybe applied.
    pub fn write_wait(mut self, wait: Duration) -> Self {
        self.options.tables.write_wait = wait;
        self
    }

    /// Returns the settings of a second process of this node, a client of the tables in addition to the
    /// process that has the node's role. The client has its own number and name, and no directory.
    pub(in crate::node) fn beside_role(mut self, member: &Member) -> Builder {
        if member.role() == Role::Router {
            self.routers.push(member.address().to_string());
        }
        self.name = self.name.map(|name| format!("{name}-{}", Role::Gateway));
        self.domain = Some(member.domain());
        (self.role, self.number, self.directory, self.found) = (None, None, None, false);
        self
    }

    /// Returns the settings with an address for a further process.
    pub(in crate::node) fn at_further_address(mut self, address: SocketAddr) -> Builder {
        (self.listen, self.advertise) = self.further_addresses(address);
        self
    }
}
