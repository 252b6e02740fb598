//! Links: one connection between two processes, made, kept and told about.
//!
//! Promise: between a [`Happening::Linked`] and the [`Happening::Unlinked`] behind it, frames of one session arrive in
//! the order of sending and without a gap; a pair of processes that can reach each other, and of which one wants the
//! link, always comes to have one again.
//!
//! [`Happening::Unlinked`] is told at once when a link breaks and when a first attempt fails, and not again while the
//! outage goes on. A peer is a [`ProcessId`], incarnation included: whoever else listens at its address now is a
//! stranger, and refused as that.
//!
//! | module | what happens there |
//! |---|---|
//! | `dial` | from a wish to a hello |
//! | `handshake` | from a hello to a link: the rules when both dial |
//! | `ending` | how connections end, and what follows |

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
    journal::{Hearsay, Starts, Told},
    wire::Wire,
};
use rustc_hash::FxHashMap;
use slab::Slab;
use tracing::{error, warn};

use crate::{
    chance::Chance,
    config::Limits,
    counters::Counters,
    datagram::Mouth,
    discover::{Answer, Presence},
    frame::{Encoded, Frames, Inlet, Intake, Outflow, Outlet, Oversized},
    hello::{GREETING_BYTES_MAX, Greeting, Hello, Reason},
    resolver::Resolver,
};

/// What the protocol is to hear of.
pub(crate) enum Happening {
    /// A link stands.
    Linked { peer: ProcessId, session: Session },
    /// It broke, or could not be made.
    Unlinked { peer: ProcessId },
    /// A part of a frame arrived on it.
    Progress { from: ProcessId },
    /// Frames arrived on it.
    Frames { from: ProcessId, frames: Frames },
    /// This process has an older copy of its journal: it had told this peer of more than there is.
    OlderCopy { witness: ProcessId, told: Told },
    /// There is no link to this peer, which shows this, because the policy of one of the two does not admit the other.
    Stranger { peer: ProcessId, theirs: Bytes },
}

/// Who this process is, as hellos tell it.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// One at least.
    pub(crate) domains: Vec<DomainId>,
    pub(crate) policy: Arc<dyn Policy>,
    pub(crate) me: ProcessId,
    pub(crate) address: String,
    /// The protocol versions that it speaks.
    pub(crate) versions: RangeInclusive<u16>,
    /// The port at which it takes datagrams; 0: it takes none.
    pub(crate) datagram_port: u16,
    /// The token of what it multicasts; 0: it multicasts nothing.
    pub(crate) voice: u64,
}

/// All connections of a process. Belongs to the protocol thread.
pub(crate) struct Links {
    identity: Identity,
    limits: Limits,
    counters: Counters,
    now: Time,
    poll: Poll,
    events: Events,
    listeners: Vec<TcpListener>,
    connections: Slab<Connection>,
    /// Connections accepted that do not stand yet.
    unsettled: usize,
    /// What those hear who ask how this process stands, by domain.
    answers: Vec<Answer>,
    peers: Slab<Peer>,
    peer_keys: FxHashMap<ProcessId, usize>,
    /// Connections with unread input, each once.
    readable: VecDeque<usize>,
    /// Connections with unwritten output, each once.
    unwritten: Vec<usize>,
    timers: BTreeSet<(Time, Timer)>,
    happenings: VecDeque<Happening>,
    /// The number of the last hello or welcome.
    number: u32,
    /// The starts from this process' directory, and the last record that others were told of since the last: none, at first.
    starts: Starts,
    durable: Ticket,
    /// What others have told of theirs, and whether any of it is news.
    hearsay: Hearsay,
    has_learned: bool,
    chance: Chance,
    /// The tokens of greetings are made of it, and of their numbers.
    secret: u64,
    /// The peers to whom the tokens of links that stand belong.
    tokens: FxHashMap<u64, ProcessId>,
    resolver: Resolver,
    /// Where a message to several is encoded once.
    shared: BytesMut,
}

/// Times that something is due. Not withdrawn when it ceases to matter: the firing checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A connection must have settled by now.
    Settle(usize),
    /// A peer is dialled again.
    Redial(usize),
    /// A listener is tried again.
    Accept(usize),
}

struct Connection {
    stream: TcpStream,
    stage: Stage,
    /// By when it must have settled.
    limit: Option<Time>,
    inlet: Inlet,
    outlet: Outlet,
    /// In the list of readable ones.
    listed_readable: bool,
    /// In the list of unwritten ones.
    listed_unwritten: bool,
    /// The socket took everything so far, or told that it takes more.
    takes: bool,
    /// The peer closed its side, so short reads do not mean that there is no more.
    ending: bool,
}

impl Connection {
    fn has_more_for_now(&self) -> bool {
        self.takes && self.outlet.bytes() > 0
    }
}

enum Stage {
    /// We dialled; the system is connecting.
    Connecting { peer: usize },
    /// We dialled and sent our hello.
    Greeting { peer: usize, number: u32, version: u16 },
    /// They dialled; no hello yet.
    Accepted,
    /// They dialled; our own dial has the preference but has not come to its end.
    Deferred { peer: usize, hello: Box<Hello> },
    /// A link.
    Standing { peer: usize },
}

struct Peer {
    id: ProcessId,
    /// Where to dial, while a link is wanted.
    wanted: Option<String>,
    attempt: Attempt,
    /// Addresses not tried yet in this round, last first.
    route: Vec<SocketAddr>,
    /// The longest wait before the next attempt.
    backoff: Duration,
    standing: Option<usize>,
    /// The number of the peer's greeting that made the link, and since when it stands.
    number: u32,
    since: Time,
    /// What the peer showed when the link was made, and what it told of its journal.
    pass: Bytes,
    told: Told,
    /// The peer's address for datagrams, and the token that they must bear, while the link stands.
    mouth: Option<Mouth>,
    token: u64,
    /// The token of what the peer multicasts.
    voice: u64,
    deferred: Option<usize>,
    /// The protocol knows that there is no link.
    told_unlinked: bool,
    /// Why the peer refused last; a reason is logged aloud once.
    refusal: Option<Reason>,
    /// The version to greet it with next, as it refused a newer one.
    version: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Idle,
    Resolving,
    Dialling(usize),
    Waiting(Time),
}

impl Links {
    pub(crate) fn new(
        identity: Identity,
        limits: Limits,
        counters: Counters,
        (poll, waker): (Poll, Arc<Waker>),
        mut listeners: Vec<TcpListener>,
    ) -> io::Result<Self> {
        for (index, listener) in listeners.iter_mut().enumerate() {
            poll.registry().register(listener, Token(index), Interest::READABLE)?;
        }
        let pass = identity.policy.pass();
        let answers = vec![Answer { presence: Presence::Joining, pass }; identity.domains.len()];
        Ok(Links {
            identity,
            limits,
            counters,
            now: crate::clock::now(),
            poll,
            events: Events::with_capacity(EVENTS_PER_TURN),
            listeners,
            connections: Slab::new(),
            unsettled: 0,
            answers,
            peers: Slab::new(),
            peer_keys: FxHashMap::default(),
            readable: VecDeque::new(),
            unwritten: Vec::new(),
            timers: BTreeSet::new(),
            happenings: VecDeque::new(),
            number: 0,
            starts: Starts::default(),
            durable: Ticket(0),
            hearsay: Hearsay::default(),
            has_learned: false,
            secret: Chance::new().bits(),
            tokens: FxHashMap::default(),
            chance: Chance::new(),
            resolver: Resolver::new(waker),
            shared: BytesMut::new(),
        })
    }

    // What the loop calls, in the order of a turn.

    /// When [`Links::attend`] has something to do at the latest, even if the network is quiet.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if !self.readable.is_empty() || !self.happenings.is_empty() || !self.unwritten.is_empty() {
            return Some(Time::ZERO);
        }
        self.timers.first().map(|(time, _)| *time)
    }

    /// Waits until something happens on the network, the waker is used, or `timeout` has passed.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.events.clear();
                Ok(())
            }
            waited => waited,
        }
    }

    /// What the last wait brought, for those who share the poll.
    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    /// The poll's registry, for those who share the poll.
    pub(crate) fn registry(&self) -> io::Result<Registry> {
        self.poll.registry().try_clone()
    }

    /// Whether somebody may be asking how this process stands.
    pub(crate) fn is_visited(&self) -> bool {
        self.unsettled > 0
    }

    /// From now on this is what those hear who ask about a domain.
    pub(crate) fn present(&mut self, answer: impl FnMut(DomainId) -> Answer) {
        self.answers = self.identity.domains.iter().copied().map(answer).collect();
    }

    /// Attends to what [`Links::wait`] brought and to what is due, and returns how many connections have input to
    /// [`Links::read`] in this turn.
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
                if matches!(connection.stage, Stage::Connecting { .. }) {
                    self.finish_connecting(token);
                }
                let Some(connection) = self.connections.get_mut(token) else { continue };
                connection.ending |= event.is_read_closed() || event.is_error();
                if event.is_readable() || connection.ending {
                    list(&mut self.readable, &mut connection.listed_readable, token);
                }
                if event.is_writable() {
                    connection.takes = true;
                    if connection.outlet.bytes() > 0 && !connection.listed_unwritten {
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
                && peer.attempt == Attempt::Resolving
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
        if matches!(connection.stage, Stage::Connecting { .. }) {
            // Its token was another's when it was listed.
            return;
        }
        let before = connection.inlet.filled();
        match connection.inlet.read(&mut connection.stream) {
            Ok(Intake::End) => return self.broke(token, "closed by the peer"),
            Ok(intake) => {
                self.counters.bytes_received.inc_by((connection.inlet.filled() - before) as u64);
                // After a short read an edge-triggered poll tells of every byte that comes later.
                if intake == Intake::Full || connection.ending {
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

    /// Greetings are numbered from here on: an earlier life of this process used up to this number.
    pub(crate) fn number_from(&mut self, number: u32) {
        self.number = number;
    }

    /// Begins with the last of these starts from its directory, and with what it had noted of others.
    pub(crate) fn begin_from(&mut self, starts: Starts, hearsay: Hearsay) {
        (self.starts, self.hearsay) = (starts, hearsay);
    }

    /// Tells everybody that records up to this one are durable.
    pub(crate) fn tell_durable(&mut self, durable: Ticket) {
        if durable <= self.durable {
            return;
        }
        self.durable = durable;
        let standing: Vec<(usize, usize)> =
            self.peers.iter().filter_map(|(key, peer)| Some((peer.standing?, key))).collect();
        for (token, key) in standing {
            self.notify(token, key);
        }
    }

    /// Tells this peer how far the journal of this process goes, if the link stands and there is one.
    fn notify(&mut self, token: usize, key: usize) {
        // A write may have broken the link.
        let stands = self.peers.get(key).is_some_and(|peer| peer.standing == Some(token));
        if stands && self.durable > Ticket(0) {
            self.connections[token].outlet.push_notice(self.durable);
            self.pushed(token);
        }
    }

    /// Takes note of how far the journal of a peer goes.
    pub(crate) fn learn(&mut self, peer: ProcessId, durable: Ticket) {
        if let Some(&key) = self.peer_keys.get(&peer) {
            let told = Told { durable, ..self.peers[key].told };
            self.has_learned |= self.hearsay.learn(peer, told);
        }
    }

    /// Whether others have told of more since this was asked last.
    pub(crate) fn has_learned(&mut self) -> bool {
        std::mem::take(&mut self.has_learned)
    }

    /// What others have told of their journals.
    pub(crate) fn hearsay(&self) -> &Hearsay {
        &self.hearsay
    }

    /// The number of the last greeting.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Whether a link to this peer stands.
    pub(crate) fn is_linked(&self, peer: ProcessId) -> bool {
        self.standing(peer).is_some()
    }

    /// The address for datagrams of a peer with whom a link stands, if it takes any.
    pub(crate) fn mouth(&self, peer: ProcessId) -> Option<Mouth> {
        self.peers[*self.peer_keys.get(&peer)?].mouth
    }

    /// The peer whose datagrams bear this token: a link to it stands.
    pub(crate) fn sender(&self, token: u64) -> Option<ProcessId> {
        self.tokens.get(&token).copied()
    }

    /// The next thing that the protocol is to hear of.
    pub(crate) fn happening(&mut self) -> Option<Happening> {
        self.happenings.pop_front()
    }

    /// Sends to one peer; without a link the message is dropped.
    pub(crate) fn send(&mut self, to: ProcessId, message: &impl Wire) -> Sent {
        let Some(token) = self.standing(to) else { return Sent::Dropped };
        let pushed = self.connections[token].outlet.push(message, self.limits.frame_bytes_max);
        self.queued(to, token, pushed)
    }

    /// Encodes a message for several peers; to be sent by [`Links::send_shared`].
    pub(crate) fn encode_shared(&mut self, message: &impl Wire) -> Encoded {
        // Takes the memory again if what was shared before has been written.
        if self.shared.capacity() < SHARED_BYTES_LEAST {
            self.shared.reserve(SHARED_BYTES);
        }
        let payload = message.encode_head(&mut self.shared);
        Encoded { head: self.shared.split().freeze(), payload }
    }

    /// Sends encoded bytes to one of several peers.
    pub(crate) fn send_shared(&mut self, to: ProcessId, message: &Encoded) -> Sent {
        let Some(token) = self.standing(to) else { return Sent::Dropped };
        let pushed = self.connections[token].outlet.push_shared(message, self.limits.frame_bytes_max);
        self.queued(to, token, pushed)
    }

    /// A message that no frame can hold is an error of this process. It ends the link, so that nobody takes what comes
    /// behind it for all there was; the process goes on.
    fn queued(&mut self, to: ProcessId, token: usize, pushed: Result<(), Oversized>) -> Sent {
        match pushed {
            Ok(()) => {
                self.pushed(token);
                Sent::Queued
            }
            Err(Oversized { length }) => {
                self.counters.oversized.inc();
                let most = self.limits.frame_bytes_max;
                error!(
                    "a message of {length} bytes to {to} is over the limit of {most}: the link is broken off"
                );
                self.broke(token, "a message to it was too long to be sent");
                Sent::Dropped
            }
        }
    }

    /// Writes what was sent as far as sockets take it, however long that takes: the last thing that is done.
    pub(crate) fn flush_all(&mut self) {
        while !self.unwritten.is_empty() {
            self.flush();
        }
    }

    /// Writes what was sent, one call a link; of much a part.
    pub(crate) fn flush(&mut self) {
        let mut unwritten = std::mem::take(&mut self.unwritten);
        for token in unwritten.drain(..) {
            if let Some(connection) = self.connections.get_mut(token) {
                connection.listed_unwritten = false;
                // A blocked one is listed again when its socket takes more.
                if connection.takes {
                    self.write(token);
                }
            }
        }
        // Breaking a link may have listed others, and one that has much to write is listed again.
        unwritten.append(&mut self.unwritten);
        self.unwritten = unwritten;
    }

    // What the protocol wants.

    /// Wants a link to `id`, which listens at `address`.
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
            Attempt::Idle if peer.standing.is_some() => {}
            Attempt::Idle | Attempt::Waiting(_) | Attempt::Resolving => self.dial(key),
            // Goes to the old address; should that fail, the new one is next.
            Attempt::Dialling(_) => {}
        }
    }

    /// Wants no link to `id` any more. What was sent is written as far as the socket takes it.
    pub(crate) fn forget(&mut self, id: ProcessId) {
        let Some(&key) = self.peer_keys.get(&id) else { return };
        let peer = &mut self.peers[key];
        peer.wanted = None;
        let dialling = if let Attempt::Dialling(token) = peer.attempt { Some(token) } else { None };
        peer.attempt = Attempt::Idle;
        for token in [dialling, peer.deferred.take()].into_iter().flatten() {
            self.drop_connection(token);
        }
        let peer = &mut self.peers[key];
        if let Some(token) = peer.standing {
            self.write(token);
            while self.standing(id) == Some(token) && self.connections[token].has_more_for_now() {
                self.write(token);
            }
        }
        // The write may have broken the link, and with it forgotten the peer.
        if let Some(&key) = self.peer_keys.get(&id) {
            match self.peers[key].standing {
                Some(token) => self.broke(token, "forgotten"),
                None => self.leave(key),
            }
        }
    }

    /// This policy decides from now on: links that it forbids break, and what they brought is not handed over.
    pub(crate) fn adopt(&mut self, policy: Arc<dyn Policy>) {
        let forbidden: Vec<(usize, ProcessId)> = self
            .peers
            .iter()
            .filter_map(|(_, peer)| Some((peer.standing?, peer)))
            .filter(|(_, peer)| !policy.admits(&peer.pass))
            .map(|(token, peer)| (token, peer.id))
            .collect();
        self.identity.policy = policy;
        for (token, id) in forbidden {
            self.happenings.retain(|it| !matches!(it, Happening::Frames { from, .. } if *from == id));
            self.broke(token, "this process does not admit it any more");
        }
    }

    /// What this process shows.
    pub(crate) fn pass(&self) -> Bytes {
        self.identity.policy.pass()
    }

    /// Ends the link to `id`, because what it sent makes no sense.
    pub(crate) fn reject(&mut self, id: ProcessId, why: &str) {
        if let Some(token) = self.standing(id) {
            self.counters.garbage.inc();
            warn!("{id} sent what is no message ({why}): the link is broken off");
            self.broke(token, why);
        }
    }

    fn standing(&self, id: ProcessId) -> Option<usize> {
        self.peer_keys.get(&id).and_then(|&key| self.peers[key].standing)
    }

    fn pushed(&mut self, token: usize) {
        let connection = &mut self.connections[token];
        if !connection.listed_unwritten {
            connection.listed_unwritten = true;
            self.unwritten.push(token);
        }
        if connection.takes && connection.outlet.bytes() >= WRITE_BYTES_EARLY {
            self.write(token);
        }
        // A write may have broken the link.
        let most = self.limits.queue_bytes_max;
        let is_over = |it: &&Connection| it.outlet.bytes() > most;
        while self.connections.get(token).filter(is_over).is_some_and(|it| it.takes) {
            self.write(token);
        }
        if self.connections.get(token).filter(is_over).is_some() {
            self.counters.overrun.inc();
            self.broke(token, "it does not read what is sent to it");
        }
    }

    fn write(&mut self, token: usize) {
        let connection = &mut self.connections[token];
        let before = connection.outlet.bytes();
        let written = connection.outlet.write(&mut connection.stream);
        self.counters.bytes_sent.inc_by((before - connection.outlet.bytes()) as u64);
        self.counters.frames_sent.inc_by(connection.outlet.take_frames());
        match written {
            Ok(outflow) => {
                connection.takes = outflow != Outflow::Blocked;
                if outflow == Outflow::Interrupted && !connection.listed_unwritten {
                    connection.listed_unwritten = true;
                    self.unwritten.push(token);
                }
            }
            Err(error) => self.broke(token, &error.to_string()),
        }
    }

    fn take_in(&mut self, token: usize) {
        let connection = &mut self.connections[token];
        if let Stage::Standing { peer } = connection.stage {
            match connection.inlet.frames(self.limits.frame_bytes_max) {
                Ok(bytes) if bytes.is_empty() => {
                    self.happenings.push_back(Happening::Progress { from: self.peers[peer].id });
                }
                Ok(bytes) => {
                    let from = self.peers[peer].id;
                    self.happenings.push_back(Happening::Frames { from, frames: Frames::new(bytes) });
                }
                Err(oversized) => {
                    let from = self.peers[peer].id;
                    self.reject(from, &format!("a frame of {} bytes", oversized.length));
                }
            }
            return;
        }
        match connection.inlet.frame(GREETING_BYTES_MAX) {
            Ok(None) => {}
            Ok(Some(frame)) => {
                self.take_greeting(token, Greeting::decode(frame, &self.identity.versions));
                // Frames may have come right behind the welcome.
                if self.connections.get(token).is_some_and(|it| matches!(it.stage, Stage::Standing { .. })) {
                    self.take_in(token);
                }
            }
            Err(_) => self.garbage(token, "a frame longer than any greeting"),
        }
    }

    fn fire(&mut self, time: Time, timer: Timer) {
        match timer {
            Timer::Settle(token) => {
                if self.connections.get(token).is_some_and(|it| it.limit == Some(time)) {
                    self.broke(token, "no answer in time");
                }
            }
            Timer::Redial(key) => {
                if self.peers.get(key).is_some_and(|it| it.attempt == Attempt::Waiting(time)) {
                    self.dial(key);
                }
            }
            Timer::Accept(index) => self.accept(index),
        }
    }

    // Small parts.

    fn peer_key(&mut self, id: ProcessId) -> usize {
        *self.peer_keys.entry(id).or_insert_with(|| {
            self.peers.insert(Peer {
                id,
                wanted: None,
                attempt: Attempt::Idle,
                route: Vec::new(),
                backoff: self.limits.backoff_min,
                standing: None,
                number: 0,
                since: self.now,
                pass: Bytes::new(),
                told: Told::default(),
                mouth: None,
                token: 0,
                voice: 0,
                deferred: None,
                told_unlinked: false,
                refusal: None,
                version: None,
            })
        })
    }

    fn add(&mut self, stream: TcpStream, stage: Stage, timeout: Duration) -> io::Result<usize> {
        let entry = self.connections.vacant_entry();
        let token = entry.key();
        let connection = entry.insert(Connection {
            stream,
            stage,
            limit: None,
            inlet: Inlet::default(),
            outlet: Outlet::default(),
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
        self.timers.insert((limit, Timer::Settle(token)));
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Queued,
    Dropped,
}

fn list(readable: &mut VecDeque<usize>, listed: &mut bool, token: usize) {
    if !std::mem::replace(listed, true) {
        readable.push_back(token);
    }
}

const EVENTS_PER_TURN: usize = 1024;
/// Size of the memory for messages to several, and what is left when it is made anew.
const SHARED_BYTES: usize = 64 << 10;
const SHARED_BYTES_LEAST: usize = 4 << 10;
/// A turn that sends this much to one peer starts to write before it ends.
const WRITE_BYTES_EARLY: usize = 256 << 10;
