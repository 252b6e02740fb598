//! Links: one connection between two processes, made, kept and told about.
//!
//! Promise: between a [`Happening::Linked`] and the [`Happening::Unlinked`] behind it, frames of one session arrive in
//! the order of sending and without a gap; a pair of processes that can reach each other, and of which one wants the
//! link, always comes to have one again.
//!
//! Either side may dial. A connection *stands* at the acceptor when it has sent its welcome and at the dialler when that
//! arrives. Every hello and welcome carries a number that its sender never uses again and that grows. When two
//! connections of one pair meet, the acceptor of the later one decides, by rules that cannot lose both:
//!
//! 1. A link stands already: if the new hello's number is higher than that of the greeting the link was made with, its
//!    sender has lost that link (it would not dial otherwise), so the new connection replaces it. If the number is
//!    lower, the hello was sent before the link came to stand, and is refused as redundant.
//! 2. None stands, but our own hello is under way to that peer: the connection dialled by the *smaller* id is preferred.
//!    If that is the peer, its hello is accepted and our own dial given up. If it is we, the answer is deferred until
//!    our dial has come to an end either way; only then the rules are applied again.
//! 3. Else it is accepted.
//!
//! Only rule 2 gives up a connection while none stands, and it does so in the step that makes another one stand.
//!
//! [`Happening::Unlinked`] is told at once when a link breaks and when a first attempt fails, and not again while the
//! outage goes on. A peer is a [`ProcessId`], incarnation included: whoever else listens at its address now is a
//! stranger, and refused as that.

use std::{
    collections::{BTreeSet, VecDeque},
    io::{self, Write},
    net::SocketAddr,
    sync::Arc,
};

use bytes::BytesMut;
use mio::{
    Events, Interest, Poll, Registry, Token, Waker,
    net::{TcpListener, TcpStream},
};
use quorate_protocol::{
    DomainId, Duration, ProcessId, Session, Time,
    wire::{PROTOCOL_VERSION, Wire},
};
use rustc_hash::FxHashMap;
use rustix::net::sockopt;
use slab::Slab;
use tracing::{debug, info, warn};

use crate::{
    chance::Chance,
    config::Limits,
    counters::Counters,
    frame::{Frames, Inlet, Intake, Outflow, Outlet},
    hello::{GREETING_BYTES_MAX, Greeting, Hello, NoGreeting, Reason, Refusal},
    resolver::Resolver,
};

/// What the protocol is to hear of.
pub(crate) enum Happening {
    /// A link stands.
    Linked { peer: ProcessId, session: Session },
    /// It broke, or could not be made.
    Unlinked { peer: ProcessId },
    /// Frames arrived on it.
    Frames { from: ProcessId, frames: Frames },
}

/// Who this process is, as hellos tell it.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) domain: DomainId,
    pub(crate) role: u8,
    pub(crate) me: ProcessId,
    pub(crate) address: String,
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
    chance: Chance,
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

enum Stage {
    /// We dialled; the system is connecting.
    Connecting { peer: usize },
    /// We dialled and sent our hello.
    Greeting { peer: usize, number: u32 },
    /// They dialled; no hello yet.
    Accepted,
    /// They dialled; our own dial has the preference but has not come to its end.
    Deferred { peer: usize, hello: Hello },
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
    deferred: Option<usize>,
    /// The protocol knows that there is no link.
    told_unlinked: bool,
    /// Why the peer refused last; a reason is logged aloud once.
    refusal: Option<Reason>,
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
            peers: Slab::new(),
            peer_keys: FxHashMap::default(),
            readable: VecDeque::new(),
            unwritten: Vec::new(),
            timers: BTreeSet::new(),
            happenings: VecDeque::new(),
            number: 0,
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

    /// The next thing that the protocol is to hear of.
    pub(crate) fn happening(&mut self) -> Option<Happening> {
        self.happenings.pop_front()
    }

    /// Sends to one peer; without a link the message is dropped.
    pub(crate) fn send(&mut self, to: ProcessId, message: &impl Wire) -> Sent {
        let Some(token) = self.standing(to) else { return Sent::Dropped };
        self.connections[token].outlet.push(|out| message.encode(out));
        self.pushed(token);
        Sent::Queued
    }

    /// Encodes a message for several peers; to be sent by [`Links::send_shared`].
    pub(crate) fn encode_shared(&mut self, message: &impl Wire) -> bytes::Bytes {
        // Takes the memory again if what was shared before has been written.
        if self.shared.capacity() < SHARED_BYTES_LEAST {
            self.shared.reserve(SHARED_BYTES);
        }
        message.encode(&mut self.shared);
        self.shared.split().freeze()
    }

    /// Sends encoded bytes to one of several peers.
    pub(crate) fn send_shared(&mut self, to: ProcessId, message: &bytes::Bytes) -> Sent {
        let Some(token) = self.standing(to) else { return Sent::Dropped };
        self.connections[token].outlet.push_shared(message);
        self.pushed(token);
        Sent::Queued
    }

    /// Writes what was sent, one call a link.
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
        // Breaking a link may have listed others.
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
        }
        // The write may have broken the link, and with it forgotten the peer.
        if let Some(&key) = self.peer_keys.get(&id) {
            match self.peers[key].standing {
                Some(token) => self.broke(token, "forgotten"),
                None => self.leave(key),
            }
        }
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
        let bytes = connection.outlet.bytes();
        if bytes >= WRITE_BYTES_EARLY && connection.takes {
            self.write(token);
        } else if bytes > self.limits.queue_bytes_max {
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
            Ok(outflow) => connection.takes = outflow == Outflow::Empty,
            Err(error) => self.broke(token, &error.to_string()),
        }
    }

    // Dialling.

    fn dial(&mut self, key: usize) {
        let peer = &mut self.peers[key];
        assert!(peer.standing.is_none(), "one link a pair");
        if !peer.route.is_empty() {
            return self.dial_route(key);
        }
        let Some(address) = &peer.wanted else { return };
        match address.parse() {
            Ok(address) => {
                peer.route.push(address);
                self.dial_route(key);
            }
            Err(_) => {
                peer.attempt = Attempt::Resolving;
                self.resolver.ask(peer.id, address);
            }
        }
    }

    fn dial_route(&mut self, key: usize) {
        let peer = &mut self.peers[key];
        let Some(address) = peer.route.pop() else { return self.dial_failed(key, "its name leads nowhere") };
        self.counters.dials.inc();
        match TcpStream::connect(address) {
            Ok(stream) => {
                match self.add(stream, Stage::Connecting { peer: key }, self.limits.connect_timeout) {
                    Ok(token) => self.peers[key].attempt = Attempt::Dialling(token),
                    Err(error) => self.dial_failed(key, &error.to_string()),
                }
            }
            Err(error) => self.dial_failed(key, &error.to_string()),
        }
    }

    fn finish_connecting(&mut self, token: usize) {
        let connection = &mut self.connections[token];
        let Stage::Connecting { peer: key } = connection.stage else { return };
        match connection.stream.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return self.broke(token, &error.to_string()),
        }
        match connection.stream.peer_addr() {
            Ok(_) => {}
            // Not there yet; another event will tell.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return,
            Err(error) => return self.broke(token, &error.to_string()),
        }
        let number = self.next_number();
        let hello = Greeting::Hello(self.hello(self.peers[key].id, number));
        self.connections[token].stage = Stage::Greeting { peer: key, number };
        self.set_limit(token, self.limits.hello_timeout);
        if let Err(error) = self.greet(token, &hello) {
            self.broke(token, &error.to_string());
        }
    }

    /// An attempt came to nothing: tells so once an outage, waits, and turns to a deferred connection if there is one.
    fn dial_failed(&mut self, key: usize, why: &str) {
        let peer = &mut self.peers[key];
        if !peer.route.is_empty() && peer.deferred.is_none() {
            // The name has another address: not failed yet.
            return self.dial_route(key);
        }
        let wait = peer.backoff.mul_f64(0.5 + 0.5 * unit(self.chance.bits()));
        peer.backoff = (peer.backoff * 2).min(self.limits.backoff_max);
        let again = self.now + wait;
        peer.attempt = Attempt::Waiting(again);
        self.timers.insert((again, Timer::Redial(key)));
        let deferred = peer.deferred.take();
        if let Some(token) = deferred {
            self.apply_rules(token);
        }
        let peer = &mut self.peers[key];
        if peer.standing.is_none() && !std::mem::replace(&mut peer.told_unlinked, true) {
            info!("no link to {} at {}: {why}", peer.id, peer.wanted.as_deref().unwrap_or("?"));
            self.happenings.push_back(Happening::Unlinked { peer: peer.id });
        }
    }

    // Accepting.

    fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listeners[index].accept() {
                Ok((stream, _)) => {
                    if self.unsettled >= self.limits.unsettled_max
                        || self.connections.len() >= self.limits.connections_max
                    {
                        self.counters.crowded.inc();
                        continue;
                    }
                    match self.add(stream, Stage::Accepted, self.limits.hello_timeout) {
                        Ok(_) => self.unsettled += 1,
                        Err(error) => warn!(%error, "cannot take a connection on"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    // Out of file descriptors, most likely. The edge is spent, so a timer tries again.
                    warn!(%error, "cannot accept");
                    self.timers.insert((self.now + ACCEPT_PAUSE, Timer::Accept(index)));
                    return;
                }
            }
        }
        self.timers.insert((self.now, Timer::Accept(index)));
    }

    fn take_in(&mut self, token: usize) {
        let connection = &mut self.connections[token];
        if let Stage::Standing { peer } = connection.stage {
            match connection.inlet.frames(self.limits.frame_bytes_max) {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => {
                    let from = self.peers[peer].id;
                    self.happenings.push_back(Happening::Frames { from, frames: Frames(bytes) });
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
                self.take_greeting(token, Greeting::decode(frame));
                // Frames may have come right behind the welcome.
                if self.connections.get(token).is_some_and(|it| matches!(it.stage, Stage::Standing { .. })) {
                    self.take_in(token);
                }
            }
            Err(_) => self.garbage(token, "a frame longer than any greeting"),
        }
    }

    fn take_greeting(&mut self, token: usize, greeting: Result<Greeting, NoGreeting>) {
        let me = self.identity.me;
        match (&self.connections[token].stage, greeting) {
            (Stage::Accepted, Ok(Greeting::Hello(hello))) => {
                if hello.domain != self.identity.domain {
                    warn!(
                        "refused {} of domain {}: this process belongs to domain {}",
                        hello.process, hello.domain, self.identity.domain
                    );
                    self.refuse(token, Reason::Domain);
                } else if hello.wanted != me || hello.process == me {
                    debug!("refused {}: it wants {}, not {me}", hello.process, hello.wanted);
                    self.refuse(token, Reason::Stranger);
                } else {
                    let peer = self.peer_key(hello.process);
                    self.connections[token].stage = Stage::Deferred { peer, hello };
                    self.apply_rules(token);
                }
            }
            (Stage::Accepted, Err(NoGreeting::Version(version))) => {
                warn!("refused a peer of protocol version {version}: this process has {PROTOCOL_VERSION}");
                self.refuse(token, Reason::Version);
            }
            (&Stage::Greeting { peer, number }, Ok(Greeting::Welcome(hello)))
                if hello.process == self.peers[peer].id
                    && hello.wanted == me
                    && hello.domain == self.identity.domain =>
            {
                self.establish(token, peer, &hello, number);
            }
            (&Stage::Greeting { peer, .. }, Ok(Greeting::Refusal(refusal))) => {
                self.refused(token, peer, refusal.reason, &refusal.to_string());
            }
            (&Stage::Greeting { peer, .. }, Err(version @ NoGreeting::Version(_))) => {
                self.refused(token, peer, Reason::Version, &version.to_string());
            }
            (_, Err(error)) => self.garbage(token, &error.to_string()),
            (_, Ok(_)) => self.garbage(token, "a greeting out of turn"),
        }
    }

    /// Decides what becomes of a good hello from outside (the rules above).
    fn apply_rules(&mut self, token: usize) {
        let Stage::Deferred { peer: key, ref hello } = self.connections[token].stage else {
            unreachable!("only a connection with a hello is decided on")
        };
        let hello = hello.clone();
        let peer = &mut self.peers[key];
        if let Some(other) = peer.deferred.take_if(|other| *other != token) {
            // The peer dialled again, so it gave the earlier attempt up.
            self.drop_connection(other);
        }
        let peer = &mut self.peers[key];
        peer.deferred = None;
        if let Some(standing) = peer.standing {
            if hello.number < peer.number {
                return self.refuse(token, Reason::Redundant);
            }
            self.unlink(standing, "the peer made a new connection");
        } else if let Attempt::Dialling(ours) = peer.attempt {
            let greeting = matches!(self.connections[ours].stage, Stage::Greeting { .. });
            if greeting && self.identity.me < peer.id {
                peer.deferred = Some(token);
                return;
            }
            self.drop_connection(ours);
        }
        let number = self.next_number();
        let welcome = Greeting::Welcome(self.hello(hello.process, number));
        match self.greet(token, &welcome) {
            Ok(()) => {
                self.unsettled -= 1;
                self.establish(token, key, &hello, number);
            }
            Err(error) => {
                // Our own dial, if there was one, has been given up for this.
                self.drop_connection(token);
                self.resume(key, &error.to_string());
            }
        }
    }

    fn establish(&mut self, token: usize, key: usize, hello: &Hello, number: u32) {
        let connection = &mut self.connections[token];
        connection.stage = Stage::Standing { peer: key };
        connection.limit = None;
        let peer = &mut self.peers[key];
        assert!(peer.standing.is_none(), "one link a pair");
        peer.standing = Some(token);
        peer.attempt = Attempt::Idle;
        peer.route.clear();
        peer.number = hello.number;
        peer.since = self.now;
        peer.told_unlinked = false;
        peer.refusal = None;
        let session = hello.session(self.identity.me, number);
        self.counters.linked.inc();
        self.counters.links.inc();
        debug!("linked to {} (role {}) of {}", peer.id, hello.role, hello.address);
        self.happenings.push_back(Happening::Linked { peer: peer.id, session });
        if let Some(deferred) = peer.deferred {
            self.apply_rules(deferred);
        }
    }

    // Ending.

    fn refuse(&mut self, token: usize, reason: Reason) {
        self.counters.refused.inc();
        let Identity { domain, me, .. } = self.identity;
        let refusal = Refusal { reason, version: PROTOCOL_VERSION, domain, process: me };
        // If the peer cannot take it, it is none the wiser; we close either way.
        let _ = self.greet(token, &Greeting::Refusal(refusal));
        self.broke(token, "refused");
    }

    fn refused(&mut self, token: usize, key: usize, reason: Reason, why: &str) {
        self.counters.refused.inc();
        let peer = &mut self.peers[key];
        if reason != Reason::Redundant {
            // It will not change its mind soon.
            peer.backoff = self.limits.backoff_max;
            if peer.refusal.replace(reason) != Some(reason) {
                warn!(
                    "{} at {} refused this process (of domain {}): {why}",
                    peer.id,
                    peer.wanted.as_deref().unwrap_or("?"),
                    self.identity.domain
                );
            }
        }
        self.broke(token, why);
    }

    fn garbage(&mut self, token: usize, why: &str) {
        self.counters.garbage.inc();
        debug!("garbage on a connection: {why}");
        self.broke(token, why);
    }

    /// Ends a connection in whatever stage, with all that follows.
    fn broke(&mut self, token: usize, why: &str) {
        match self.connections[token].stage {
            Stage::Standing { peer } => {
                self.unlink(token, why);
                self.resume(peer, why);
            }
            Stage::Connecting { peer } | Stage::Greeting { peer, .. } => {
                self.drop_connection(token);
                self.dial_failed(peer, why);
            }
            Stage::Deferred { peer, .. } => {
                if self.peers[peer].deferred == Some(token) {
                    self.peers[peer].deferred = None;
                }
                self.drop_connection(token);
                self.leave(peer);
            }
            Stage::Accepted => self.drop_connection(token),
        }
    }

    /// Ends a link and tells so; what becomes of the peer is the caller's to say.
    fn unlink(&mut self, token: usize, why: &str) {
        let Stage::Standing { peer: key } = self.connections[token].stage else {
            unreachable!("only a standing connection is a link")
        };
        self.drop_connection(token);
        let peer = &mut self.peers[key];
        peer.standing = None;
        peer.told_unlinked = true;
        // A link that stood for a while starts a new outage; one that did not goes on with the old.
        if self.now.since(peer.since) >= self.limits.backoff_max {
            peer.backoff = self.limits.backoff_min;
        }
        self.counters.links.dec();
        info!("lost the link to {}: {why}", peer.id);
        self.happenings.push_back(Happening::Unlinked { peer: peer.id });
    }

    /// A peer has neither link nor dial: tries again if it is wanted.
    fn resume(&mut self, key: usize, why: &str) {
        if self.peers[key].wanted.is_some() {
            self.dial_failed(key, why);
        } else {
            self.leave(key);
        }
    }

    /// Drops what is known about a peer if it is neither linked nor wanted.
    fn leave(&mut self, key: usize) {
        let peer = &self.peers[key];
        if peer.wanted.is_none() && peer.standing.is_none() && peer.deferred.is_none() {
            self.peer_keys.remove(&peer.id);
            self.peers.remove(key);
        }
    }

    fn drop_connection(&mut self, token: usize) {
        let mut connection = self.connections.remove(token);
        if matches!(connection.stage, Stage::Accepted | Stage::Deferred { .. }) {
            self.unsettled -= 1;
        }
        // Closing would do that too, but only while no other process shares the descriptor.
        let _ = self.poll.registry().deregister(&mut connection.stream);
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
                deferred: None,
                told_unlinked: false,
                refusal: None,
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

    fn next_number(&mut self) -> u32 {
        self.number = self.number.checked_add(1).expect("a process makes fewer than 2^32 connections");
        self.number
    }

    fn hello(&self, wanted: ProcessId, number: u32) -> Hello {
        let Identity { domain, role, me, ref address } = self.identity;
        Hello { domain, role, process: me, wanted, number, address: address.clone() }
    }

    /// Writes a greeting. The socket's buffer is empty and takes it whole, or the connection is of no use.
    fn greet(&mut self, token: usize, greeting: &Greeting) -> io::Result<()> {
        let stream = &mut self.connections[token].stream;
        stream.set_nodelay(true)?;
        let timeout = self.limits.unacknowledged_timeout.as_millis();
        sockopt::set_tcp_user_timeout(&*stream, u32::try_from(timeout).unwrap_or(u32::MAX))?;
        let bytes = greeting.encode();
        if stream.write(&bytes)? < bytes.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
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

/// Random bits as a number in [0, 1).
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

const EVENTS_PER_TURN: usize = 1024;
const ACCEPTS_PER_TURN: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Size of the memory for messages to several, and what is left when it is made anew.
const SHARED_BYTES: usize = 64 << 10;
const SHARED_BYTES_LEAST: usize = 4 << 10;
/// A turn that sends this much to one peer starts to write before it ends.
const WRITE_BYTES_EARLY: usize = 256 << 10;
