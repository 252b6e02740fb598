//! A door: byte streams of clients, served on the protocol thread.
//!
//! **Promise.** The bytes of a client reach the [`Door`] in order, and the door's answers reach the client in
//! order. No client holds the thread: a turn reads each client at most once, 64 KiB. All memory that clients
//! make this process use is bounded ([`ClientLimits`]): their number, the bytes of incomplete requests, the
//! bytes of unsent answers, and the time for an incomplete request or an unread answer.
//!
//! **Why on this thread.** A door that passed requests to another thread would pay for two wake-ups per
//! request, which cost more than an operation on a map. The loop polls streams and links together, so that
//! one wait serves both.
//!
//! ```text
//! readable ─▶ read once ─▶ Door::take ─▶ commands ─▶ protocol ─▶ events ─▶ Door::give ─▶ one write a client
//! ```
//!
//! **Restart in place.** A process may be replaced by a new program that keeps its clients. The door takes
//! each client out ([`Clients::leave`]), and the new program's door takes it in ([`Clients::adopt`]).
//!
//! **A client that does not read** is not served until it reads: above 1 MiB of unsent answers the door takes
//! no more requests from it. Within its patience such a client must read a minimum of bytes, not just one
//! byte.
//!
//! **Too much of all clients together.** The door cuts off the client that holds most, not the client that
//! happens to be served.
//!
//! **A client that vanished** (its machine lost power, a firewall forgot it) is detected by the system's
//! probes. When no more clients may connect, the door cuts off a client that has never sent a request, to
//! make room for the next one.

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
use rustix::net::sockopt;
use slab::Slab;

use crate::{
    clock,
    metrics::{Counter, Gauge, Metrics},
};

/// The name of a connected client; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    key: u32,
    life: u32,
}

impl ClientId {
    /// Returns the name as one number.
    pub fn number(self) -> u64 {
        u64::from(self.life) << 32 | u64::from(self.key)
    }
}

/// The event that must happen before a door takes more requests from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// More bytes must arrive: the first remaining request is incomplete.
    Wait,
    /// The client must get its next turn: complete requests remain.
    More,
    /// An answer under way must be given. The door calls [`Clients::resume`] once it can go on.
    Held,
    /// No event: the door takes no more requests. It calls [`Clients::end`] after the client's last answer.
    End,
}

/// The server of a process's clients. The protocol thread calls the door, so its methods must not block.
pub trait Door<P: Protocol> {
    /// Registers a client that has connected.
    fn opened(&mut self, client: ClientId, now: Time);

    /// Takes requests from the front of `input`, and passes the resulting commands to `ask`. Returns the
    /// number of bytes taken, and the event that the door waits for. After [`Flow::Wait`] the loop calls
    /// again only when more bytes have arrived.
    fn take(
        &mut self,
        client: ClientId,
        input: &[u8],
        now: Time,
        ask: &mut dyn FnMut(P::Command),
    ) -> (usize, Flow);

    /// Writes available answers to the outputs of their clients. Called at the end of a turn.
    fn give(&mut self, clients: &mut Clients);

    /// Removes a client that has gone. Its requests may still be under way, and their answers are dropped.
    fn closed(&mut self, client: ClientId);

    /// Returns the bytes that a client receives when it is turned away because too many clients are
    /// connected.
    fn crowded(&mut self) -> &'static [u8];
}

/// Limits of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Maximum number of clients at a time. Further clients are turned away.
    pub clients_max: usize,
    /// Bytes of incomplete requests of all clients together. Above the limit, the client with the most such
    /// bytes is cut off.
    pub input_bytes_max: usize,
    /// Bytes of unsent answers of one client. Above the limit the door takes no more requests from it.
    pub output_bytes_pause: usize,
    /// Bytes of unsent answers of all clients together. Above the limit, the client with the most such bytes
    /// is cut off.
    pub output_bytes_max: usize,
    /// Time for a client to complete a request, or to read `progress_bytes` of its answers.
    pub patience: Duration,
    /// Bytes that a client with unsent answers must read within `patience`, unless fewer are left.
    pub progress_bytes: usize,
    /// Time after which a client that does not acknowledge the system's probes is cut off.
    pub dead_after: Duration,
    /// Time after which a client that has never sent a request may be cut off to make room for another
    /// client.
    pub silence_max: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        ClientLimits {
            clients_max: 10_000,
            input_bytes_max: 64 << 20,
            output_bytes_pause: 1 << 20,
            output_bytes_max: 96 << 20,
            patience: Duration::from_secs(30),
            progress_bytes: 64 << 10,
            dead_after: Duration::from_secs(90),
            silence_max: Duration::from_secs(5),
        }
    }
}

/// A client taken out of a door, with its connection.
pub struct DetachedClient {
    /// The client's socket.
    pub stream: net::TcpStream,
    /// Bytes that were read from the client, but not taken by the former door.
    pub input: Bytes,
    /// Answers that are not written yet.
    pub output: Bytes,
}

/// The clients of a door.
pub struct Clients {
    listener: TcpListener,
    /// Whether the door has stopped accepting clients.
    is_shut: bool,
    registry: Registry,
    limits: ClientLimits,
    /// The bytes that a client receives when it is turned away because too many clients are connected.
    crowded: &'static [u8],
    counters: ClientCounters,
    clients: Slab<DoorClient>,
    lives: u32,
    /// Clients from which the door can take requests, each once.
    runnable: VecDeque<ClientId>,
    /// Clients with unwritten answers, each once.
    unwritten: Vec<ClientId>,
    fresh: Vec<ClientId>,
    gone: Vec<ClientId>,
    /// Clients whose unsent answers have fallen to the level that the door asked about, each once.
    drained: Vec<ClientId>,
    /// Bytes of incomplete requests of all clients.
    input_bytes: usize,
    /// Bytes of unsent answers of all clients. A client's share is updated when its answers are written.
    output_bytes: usize,
    scratch: Vec<u8>,
    /// The time at which clients are accepted again after a failure.
    accept_at: Option<Time>,
    /// The time of the next check for slow clients.
    look_at: Time,
}

struct DoorClient {
    id: ClientId,
    stream: TcpStream,
    /// Bytes that were read, but not taken by the door.
    input: BytesMut,
    output: BytesMut,
    flow: Flow,
    /// Whether the client is in `runnable`.
    listed: bool,
    /// Whether the client is in `unwritten`.
    listed_unwritten: bool,
    /// Whether the socket may have more to read.
    readable: bool,
    /// Whether the socket may take more bytes.
    takes: bool,
    /// Whether the client is closed after its last answer is written.
    ending: bool,
    /// The time since which the client's first request has been incomplete.
    slow_since: Option<Time>,
    /// The time since which the client has had unread answers.
    unread_since: Option<Time>,
    /// Bytes of answers that the client has read since `unread_since`.
    unread_taken: usize,
    /// This client's share of `output_bytes`.
    output_counted: usize,
    /// The number of unsent bytes at or below which the client enters `drained`, if the door asked for that.
    notify_below_bytes: Option<usize>,
    opened_at: Time,
    /// Whether the client has sent a complete request.
    is_served: bool,
}

impl DoorClient {
    fn is_runnable(&self, limits: &ClientLimits) -> bool {
        let wants = match self.flow {
            Flow::Wait => self.readable,
            Flow::More => true,
            Flow::Held | Flow::End => false,
        };
        wants && !self.ending && self.output.len() <= limits.output_bytes_pause
    }
}

/// Metrics of clients.
#[derive(Clone, Debug)]
struct ClientCounters {
    connected: Gauge,
    accepted: Counter,
    crowded: Counter,
    slow: Counter,
    overrun: Counter,
    unread: Counter,
    silent: Counter,
}

impl ClientCounters {
    fn new(metrics: &Metrics) -> ClientCounters {
        ClientCounters {
            connected: metrics.gauge("clients", "Clients that are connected now"),
            accepted: metrics
                .counter("clients_accepted", "Clients that have connected since the process started"),
            crowded: metrics.counter("clients_crowded", "Clients turned away at the limit of clients"),
            slow: metrics
                .counter("clients_slow", "Clients cut off because a request or an answer took too long"),
            overrun: metrics.counter(
                "clients_overrun",
                "Clients cut off because their unfinished requests took too many bytes",
            ),
            unread: metrics.counter(
                "clients_unread",
                "Clients cut off because their unread answers took too many bytes",
            ),
            silent: metrics.counter(
                "clients_silent",
                "Clients that had sent no request and were cut off at the limit of clients",
            ),
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
            drained: Vec::new(),
            input_bytes: 0,
            output_bytes: 0,
            scratch: vec![0; READ_BYTES],
            accept_at: None,
            look_at: Time::ZERO,
        })
    }

    // Methods for doors.

    /// Returns the buffer for answers to a client, or `None` if the client has gone.
    pub fn output(&mut self, client: ClientId) -> Option<&mut BytesMut> {
        let it = self.clients.get_mut(client.key as usize).filter(|it| it.id == client)?;
        if !std::mem::replace(&mut it.listed_unwritten, true) {
            self.unwritten.push(client);
        }
        Some(&mut it.output)
    }

    /// Lists the client in [`Clients::take_drained`] once at most `bytes` bytes of its answers are unsent.
    pub fn notify_when_drained(&mut self, client: ClientId, bytes: usize) {
        if let Some(it) = self.get(client) {
            it.notify_below_bytes = Some(bytes);
        }
    }

    /// Returns the clients that have become [drained](Clients::notify_when_drained) since the last call.
    pub fn take_drained(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.drained)
    }

    /// Makes the loop call [`Door::take`] for a client, even without new bytes, and even if the door waits
    /// for none.
    pub fn wake(&mut self, client: ClientId) {
        if let Some(it) = self.get(client) {
            it.flow = Flow::More;
            self.list(client);
        }
    }

    /// Continues to serve a client that was [held](Flow::Held).
    pub fn resume(&mut self, client: ClientId) {
        if let Some(it) = self.get(client).filter(|it| it.flow == Flow::Held) {
            it.flow = Flow::More;
            self.list(client);
        }
    }

    /// Closes the client after its answers are written. The door has no more answers for it.
    pub fn end(&mut self, client: ClientId) {
        if let Some(it) = self.get(client) {
            it.ending = true;
            let _ = self.output(client);
        }
    }

    /// Whether some answers to the client are not written yet.
    pub fn has_unwritten(&self, client: ClientId) -> bool {
        let it = self.clients.get(client.key as usize).filter(|it| it.id == client);
        it.is_some_and(|it| !it.output.is_empty())
    }

    /// Stops accepting clients. New clients wait at the socket for the next program that listens there.
    pub fn shut(&mut self) {
        if !std::mem::replace(&mut self.is_shut, true) {
            self.accept_at = None;
            // An error means that the listener is already not registered, which is the goal.
            let _ = self.registry.deregister(&mut self.listener);
        }
    }

    /// Removes a client from the door, and returns it with its connection. Returns `None` if the client has
    /// gone. [`Door::closed`] is not called.
    pub fn leave(&mut self, client: ClientId) -> Option<DetachedClient> {
        self.get(client)?;
        let it = self.take_out(client);
        let (input, output) = (it.input.freeze(), it.output.freeze());
        Some(DetachedClient { stream: it.stream.into(), input, output })
    }

    /// Adds a client that was removed from another door. It is [held](Flow::Held) at first. Returns `None` if
    /// its connection has ended or cannot be polled. [`Door::opened`] is not called.
    pub fn adopt(&mut self, left: DetachedClient) -> Option<ClientId> {
        left.stream.set_nonblocking(true).ok()?;
        let client = self.insert(TcpStream::from_std(left.stream), clock::now())?;
        let it = self.get(client)?;
        // The poll may not report bytes that arrived before the client was added, so the client counts as
        // readable.
        (it.flow, it.readable, it.is_served) = (Flow::Held, true, true);
        it.input = left.input.into();
        it.output = left.output.into();
        let (input_bytes, unwritten) = (it.input.len(), !it.output.is_empty());
        self.input_bytes += input_bytes;
        if unwritten {
            let _ = self.output(client);
        }
        Some(client)
    }

    // Methods for the loop, in the order of a turn.

    /// Returns the time of the next work, even if the network is quiet.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let is_quiet = self.runnable.is_empty() && self.unwritten.is_empty();
        if !is_quiet || !self.gone.is_empty() || !self.drained.is_empty() {
            return Some(Time::ZERO);
        }
        let look = (!self.clients.is_empty()).then_some(self.look_at);
        [self.accept_at, look].into_iter().flatten().min()
    }

    /// Handles the events of the poll, and timers that are due.
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

    /// Returns the clients that have connected since the last call.
    pub(crate) fn take_fresh(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.fresh)
    }

    /// Returns the clients that have gone since the last call.
    pub(crate) fn take_gone(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.gone)
    }

    /// Returns the number of clients from which the door can take something.
    pub(crate) fn runnable(&self) -> usize {
        self.runnable.len()
    }

    /// Removes and returns the client that has waited longest.
    pub(crate) fn next(&mut self) -> Option<ClientId> {
        let client = self.runnable.pop_front()?;
        if let Some(it) = self.get(client) {
            it.listed = false;
        }
        Some(client)
    }

    /// Reads once if the door waits for the client's bytes, and passes the bytes to `take`. Returns `None` if
    /// the client has nothing to take, or has gone.
    pub(crate) fn feed(
        &mut self,
        client: ClientId,
        now: Time,
        take: impl FnOnce(&[u8]) -> (usize, Flow),
    ) -> Option<Flow> {
        let it = self.clients.get_mut(client.key as usize).filter(|it| it.id == client)?;
        if !it.is_runnable(&self.limits) {
            return None;
        }
        let before = it.input.len();
        let mut read = 0;
        if it.flow == Flow::Wait {
            match it.stream.read(&mut self.scratch) {
                Ok(0) => return self.close(client),
                Ok(count) => {
                    read = count;
                    // A short read has emptied the socket, and the edge-triggered poll reports every later
                    // byte.
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
        // Most requests arrive complete, so they are taken directly from the read buffer.
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
        it.is_served |= taken > 0;
        if it.input.is_empty() {
            // An idle client keeps no input buffer.
            it.input = BytesMut::new();
        }
        self.input_bytes = self.input_bytes - before + it.input.len();
        it.flow = flow;
        let unfinished = flow == Flow::Wait && !it.input.is_empty();
        it.slow_since = match it.slow_since {
            Some(since) if unfinished && taken == 0 => Some(since),
            _ => unfinished.then_some(now),
        };
        while self.input_bytes > self.limits.input_bytes_max {
            let largest = self.clients.iter().max_by_key(|(_, it)| it.input.len());
            let Some(largest) = largest.map(|(_, it)| it.id) else { break };
            self.counters.overrun.inc();
            self.close(largest);
        }
        self.get(client)?;
        self.list(client);
        Some(flow)
    }

    /// Writes unsent answers, with one call per client.
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
        let limits = self.limits;
        let Some(it) = self.get(client) else { return };
        while it.takes && !it.output.is_empty() {
            match it.stream.write(&it.output) {
                Ok(count) => {
                    it.output.advance(count);
                    it.unread_taken += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    it.takes = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.close(client);
                    return;
                }
            }
        }
        if it.output.is_empty() {
            it.unread_since = None;
        } else if it.unread_since.is_none() || it.unread_taken >= limits.progress_bytes {
            (it.unread_since, it.unread_taken) = (Some(now), 0);
        }
        let unsent = it.output.len();
        let counted = std::mem::replace(&mut it.output_counted, unsent);
        let is_roomy = it.notify_below_bytes.take_if(|bytes| unsent <= *bytes).is_some();
        self.output_bytes = self.output_bytes - counted + unsent;
        if is_roomy {
            self.drained.push(client);
        }
        let Some(it) = self.get(client) else { return };
        if it.output.is_empty() {
            if it.output.capacity() > OUTPUT_BYTES_KEPT {
                it.output = BytesMut::new();
            }
            if it.ending {
                self.close(client);
                return;
            }
        }
        while self.output_bytes > limits.output_bytes_max {
            let largest = self.clients.iter().max_by_key(|(_, it)| it.output_counted);
            let Some(largest) = largest.map(|(_, it)| it.id) else { break };
            self.counters.unread.inc();
            self.close(largest);
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
                Ok((stream, _)) => self.open(stream, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The client has already closed the connection.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // Accepting failed, for example because the process has no descriptors left.
                Err(_) => {
                    self.accept_at = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
        self.accept_at = Some(now);
    }

    fn open(&mut self, mut stream: TcpStream, now: Time) {
        if self.clients.len() >= self.limits.clients_max && !self.make_room(now) {
            self.counters.crowded.inc();
            // A client that does not receive these bytes only sees that the connection is closed.
            let _ = stream.write(self.crowded);
            return;
        }
        if let Some(client) = self.insert(stream, now) {
            self.fresh.push(client);
            self.counters.accepted.inc();
        }
    }

    /// Cuts off the oldest client that has never sent a request, if it has been silent for long. Returns
    /// whether a client was cut off.
    fn make_room(&mut self, now: Time) -> bool {
        let is_silent = |it: &&DoorClient| !it.is_served && now.since(it.opened_at) > self.limits.silence_max;
        let silent = self.clients.iter().map(|(_, it)| it).filter(is_silent);
        let Some(oldest) = silent.min_by_key(|it| it.opened_at).map(|it| it.id) else { return false };
        self.counters.silent.inc();
        self.close(oldest);
        true
    }

    /// Adds a connection. Returns `None` if it cannot be polled.
    fn insert(&mut self, mut stream: TcpStream, now: Time) -> Option<ClientId> {
        let _ = stream.set_nodelay(true);
        // Without probes, a client whose machine is gone would keep its place for ever.
        let _ = probe(&stream, self.limits.dead_after);
        let entry = self.clients.vacant_entry();
        let key = entry.key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.registry.register(&mut stream, Token(FIRST.0 + key), interest).ok()?;
        self.lives = self.lives.wrapping_add(1);
        let id = ClientId { key: key as u32, life: self.lives };
        entry.insert(DoorClient {
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
            unread_since: None,
            unread_taken: 0,
            output_counted: 0,
            notify_below_bytes: None,
            opened_at: now,
            is_served: false,
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

    /// Removes and returns a client that must be present.
    fn take_out(&mut self, client: ClientId) -> DoorClient {
        let mut it = self.clients.remove(client.key as usize);
        // An error means that the stream is already not registered, which is the goal.
        let _ = self.registry.deregister(&mut it.stream);
        self.input_bytes -= it.input.len();
        self.output_bytes -= it.output_counted;
        self.counters.connected.dec();
        it
    }

    fn drop_slow(&mut self, now: Time) {
        let patience = self.limits.patience;
        let is_slow = |it: &DoorClient| {
            let mut since = it.slow_since.into_iter().chain(it.unread_since);
            since.any(|since| now.since(since) > patience)
        };
        let slow: Vec<ClientId> =
            self.clients.iter().filter(|(_, it)| is_slow(it)).map(|(_, it)| it.id).collect();
        for client in slow {
            self.counters.slow.inc();
            self.close(client);
        }
    }

    fn list(&mut self, client: ClientId) {
        let limits = self.limits;
        if let Some(it) = self.get(client)
            && it.is_runnable(&limits)
            && !std::mem::replace(&mut it.listed, true)
        {
            self.runnable.push_back(client);
        }
    }

    fn get(&mut self, client: ClientId) -> Option<&mut DoorClient> {
        self.clients.get_mut(client.key as usize).filter(|it| it.id == client)
    }
}

/// Makes the system probe a silent client, three times in the second half of `dead_after`.
fn probe(stream: &TcpStream, dead_after: Duration) -> io::Result<()> {
    const PROBES: u32 = 3;
    sockopt::set_tcp_keepidle(stream, (dead_after / 2).max(LEAST))?;
    sockopt::set_tcp_keepintvl(stream, (dead_after / (2 * PROBES)).max(LEAST))?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

/// The shortest pause between two probes that the system accepts.
const LEAST: Duration = Duration::from_secs(1);

/// Maximum number of bytes read from a client in one turn.
const READ_BYTES: usize = 64 << 10;
/// Capacity up to which a client's empty output buffer is kept, in bytes.
const OUTPUT_BYTES_KEPT: usize = 64 << 10;
const ACCEPTS_PER_TURN: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The poll's token of the listener: far above the tokens of links, and below the waker's.
const LISTENER: Token = Token(usize::MAX / 2);
const FIRST: Token = Token(usize::MAX / 2 + 1);
