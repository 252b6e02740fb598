//! The options of services.

use std::time::Duration;

use quorate_protocol::{paxos, service::ClientSettings};

use crate::{address, error::Error, service};

/// The options of a node as a host and as a client of services.
#[derive(Clone, Debug)]
pub(in crate::node) struct ServiceOptions {
    /// Addresses of hosts.
    pub(in crate::node) seeds: Vec<String>,
    /// Name of the domain of the node's services.
    pub(in crate::node) services: String,
    /// Time after which a call reports its fate.
    pub(in crate::node) call_wait: Duration,
    /// Upper bound of the agreed changes that a replica keeps for replicas that lag, in bytes.
    pub(in crate::node) log_bytes_kept: usize,
    /// Whether the host checks its services
    /// ([`Builder::check_services`](crate::node::Builder::check_services)).
    pub(in crate::node) checks: bool,
    /// Upper bound of a service's state, in bytes.
    pub(in crate::node) state_bytes_max: usize,
    /// Whether a leader executes a write only when the replicas have agreed on the previous write.
    pub(in crate::node) one_at_a_time: bool,
    /// The address at which the host listens for calls over HTTP.
    pub(in crate::node) http: Option<String>,
}

impl Default for ServiceOptions {
    fn default() -> ServiceOptions {
        ServiceOptions {
            seeds: Vec::new(),
            services: String::from(service::DOMAIN),
            call_wait: ClientSettings::default().wait,
            log_bytes_kept: paxos::Settings::default().log_bytes_kept,
            checks: false,
            state_bytes_max: service::STATE_BYTES_MAX,
            one_at_a_time: false,
            http: None,
        }
    }
}

impl ServiceOptions {
    pub(super) fn check(&self) -> Result<(), Error> {
        self.seeds.iter().try_for_each(|seed| address::check("a seed", seed))
    }
}
