//! The outputs of a machine's protocol in one turn, which the world then carries out.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use quorate_protocol::{
    Destination, MulticastAddress, Policy, ProcessId, Protocol, Sink, Ticket, wire::Wire,
};

/// The outputs of one batch.
pub(crate) struct Outbox<P: Protocol> {
    pub(crate) sends: Vec<Outgoing>,
    pub(crate) casts: Vec<(ProcessId, Bytes)>,
    pub(crate) multicasts: Vec<(MulticastAddress, Bytes)>,
    /// Addresses with `true` if the process starts to listen to the address, and `false` if it stops.
    pub(crate) listens: Vec<(MulticastAddress, bool)>,
    pub(crate) wishes: Vec<(ProcessId, LinkRequest)>,
    pub(crate) events: Vec<P::Event>,
    /// Adopted policies, each with the number of events emitted before it.
    pub(crate) adopted: Vec<(usize, Arc<dyn Policy>)>,
    pub(crate) scratch: BytesMut,
    pub(crate) bytes: usize,
    /// Length of the longest message sent, in bytes.
    pub(crate) longest: usize,
    /// Length of the longest cast sent, in bytes.
    pub(crate) longest_cast: usize,
    pub(crate) tickets: u64,
    /// Encoded records; `None` if neither a disk nor the environment needs them.
    pub(crate) records: Option<Vec<Bytes>>,
    /// The first record from which on the process needs all records, and earlier records that it needs in
    /// addition.
    pub(crate) collected: Option<(Ticket, Vec<Ticket>)>,
}

/// The order in which a message leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The message leaves after earlier messages to the same peer, and after this record is durable.
    Ordered(Option<Ticket>),
    /// The message leaves at once. It may overtake earlier messages that still wait.
    Aside,
}

pub(crate) enum Outgoing {
    Message(Destination, Bytes, Lane),
    /// A session with this peer began or ended. Messages before this mark do not belong to the next session.
    Barrier(ProcessId),
}

pub(crate) enum LinkRequest {
    Reach(String),
    Forget,
}

impl<P: Protocol> Outbox<P> {
    pub(crate) fn new(tickets: u64, disk: bool) -> Self {
        Outbox {
            sends: Vec::new(),
            casts: Vec::new(),
            multicasts: Vec::new(),
            listens: Vec::new(),
            wishes: Vec::new(),
            events: Vec::new(),
            adopted: Vec::new(),
            scratch: BytesMut::new(),
            bytes: 0,
            longest: 0,
            longest_cast: 0,
            tickets,
            records: disk.then(Vec::new),
            collected: None,
        }
    }

    pub(super) fn put(&mut self, to: Destination, message: &P::Message, lane: Lane)
    where
        P::Message: Wire,
    {
        let bytes = self.encode(message);
        self.longest = self.longest.max(bytes.len());
        self.sends.push(Outgoing::Message(to, bytes, lane));
    }

    pub(super) fn encode(&mut self, message: &P::Message) -> Bytes
    where
        P::Message: Wire,
    {
        message.encode(&mut self.scratch);
        let bytes = self.scratch.split().freeze();
        self.bytes += bytes.len();
        bytes
    }

    /// Marks the beginning or the end of a session with this peer. Messages before this mark do not belong to
    /// the next session.
    pub(crate) fn mark_session_boundary(&mut self, peer: ProcessId) {
        self.sends.push(Outgoing::Barrier(peer));
        self.casts.retain(|(to, _)| *to != peer);
    }
}

impl<P: Protocol> Sink<P> for Outbox<P>
where
    P::Message: Wire,
{
    fn send(&mut self, to: Destination, message: P::Message, after: Option<Ticket>) {
        assert!(
            after.is_none_or(|after| after.0 <= self.tickets),
            "a message waits only for records that are written"
        );
        self.put(to, &message, Lane::Ordered(after));
    }

    fn send_aside(&mut self, to: Destination, message: P::Message) {
        self.put(to, &message, Lane::Aside);
    }

    fn cast(&mut self, to: Destination, message: P::Message) {
        let bytes = self.encode(&message);
        self.longest_cast = self.longest_cast.max(bytes.len());
        match to {
            Destination::One(to) => self.casts.push((to, bytes)),
            Destination::Many(all) => self.casts.extend(all.into_iter().map(|to| (to, bytes.clone()))),
        }
    }

    fn multicast(&mut self, address: MulticastAddress, _: Vec<ProcessId>, message: P::Message) {
        let bytes = self.encode(&message);
        self.longest_cast = self.longest_cast.max(bytes.len());
        self.multicasts.push((address, bytes));
    }

    fn listen(&mut self, address: MulticastAddress) {
        self.listens.push((address, true));
    }

    fn ignore(&mut self, address: MulticastAddress) {
        self.listens.push((address, false));
    }

    fn persist(&mut self, record: P::Record) -> Ticket {
        if let Some(records) = &mut self.records {
            record.encode(&mut self.scratch);
            records.push(self.scratch.split().freeze());
        }
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        self.collected = Some((before, kept.to_vec()));
    }

    fn emit(&mut self, event: P::Event) {
        self.events.push(event);
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.wishes.push((peer, LinkRequest::Reach(address.to_owned())));
    }

    fn forget(&mut self, peer: ProcessId) {
        self.wishes.push((peer, LinkRequest::Forget));
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        self.adopted.push((self.events.len(), policy));
    }
}
