//! Commands and events between a host and a node.

use std::sync::Arc;

use bytes::Bytes;
use quorate_protocol::{Policy, ProcessId, Protocol, Ticket, wire::WireError};

use crate::{
    Occupant,
    channel::Channel,
    endpoint::{Endpoint, Opaque, Parcel},
};

/// An endpoint that comes to a node.
pub struct Newcomer<H: Protocol = Opaque> {
    pub(crate) channel: Channel,
    pub(crate) occupant: Occupant<H>,
    pub(crate) policy: Arc<dyn Policy>,
    pub(crate) vital: bool,
    pub(crate) recovered: Option<Ticket>,
}

impl<H: Protocol> Newcomer<H> {
    /// A protocol of the type that the node knows.
    pub fn home(channel: Channel, protocol: H) -> Self {
        let policy = protocol.policy();
        Newcomer::new(channel, Occupant::Home(Box::new(protocol)), policy)
    }

    /// A protocol of any type ([`Guest`](crate::Guest)).
    pub fn guest(channel: Channel, endpoint: impl Endpoint + 'static) -> Self {
        let policy = endpoint.policy();
        Newcomer::new(channel, Occupant::Guest(Box::new(endpoint)), policy)
    }

    fn new(channel: Channel, occupant: Occupant<H>, policy: Arc<dyn Policy>) -> Self {
        Newcomer { channel, occupant, policy, vital: false, recovered: None }
    }

    /// The process does not go on without it.
    #[must_use]
    pub fn vital(self) -> Self {
        Newcomer { vital: true, ..self }
    }

    /// It was made again from records, of which this is the first.
    #[must_use]
    pub fn recovered(self, first: Ticket) -> Self {
        Newcomer { recovered: Some(first), ..self }
    }
}

/// What a host asks of a node. Each of the last two ends in one event; the others as the endpoint's own commands do, or in
/// [`Event::Unserved`].
pub enum Command<H: Protocol = Opaque> {
    /// For a home endpoint.
    Home(Channel, H::Command),
    /// For a guest.
    Guest(Channel, Parcel),
    /// Takes an endpoint in. Ends in [`Event::Added`] or [`Event::Occupied`].
    Add(Newcomer<H>),
    /// Ends an endpoint, or drops the records of one that has ended. Ends in [`Event::Ended`].
    Remove(Channel),
}

/// Events of a node.
pub enum Event<H: Protocol = Opaque> {
    /// From a home endpoint.
    Home(Channel, H::Event),
    /// From a guest.
    Guest(Channel, Parcel),
    /// An endpoint is here.
    Added(Channel),
    /// Another one is there already, or one whose domain has the same fold.
    Occupied(Newcomer<H>),
    /// An endpoint is here no more.
    Ended(Channel, Ending),
    /// Nobody is there to take this command, or one of the other kind.
    Unserved(Command<H>),
    /// A peer shows a pass that the endpoint's policy does not admit.
    Stranger {
        /// The endpoint.
        channel: Channel,
        /// The peer's process.
        peer: ProcessId,
        /// What the endpoint shows.
        ours: Bytes,
        /// What the peer shows.
        theirs: Bytes,
    },
    /// A peer sent an endpoint what is no message; their session ended.
    Malformed {
        /// The endpoint.
        channel: Channel,
        /// The peer's process.
        peer: ProcessId,
        /// The fault.
        error: WireError,
    },
}

/// Why an endpoint is here no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The host removed it.
    Removed,
    /// It panicked, saying this.
    Panicked(String),
}

/// Counts of what a node has dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Letters for an endpoint that is not here.
    pub absent: u64,
    /// Letters of a domain that no endpoint here belongs to.
    pub foreign: u64,
    /// Messages without a session.
    pub late: u64,
    /// Messages that did not decode.
    pub malformed: u64,
}
