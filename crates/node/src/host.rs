//! The commands that a host gives a node, and the events that it gets.

use std::sync::Arc;

use bytes::Bytes;
use quorate_protocol::{Policy, ProcessId, Protocol, Ticket, wire::WireError};

use crate::{
    EndpointKind,
    channel::Channel,
    endpoint::{Endpoint, Opaque, Payload},
};

/// An endpoint to be added to a node.
pub struct NewEndpoint<H: Protocol = Opaque> {
    pub(crate) channel: Channel,
    pub(crate) endpoint: EndpointKind<H>,
    pub(crate) policy: Arc<dyn Policy>,
    pub(crate) vital: bool,
    pub(crate) recovered: Option<Ticket>,
}

impl<H: Protocol> NewEndpoint<H> {
    /// Wraps a protocol of the type that the node knows at compile time.
    pub fn typed(channel: Channel, protocol: H) -> Self {
        let policy = protocol.policy();
        NewEndpoint::new(channel, EndpointKind::Typed(Box::new(protocol)), policy)
    }

    /// Wraps a protocol of any type ([`Dynamic`](crate::Dynamic)).
    pub fn dynamic(channel: Channel, endpoint: impl Endpoint + 'static) -> Self {
        let policy = endpoint.policy();
        NewEndpoint::new(channel, EndpointKind::Dynamic(Box::new(endpoint)), policy)
    }

    fn new(channel: Channel, endpoint: EndpointKind<H>, policy: Arc<dyn Policy>) -> Self {
        NewEndpoint { channel, endpoint, policy, vital: false, recovered: None }
    }

    /// Marks the endpoint as vital: if it panics, the process ends.
    #[must_use]
    pub fn vital(self) -> Self {
        NewEndpoint { vital: true, ..self }
    }

    /// Marks the endpoint as restored from records, the earliest of which is `first`.
    #[must_use]
    pub fn recovered(self, first: Ticket) -> Self {
        NewEndpoint { recovered: Some(first), ..self }
    }
}

/// Commands from a host to a node. [`Command::Add`], [`Command::Remove`] and [`Command::Retire`] each lead to
/// exactly one event. A command for an endpoint leads to the endpoint's own events, or to
/// [`Event::Unserved`].
pub enum Command<H: Protocol = Opaque> {
    /// A command for a typed endpoint.
    Typed(Channel, H::Command),
    /// A command for a dynamic endpoint.
    Dynamic(Channel, Payload),
    /// Adds an endpoint. Leads to [`Event::Added`] or [`Event::Occupied`].
    Add(NewEndpoint<H>),
    /// Ends an endpoint and drops its records, or drops the records of an endpoint that has already ended.
    /// Leads to [`Event::Ended`].
    Remove(Channel),
    /// Ends an endpoint and keeps its records, so that it can be restored from them. Leads to
    /// [`Event::Ended`].
    Retire(Channel),
    /// Drops the records that an earlier endpoint of this channel left when it ended. An endpoint that is at
    /// the channel now must not have written records itself.
    Release(Channel),
}

/// Events of a node.
pub enum Event<H: Protocol = Opaque> {
    /// An event of a typed endpoint.
    Typed(Channel, H::Event),
    /// An event of a dynamic endpoint.
    Dynamic(Channel, Payload),
    /// The endpoint was added.
    Added(Channel),
    /// The endpoint was not added: its channel is occupied, or an endpoint with the same name belongs to a
    /// domain with the same 32-bit fold.
    Occupied(NewEndpoint<H>),
    /// The endpoint has ended.
    Ended(Channel, Ending),
    /// The command had no receiver: no endpoint is at its channel, or only an endpoint of the other kind
    /// (typed or dynamic).
    Unserved(Command<H>),
    /// A peer showed a pass that the endpoint's policy does not admit.
    PolicyMismatch {
        /// The endpoint.
        channel: Channel,
        /// The peer.
        peer: ProcessId,
        /// The endpoint's pass.
        ours: Bytes,
        /// The peer's pass.
        theirs: Bytes,
    },
    /// A peer sent an endpoint an undecodable message, so their session ended.
    Malformed {
        /// The endpoint.
        channel: Channel,
        /// The peer.
        peer: ProcessId,
        /// The decoding error.
        error: WireError,
    },
}

/// The reason why an endpoint ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The host removed the endpoint and its records.
    Removed,
    /// The host ended the endpoint, whose records are kept.
    Retired,
    /// The endpoint panicked with this message.
    Panicked(String),
}

/// Numbers of messages that a node has dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Envelopes for an endpoint that is not present.
    pub absent: u64,
    /// Envelopes of a domain that no endpoint belongs to.
    pub foreign: u64,
    /// Messages that came when their session had ended or had not begun.
    pub late: u64,
    /// Messages that did not decode.
    pub malformed: u64,
}
