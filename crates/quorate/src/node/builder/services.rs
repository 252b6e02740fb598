//! The settings of a node's services.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use super::Builder;
use crate::{address::advertised, node::directory::DirectoryLock};

impl Builder {
    /// Sets the addresses of hosts of services, `host:port`. The node's own address may be among them.
    pub fn seeds<A: Into<String>>(mut self, addresses: impl IntoIterator<Item = A>) -> Self {
        self.options.services.seeds = addresses.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the name of the domain of the node's services. Nodes of different domains share no services.
    /// Nodes that set no name share a default domain.
    pub fn services(mut self, domain: impl Into<String>) -> Self {
        self.options.services.services = domain.into();
        self
    }

    /// Sets the time after which a call of a service reports its fate, as far as the fate is known; the
    /// default is 10 s. The time includes the search for the service: if the search finds no process that
    /// serves it, the call ends after this time as not sent.
    pub fn call_wait(mut self, wait: Duration) -> Self {
        self.options.services.call_wait = wait;
        self
    }

    /// Sets the size of the agreed changes that a replica of a service keeps for replicas that lag, in bytes;
    /// the default is 64 MiB. A replica that lacks older changes gets a checkpoint.
    pub fn log_bytes_kept(mut self, bytes: usize) -> Self {
        self.options.services.log_bytes_kept = bytes;
        self
    }

    /// Makes the node's leaders, as a host of services, execute a write only when the replicas have agreed on
    /// the previous write, as 003 (§VI.A.2) does. Without this setting, a leader executes a write at once, on
    /// the state that includes writes without agreement. The setting makes services slower, and serves only
    /// comparisons.
    pub fn one_at_a_time(mut self) -> Self {
        self.options.services.one_at_a_time = true;
        self
    }

    /// Sets the upper bound of a service's state, in bytes as `serde` and `postcard` encode it; the default
    /// is 1 GiB. As a host of services, the node refuses a change that would exceed the bound, and the call
    /// is [`Rejected`](crate::Error::Rejected). The leader decides, so the hosts of a set should have the
    /// same bound.
    pub fn state_bytes_max(mut self, bytes: usize) -> Self {
        self.options.services.state_bytes_max = bytes;
        self
    }

    /// Makes a host of services check its services, for tests. The leader applies each change, reverts it,
    /// applies it again from its bytes, and compares the states byte by byte. If
    /// [`revert`](crate::service::Service::revert) is wrong, or a delta decodes to a different delta, the
    /// replica refuses the request with that reason, and ends. The state is serialised four times for each
    /// change. Equal states must have equal bytes: a state with hash maps does not.
    pub fn check_services(mut self) -> Self {
        self.options.services.checks = true;
        self
    }

    /// Makes a host of services also listen at this address for calls over HTTP: `POST /services/NAME/call`
    /// with a request in JSON, and with an `Idempotency-Key` if a repeated call must take effect only once;
    /// `…/transactions`; `GET /services`. See `docs/services.md`.
    pub fn http(mut self, address: impl Into<String>) -> Self {
        self.options.services.http = Some(address.into());
        self
    }

    /// Returns the directory for the logs of the node's service replicas, and the node's number in it. `None`
    /// keeps the logs in memory.
    pub(in crate::node) fn hosts_directory(
        &self,
        directory_lock: Option<&DirectoryLock>,
    ) -> Option<(PathBuf, u64)> {
        let is_host = self.durable && self.role.is_none();
        is_host
            .then_some(self.directory.clone()?)
            .zip(directory_lock.map(|directory_lock| directory_lock.node))
    }

    /// Returns the advertised form of the node's own address.
    pub(in crate::node) fn advertised(&self, address: SocketAddr) -> String {
        advertised(self.advertise.as_deref(), address)
    }
}
