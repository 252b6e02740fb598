//! The endpoint of a service in this library.

use std::sync::{Arc, Mutex};

use quorate_protocol::{Peer, ProcessId};
use quorate_roles::services::{self, EndpointHost, Successor};

pub(super) use quorate_roles::services::{ReplicaOptions, Set, Terms, endpoint::Unrecovered};

use super::{gate::Latch, inline::Metered, replica_status::ReplicaStatus};
use crate::lock::lock;

pub(super) type ServiceEndpoint = services::ServiceEndpoint<LibraryHost>;
pub(super) type Command = services::endpoint::Command<LibraryHost>;
pub(super) type Event = services::endpoint::Event<LibraryHost>;
pub(super) type Inline = services::Inline<Metered>;

/// The host of endpoints in this library. It executes services on threads of their own or on the protocol
/// thread.
pub(super) enum LibraryHost {}

impl EndpointHost for LibraryHost {
    type Executor = Metered;
    type Latch = Latch;
    type Successor = SharedStatus;
}

/// The present status of a service's replica on this host. A redirect at the address of a former replica
/// reads the leader and the other replicas from it.
pub(super) struct SharedStatus(pub(super) Arc<Mutex<ReplicaStatus>>);

impl Successor for SharedStatus {
    fn replicas(&self) -> (Option<ProcessId>, Vec<Peer>) {
        let ReplicaStatus { leader, replicas, .. } = lock(&self.0).clone();
        (leader, replicas.into_iter().map(|(id, address)| Peer { id, address }).collect())
    }
}
