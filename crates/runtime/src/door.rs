//! A door: byte streams of clients, served on the protocol thread.
//!
//! **Promise.** Bytes of a client reach the [`Door`] in their order, and its answers reach the client in theirs. No client holds the
//! thread: of each, one read of at most 64 KiB is taken in a turn. What clients make this process keep is bounded: their number,
//! the bytes of requests that are not whole, and the time that an unfinished request or an unread answer may take.
//!
//! **Why here.** A door that hands requests over to another thread pays for waking it, twice for each request. That costs more than
//! an operation on a map does. Streams are polled with the links, so that one wait serves both.
//!
//! ```text
//!   readable ─▶ read once ─▶ Door::take ─▶ commands ─▶ protocol ─▶ events ─▶ Door::give ─▶ one write a client
//! ```
//!
//! **A process that is restarted in its place** leaves its clients to the program that follows: the door takes them out
//! ([`Clients::leave`]), and the next one takes them in ([`Clients::adopt`]).
//!
//! **A client that does not read** is not served until it does: beyond 1 MiB of answers nothing more is taken of it.

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net,
};

use bytes::{Buf, Bytes, BytesMut};
use mio::{
    Events, Interest, Registry, Token,
    net::{TcpListener, TcpStream},
};
use quorate_protocol::{Duration, Protocol, Time};
use slab::Slab;

use crate::metrics::{Counter, Gauge, Metrics};

/// The name of a connected client; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    key: u32,
    life: u32,
}

impl ClientId {
    /// As one number.
    pub fn number(self) -> u64 {
        u64::from(self.life) << 32 | u64::from(self.key)
    }
}

/// The event that a door waits for before it takes more from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// More bytes: the first request that is left is not whole.
    Wait,
    /// Its next turn: there are whole requests left.
    More,
    /// An answer under way. The door says when to go on ([`Clients::resume`]).
    Held,
    /// Nothing: no more is taken. The door says when the client has all its answers ([`Clients::end`]).
    End,
}

/// The requests and answers of clients, for the protocol of one process. Called on the protocol thread: it must not block.
pub trait Door<P: Protocol> {
    /// A client has connected.
    fn opened(&mut self, client: ClientId, now: Time);

    /// Takes requests off the front of `input`, and hands on what they come to. Returns how many bytes it took and what it waits
    /// for. Until more bytes come, it is not called again with what it left for [`Flow::Wait`].
    fn take(
        &mut self,
        client: ClientId,
        input: &[u8],
        now: Time,
        ask: &mut dyn FnMut(P::Command),
    ) -> (usize, Flow);

    /// A turn ends: answers that can be given are put out, for any clients.
    fn give(&mut self, clients: &mut Clients);

    /// A client has gone. What it asked for may still be under way; its answers go nowhere.
    fn closed(&mut self, client: ClientId);

    /// The farewell to a client that is turned away because too many are connected.
    fn crowded(&mut self) -> &'static [u8];
}

/// Bounds, and their sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Clients at a time; more are turned away.
    pub clients_max: usize,
    /// Bytes of unfinished requests of all clients together. Whoever sends more is cut off.
    pub input_bytes_max: usize,
    /// How long a client may take to finish a request, or to read something of its answers.
    pub patience: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        ClientLimits { clients_max: 10_000, input_bytes_max: 256 << 20, patience: Duration::from_secs(30) }
    }
}

/// A client that was taken out of a door.
pub struct Left {
    /// Its socket.
    pub stream: net::TcpStream,
    /// Bytes that were read and not taken.
    pub input: Bytes,
    /// Answers that are not written yet.
    pub output: Bytes,
}

/// The clients of a door.
pub struct Clients {
    listener: TcpListener,
    /// No more clients are accepted.
    is_shut: bool,
    registry: Registry,
    limits: ClientLimits,
    /// The farewell to clients that are turned away.
    crowded: &'static [u8],
    counters: ClientCounters,
    clients: Slab<Client>,
    lives: u32,
    /// Clients of which something can be taken, each once.
    runnable: VecDeque<ClientId>,
    /// Clients with answers to write, each once.
    unwritten: Vec<ClientId>,
    fresh: Vec<ClientId>,
    gone: Vec<ClientId>,
    /// Bytes of unfinished requests.
    input_bytes: usize,
    scratch: Vec<u8>,
    /// When accepting is tried again.
    accept_at: Option<Time>,
    /// The next look for clients that take too long, as long as there are any.
    look_at: Time,
}

struct Client {
    id: ClientId,
    stream: TcpStream,
    /// Bytes that were read and not taken.
    input: BytesMut,
    output: BytesMut,
    flow: Flow,
    /// In the list of runnable ones.
    listed: bool,
    /// In the list of unwritten ones.
    listed_unwritten: bool,
    /// The socket may have more to read.
    readable: bool,
    /// The socket took everything so far, or told that it takes more.
    takes: bool,
    /// It is closed once everything is written.
    ending: bool,
    /// Since when it has left a request unfinished, or an answer unread.
    slow_since: Option<Time>,
}

impl Client {
    fn is_runnable(&self) -> bool {
        let wants = match self.flow {
            Flow::Wait => self.readable,
            Flow::More => true,
            Flow::Held | Flow::End => false,
        };
        wants && !self.ending && self.output.len() <= OUTPUT_BYTES_PAUSE
    }
}

/// Counts of clients.
#[derive(Clone, Debug)]
struct ClientCounters {
    connected: Gauge,
    accepted: Counter,
    crowded: Counter,
    slow: Counter,
    overrun: Counter,
}

impl ClientCounters {
    fn new(metrics: &Metrics) -> ClientCounters {
        ClientCounters {
            connected: metrics.gauge("clients", "Clients connected"),
            accepted: metrics.counter("clients_accepted", "Clients that connected"),
            crowded: metrics.counter("clients_crowded", "Clients turned away at the limit"),
            slow: metrics.counter("clients_slow", "Clients cut off for taking too long"),
            overrun: metrics.counter("clients_overrun", "Clients cut off for bytes of unfinished requests"),
        }
    }
}

impl Clients {
    pub(crate) fn new(
        listener: std::net::TcpListener,
        (limits, crowded): (ClientLimits, &'static [u8]),
        registry: Registry,
        metrics: &Metrics,
    ) -> io::Result<Clients> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Clients {
            listener,
            is_shut: false,
            registry,
            limits,
            crowded,
            counters: ClientCounters::new(metrics),
            clients: Slab::new(),
            lives: 0,
            runnable: VecDeque::new(),
            unwritten: Vec::new(),
            fresh: Vec::new(),
            gone: Vec::new(),
            input_bytes: 0,
            scratch: vec![0; READ_BYTES],
            accept_at: None,
            look_at: Time::ZERO,
        })
    }

    // For doors.

    /// Where answers to a client are put; none if it has gone.
    pub fn output(&mut self, client: ClientId) -> Option<&mut BytesMut> {
        let it = self.clients.get_mut(client.key as usize).filter(|it| it.id == client)?;
        if !std::mem::replace(&mut it.listed_unwritten, true) {
            self.unwritten.push(client);
        }
        Some(&mut it.output)
    }

    /// More can be taken from a client that was [held](Flow::Held).
    pub fn resume(&mut self, client: ClientId) {
        if let Some(it) = self.get(client).filter(|it| it.flow == Flow::Held) {
            it.flow = Flow::More;
            self.list(client);
        }
    }

    /// The client has all its answers: it is closed once they are written.
    pub fn end(&mut self, client: ClientId) {
        if let Some(it) = self.get(client) {
            it.ending = true;
            let _ = self.output(client);
        }
    }

    /// Whether the client has not taken all its answers yet.
    pub fn has_unwritten(&self, client: ClientId) -> bool {
        let it = self.clients.get(client.key as usize).filter(|it| it.id == client);
        it.is_some_and(|it| !it.output.is_empty())
    }

    /// Accepts no more clients. They wait at the socket for the next one who listens there.
    pub fn shut(&mut self) {
        if !std::mem::replace(&mut self.is_shut, true) {
            self.accept_at = None;
            // An error says that it is not registered, which is what is wanted.
            let _ = self.registry.deregister(&mut self.listener);
        }
    }

    /// Takes a client out, with its connection; none if it has gone. The door is not told that it goes.
    pub fn leave(&mut self, client: ClientId) -> Option<Left> {
        self.get(client)?;
        let it = self.take_out(client);
        let (input, output) = (it.input.freeze(), it.output.freeze());
        Some(Left { stream: it.stream.into(), input, output })
    }

    /// Takes in a client that another door has left, [held](Flow::Held); none if it has gone, or cannot be polled. The door is not
    /// told that it opens.
    pub fn adopt(&mut self, left: Left) -> Option<ClientId> {
        left.stream.set_nonblocking(true).ok()?;
        let client = self.insert(TcpStream::from_std(left.stream))?;
        let it = self.get(client)?;
        // The poll may not tell again of what came before.
        (it.flow, it.readable) = (Flow::Held, true);
        it.input = left.input.into();
        it.output = left.output.into();
        let (input_bytes, unwritten) = (it.input.len(), !it.output.is_empty());
        self.input_bytes += input_bytes;
        if unwritten {
            let _ = self.output(client);
        }
        Some(client)
    }

    // For the loop, in the order of a turn.

    /// When something is due even if the network is quiet.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if !self.runnable.is_empty() || !self.unwritten.is_empty() || !self.gone.is_empty() {
            return Some(Time::ZERO);
        }
        let look = (!self.clients.is_empty()).then_some(self.look_at);
        [self.accept_at, look].into_iter().flatten().min()
    }

    /// Attends to what the poll brought and to what is due.
    pub(crate) fn attend(&mut self, events: &Events, now: Time) {
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept(now);
        }
        for event in events {
            if event.token() == LISTENER {
                self.accept(now);
                continue;
            }
            let Some(key) = event.token().0.checked_sub(FIRST.0) else { continue };
            let Some(it) = self.clients.get_mut(key) else { continue };
            it.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
            it.takes |= event.is_writable();
            let id = it.id;
            if event.is_writable() {
                let _ = self.output(id);
            }
            self.list(id);
        }
        if self.look_at <= now {
            self.look_at = now + LOOK_EVERY;
            self.drop_slow(now);
        }
    }

    /// Clients that have connected since it was asked last.
    pub(crate) fn take_fresh(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.fresh)
    }

    /// Clients that have gone since it was asked last.
    pub(crate) fn take_gone(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.gone)
    }

    /// How many clients have something to be taken.
    pub(crate) fn runnable(&self) -> usize {
        self.runnable.len()
    }

    /// The client that has waited longest.
    pub(crate) fn next(&mut self) -> Option<ClientId> {
        let client = self.runnable.pop_front()?;
        if let Some(it) = self.get(client) {
            it.listed = false;
        }
        Some(client)
    }

    /// Reads once, if the client is waited for, and has `take` take what is there. Nothing if nothing can be taken.
    pub(crate) fn feed(
        &mut self,
        client: ClientId,
        now: Time,
        take: impl FnOnce(&[u8]) -> (usize, Flow),
    ) -> Option<Flow> {
        let it = self.clients.get_mut(client.key as usize).filter(|it| it.id == client)?;
        if !it.is_runnable() {
            return None;
        }
        let before = it.input.len();
        let mut read = 0;
        if it.flow == Flow::Wait {
            match it.stream.read(&mut self.scratch) {
                Ok(0) => return self.close(client),
                Ok(count) => {
                    read = count;
                    // After a short read an edge-triggered poll tells of every byte that comes later.
                    it.readable = count == self.scratch.len();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    it.readable = false;
                    return None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.list(client);
                    return None;
                }
                Err(_) => return self.close(client),
            }
        }
        // Most requests come whole, and are taken from where they were read.
        let (taken, flow) = if before == 0 {
            let (taken, flow) = take(&self.scratch[..read]);
            it.input.extend_from_slice(&self.scratch[taken..read]);
            (taken, flow)
        } else {
            it.input.extend_from_slice(&self.scratch[..read]);
            let (taken, flow) = take(&it.input);
            it.input.advance(taken);
            (taken, flow)
        };
        if it.input.is_empty() {
            // An idle client has no memory for input.
            it.input = BytesMut::new();
        }
        self.input_bytes = self.input_bytes - before + it.input.len();
        it.flow = flow;
        let unfinished = flow == Flow::Wait && !it.input.is_empty();
        it.slow_since = match it.slow_since {
            Some(since) if unfinished && taken == 0 => Some(since),
            _ => unfinished.then_some(now),
        };
        if self.input_bytes > self.limits.input_bytes_max {
            self.counters.overrun.inc();
            return self.close(client);
        }
        self.list(client);
        Some(flow)
    }

    /// Writes answers, one call a client.
    pub(crate) fn flush(&mut self, now: Time) {
        let mut unwritten = std::mem::take(&mut self.unwritten);
        for client in unwritten.drain(..) {
            let Some(it) = self.get(client) else { continue };
            it.listed_unwritten = false;
            self.write(client, now);
        }
        unwritten.append(&mut self.unwritten);
        self.unwritten = unwritten;
    }

    fn write(&mut self, client: ClientId, now: Time) {
        let Some(it) = self.get(client) else { return };
        while it.takes && !it.output.is_empty() {
            match it.stream.write(&it.output) {
                Ok(count) => {
                    it.output.advance(count);
                    it.slow_since = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    it.takes = false;
                    it.slow_since.get_or_insert(now);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.close(client);
                    return;
                }
            }
        }
        if it.output.is_empty() {
            if it.output.capacity() > OUTPUT_BYTES_KEPT {
                it.output = BytesMut::new();
            }
            if it.ending {
                self.close(client);
                return;
            }
        }
        self.list(client);
    }

    fn accept(&mut self, now: Time) {
        if self.is_shut {
            return;
        }
        self.accept_at = None;
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok((stream, _)) => self.open(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The client has gone already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // No descriptors, say.
                Err(_) => {
                    self.accept_at = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
        self.accept_at = Some(now);
    }

    fn open(&mut self, mut stream: TcpStream) {
        if self.clients.len() >= self.limits.clients_max {
            self.counters.crowded.inc();
            // It may not take it; then it learns nothing but that it is closed.
            let _ = stream.write(self.crowded);
            return;
        }
        if let Some(client) = self.insert(stream) {
            self.fresh.push(client);
            self.counters.accepted.inc();
        }
    }

    /// Takes a connection in; none if it cannot be polled.
    fn insert(&mut self, mut stream: TcpStream) -> Option<ClientId> {
        let _ = stream.set_nodelay(true);
        let entry = self.clients.vacant_entry();
        let key = entry.key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.registry.register(&mut stream, Token(FIRST.0 + key), interest).ok()?;
        self.lives = self.lives.wrapping_add(1);
        let id = ClientId { key: key as u32, life: self.lives };
        entry.insert(Client {
            id,
            stream,
            input: BytesMut::new(),
            output: BytesMut::new(),
            flow: Flow::Wait,
            listed: false,
            listed_unwritten: false,
            readable: false,
            takes: true,
            ending: false,
            slow_since: None,
        });
        self.counters.connected.inc();
        Some(id)
    }

    fn close(&mut self, client: ClientId) -> Option<Flow> {
        if self.get(client).is_some() {
            self.take_out(client);
            self.gone.push(client);
        }
        None
    }

    /// Takes out a client that is there.
    fn take_out(&mut self, client: ClientId) -> Client {
        let mut it = self.clients.remove(client.key as usize);
        // An error says that it is not registered, which is what is wanted.
        let _ = self.registry.deregister(&mut it.stream);
        self.input_bytes -= it.input.len();
        self.counters.connected.dec();
        it
    }

    fn drop_slow(&mut self, now: Time) {
        let patience = self.limits.patience;
        let is_slow = |it: &Client| it.slow_since.is_some_and(|since| now.since(since) > patience);
        let slow: Vec<ClientId> =
            self.clients.iter().filter(|(_, it)| is_slow(it)).map(|(_, it)| it.id).collect();
        for client in slow {
            self.counters.slow.inc();
            self.close(client);
        }
    }

    fn list(&mut self, client: ClientId) {
        if let Some(it) = self.get(client)
            && it.is_runnable()
            && !std::mem::replace(&mut it.listed, true)
        {
            self.runnable.push_back(client);
        }
    }

    fn get(&mut self, client: ClientId) -> Option<&mut Client> {
        self.clients.get_mut(client.key as usize).filter(|it| it.id == client)
    }
}

/// Bytes read from a client in a turn.
const READ_BYTES: usize = 64 << 10;
/// With more bytes of answers unread, nothing more is taken from a client.
const OUTPUT_BYTES_PAUSE: usize = 1 << 20;
/// With less memory for answers than this, a client keeps it.
const OUTPUT_BYTES_KEPT: usize = 64 << 10;
const ACCEPTS_PER_TURN: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Far above the tokens of links, and below that of the waker.
const LISTENER: Token = Token(usize::MAX / 2);
const FIRST: Token = Token(usize::MAX / 2 + 1);
