//! Tests of nodes on links that are lossless and FIFO while they are up.

mod bytes;
mod chat;
mod node;
mod random;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use ::bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Context, Destination, DomainId, Duration, Incarnation, Input, Policy, ProcessId, Protocol, Session, Sink,
    Ticket, Time, wire::Wire,
};

use crate::{Channel, Command, EndpointId, Envelope, Event, JournalEntry, Node, Opaque};

pub(crate) const HERE: DomainId = DomainId(0x1111_2222_3333_4444_5555_6666_7777_8888);

pub(crate) fn channel(endpoint: u64) -> Channel {
    Channel { domain: HERE, endpoint: EndpointId(endpoint) }
}

pub(crate) fn id(node: usize) -> ProcessId {
    ProcessId { node: node as u64, incarnation: Incarnation(7) }
}

/// The outputs of a node that the test world has not handled yet.
pub(crate) struct Outputs<H: Protocol = Opaque> {
    pub(crate) sent: Vec<(Destination, Envelope<H::Message>)>,
    pub(crate) events: Vec<Event<H>>,
    pub(crate) wishes: Vec<(ProcessId, bool)>,
    pub(crate) entries: Vec<JournalEntry<H::Record>>,
    pub(crate) collected: Option<Ticket>,
    /// The policy that the node adopted last.
    pub(crate) shown: Option<Arc<dyn Policy>>,
}

impl<H: Protocol> Outputs<H> {
    fn new() -> Self {
        Outputs {
            sent: Vec::new(),
            events: Vec::new(),
            wishes: Vec::new(),
            entries: Vec::new(),
            collected: None,
            shown: None,
        }
    }
}

impl<H: Protocol<Message: Wire>> Sink<Node<H>> for Outputs<H> {
    fn send(&mut self, to: Destination, message: Envelope<H::Message>, _: Option<Ticket>) {
        self.sent.push((to, message));
    }

    fn persist(&mut self, record: JournalEntry<H::Record>) -> Ticket {
        self.entries.push(record);
        Ticket(self.entries.len() as u64)
    }

    fn collect(&mut self, before: Ticket, _: &[Ticket]) {
        self.collected = Some(before);
    }

    fn emit(&mut self, event: Event<H>) {
        self.events.push(event);
    }

    fn reach(&mut self, peer: ProcessId, _: &str) {
        self.wishes.push((peer, true));
    }

    fn forget(&mut self, peer: ProcessId) {
        self.wishes.push((peer, false));
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        self.shown = Some(policy);
    }
}

/// Several nodes, numbered from 0, and the links between them.
pub(crate) struct World<H: Protocol = Opaque> {
    pub(crate) nodes: Vec<Node<H>>,
    pub(crate) outputs: Vec<Outputs<H>>,
    pub(crate) now: Time,
    /// The links that nodes want, as pairs of the wanting node and the peer.
    pub(crate) wanted: BTreeSet<(usize, usize)>,
    /// The links that are up, each with the smaller node first.
    pub(crate) links: BTreeSet<(usize, usize)>,
    /// Encoded messages under way, by sender and receiver.
    pub(crate) queues: BTreeMap<(usize, usize), VecDeque<Bytes>>,
    sessions: u64,
}

impl<H: Protocol<Message: Wire>> World<H> {
    pub(crate) fn new(count: usize) -> World<H> {
        World {
            nodes: (0..count).map(|_| Node::new()).collect(),
            outputs: (0..count).map(|_| Outputs::new()).collect(),
            now: Time::ZERO,
            wanted: BTreeSet::new(),
            links: BTreeSet::new(),
            queues: BTreeMap::new(),
            sessions: 0,
        }
    }

    /// Passes one input to a node and ends the batch.
    pub(crate) fn give(&mut self, node: usize, input: Input<Node<H>>) {
        self.hand(node, input);
        self.hand(node, Input::Drained);
    }

    /// Passes one input to a node.
    pub(crate) fn hand(&mut self, node: usize, input: Input<Node<H>>) {
        let mut random = || 4;
        let mut cx = Context { now: self.now, me: id(node), random: &mut random };
        let out = &mut self.outputs[node];
        self.nodes[node].handle(&mut cx, input, out);
        for (to, envelope) in std::mem::take(&mut out.sent) {
            let mut bytes = BytesMut::new();
            envelope.encode(&mut bytes);
            let bytes = bytes.freeze();
            let to = match to {
                Destination::One(to) => vec![to],
                Destination::Many(many) => many,
            };
            for peer in to.into_iter().map(|to| to.node as usize) {
                if peer == node || self.are_linked(node, peer) {
                    self.queues.entry((node, peer)).or_default().push_back(bytes.clone());
                }
            }
        }
        for (peer, wanted) in std::mem::take(&mut self.outputs[node].wishes) {
            let peer = peer.node as usize;
            if wanted {
                self.wanted.insert((node, peer));
            } else {
                self.wanted.remove(&(node, peer));
                self.unlink(node, peer);
            }
        }
    }

    pub(crate) fn command(&mut self, node: usize, command: Command<H>) {
        self.give(node, Input::Command(command));
    }

    pub(crate) fn are_linked(&self, one: usize, other: usize) -> bool {
        self.links.contains(&(one.min(other), one.max(other)))
    }

    pub(crate) fn link(&mut self, one: usize, other: usize) {
        if self.links.insert((one.min(other), one.max(other))) {
            self.sessions += 1;
            let session = Session(self.sessions);
            self.give(one, Input::Linked { peer: id(other), session });
            self.give(other, Input::Linked { peer: id(one), session });
        }
    }

    pub(crate) fn unlink(&mut self, one: usize, other: usize) {
        if self.links.remove(&(one.min(other), one.max(other))) {
            self.queues.remove(&(one, other));
            self.queues.remove(&(other, one));
            self.give(one, Input::Unlinked { peer: id(other) });
            self.give(other, Input::Unlinked { peer: id(one) });
        }
    }

    /// Delivers the oldest message under way from one node to another. Returns whether there was one.
    pub(crate) fn deliver(&mut self, from: usize, to: usize) -> bool {
        let Some(bytes) = self.queues.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return false;
        };
        self.receive(from, to, bytes);
        true
    }

    pub(crate) fn receive(&mut self, from: usize, to: usize, mut bytes: Bytes) {
        let message = Envelope::decode(&mut bytes).expect("nodes write what they read");
        assert!(bytes.is_empty());
        self.give(to, Input::Receive { from: id(from), message });
    }

    /// Makes the wanted links, and advances time until nothing has happened for ten seconds.
    pub(crate) fn settle(&mut self) {
        let end = self.now + Duration::from_secs(10);
        while self.now < end {
            for (one, other) in self.wanted.clone() {
                self.link(one, other);
            }
            while let Some((&(from, to), _)) = self.queues.iter().find(|(_, queue)| !queue.is_empty()) {
                self.deliver(from, to);
            }
            for node in 0..self.nodes.len() {
                if self.nodes[node].deadline().is_some_and(|deadline| deadline <= self.now) {
                    self.give(node, Input::Deadline);
                }
            }
            self.now = self.now + Duration::from_millis(50);
        }
    }

    pub(crate) fn take_events(&mut self, node: usize) -> Vec<Event<H>> {
        std::mem::take(&mut self.outputs[node].events)
    }
}
