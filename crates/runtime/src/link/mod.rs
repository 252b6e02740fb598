//! Links: one connection between two processes, made, kept and reported.
//!
//! **Promise.** Between a [`LinkEvent::Linked`] and the next [`LinkEvent::Unlinked`], the frames of one
//! session arrive in the order of sending and without a gap. Two processes that can reach each other always
//! get a link again, as long as one of them wants it.
//!
//! [`LinkEvent::Unlinked`] is reported at once when a link breaks or a first attempt fails, and not again
//! during the same outage. A peer is a [`ProcessId`], incarnation included. If another process now listens at
//! the peer's address, the link to it is refused.
//!
//! | module | contents |
//! |---|---|
//! | `dial` | from a wanted link to a hello |
//! | `handshake` | from a hello to a link: the rules when both sides dial |
//! | `ending` | the end of a connection, and its consequences |

mod dial;
mod ending;
mod handshake;

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use mio::{
    Events, Interest, Poll, Registry, Token, Waker,
    net::{TcpListener, TcpStream},
};
use quorate_protocol::{
    DomainId, Duration, Policy, ProcessId, Session, Ticket, Time,
    journal::{DurabilityReport, RemoteDurability, StartHistory},
    wire::Wire,
};
use rustc_hash::FxHashMap;
use slab::Slab;
use tracing::{error, warn};

use crate::{
    chance::Chance,
    config::Limits,
    counters::Counters,
    datagram::DatagramAddress,
    discover::{DomainAnswer, DomainState},
    frame::{Encoded, FrameReader, FrameWriter, Frames, Oversized, ReadOutcome, WriteOutcome},
    hello::{GREETING_BYTES_MAX, Greeting, Hello, Reason},
    resolver::Resolver,
};

/// An event for the protocol thread.
pub(crate) enum LinkEvent {
    /// A link is up.
    Linked { peer: ProcessId, session: Session },
    /// The link broke, or could not be made.
    Unlinked { peer: ProcessId },
    /// A part of a frame arrived on the link.
    Progress { from: ProcessId },
    /// Frames arrived on the link.
    Frames { from: ProcessId, frames: Frames },
    /// This process has an older copy of its journal: `witness` remembers a later durable record, which is in
    /// `report`.
    OlderCopy { witness: ProcessId, report: DurabilityReport },
    /// No link to this peer is possible, because one side's policy does not admit the other. `theirs` is the
    /// peer's pass.
    PolicyMismatch { peer: ProcessId, theirs: Bytes },
}

/// The identity of this process, as its hellos state it.
#[derive(Clone, Debug)]
pub(crate) struct LocalProcess {
    /// The domains of the process; at least one.
    pub(crate) domains: Vec<DomainId>,
    pub(crate) policy: Arc<dyn Policy>,
    pub(crate) me: ProcessId,
    pub(crate) address: String,
    /// The protocol versions that the process speaks.
    pub(crate) versions: RangeInclusive<u16>,
    /// The port at which the process receives datagrams; 0 if it receives none.
    pub(crate) datagram_port: u16,
    /// The token of the process's multicasts; 0 if it cannot multicast.
    pub(crate) multicast_token: u64,
}

/// All connections of a process. They belong to the protocol thread.
pub(crate) struct Links {
    identity: LocalProcess,
    limits: Limits,
    counters: Counters,
    now: Time,
    poll: Poll,
    events: Events,
    listeners: Vec<TcpListener>,
    connections: Slab<LinkConnection>,
    /// Number of accepted connections that are not links yet.
    handshakes: usize,
    /// The answers to processes that ask about this process, one answer for each of its domains.
    answers: Vec<DomainAnswer>,
    peers: Slab<Peer>,
    peer_keys: FxHashMap<ProcessId, usize>,
    /// Connections with unread input, each once.
    readable: VecDeque<usize>,
    /// Connections with unwritten output, each once.
    unwritten: Vec<usize>,
    timers: BTreeSet<(Time, LinkTimer)>,
    link_events: VecDeque<LinkEvent>,
    /// The number of the last hello or welcome that was sent.
    number: u32,
    /// The starts of this process, as its directory lists them; empty without a disk. In the latest start,
    /// `durable` is the last record that was announced to peers.
    starts: StartHistory,
    durable: Ticket,
    /// The announcements of other processes about their journals, and whether there are new announcements.
    remote_durability: RemoteDurability,
    has_learned: bool,
    chance: Chance,
    /// The secret from which the tokens of greetings are derived, together with their numbers.
    secret: u64,
    /// The peers whose datagrams and multicasts are accepted, by token.
    tokens: FxHashMap<u64, ProcessId>,
    resolver: Resolver,
    /// The buffer in which a message to several peers is encoded once.
    shared: BytesMut,
}

/// The timers of links. A timer that is no longer needed is not withdrawn: [`Links::fire`] checks whether it
/// is still needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LinkTimer {
    /// The connection must be a link by the time of this timer.
    Settle(usize),
    /// The peer has to be dialled again.
    Redial(usize),
    /// The listener has to be tried again.
    Accept(usize),
}

struct LinkConnection {
    stream: TcpStream,
    state: ConnectionState,
    /// The time by which the connection must be a link.
    limit: Option<Time>,
    reader: FrameReader,
    writer: FrameWriter,
    /// Whether the connection is in `readable`.
    listed_readable: bool,
    /// Whether the connection is in `unwritten`.
    listed_unwritten: bool,
    /// Whether the socket may take more bytes.
    takes: bool,
    /// Whether the peer has closed its side. A short read then does not mean that no bytes are left.
    ending: bool,
}

impl LinkConnection {
    fn has_more_for_now(&self) -> bool {
        self.takes && self.writer.bytes() > 0
    }
}

enum ConnectionState {
    /// We dialled; the system is connecting.
    Connecting { peer: usize },
    /// We dialled and sent our hello, which has this number and version.
    Greeting { peer: usize, number: u32, version: u16 },
    /// The peer dialled, and has not sent its hello yet.
    Accepted,
    /// The peer dialled and sent a hello, but our own dial takes precedence and is still under way.
    Deferred { peer: usize, hello: Box<Hello> },
    /// The connection is a link.
    Linked { peer: usize },
}

struct Peer {
    id: ProcessId,
    /// The address to dial while a link is wanted.
    wanted: Option<String>,
    attempt: DialState,
    /// The addresses not yet tried in this round. The last of them is tried next.
    route: Vec<SocketAddr>,
    /// Upper bound of the wait before the next attempt.
    backoff: Duration,
    /// The connection that is the link to this peer, while the link is up.
    link: Option<usize>,
    /// The number of the peer's greeting that made the link.
    number: u32,
    /// The time when the link was made.
    since: Time,
    /// The pass that the peer showed when the link was made.
    pass: Bytes,
    /// The peer's last announcement about its journal.
    reported: DurabilityReport,
    /// The peer's address for datagrams while linked.
    datagram_address: Option<DatagramAddress>,
    /// The token that the peer's own datagrams must carry.
    token: u64,
    /// The token of the peer's multicasts.
    multicast_token: u64,
    deferred: Option<usize>,
    /// Whether the protocol already knows that there is no link.
    outage_reported: bool,
    /// The reason why the peer last refused us. A repeated reason is not logged again.
    refusal: Option<Reason>,
    /// The version of the next hello, if the peer has refused a newer version.
    version: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DialState {
    Idle,
    Resolving,
    Dialling(usize),
    Waiting(Time),
}

impl Links {
    pub(crate) fn new(
        identity: LocalProcess,
        limits: Limits,
        counters: Counters,
        (poll, waker): (Poll, Arc<Waker>),
        mut listeners: Vec<TcpListener>,
    ) -> io::Result<Self> {
        for (index, listener) in listeners.iter_mut().enumerate() {
            poll.registry().register(listener, Token(index), Interest::READABLE)?;
        }
        let pass = identity.policy.pass();
        let answers = vec![DomainAnswer { presence: DomainState::Joining, pass }; identity.domains.len()];
        Ok(Links {
            identity,
            limits,
            counters,
            now: crate::clock::now(),
            poll,
            events: Events::with_capacity(EVENTS_PER_TURN),
            listeners,
            connections: Slab::new(),
            handshakes: 0,
            answers,
            peers: Slab::new(),
            peer_keys: FxHashMap::default(),
            readable: VecDeque::new(),
            unwritten: Vec::new(),
            timers: BTreeSet::new(),
            link_events: VecDeque::new(),
            number: 0,
            starts: StartHistory::default(),
            durable: Ticket(0),
            remote_durability: RemoteDurability::default(),
            has_learned: false,
            secret: Chance::new().bits(),
            tokens: FxHashMap::default(),
            chance: Chance::new(),
            resolver: Resolver::new(waker),
            shared: BytesMut::new(),
        })
    }

    // Methods for the loop, in the order of a turn.

    /// Returns the latest time for the next [`Links::attend`], even if the network is quiet.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if !self.readable.is_empty() || !self.link_events.is_empty() || !self.unwritten.is_empty() {
            return Some(Time::ZERO);
        }
        self.timers.first().map(|(time, _)| *time)
    }

    /// Waits for an event of the network or the waker, for at most `timeout`.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.events.clear();
                Ok(())
            }
            waited => waited,
        }
    }

    /// Returns the events of the last wait, for other users of the poll.
    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    /// Returns the poll's registry, for other users of the poll.
    pub(crate) fn registry(&self) -> io::Result<Registry> {
        self.poll.registry().try_clone()
    }

    /// Whether a process may be about to ask for this process's state.
    pub(crate) fn may_be_questioned(&self) -> bool {
        self.handshakes > 0
    }

    /// Sets, for each domain of this process, the answer that a process gets if it asks about that domain.
    pub(crate) fn present(&mut self, answer: impl FnMut(DomainId) -> DomainAnswer) {
        self.answers = self.identity.domains.iter().copied().map(answer).collect();
    }

    /// Handles the events of the last [`Links::wait`], and timers that are due. Returns how many connections
    /// [`Links::read`] should read in this turn.
    pub(crate) fn attend(&mut self, now: Time) -> usize {
        self.now = now;
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            let Token(index) = event.token();
            if index < self.listeners.len() {
                self.accept(index);
            } else if let Some(token) = index.checked_sub(self.listeners.len())
                && let Some(connection) = self.connections.get_mut(token)
            {
                if matches!(connection.state, ConnectionState::Connecting { .. }) {
                    self.finish_connecting(token);
                }
                let Some(connection) = self.connections.get_mut(token) else { continue };
                connection.ending |= event.is_read_closed() || event.is_error();
                if event.is_readable() || connection.ending {
                    list(&mut self.readable, &mut connection.listed_readable, token);
                }
                if event.is_writable() {
                    connection.takes = true;
                    if connection.writer.bytes() > 0 && !connection.listed_unwritten {
                        connection.listed_unwritten = true;
                        self.unwritten.push(token);
                    }
                }
            }
        }
        self.events = events;
        while let Some(answer) = self.resolver.answer() {
            if let Some(&key) = self.peer_keys.get(&answer.peer)
                && let peer = &mut self.peers[key]
                && peer.attempt == DialState::Resolving
                && peer.wanted.as_ref() == Some(&answer.address)
            {
                peer.route = answer.route;
                peer.route.reverse();
                self.dial_route(key);
            }
        }
        while let Some(&(time, timer)) = self.timers.first()
            && time <= now
        {
            self.timers.pop_first();
            self.fire(time, timer);
        }
        self.readable.len()
    }

    /// Reads once from the connection that has waited longest.
    pub(crate) fn read(&mut self) {
        let Some(token) = self.readable.pop_front() else { return };
        let Some(connection) = self.connections.get_mut(token) else { return };
        connection.listed_readable = false;
        if matches!(connection.state, ConnectionState::Connecting { .. }) {
            // The token in the list belonged to a connection that has ended. Now a connection that is not
            // open yet has this token.
            return;
        }
        let before = connection.reader.filled();
        match connection.reader.read(&mut connection.stream) {
            Ok(ReadOutcome::End) => return self.broke(token, "the peer closed the connection"),
            Ok(intake) => {
                self.counters.bytes_received.inc_by((connection.reader.filled() - before) as u64);
                // A short read has emptied the socket, and the edge-triggered poll reports every later byte.
                if intake == ReadOutcome::Full || connection.ending {
                    list(&mut self.readable, &mut connection.listed_readable, token);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return list(&mut self.readable, &mut connection.listed_readable, token);
            }
            Err(error) => return self.broke(token, &error.to_string()),
        }
        self.take_in(token);
    }

    /// Sets the number of the last greeting, because earlier starts of this process may have used numbers up
    /// to this one.
    pub(crate) fn number_from(&mut self, number: u32) {
        self.number = number;
    }

    /// Sets the starts that the process's directory lists, and the announcements of other processes that are
    /// noted there.
    pub(crate) fn begin_from(&mut self, starts: StartHistory, remote_durability: RemoteDurability) {
        (self.starts, self.remote_durability) = (starts, remote_durability);
    }

    /// Announces to all linked peers that records up to `durable` are durable.
    pub(crate) fn announce_durable(&mut self, durable: Ticket) {
        if durable <= self.durable {
            return;
        }
        self.durable = durable;
        let links: Vec<(usize, usize)> =
            self.peers.iter().filter_map(|(key, peer)| Some((peer.link?, key))).collect();
        for (token, key) in links {
            self.notify(token, key);
        }
    }

    /// Announces to this peer how far the journal is durable, if the link is up and any record is durable.
    fn notify(&mut self, token: usize, key: usize) {
        // An earlier write may have broken the link.
        let is_linked = self.peers.get(key).is_some_and(|peer| peer.link == Some(token));
        if is_linked && self.durable > Ticket(0) {
            self.connections[token].writer.push_notice(self.durable);
            self.pushed(token);
        }
    }

    /// Records a peer's announcement that its journal is durable up to this record.
    pub(crate) fn learn(&mut self, peer: ProcessId, durable: Ticket) {
        if let Some(&key) = self.peer_keys.get(&peer) {
            let report = DurabilityReport { durable, ..self.peers[key].reported };
            self.has_learned |= self.remote_durability.record(peer, report);
        }
    }

    /// Whether new announcements of other processes have arrived since the last call.
    pub(crate) fn has_learned(&mut self) -> bool {
        std::mem::take(&mut self.has_learned)
    }

    /// Returns the announcements of other processes about their journals.
    pub(crate) fn remote_durability(&self) -> &RemoteDurability {
        &self.remote_durability
    }

    /// Returns the number of the last greeting.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Whether the link to this peer is up.
    pub(crate) fn is_linked(&self, peer: ProcessId) -> bool {
        self.link_to(peer).is_some()
    }

    /// Returns the address for datagrams of a linked peer, if it receives any.
    pub(crate) fn datagram_address(&self, peer: ProcessId) -> Option<DatagramAddress> {
        self.peers[*self.peer_keys.get(&peer)?].datagram_address
    }

    /// Returns the linked peer whose datagrams or multicasts carry this token.
    pub(crate) fn sender(&self, token: u64) -> Option<ProcessId> {
        self.tokens.get(&token).copied()
    }

    /// Removes and returns the next event for the protocol thread.
    pub(crate) fn next_event(&mut self) -> Option<LinkEvent> {
        self.link_events.pop_front()
    }

    /// Sends a message to one peer. Without a link, the message is dropped.
    pub(crate) fn send(&mut self, to: ProcessId, message: &impl Wire) -> SendOutcome {
        let Some(token) = self.link_to(to) else { return SendOutcome::Dropped };
        let pushed = self.connections[token].writer.push(message, self.limits.frame_bytes_max);
        self.queued(to, token, pushed)
    }

    /// Encodes a message for several peers, to be sent by [`Links::send_shared`].
    pub(crate) fn encode_shared(&mut self, message: &impl Wire) -> Encoded {
        // `reserve` takes back the memory of earlier messages if all of them have been written. Otherwise it
        // allocates.
        if self.shared.capacity() < SHARED_BYTES_LEAST {
            self.shared.reserve(SHARED_BYTES);
        }
        let payload = message.encode_head(&mut self.shared);
        Encoded { head: self.shared.split().freeze(), payload }
    }

    /// Sends an encoded message to one of its receivers.
    pub(crate) fn send_shared(&mut self, to: ProcessId, message: &Encoded) -> SendOutcome {
        let Some(token) = self.link_to(to) else { return SendOutcome::Dropped };
        let pushed = self.connections[token].writer.push_shared(message, self.limits.frame_bytes_max);
        self.queued(to, token, pushed)
    }

    /// Handles the result of queueing a message. A message that is too long for a frame is a bug of this
    /// process. The link then ends, because the peer would otherwise miss the message without noticing. The
    /// process goes on.
    fn queued(&mut self, to: ProcessId, token: usize, pushed: Result<(), Oversized>) -> SendOutcome {
        match pushed {
            Ok(()) => {
                self.pushed(token);
                SendOutcome::Queued
            }
            Err(Oversized { length }) => {
                self.counters.oversized.inc();
                let most = self.limits.frame_bytes_max;
                error!(
                    "a message of {length} bytes to process {to} exceeds the limit of {most} bytes, so this \
                     process ends the link"
                );
                self.broke(token, "a message to the peer was too long");
                SendOutcome::Dropped
            }
        }
    }

    /// Writes all queued output as far as sockets take it, however long the writes take. This is the last
    /// call before the end.
    pub(crate) fn flush_all(&mut self) {
        while !self.unwritten.is_empty() {
            self.flush();
        }
    }

    /// Writes queued output, with one call per link, at most 1 MiB each.
    pub(crate) fn flush(&mut self) {
        let mut unwritten = std::mem::take(&mut self.unwritten);
        for token in unwritten.drain(..) {
            if let Some(connection) = self.connections.get_mut(token) {
                connection.listed_unwritten = false;
                // A blocked connection is listed again when its socket can take more.
                if connection.takes {
                    self.write(token);
                }
            }
        }
        // The loop may have listed connections again: partly written ones, and those to which the end of a
        // broken link queued output.
        unwritten.append(&mut self.unwritten);
        self.unwritten = unwritten;
    }

    // Methods for the requests of the protocol.

    /// Keeps a link to `id`, which listens at `address`, from now on.
    pub(crate) fn reach(&mut self, id: ProcessId, address: &str) {
        if id == self.identity.me {
            return;
        }
        let key = self.peer_key(id);
        let peer = &mut self.peers[key];
        if peer.wanted.as_deref() == Some(address) {
            return;
        }
        peer.wanted = Some(address.to_owned());
        peer.route.clear();
        peer.backoff = self.limits.backoff_min;
        match peer.attempt {
            DialState::Idle if peer.link.is_some() => {}
            DialState::Idle | DialState::Waiting(_) | DialState::Resolving => self.dial(key),
            // The present attempt dials the old address. If this attempt fails, the next one uses the new
            // address.
            DialState::Dialling(_) => {}
        }
    }

    /// Ends the link to `id`, and keeps no link to `id` from now on. Queued output is written as far as the
    /// socket takes it.
    pub(crate) fn forget(&mut self, id: ProcessId) {
        let Some(&key) = self.peer_keys.get(&id) else { return };
        let peer = &mut self.peers[key];
        peer.wanted = None;
        let dialling = if let DialState::Dialling(token) = peer.attempt { Some(token) } else { None };
        peer.attempt = DialState::Idle;
        for token in [dialling, peer.deferred.take()].into_iter().flatten() {
            self.drop_connection(token);
        }
        let peer = &mut self.peers[key];
        if let Some(token) = peer.link {
            self.write(token);
            while self.link_to(id) == Some(token) && self.connections[token].has_more_for_now() {
                self.write(token);
            }
        }
        // The write may have broken the link, which already removes the peer.
        if let Some(&key) = self.peer_keys.get(&id) {
            match self.peers[key].link {
                Some(token) => self.broke(token, "forgotten"),
                None => self.leave(key),
            }
        }
    }

    /// Applies this policy from now on. Links that the policy forbids break, and their unhandled frames are
    /// dropped.
    pub(crate) fn adopt(&mut self, policy: Arc<dyn Policy>) {
        let forbidden: Vec<(usize, ProcessId)> = self
            .peers
            .iter()
            .filter_map(|(_, peer)| Some((peer.link?, peer)))
            .filter(|(_, peer)| !policy.admits(&peer.pass))
            .map(|(token, peer)| (token, peer.id))
            .collect();
        self.identity.policy = policy;
        for (token, id) in forbidden {
            self.link_events.retain(|it| !matches!(it, LinkEvent::Frames { from, .. } if *from == id));
            self.broke(token, "this process no longer admits the peer");
        }
    }

    /// Returns the pass that this process shows.
    pub(crate) fn pass(&self) -> Bytes {
        self.identity.policy.pass()
    }

    /// Ends the link to `id`, because it sent undecodable bytes.
    pub(crate) fn reject(&mut self, id: ProcessId, why: &str) {
        if let Some(token) = self.link_to(id) {
            self.counters.garbage.inc();
            warn!("process {id} sent an invalid message ({why}), so this process ends the link");
            self.broke(token, why);
        }
    }

    fn link_to(&self, id: ProcessId) -> Option<usize> {
        self.peer_keys.get(&id).and_then(|&key| self.peers[key].link)
    }

    fn pushed(&mut self, token: usize) {
        let connection = &mut self.connections[token];
        if !connection.listed_unwritten {
            connection.listed_unwritten = true;
            self.unwritten.push(token);
        }
        if connection.takes && connection.writer.bytes() >= WRITE_BYTES_EARLY {
            self.write(token);
        }
        // An earlier write may have broken the link.
        let most = self.limits.queue_bytes_max;
        let is_over = |it: &&LinkConnection| it.writer.bytes() > most;
        while self.connections.get(token).filter(is_over).is_some_and(|it| it.takes) {
            self.write(token);
        }
        if self.connections.get(token).filter(is_over).is_some() {
            self.counters.overrun.inc();
            self.broke(token, "the peer does not read its messages");
        }
    }

    fn write(&mut self, token: usize) {
        let connection = &mut self.connections[token];
        let before = connection.writer.bytes();
        let written = connection.writer.write(&mut connection.stream);
        self.counters.bytes_sent.inc_by((before - connection.writer.bytes()) as u64);
        self.counters.frames_sent.inc_by(connection.writer.take_frames());
        match written {
            Ok(outflow) => {
                connection.takes = outflow != WriteOutcome::Blocked;
                if outflow == WriteOutcome::Interrupted && !connection.listed_unwritten {
                    connection.listed_unwritten = true;
                    self.unwritten.push(token);
                }
            }
            Err(error) => self.broke(token, &error.to_string()),
        }
    }

    fn take_in(&mut self, token: usize) {
        let connection = &mut self.connections[token];
        if let ConnectionState::Linked { peer } = connection.state {
            match connection.reader.frames(self.limits.frame_bytes_max) {
                Ok(bytes) if bytes.is_empty() => {
                    self.link_events.push_back(LinkEvent::Progress { from: self.peers[peer].id });
                }
                Ok(bytes) => {
                    let from = self.peers[peer].id;
                    self.link_events.push_back(LinkEvent::Frames { from, frames: Frames::new(bytes) });
                }
                Err(oversized) => {
                    let from = self.peers[peer].id;
                    self.reject(from, &format!("a frame of {} bytes is over the limit", oversized.length));
                }
            }
            return;
        }
        match connection.reader.frame(GREETING_BYTES_MAX) {
            Ok(None) => {}
            Ok(Some(frame)) => {
                self.take_greeting(token, Greeting::decode(frame, &self.identity.versions));
                // The bytes after the welcome may already be frames of the link.
                if self
                    .connections
                    .get(token)
                    .is_some_and(|it| matches!(it.state, ConnectionState::Linked { .. }))
                {
                    self.take_in(token);
                }
            }
            Err(_) => self.garbage(token, "the peer sent a frame longer than any greeting"),
        }
    }

    fn fire(&mut self, time: Time, timer: LinkTimer) {
        match timer {
            LinkTimer::Settle(token) => {
                if self.connections.get(token).is_some_and(|it| it.limit == Some(time)) {
                    self.broke(token, "the peer did not answer in time");
                }
            }
            LinkTimer::Redial(key) => {
                if self.peers.get(key).is_some_and(|it| it.attempt == DialState::Waiting(time)) {
                    self.dial(key);
                }
            }
            LinkTimer::Accept(index) => self.accept(index),
        }
    }

    // Helpers of the methods above.

    fn peer_key(&mut self, id: ProcessId) -> usize {
        *self.peer_keys.entry(id).or_insert_with(|| {
            self.peers.insert(Peer {
                id,
                wanted: None,
                attempt: DialState::Idle,
                route: Vec::new(),
                backoff: self.limits.backoff_min,
                link: None,
                number: 0,
                since: self.now,
                pass: Bytes::new(),
                reported: DurabilityReport::default(),
                datagram_address: None,
                token: 0,
                multicast_token: 0,
                deferred: None,
                outage_reported: false,
                refusal: None,
                version: None,
            })
        })
    }

    fn add(&mut self, stream: TcpStream, state: ConnectionState, timeout: Duration) -> io::Result<usize> {
        let entry = self.connections.vacant_entry();
        let token = entry.key();
        let connection = entry.insert(LinkConnection {
            stream,
            state,
            limit: None,
            reader: FrameReader::default(),
            writer: FrameWriter::default(),
            listed_readable: false,
            listed_unwritten: false,
            takes: false,
            ending: false,
        });
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registry: &Registry = self.poll.registry();
        if let Err(error) =
            registry.register(&mut connection.stream, Token(self.listeners.len() + token), interest)
        {
            self.connections.remove(token);
            return Err(error);
        }
        self.set_limit(token, timeout);
        Ok(token)
    }

    fn set_limit(&mut self, token: usize, timeout: Duration) {
        let limit = self.now + timeout;
        self.connections[token].limit = Some(limit);
        self.timers.insert((limit, LinkTimer::Settle(token)));
    }
}

/// The outcome of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    Queued,
    Dropped,
}

fn list(readable: &mut VecDeque<usize>, listed: &mut bool, token: usize) {
    if !std::mem::replace(listed, true) {
        readable.push_back(token);
    }
}

const EVENTS_PER_TURN: usize = 1024;
/// Size of a new buffer for messages to several peers, in bytes, and the remaining space below which the
/// buffer is replaced.
const SHARED_BYTES: usize = 64 << 10;
const SHARED_BYTES_LEAST: usize = 4 << 10;
/// Queued bytes to one peer above which a turn begins to write before its end.
const WRITE_BYTES_EARLY: usize = 256 << 10;
