//! The state of a node: its endpoints by channel, over one set of links.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use slab::Slab;

use quorate_protocol::{Duration, Input, Policy, ProcessId, Protocol, Time, wire::Wire};

use crate::{
    channel::{Channel, EnvelopeContent, Tag},
    endpoint::{EndpointKind, Opaque, Payload},
    host::Counters,
    state::NodeState,
};

/// A process: its endpoints by channel. An endpoint may have the type `H`, which is known at compile time, or
/// any other type.
pub struct Node<H: Protocol = Opaque> {
    pub(super) slots: Slab<EndpointSlot<H>>,
    /// The slots of endpoints, by tag. The map is only looked up, never iterated, so its order does not
    /// matter.
    pub(super) directory: FxHashMap<Tag, usize>,
    /// The result of the last lookup in `directory`. Under load, successive envelopes are often for the same
    /// endpoint.
    pub(super) last_lookup: Option<(Tag, usize)>,
    /// Number of endpoints in each domain, by the domain's 32-bit fold.
    pub(super) domains: BTreeMap<u32, usize>,
    /// The times at which endpoints want to be called.
    pub(super) deadlines: BTreeSet<(Time, usize)>,
    /// The slots that have had an input since the last drain, in the order of their first inputs.
    pub(super) active: Vec<usize>,
    /// The shortest [`Protocol::gathering`] of the endpoints that were drained last.
    pub(super) gathering: Duration,
    pub(super) state: NodeState,
    pub(super) counters: Counters,
}

pub(super) struct EndpointSlot<H> {
    pub(super) channel: Channel,
    pub(super) endpoint: EndpointKind<H>,
    pub(super) policy: Arc<dyn Policy>,
    pub(super) vital: bool,
    pub(super) sessions: crate::state::SessionTable,
    pub(super) active: bool,
    /// The time of the slot's entry in `deadlines`.
    pub(super) deadline: Option<Time>,
}

/// An input for one endpoint.
pub(super) enum Inbound<H: Protocol> {
    Message { from: ProcessId, content: EnvelopeContent<H::Message> },
    Cast { from: ProcessId, content: EnvelopeContent<H::Message> },
    Typed(H::Command),
    Dynamic(Payload),
    Other(Input<Opaque>),
}

impl<H> Default for Node<H>
where
    H: Protocol,
    H::Message: Wire,
{
    fn default() -> Self {
        Node::new()
    }
}

/// The policy of a node's links: it shows the vital endpoint's pass, and admits every pass of another node.
#[derive(Debug)]
pub(super) struct NodePolicy(Bytes);

impl NodePolicy {
    pub(super) fn by(vital: &dyn Policy) -> Arc<dyn Policy> {
        Arc::new(NodePolicy(vital.pass()))
    }
}

impl Policy for NodePolicy {
    fn pass(&self) -> Bytes {
        self.0.clone()
    }

    fn admits(&self, _: &[u8]) -> bool {
        true
    }
}
