//! Desk: where an endpoint's outputs become the node's, and its sessions are kept.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use quorate_protocol::{
    Destination, Duration, MulticastAddress, Policy, ProcessId, Protocol, Session, Sink, Ticket, Time,
    wire::Wire,
};

use crate::{
    Event, Node, Shown,
    channel::{Channel, Content, Encoded, Entry, Letter, Signal, Tag, Written},
    endpoint::{Opaque, Parcel},
    records::Records,
    session::{self, Hail, Line, Step},
};

/// An endpoint's sessions, and those it wants.
pub(crate) type Sessions = BTreeMap<ProcessId, Line>;

/// State that all endpoints of a process share.
#[derive(Debug, Default)]
pub(crate) struct Board {
    peers: BTreeMap<ProcessId, Peer>,
    /// The number of the last session.
    number: u32,
    /// When a seat hails a peer again.
    retries: BTreeSet<(Time, usize, ProcessId)>,
    /// What seats are to be told.
    pub(crate) news: VecDeque<(usize, News)>,
    pub(crate) records: Records,
    /// Seats by the address that they listen to: endpoints of two domains may have the same.
    ears: BTreeSet<(MulticastAddress, usize)>,
}

/// A process with which endpoints have sessions, or want some.
#[derive(Debug, Default)]
struct Peer {
    link: Link,
    /// How many seats have reached for it.
    wanted: usize,
    /// The world was asked for a link.
    reached: bool,
    /// Seats that have a line to it.
    seats: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Link {
    #[default]
    Unknown,
    Down,
    Up,
}

#[derive(Debug)]
pub(crate) enum News {
    Linked(ProcessId, Session),
    Unlinked(ProcessId),
    /// The policy does not admit a peer that shows this.
    Stranger(ProcessId, Bytes),
}

/// The first pause before a hail that came to nothing is repeated, and the longest.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);

impl Board {
    /// The link to a peer stands. Returns the seats that have a line to it.
    pub(crate) fn linked(&mut self, peer: ProcessId) -> Vec<usize> {
        self.peers.entry(peer).or_default().link = Link::Up;
        self.with(peer)
    }

    /// The link to a peer is broken, or none came about. Returns the seats that have a line to it.
    pub(crate) fn unlinked(&mut self, peer: ProcessId) -> Vec<usize> {
        let Some(it) = self.peers.get_mut(&peer) else { return Vec::new() };
        it.link = Link::Down;
        self.with(peer)
    }

    /// The seats that have a line to a peer.
    pub(crate) fn with(&self, peer: ProcessId) -> Vec<usize> {
        self.peers.get(&peer).map_or_else(Vec::new, |it| it.seats.iter().copied().collect())
    }

    pub(crate) fn retry_at(&self) -> Option<Time> {
        self.retries.first().map(|(time, ..)| *time)
    }

    pub(crate) fn take_retries(&mut self, now: Time) -> Vec<(usize, ProcessId)> {
        let mut due = Vec::new();
        while let Some(&(time, seat, peer)) = self.retries.first()
            && time <= now
        {
            self.retries.pop_first();
            due.push((seat, peer));
        }
        due
    }

    /// A seat is empty: its sessions end.
    pub(crate) fn vacate<P: Protocol>(
        &mut self,
        seat: usize,
        channel: Channel,
        sessions: Sessions,
        out: &mut dyn Sink<Node<P>>,
    ) where
        P::Message: Wire,
    {
        self.news.retain(|(key, _)| *key != seat);
        self.records.vacate(seat);
        let heard = self.ears.iter().filter(|(_, key)| *key == seat);
        for address in heard.map(|(address, _)| *address).collect::<Vec<_>>() {
            if self.ignore(seat, address) {
                out.ignore(address);
            }
        }
        for (peer, mut line) in sessions {
            if let Some(number) = line.leave() {
                say(peer, channel.tag(), Signal::Bye { number }, out);
            }
            self.remove(seat, peer, &line, out);
        }
    }

    /// A seat has no line to a peer any more.
    fn remove<P: Protocol>(&mut self, seat: usize, peer: ProcessId, line: &Line, out: &mut dyn Sink<Node<P>>)
    where
        P::Message: Wire,
    {
        if let Some(again) = line.again {
            self.retries.remove(&(again, seat, peer));
        }
        if let Some(it) = self.peers.get_mut(&peer) {
            it.seats.remove(&seat);
            it.wanted -= usize::from(line.wanted);
        }
        self.settle(peer, out);
    }

    /// Gives up a link that nobody wants or uses.
    pub(crate) fn settle<P: Protocol>(&mut self, peer: ProcessId, out: &mut dyn Sink<Node<P>>)
    where
        P::Message: Wire,
    {
        let Some(it) = self.peers.get_mut(&peer).filter(|it| it.seats.is_empty()) else { return };
        assert_eq!(it.wanted, 0, "a seat that has reached for a peer has a line to it");
        if std::mem::take(&mut it.reached) {
            out.forget(peer);
        }
        if it.link != Link::Up {
            self.peers.remove(&peer);
        }
    }

    /// A seat listens to an address. Says whether it is the first.
    fn listen(&mut self, seat: usize, address: MulticastAddress) -> bool {
        let is_first = !self.is_heard(address);
        self.ears.insert((address, seat));
        is_first
    }

    /// A seat listens to an address no more. Says whether it was the last.
    fn ignore(&mut self, seat: usize, address: MulticastAddress) -> bool {
        self.ears.remove(&(address, seat)) && !self.is_heard(address)
    }

    fn is_heard(&self, address: MulticastAddress) -> bool {
        self.ears.range((address, 0)..=(address, usize::MAX)).next().is_some()
    }

    fn draw(&mut self) -> u32 {
        self.number += 1;
        // The sessions that relays make have the highest bit.
        assert!(self.number < 1 << 31, "a process has fewer than 2^31 sessions");
        self.number
    }
}

/// One seat's place at the board while it is given something.
pub(crate) struct Desk<'a, H: Protocol<Message: Wire>> {
    pub(crate) key: usize,
    pub(crate) channel: Channel,
    /// Whether the process does not go on without this endpoint.
    pub(crate) vital: bool,
    pub(crate) sessions: &'a mut Sessions,
    pub(crate) policy: &'a mut Arc<dyn Policy>,
    pub(crate) board: &'a mut Board,
    pub(crate) out: &'a mut dyn Sink<Node<H>>,
    pub(crate) me: ProcessId,
    pub(crate) now: Time,
}

impl<H> Desk<'_, H>
where
    H: Protocol,
    H::Message: Wire,
{
    /// Asks a peer for a session, if one is wanted and there is none, and the processes are linked.
    pub(crate) fn hail(&mut self, peer: ProcessId) {
        let Some(line) = self.sessions.get_mut(&peer) else { return };
        let is_linked = self.board.peers.get(&peer).is_some_and(|it| it.link == Link::Up);
        if line.wanted && line.is_idle() && is_linked {
            if let Some(again) = line.again.take() {
                self.board.retries.remove(&(again, self.key, peer));
            }
            let number = self.board.draw();
            line.hail(number);
            let pass = self.policy.pass();
            let hail = Signal::Hail { number, answers: 0, domain: self.channel.domain, pass };
            say(peer, self.channel.tag(), hail, self.out);
        }
    }

    pub(crate) fn signal(&mut self, from: ProcessId, signal: Signal) {
        let steps = match signal {
            Signal::Hail { number, answers, pass, .. } => self.hailed(from, number, answers, pass),
            Signal::Bye { number } => match self.sessions.get_mut(&from) {
                Some(line) => line.left(number),
                None => return,
            },
            Signal::Refuse { number, pass } => {
                let Some(line) = self.sessions.get_mut(&from) else { return };
                let steps = line.refused(number);
                if !steps.is_empty() && !self.policy.admits(&pass) {
                    self.board.news.push_back((self.key, News::Stranger(from, pass)));
                }
                steps
            }
        };
        for step in steps {
            self.take(from, step);
        }
        self.sweep(from);
    }

    fn hailed(&mut self, from: ProcessId, number: u32, answers: u32, pass: Bytes) -> Vec<Step> {
        // Only whoever is linked can be heard, so it is known already unless the world forgot to say so.
        self.board.peers.entry(from).or_default().seats.insert(self.key);
        let admitted = self.policy.admits(&pass);
        if !admitted {
            self.board.news.push_back((self.key, News::Stranger(from, pass.clone())));
        }
        let (me, domain, ours) = (self.me, self.channel.domain, self.policy.pass());
        let board = &mut *self.board;
        self.sessions.entry(from).or_default().hailed(
            Hail { number, answers, pass, admitted, smaller: me < from },
            |mine, theirs| session::name(me, from, mine, theirs),
            || board.draw(),
            |mine| Signal::Hail { number: mine, answers: number, domain, pass: ours.clone() },
            Signal::Refuse { number, pass: ours.clone() },
        )
    }

    fn take(&mut self, peer: ProcessId, step: Step) {
        let Some(line) = self.sessions.get_mut(&peer) else { return };
        match step {
            Step::Say(signal) => say(peer, self.channel.tag(), signal, self.out),
            Step::Linked(session) => {
                (line.told, line.failures) = (false, 0);
                if let Some(again) = line.again.take() {
                    self.board.retries.remove(&(again, self.key, peer));
                }
                self.board.news.push_back((self.key, News::Linked(peer, session)));
            }
            Step::Unlinked => {
                line.told = true;
                self.board.news.push_back((self.key, News::Unlinked(peer)));
            }
            Step::Failed if line.wanted => {
                if !std::mem::replace(&mut line.told, true) {
                    self.board.news.push_back((self.key, News::Unlinked(peer)));
                }
                let pause = RETRY_MIN * 2u32.saturating_pow(line.failures);
                line.failures += 1;
                let again = self.now + pause.min(RETRY_MAX);
                if let Some(before) = line.again.replace(again) {
                    self.board.retries.remove(&(before, self.key, peer));
                }
                self.board.retries.insert((again, self.key, peer));
            }
            Step::Failed => {}
        }
    }

    /// Removes a line on which nothing is, and which nobody wants.
    fn sweep(&mut self, peer: ProcessId) {
        if let Some(line) = self.sessions.get(&peer)
            && line.is_idle()
            && !line.wanted
        {
            let line = self.sessions.remove(&peer).expect("it was just there");
            self.board.remove(self.key, peer, &line, self.out);
        }
    }

    /// Ends the session with a peer. Another one is asked for after a while, if it is wanted.
    pub(crate) fn end(&mut self, peer: ProcessId) {
        let Some(line) = self.sessions.get_mut(&peer) else { return };
        if let Some(number) = line.leave() {
            say(peer, self.channel.tag(), Signal::Bye { number }, self.out);
            self.take(peer, Step::Unlinked);
            self.take(peer, Step::Failed);
            self.sweep(peer);
        }
    }

    /// The link to a peer broke, or did not come about.
    pub(crate) fn unlinked(&mut self, peer: ProcessId) {
        let Some(line) = self.sessions.get_mut(&peer) else { return };
        let stood = line.stands();
        line.leave();
        line.failures = 0;
        if let Some(again) = line.again.take() {
            self.board.retries.remove(&(again, self.key, peer));
        }
        if stood || line.wanted && !line.told {
            self.take(peer, Step::Unlinked);
        }
        self.sweep(peer);
    }

    fn send(&mut self, to: Destination, content: Content<H::Message>, after: Option<Ticket>) {
        if let Some(to) = self.reachable(to) {
            self.out.send(to, Letter { tag: self.channel.tag(), content }, after);
        }
    }

    fn send_aside(&mut self, to: Destination, content: Content<H::Message>) {
        if let Some(to) = self.reachable(to) {
            self.out.send_aside(to, Letter { tag: self.channel.tag(), content });
        }
    }

    fn cast(&mut self, to: Destination, content: Content<H::Message>) {
        if let Some(to) = self.reachable(to) {
            self.out.cast(to, Letter { tag: self.channel.tag(), content });
        }
    }

    fn multicast(&mut self, address: MulticastAddress, to: Vec<ProcessId>, content: Content<H::Message>) {
        if let Some(Destination::Many(to)) = self.reachable(Destination::Many(to)) {
            self.out.multicast(address, to, Letter { tag: self.channel.tag(), content });
        }
    }

    fn listen(&mut self, address: MulticastAddress) {
        if self.board.listen(self.key, address) {
            self.out.listen(address);
        }
    }

    fn ignore(&mut self, address: MulticastAddress) {
        if self.board.ignore(self.key, address) {
            self.out.ignore(address);
        }
    }

    /// Those of them with whom there is a session, and the process itself.
    fn reachable(&self, to: Destination) -> Option<Destination> {
        let stands = |peer: &ProcessId| *peer == self.me || self.sessions.get(peer).is_some_and(Line::stands);
        match to {
            Destination::One(peer) => stands(&peer).then_some(Destination::One(peer)),
            Destination::Many(mut peers) => {
                peers.retain(stands);
                (!peers.is_empty()).then_some(Destination::Many(peers))
            }
        }
    }

    fn persist(&mut self, record: Written<H::Record>) -> Ticket {
        let ticket = self.out.persist(Entry { channel: self.channel, record });
        self.board.records.written(self.channel, self.key, ticket);
        ticket
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        if let Some((floor, kept)) = self.board.records.collect(self.channel, before, kept) {
            self.out.collect(floor, &kept);
        }
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        if peer == self.me {
            return;
        }
        let line = self.sessions.entry(peer).or_default();
        let it = self.board.peers.entry(peer).or_default();
        it.seats.insert(self.key);
        it.wanted += usize::from(!std::mem::replace(&mut line.wanted, true));
        it.reached = true;
        let link = it.link;
        self.out.reach(peer, address);
        match link {
            // The world does not say it again.
            Link::Down if !line.told => self.take(peer, Step::Unlinked),
            Link::Up => self.hail(peer),
            Link::Down | Link::Unknown => {}
        }
    }

    fn forget(&mut self, peer: ProcessId) {
        let Some(mut line) = self.sessions.remove(&peer) else { return };
        let stood = line.stands();
        if let Some(number) = line.leave() {
            say(peer, self.channel.tag(), Signal::Bye { number }, self.out);
        }
        if stood {
            self.board.news.push_back((self.key, News::Unlinked(peer)));
        }
        self.board.remove(self.key, peer, &line, self.out);
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        if self.vital {
            self.out.adopt(Shown::by(&*policy));
        }
        *self.policy = policy;
        let policy = &*self.policy;
        let strangers =
            self.sessions.iter().filter(|(_, line)| line.pass().is_some_and(|it| !policy.admits(it)));
        let strangers: Vec<ProcessId> = strangers.map(|(&peer, _)| peer).collect();
        for peer in strangers {
            self.end(peer);
        }
    }
}

/// The sink of a home endpoint.
pub(crate) struct AsHome<'d, 'a, H: Protocol<Message: Wire>>(pub(crate) &'d mut Desk<'a, H>);

impl<H> Sink<H> for AsHome<'_, '_, H>
where
    H: Protocol,
    H::Message: Wire,
{
    fn send(&mut self, to: Destination, message: H::Message, after: Option<Ticket>) {
        self.0.send(to, Content::Home(message), after);
    }

    fn send_aside(&mut self, to: Destination, message: H::Message) {
        self.0.send_aside(to, Content::Home(message));
    }

    fn cast(&mut self, to: Destination, message: H::Message) {
        self.0.cast(to, Content::Home(message));
    }

    fn multicast(&mut self, address: MulticastAddress, to: Vec<ProcessId>, message: H::Message) {
        self.0.multicast(address, to, Content::Home(message));
    }

    fn listen(&mut self, address: MulticastAddress) {
        self.0.listen(address);
    }

    fn ignore(&mut self, address: MulticastAddress) {
        self.0.ignore(address);
    }

    fn persist(&mut self, record: H::Record) -> Ticket {
        self.0.persist(Written::Home(record))
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        self.0.collect(before, kept);
    }

    fn emit(&mut self, event: H::Event) {
        self.0.out.emit(Event::Home(self.0.channel, event));
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

/// The sink of a guest.
pub(crate) struct AsGuest<'d, 'a, H: Protocol<Message: Wire>>(pub(crate) &'d mut Desk<'a, H>);

impl<H> Sink<Opaque> for AsGuest<'_, '_, H>
where
    H: Protocol,
    H::Message: Wire,
{
    fn send(&mut self, to: Destination, message: Encoded, after: Option<Ticket>) {
        self.0.send(to, Content::Encoded(message), after);
    }

    fn send_aside(&mut self, to: Destination, message: Encoded) {
        self.0.send_aside(to, Content::Encoded(message));
    }

    fn cast(&mut self, to: Destination, message: Encoded) {
        self.0.cast(to, Content::Encoded(message));
    }

    fn multicast(&mut self, address: MulticastAddress, to: Vec<ProcessId>, message: Encoded) {
        self.0.multicast(address, to, Content::Encoded(message));
    }

    fn listen(&mut self, address: MulticastAddress) {
        self.0.listen(address);
    }

    fn ignore(&mut self, address: MulticastAddress) {
        self.0.ignore(address);
    }

    fn persist(&mut self, record: Encoded) -> Ticket {
        self.0.persist(Written::Encoded(record.whole()))
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        self.0.collect(before, kept);
    }

    fn emit(&mut self, event: Parcel) {
        self.0.out.emit(Event::Guest(self.0.channel, event));
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

/// Answers a hail that nobody is here to take.
pub(crate) fn refuse<H>(from: ProcessId, tag: Tag, content: &Content<H::Message>, out: &mut dyn Sink<Node<H>>)
where
    H: Protocol,
    H::Message: Wire,
{
    if let Content::Signal(Signal::Hail { number, .. }) = *content {
        say(from, tag, Signal::Refuse { number, pass: Bytes::new() }, out);
    }
}

fn say<H>(to: ProcessId, tag: Tag, signal: Signal, out: &mut dyn Sink<Node<H>>)
where
    H: Protocol,
    H::Message: Wire,
{
    out.send(Destination::One(to), Letter { tag, content: Content::Signal(signal) }, None);
}
