//! The outputs of an endpoint. They become outputs of its node, and update the endpoint's sessions.

use std::sync::Arc;

use bytes::Bytes;
use quorate_protocol::{
    Destination, Duration, MulticastAddress, Policy, ProcessId, Protocol, Sink, Ticket, Time, wire::Wire,
};

use crate::{
    Event, Node, NodePolicy,
    channel::{Channel, Encoded, Envelope, EnvelopeContent, JournalEntry, RecordContent, Signal, Tag},
    endpoint::{Opaque, Payload},
    session::{self, ReceivedOpen, SessionState, SessionStep},
    state::{Link, NodeState, SessionEvent, SessionTable},
};

/// The outputs of one slot while its endpoint handles an input.
pub(crate) struct EndpointOutput<'a, H: Protocol<Message: Wire>> {
    pub(crate) key: usize,
    pub(crate) channel: Channel,
    /// Whether the process ends if this endpoint panics.
    pub(crate) vital: bool,
    pub(crate) sessions: &'a mut SessionTable,
    pub(crate) policy: &'a mut Arc<dyn Policy>,
    pub(crate) state: &'a mut NodeState,
    pub(crate) out: &'a mut dyn Sink<Node<H>>,
    pub(crate) me: ProcessId,
    pub(crate) now: Time,
}

impl<H> EndpointOutput<'_, H>
where
    H: Protocol,
    H::Message: Wire,
{
    /// Asks a peer for a session if the processes are linked, the endpoint wants a session with the peer, and
    /// there is none.
    pub(crate) fn request_session(&mut self, peer: ProcessId) {
        let Some(session_state) = self.sessions.get_mut(&peer) else { return };
        let is_linked = self.state.peers.get(&peer).is_some_and(|it| it.link == Link::Up);
        if session_state.wanted && session_state.is_idle() && is_linked {
            if let Some(retry_at) = session_state.retry_at.take() {
                self.state.retries.remove(&(retry_at, self.key, peer));
            }
            let number = self.state.draw();
            session_state.request(number);
            let pass = self.policy.pass();
            let request = Signal::Open { number, answers: 0, domain: self.channel.domain, pass };
            say(peer, self.channel.tag(), request, self.out);
        }
    }

    pub(crate) fn signal(&mut self, from: ProcessId, signal: Signal) {
        let steps = match signal {
            Signal::Open { number, answers, pass, .. } => self.receive_open(from, number, answers, pass),
            Signal::Bye { number } => match self.sessions.get_mut(&from) {
                Some(session_state) => session_state.left(number),
                None => return,
            },
            Signal::Refuse { number, pass } => {
                let Some(session_state) = self.sessions.get_mut(&from) else { return };
                let steps = session_state.refused(number);
                if !steps.is_empty() && !self.policy.admits(&pass) {
                    self.state.session_events.push_back((self.key, SessionEvent::PolicyMismatch(from, pass)));
                }
                steps
            }
        };
        for step in steps {
            self.take(from, step);
        }
        self.drop_idle_session(from);
    }

    fn receive_open(&mut self, from: ProcessId, number: u32, answers: u32, pass: Bytes) -> Vec<SessionStep> {
        // The peer is linked, because its signal arrived. The entry already exists, unless `Linked` was never
        // reported.
        self.state.peers.entry(from).or_default().slots.insert(self.key);
        let admitted = self.policy.admits(&pass);
        if !admitted {
            self.state.session_events.push_back((self.key, SessionEvent::PolicyMismatch(from, pass.clone())));
        }
        let (me, domain, ours) = (self.me, self.channel.domain, self.policy.pass());
        let state = &mut *self.state;
        self.sessions.entry(from).or_default().receive_open(
            ReceivedOpen { number, answers, pass, admitted, smaller: me < from },
            |mine, theirs| session::name(me, from, mine, theirs),
            || state.draw(),
            |mine| Signal::Open { number: mine, answers: number, domain, pass: ours.clone() },
            Signal::Refuse { number, pass: ours.clone() },
        )
    }

    fn take(&mut self, peer: ProcessId, step: SessionStep) {
        let Some(session_state) = self.sessions.get_mut(&peer) else { return };
        match step {
            SessionStep::Say(signal) => say(peer, self.channel.tag(), signal, self.out),
            SessionStep::Linked(session) => {
                (session_state.down_reported, session_state.failures) = (false, 0);
                if let Some(retry_at) = session_state.retry_at.take() {
                    self.state.retries.remove(&(retry_at, self.key, peer));
                }
                self.state.session_events.push_back((self.key, SessionEvent::Linked(peer, session)));
            }
            SessionStep::Unlinked => {
                session_state.down_reported = true;
                self.state.session_events.push_back((self.key, SessionEvent::Unlinked(peer)));
            }
            SessionStep::Failed if session_state.wanted => {
                if !std::mem::replace(&mut session_state.down_reported, true) {
                    self.state.session_events.push_back((self.key, SessionEvent::Unlinked(peer)));
                }
                let pause = RETRY_MIN * 2u32.saturating_pow(session_state.failures);
                session_state.failures += 1;
                let retry_at = self.now + pause.min(RETRY_MAX);
                if let Some(before) = session_state.retry_at.replace(retry_at) {
                    self.state.retries.remove(&(before, self.key, peer));
                }
                self.state.retries.insert((retry_at, self.key, peer));
            }
            SessionStep::Failed => {}
        }
    }

    /// Removes the state for a peer with which the endpoint neither has nor wants a session.
    fn drop_idle_session(&mut self, peer: ProcessId) {
        if let Some(session_state) = self.sessions.get(&peer)
            && session_state.is_idle()
            && !session_state.wanted
        {
            let session_state = self.sessions.remove(&peer).expect("the session was found a moment ago");
            self.state.remove(self.key, peer, &session_state, self.out);
        }
    }

    /// Ends the session with a peer. If the endpoint still wants a session, the node asks again after a
    /// pause.
    pub(crate) fn end(&mut self, peer: ProcessId) {
        let Some(session_state) = self.sessions.get_mut(&peer) else { return };
        if let Some(number) = session_state.leave() {
            say(peer, self.channel.tag(), Signal::Bye { number }, self.out);
            self.take(peer, SessionStep::Unlinked);
            self.take(peer, SessionStep::Failed);
            self.drop_idle_session(peer);
        }
    }

    /// Ends the session with a peer whose link broke or could not be made.
    pub(crate) fn unlinked(&mut self, peer: ProcessId) {
        let Some(session_state) = self.sessions.get_mut(&peer) else { return };
        let was_open = session_state.is_open();
        session_state.leave();
        session_state.failures = 0;
        if let Some(retry_at) = session_state.retry_at.take() {
            self.state.retries.remove(&(retry_at, self.key, peer));
        }
        if was_open || session_state.wanted && !session_state.down_reported {
            self.take(peer, SessionStep::Unlinked);
        }
        self.drop_idle_session(peer);
    }

    fn send(&mut self, to: Destination, content: EnvelopeContent<H::Message>, after: Option<Ticket>) {
        if let Some(to) = self.reachable(to) {
            self.out.send(to, Envelope { tag: self.channel.tag(), content }, after);
        }
    }

    fn send_aside(&mut self, to: Destination, content: EnvelopeContent<H::Message>) {
        if let Some(to) = self.reachable(to) {
            self.out.send_aside(to, Envelope { tag: self.channel.tag(), content });
        }
    }

    fn cast(&mut self, to: Destination, content: EnvelopeContent<H::Message>) {
        if let Some(to) = self.reachable(to) {
            self.out.cast(to, Envelope { tag: self.channel.tag(), content });
        }
    }

    fn multicast(
        &mut self,
        address: MulticastAddress,
        to: Vec<ProcessId>,
        content: EnvelopeContent<H::Message>,
    ) {
        if let Some(Destination::Many(to)) = self.reachable(Destination::Many(to)) {
            self.out.multicast(address, to, Envelope { tag: self.channel.tag(), content });
        }
    }

    fn listen(&mut self, address: MulticastAddress) {
        if self.state.listen(self.key, address) {
            self.out.listen(address);
        }
    }

    fn ignore(&mut self, address: MulticastAddress) {
        if self.state.ignore(self.key, address) {
            self.out.ignore(address);
        }
    }

    /// Removes the receivers that have no session with this endpoint. The process itself always stays.
    fn reachable(&self, to: Destination) -> Option<Destination> {
        let has_session =
            |peer: &ProcessId| *peer == self.me || self.sessions.get(peer).is_some_and(SessionState::is_open);
        match to {
            Destination::One(peer) => has_session(&peer).then_some(Destination::One(peer)),
            Destination::Many(mut peers) => {
                peers.retain(has_session);
                (!peers.is_empty()).then_some(Destination::Many(peers))
            }
        }
    }

    fn persist(&mut self, record: RecordContent<H::Record>) -> Ticket {
        let ticket = self.out.persist(JournalEntry { channel: self.channel, record });
        self.state.records.written(self.channel, self.key, ticket);
        ticket
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        if let Some((floor, kept)) = self.state.records.collect(self.channel, before, kept) {
            self.out.collect(floor, &kept);
        }
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        if peer == self.me {
            return;
        }
        let session_state = self.sessions.entry(peer).or_default();
        let it = self.state.peers.entry(peer).or_default();
        it.slots.insert(self.key);
        it.wanted += usize::from(!std::mem::replace(&mut session_state.wanted, true));
        it.reached = true;
        let link = it.link;
        self.out.reach(peer, address);
        match link {
            // The link layer reports a failed link only once, so the node repeats the report for this
            // endpoint.
            Link::Down if !session_state.down_reported => self.take(peer, SessionStep::Unlinked),
            Link::Up => self.request_session(peer),
            Link::Down | Link::Unknown => {}
        }
    }

    fn forget(&mut self, peer: ProcessId) {
        let Some(mut session_state) = self.sessions.remove(&peer) else { return };
        let was_open = session_state.is_open();
        if let Some(number) = session_state.leave() {
            say(peer, self.channel.tag(), Signal::Bye { number }, self.out);
        }
        if was_open {
            self.state.session_events.push_back((self.key, SessionEvent::Unlinked(peer)));
        }
        self.state.remove(self.key, peer, &session_state, self.out);
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        if self.vital {
            self.out.adopt(NodePolicy::by(&*policy));
        }
        *self.policy = policy;
        let policy = &*self.policy;
        let strangers = self
            .sessions
            .iter()
            .filter(|(_, session_state)| session_state.pass().is_some_and(|it| !policy.admits(it)));
        let strangers: Vec<ProcessId> = strangers.map(|(&peer, _)| peer).collect();
        for peer in strangers {
            self.end(peer);
        }
    }
}

/// The sink of a typed endpoint.
pub(crate) struct TypedSink<'d, 'a, H: Protocol<Message: Wire>>(pub(crate) &'d mut EndpointOutput<'a, H>);

impl<H> Sink<H> for TypedSink<'_, '_, H>
where
    H: Protocol,
    H::Message: Wire,
{
    fn send(&mut self, to: Destination, message: H::Message, after: Option<Ticket>) {
        self.0.send(to, EnvelopeContent::Typed(message), after);
    }

    fn send_aside(&mut self, to: Destination, message: H::Message) {
        self.0.send_aside(to, EnvelopeContent::Typed(message));
    }

    fn cast(&mut self, to: Destination, message: H::Message) {
        self.0.cast(to, EnvelopeContent::Typed(message));
    }

    fn multicast(&mut self, address: MulticastAddress, to: Vec<ProcessId>, message: H::Message) {
        self.0.multicast(address, to, EnvelopeContent::Typed(message));
    }

    fn listen(&mut self, address: MulticastAddress) {
        self.0.listen(address);
    }

    fn ignore(&mut self, address: MulticastAddress) {
        self.0.ignore(address);
    }

    fn persist(&mut self, record: H::Record) -> Ticket {
        self.0.persist(RecordContent::Typed(record))
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        self.0.collect(before, kept);
    }

    fn emit(&mut self, event: H::Event) {
        self.0.out.emit(Event::Typed(self.0.channel, event));
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.0.reach(peer, address);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.0.forget(peer);
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        self.0.adopt(policy);
    }
}

/// The sink of a dynamic endpoint.
pub(crate) struct DynamicSink<'d, 'a, H: Protocol<Message: Wire>>(pub(crate) &'d mut EndpointOutput<'a, H>);

impl<H> Sink<Opaque> for DynamicSink<'_, '_, H>
where
    H: Protocol,
    H::Message: Wire,
{
    fn send(&mut self, to: Destination, message: Encoded, after: Option<Ticket>) {
        self.0.send(to, EnvelopeContent::Encoded(message), after);
    }

    fn send_aside(&mut self, to: Destination, message: Encoded) {
        self.0.send_aside(to, EnvelopeContent::Encoded(message));
    }

    fn cast(&mut self, to: Destination, message: Encoded) {
        self.0.cast(to, EnvelopeContent::Encoded(message));
    }

    fn multicast(&mut self, address: MulticastAddress, to: Vec<ProcessId>, message: Encoded) {
        self.0.multicast(address, to, EnvelopeContent::Encoded(message));
    }

    fn listen(&mut self, address: MulticastAddress) {
        self.0.listen(address);
    }

    fn ignore(&mut self, address: MulticastAddress) {
        self.0.ignore(address);
    }

    fn persist(&mut self, record: Encoded) -> Ticket {
        self.0.persist(RecordContent::Encoded(record.into_bytes()))
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        self.0.collect(before, kept);
    }

    fn emit(&mut self, event: Payload) {
        self.0.out.emit(Event::Dynamic(self.0.channel, event));
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.0.reach(peer, address);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.0.forget(peer);
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        self.0.adopt(policy);
    }
}

/// The shortest pause before a failed request for a session is repeated. The pause doubles up to `RETRY_MAX`.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(50);

pub(super) const RETRY_MAX: Duration = Duration::from_secs(1);

impl NodeState {
    /// Records that the peer is linked. Returns the slots that have or want a session with the peer.
    pub(crate) fn linked(&mut self, peer: ProcessId) -> Vec<usize> {
        self.peers.entry(peer).or_default().link = Link::Up;
        self.with(peer)
    }

    /// Records that the peer is not linked. Returns the slots that have or want a session with the peer.
    pub(crate) fn unlinked(&mut self, peer: ProcessId) -> Vec<usize> {
        let Some(it) = self.peers.get_mut(&peer) else { return Vec::new() };
        it.link = Link::Down;
        self.with(peer)
    }

    /// Returns the slots that have or want a session with a peer.
    pub(crate) fn with(&self, peer: ProcessId) -> Vec<usize> {
        self.peers.get(&peer).map_or_else(Vec::new, |it| it.slots.iter().copied().collect())
    }

    pub(crate) fn retry_at(&self) -> Option<Time> {
        self.retries.first().map(|(time, ..)| *time)
    }

    pub(crate) fn take_retries(&mut self, now: Time) -> Vec<(usize, ProcessId)> {
        let mut due = Vec::new();
        while let Some(&(time, slot, peer)) = self.retries.first()
            && time <= now
        {
            self.retries.pop_first();
            due.push((slot, peer));
        }
        due
    }

    /// Ends all sessions of an endpoint that was removed.
    pub(crate) fn forget_waiting<P: Protocol>(
        &mut self,
        slot: usize,
        channel: Channel,
        sessions: SessionTable,
        out: &mut dyn Sink<Node<P>>,
    ) where
        P::Message: Wire,
    {
        self.session_events.retain(|(key, _)| *key != slot);
        self.records.forget_waiting(slot);
        let heard = self.multicast_listeners.iter().filter(|(_, key)| *key == slot);
        for address in heard.map(|(address, _)| *address).collect::<Vec<_>>() {
            if self.ignore(slot, address) {
                out.ignore(address);
            }
        }
        for (peer, mut session_state) in sessions {
            if let Some(number) = session_state.leave() {
                say(peer, channel.tag(), Signal::Bye { number }, out);
            }
            self.remove(slot, peer, &session_state, out);
        }
    }

    /// Forgets that a slot has or wants a session with a peer.
    pub(super) fn remove<P: Protocol>(
        &mut self,
        slot: usize,
        peer: ProcessId,
        session_state: &SessionState,
        out: &mut dyn Sink<Node<P>>,
    ) where
        P::Message: Wire,
    {
        if let Some(retry_at) = session_state.retry_at {
            self.retries.remove(&(retry_at, slot, peer));
        }
        if let Some(it) = self.peers.get_mut(&peer) {
            it.slots.remove(&slot);
            it.wanted -= usize::from(session_state.wanted);
        }
        self.drop_unused_link(peer, out);
    }

    /// Gives up the link to a peer with which no slot has or wants a session.
    pub(crate) fn drop_unused_link<P: Protocol>(&mut self, peer: ProcessId, out: &mut dyn Sink<Node<P>>)
    where
        P::Message: Wire,
    {
        let Some(it) = self.peers.get_mut(&peer).filter(|it| it.slots.is_empty()) else { return };
        assert_eq!(it.wanted, 0, "a slot that has reached for a peer has a session state for it");
        if std::mem::take(&mut it.reached) {
            out.forget(peer);
        }
        if it.link != Link::Up {
            self.peers.remove(&peer);
        }
    }

    /// Records that a slot listens to an address. Returns whether it is the first slot to do so.
    pub(super) fn listen(&mut self, slot: usize, address: MulticastAddress) -> bool {
        let is_first = !self.is_heard(address);
        self.multicast_listeners.insert((address, slot));
        is_first
    }

    /// Records that a slot stops listening to an address. Returns whether no slot listens to that address
    /// now.
    pub(super) fn ignore(&mut self, slot: usize, address: MulticastAddress) -> bool {
        self.multicast_listeners.remove(&(address, slot)) && !self.is_heard(address)
    }

    pub(super) fn is_heard(&self, address: MulticastAddress) -> bool {
        self.multicast_listeners.range((address, 0)..=(address, usize::MAX)).next().is_some()
    }

    pub(super) fn draw(&mut self) -> u32 {
        self.number += 1;
        // The highest bit is free for relays, which set it in the names of their sessions.
        assert!(self.number < 1 << 31, "a process has fewer than 2^31 sessions");
        self.number
    }
}

/// Refuses a request for a session with an absent endpoint.
pub(crate) fn refuse<H>(
    from: ProcessId,
    tag: Tag,
    content: &EnvelopeContent<H::Message>,
    out: &mut dyn Sink<Node<H>>,
) where
    H: Protocol,
    H::Message: Wire,
{
    if let EnvelopeContent::Signal(Signal::Open { number, .. }) = *content {
        say(from, tag, Signal::Refuse { number, pass: Bytes::new() }, out);
    }
}

pub(super) fn say<H>(to: ProcessId, tag: Tag, signal: Signal, out: &mut dyn Sink<Node<H>>)
where
    H: Protocol,
    H::Message: Wire,
{
    out.send(Destination::One(to), Envelope { tag, content: EnvelopeContent::Signal(signal) }, None);
}
