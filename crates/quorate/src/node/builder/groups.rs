//! The settings of a node's process groups.

use std::net::SocketAddr;

use quorate_protocol::Role;

use super::Builder;
use crate::{
    group::groups::GroupsSettings,
    node::{member::Member, options::groups::GroupOptions},
};

impl Builder {
    /// Sets the upper bound of the node's datagrams as a member of groups, in bytes, from 512 on; the default
    /// is 8,256. If a datagram is too long for a packet of the network, it travels in fragments. Such a
    /// datagram is lost if any of its fragments is lost, and always if the network blocks fragments. For an
    /// Ethernet, 1,408 bytes are a good bound.
    pub fn datagram_bytes(mut self, bytes: usize) -> Self {
        self.options.groups.datagram_bytes = bytes;
        self
    }

    /// Sets the upper bound of the number of updates that the node, as a member of groups, sends in one
    /// message. This setting serves comparisons: with many concurrent sends, a bound makes the node slower.
    pub fn pack(mut self, updates: u32) -> Self {
        self.options.groups.pack = updates.max(1);
        self
    }

    /// Returns the settings of the groups of a node at this address. `member` is the node's process in its
    /// role.
    pub(in crate::node) fn groups_settings(
        &self,
        address: SocketAddr,
        member: Option<&Member>,
    ) -> GroupsSettings {
        let router = member.filter(|member| member.role() == Role::Router);
        let own = router.map(|member| member.address().to_string());
        let (listen, advertise) = self.further_addresses(address);
        let GroupOptions { datagram_bytes, pack } = self.options.groups;
        GroupsSettings {
            routers: self.routers.iter().cloned().chain(own).collect(),
            domain: member.map(Member::domain).or(self.domain),
            listen,
            advertise,
            insecure: self.insecure,
            patience: self.patience,
            datagram_bytes,
            pack,
        }
    }
}
