//! The protocol thread. Each process has one; the thread never blocks, and everything a protocol does happens
//! on it.
//!
//! ```text
//!   wait ─▶ read each readable link once, handing over its messages ─▶ commands ─▶ deadline ─▶ Drained
//!     ▲                                                                                            │
//!     └──────────── write what was sent, one call a link ◀─ messages to itself, Drained ◀──────────┘
//! ```
//!
//! **Batching is by draining.** Nothing waits for a batch to fill: all input that arrived during the last
//! turn is one batch. Under load hundreds of messages share a turn's fixed costs (one wait, a read and a
//! write per link); an idle process answers at once. A turn is short because it reads and writes each link
//! once, at most 1 MiB each way, and takes at most [`Limits::commands_per_turn`](crate::config::Limits)
//! commands.
//!
//! A busy protocol may let input gather longer ([`Protocol::gathering`]). The starts of turns are then at
//! least that time apart, as a network card moderates its interrupts.
//!
//! Casts travel as datagrams if the process has a socket for them (`datagram`). A turn reads datagrams before
//! links and writes them before links.
//!
//! Without a disk ([`Reactor::start`]) a record is complete at once, and [`Input::Persisted`] comes before
//! the next input. With a disk ([`Reactor::start_with`]), a turn ends by writing the messages that need
//! not wait for records, and then passes the turn's records to the disk thread. `durable` keeps the messages
//! that wait.

mod driven;
mod durable;
mod host;
mod pending;
mod sink;

use std::{
    collections::VecDeque,
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering, fence},
    },
    thread,
};

use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, bounded};
use mio::{Poll, Token, Waker, net::TcpListener};
use quorate_protocol::{Context, Duration, Input, ProcessId, Protocol, Ticket, Time, wire::Wire};
use thiserror::Error;
use tracing::warn;

pub use self::driven::Driven;
use self::{
    durable::{Durable, SendCounts},
    sink::ReactorSink,
};
use crate::{
    chance::Chance,
    clock,
    config::{Config, Limits, StartError, is_unspecified},
    counters::Counters,
    datagram::Datagrams,
    disk::{Disk, DiskError},
    door::{ClientLimits, Clients, Flow},
    hello::{ADDRESS_BYTES_MAX, DOMAINS_MAX},
    link::{LinkEvent, Links, LocalProcess},
};

use pending::PendingOutputs;

pub use host::Host;

/// A handle to a running reactor, usable from any thread. The reactor stops when its last clone is dropped.
pub struct Handle<P: Protocol> {
    commands: Sender<P::Command>,
    owner: Arc<HandleOwner>,
}

/// The protocol thread has ended and did not take the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the protocol thread of this process has ended")]
pub struct Stopped<C>(pub C);

/// The reason why a command was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CommandError<C> {
    /// The queue already holds [`Limits::commands_max`](crate::config::Limits) commands.
    #[error("too many commands wait for the protocol thread of this process: try again later")]
    Full(C),
    /// The protocol thread has ended.
    #[error("the protocol thread of this process has ended")]
    Stopped(C),
}

fn command_error<C>(unsent: TrySendError<C>) -> CommandError<C> {
    match unsent {
        TrySendError::Full(command) => CommandError::Full(command),
        TrySendError::Disconnected(command) => CommandError::Stopped(command),
    }
}

/// The protocol thread panicked, because an invariant was broken. The process should end too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the protocol thread of this process panicked, so the process should end")]
pub struct Panicked;

/// State shared by the protocol thread and the handles.
struct LoopShared {
    waker: Arc<Waker>,
    /// Whether the loop waits, or is about to wait. A thread that adds work must then wake it.
    sleeping: AtomicBool,
    stop: AtomicBool,
}

/// State shared by all handles, but not by the protocol thread.
struct HandleOwner {
    shared: Arc<LoopShared>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    panicked: AtomicBool,
    thread_id: thread::ThreadId,
    addresses: Vec<SocketAddr>,
    counters: Counters,
}

/// The loop and everything it owns.
pub struct Reactor<P: Protocol, H> {
    protocol: P,
    host: H,
    me: ProcessId,
    limits: Limits,
    links: Links,
    /// The socket for casts, if the process has one.
    datagrams: Option<Datagrams>,
    counters: Counters,
    commands: Receiver<P::Command>,
    /// The clients of the host's door.
    clients: Option<Clients>,
    /// Commands made from clients' requests. Empty between calls, but kept for its memory.
    asked: Vec<P::Command>,
    shared: Arc<LoopShared>,
    chance: Chance,
    /// Messages of the datagrams just read. Empty between calls, but kept for its memory.
    cast: Vec<(ProcessId, P::Message)>,
    pending: PendingOutputs<P>,
}

impl<P, H> Reactor<P, H>
where
    P: Protocol + Send + 'static,
    P::Message: Wire + Send,
    P::Command: Send,
    H: Host<P> + 'static,
{
    /// Listens, and starts the protocol thread. The process keeps nothing on disk.
    pub fn start(protocol: P, host: H, config: Config) -> Result<Handle<P>, StartError> {
        Reactor::start_with(protocol, host, config, None, None)
    }

    /// Starts a process like [`Reactor::start`], with a disk and a door if it has them. The caller has made
    /// the protocol from the records on the disk, if there are any. Clients connect to the listener of the
    /// door, and [`Host::door`] must return a door.
    pub fn start_with(
        protocol: P,
        host: H,
        config: Config,
        disk: Option<Disk>,
        door: Option<(std::net::TcpListener, ClientLimits)>,
    ) -> Result<Handle<P>, StartError> {
        if let Some(disk) = &disk {
            assert!(config.me == disk.process(), "a process begins as the owner of its directory");
            assert!(
                disk.pass().is_none_or(|pass| *pass == protocol.policy().pass()),
                "a protocol that is made again shows the pass in its directory"
            );
        }
        let (reactor, commands, addresses) = Reactor::new(protocol, host, config, disk, door)?;
        let (shared, counters) = (reactor.shared.clone(), reactor.counters.clone());
        let thread = thread::Builder::new().name("protocol".to_owned()).spawn(move || reactor.run())?;
        let owner = HandleOwner {
            shared,
            thread_id: thread.thread().id(),
            thread: Mutex::new(Some(thread)),
            panicked: AtomicBool::new(false),
            addresses,
            counters,
        };
        Ok(Handle { commands, owner: Arc::new(owner) })
    }
}

impl<P, H> Reactor<P, H>
where
    P: Protocol,
    P::Message: Wire,
    H: Host<P>,
{
    /// Makes a reactor without a thread. Also returns the sender of its commands, and the addresses that it
    /// listens on.
    #[expect(clippy::type_complexity)]
    fn new(
        protocol: P,
        mut host: H,
        config: Config,
        disk: Option<Disk>,
        door: Option<(std::net::TcpListener, ClientLimits)>,
    ) -> Result<(Self, Sender<P::Command>, Vec<SocketAddr>), StartError> {
        let mut listeners = Vec::new();
        let permitted =
            |address: SocketAddr| match config.insecure || address.ip().to_canonical().is_loopback() {
                true => Ok(address),
                false => Err(StartError::Insecure(address)),
            };
        for &address in &config.listen {
            let bound = TcpListener::bind(permitted(address)?);
            listeners.push(bound.map_err(|error| StartError::Listen { address, error })?);
        }
        for listener in &config.listening {
            permitted(listener.local_addr()?)?;
            let listener = listener.try_clone()?;
            listener.set_nonblocking(true)?;
            listeners.push(TcpListener::from_std(listener));
        }
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<Vec<_>, _>>()?;
        let address =
            config.advertise.or_else(|| addresses.first().map(SocketAddr::to_string)).unwrap_or_default();
        if is_unspecified(&address) {
            return Err(StartError::Unspecified(address));
        }
        if config.others.len() >= DOMAINS_MAX {
            return Err(StartError::Domains { limit: DOMAINS_MAX });
        }
        if address.len() > ADDRESS_BYTES_MAX {
            return Err(StartError::Advertise { limit: ADDRESS_BYTES_MAX });
        }

        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), Token(usize::MAX))?);
        let counters = Counters::new(&config.metrics);
        let mut chance = Chance::new();
        let datagrams = match addresses.first().zip(config.datagrams) {
            None => None,
            Some((&address, bytes_max)) => {
                match Datagrams::bind((address, bytes_max), poll.registry(), counters.clone(), chance.bits())
                {
                    Ok(datagrams) => Some(datagrams),
                    Err(error) => {
                        warn!(
                            "this process cannot receive datagrams at {address}, so it sends and receives \
                             casts over links: {error}"
                        );
                        None
                    }
                }
            }
        };
        let domains = [&[config.domain], &config.others[..]].concat();
        let identity = LocalProcess {
            domains,
            policy: protocol.policy(),
            me: config.me,
            address,
            versions: config.versions,
            datagram_port: datagrams.as_ref().map_or(0, Datagrams::port),
            multicast_token: datagrams.as_ref().map_or(0, Datagrams::multicast_token),
        };
        let mut links =
            Links::new(identity, config.limits, counters.clone(), (poll, waker.clone()), listeners)?;
        let clients = match door {
            None => None,
            Some((listener, limits)) => {
                permitted(listener.local_addr()?)?;
                let crowded =
                    host.door().expect("the host has the door that clients are let in by").crowded();
                Some(Clients::new(listener, (limits, crowded), links.registry()?, &config.metrics)?)
            }
        };
        let shared =
            Arc::new(LoopShared { waker, sleeping: AtomicBool::new(false), stop: AtomicBool::new(false) });
        let durable = match disk {
            None => None,
            Some(disk) => {
                links.number_from(disk.number);
                let (starts, remote_durability) =
                    (disk.identity.starts.clone(), disk.journal.remote_durability().clone());
                links.begin_from(starts, remote_durability);
                let wake = shared.clone();
                Some(Durable::start(disk, counters.clone(), move || wake.wake())?)
            }
        };
        let (sender, receiver) = bounded(config.limits.commands_max);
        let reactor = Reactor {
            protocol,
            host,
            me: config.me,
            limits: config.limits,
            links,
            datagrams,
            counters,
            commands: receiver,
            clients,
            asked: Vec::new(),
            shared,
            chance,
            cast: Vec::new(),
            pending: PendingOutputs {
                to_self: VecDeque::new(),
                ticket: Ticket(0),
                persisted: None,
                durable,
                has_emitted: false,
                completed: VecDeque::new(),
                send_counts: SendCounts::default(),
            },
        };
        Ok((reactor, sender, addresses))
    }

    fn run(mut self) {
        let mut now = clock::now();
        let mut failed = None;
        while failed.is_none() && !self.shared.stop.load(Ordering::Acquire) {
            let timeout = self.timeout(now);
            let done = self.wait_and_turn(timeout, &mut now);
            if let Some(durable) = &mut self.pending.durable {
                failed = durable.submit_turn(done, &mut self.links).err();
                if durable.has_failed() {
                    break;
                }
            }
            // The loop sleeps here instead of polling, so that arriving input cannot wake it early.
            let rest = self.protocol.gathering().saturating_sub(done.since(now));
            if !rest.is_zero() {
                thread::sleep(rest);
            }
            now = done;
        }
        self.end(failed);
    }

    /// Waits at most `timeout`, then runs a turn. Sets `now` to the turn's start and returns its end.
    fn wait_and_turn(&mut self, timeout: Option<Duration>, now: &mut Time) -> Time {
        self.wait(timeout).expect("waiting on a poll of our own does not fail");
        *now = clock::now();
        let inputs = self.turn(*now);
        let done = clock::now();
        self.counters.turns.inc();
        self.counters.busy_nanoseconds.inc_by(done.since(*now).as_nanos() as u64);
        self.counters.batch.observe(inputs as f64);
        done
    }

    fn end(mut self, failed: Option<DiskError>) {
        if let Some(error) = &failed {
            self.host.disk_failed(error);
        }
        match self.pending.durable.take() {
            None => self.links.flush_all(),
            Some(durable) => {
                if !durable.is_silenced() {
                    durable.announce(&mut self.links);
                    self.links.flush_all();
                }
                if let Err(error) = durable.finish(self.links.remote_durability()) {
                    self.host.disk_failed(&error);
                }
            }
        }
    }

    /// Returns the longest time that the loop may wait for the network, or `None` if there is no limit.
    fn timeout(&mut self, now: Time) -> Option<Duration> {
        let mut sealing = None;
        if let Some(durable) = &self.pending.durable {
            if durable.is_pressed() {
                // Links still have unread input, so their deadline has passed. The pause keeps the loop from
                // spinning, while other deadlines are still served. The disk thread wakes the loop when more
                // records are durable.
                return Some(PRESSED_PAUSE);
            }
            sealing = durable.deadline();
        }
        let unread = self.datagrams.as_ref().is_some_and(Datagrams::is_readable);
        let PendingOutputs { to_self, completed, .. } = &self.pending;
        if unread || !to_self.is_empty() || !completed.is_empty() || !self.commands.is_empty() {
            return Some(Duration::ZERO);
        }
        let clients = self.clients.as_ref().and_then(Clients::deadline);
        let dues = [self.protocol.deadline(), self.links.deadline(), sealing, clients];
        let wake = dues.into_iter().flatten().min()?;
        Some(wake.since(now))
    }

    fn wait(&mut self, timeout: Option<Duration>) -> std::io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            return self.links.wait(timeout);
        }
        self.shared.sleeping.store(true, Ordering::Relaxed);
        // Pairs with the fence in `LoopShared::wake`. Either the loop sees the command or the stop that a
        // sender has queued, or the sender sees `sleeping` and wakes the loop.
        fence(Ordering::SeqCst);
        let durable = self.pending.durable.as_ref();
        let idle = !durable.is_some_and(Durable::has_news)
            && (self.commands.is_empty() || durable.is_some_and(Durable::is_pressed))
            && !self.shared.stop.load(Ordering::Relaxed);
        let timeout = if idle { timeout } else { Some(Duration::ZERO) };
        let waited = self.links.wait(timeout);
        self.shared.sleeping.store(false, Ordering::Relaxed);
        waited
    }

    /// Handles all waiting input, and passes on all output that follows from it. Returns the number of
    /// inputs.
    fn turn(&mut self, mut now: Time) -> usize {
        let mut inputs = 0;
        let readable = self.links.attend(now);
        if self.links.may_be_questioned() {
            let (host, protocol) = (&self.host, &self.protocol);
            self.links.present(|domain| host.answer(protocol, domain));
        }
        inputs += self.take_link_events(now);
        inputs += self.take_durable(now);
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.attend(self.links.events());
        }
        if !self.pending.durable.as_ref().is_some_and(Durable::is_pressed) {
            // Casts are handled first, because a message over a link may refer to a cast that was sent
            // earlier.
            inputs += self.take_datagrams(now);
            for _ in 0..readable {
                self.links.read();
                inputs += self.take_link_events(now);
            }
            inputs += self.take_commands(now);
            inputs += self.take_clients(now);
        }
        if self.protocol.deadline().is_some_and(|deadline| deadline <= now) {
            self.handle(now, Input::Deadline);
            inputs += 1;
        }
        inputs += self.take_own(now);
        inputs += self.take_completed(&mut now);
        if inputs > 0 {
            self.handle(now, Input::Drained);
            // Messages that the protocol has just sent to itself, and the host's commands, are handled before
            // anything is written, so that their output shares the write.
            let own = self.take_own(now) + self.take_completed(&mut now);
            if own > 0 {
                self.handle(now, Input::Drained);
                inputs += own;
            }
        }
        if std::mem::take(&mut self.pending.has_emitted) {
            self.host.batch_ended(now);
        }
        self.host.turn_ended(&self.protocol);
        if let (Some(clients), Some(door)) = (&mut self.clients, self.host.door()) {
            door.give(clients);
            clients.flush(now);
        }
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.flush();
        }
        self.links.flush();
        let SendCounts { sent, unlinked } = std::mem::take(&mut self.pending.send_counts);
        self.counters.messages_sent.inc_by(sent);
        self.counters.messages_unlinked.inc_by(unlinked);
        inputs
    }

    /// Reports to the protocol the records that became durable since the last turn.
    fn take_durable(&mut self, now: Time) -> usize {
        let PendingOutputs { durable: Some(durable), to_self, .. } = &mut self.pending else { return 0 };
        let Some(ticket) = durable.release_durable(now, &mut self.links, to_self) else { return 0 };
        self.handle(now, Input::Persisted(ticket));
        1
    }

    fn take_link_events(&mut self, now: Time) -> usize {
        let mut inputs = 0;
        while let Some(link_event) = self.links.next_event() {
            match link_event {
                LinkEvent::Linked { peer, session } => self.handle(now, Input::Linked { peer, session }),
                LinkEvent::OlderCopy { witness, report } => {
                    if let Some(durable) = &mut self.pending.durable {
                        durable.mark_outdated(witness, report);
                    }
                }
                LinkEvent::PolicyMismatch { peer, theirs } => {
                    self.host.policy_mismatch(peer, &self.links.pass(), &theirs);
                }
                LinkEvent::Progress { from } => self.handle(now, Input::Progress { peer: from }),
                LinkEvent::Unlinked { peer } => {
                    if let Some(durable) = &mut self.pending.durable {
                        durable.drop_held(peer);
                    }
                    self.handle(now, Input::Unlinked { peer });
                }
                LinkEvent::Frames { from, mut frames } => {
                    let mut messages = 0;
                    for mut frame in frames.by_ref() {
                        self.counters.frames_received.inc();
                        while !frame.is_empty() {
                            match P::Message::decode(&mut frame) {
                                Ok(message) => self.handle(now, Input::Receive { from, message }),
                                Err(error) => {
                                    self.links.reject(from, &error.to_string());
                                    break;
                                }
                            }
                            messages += 1;
                        }
                    }
                    if let Some(durable) = frames.notice {
                        self.links.learn(from, durable);
                    }
                    self.counters.messages_received.inc_by(messages as u64);
                    inputs += messages;
                    continue;
                }
            }
            inputs += 1;
        }
        inputs
    }

    /// Passes received casts to the protocol, if their sender has a link to this process.
    fn take_datagrams(&mut self, now: Time) -> usize {
        let Some(datagrams) = self.datagrams.as_mut().filter(|it| it.is_readable()) else { return 0 };
        let (links, counters) = (&self.links, &self.counters);
        let mut cast = std::mem::take(&mut self.cast);
        datagrams.read(|token, mut messages, is_multicast| {
            let Some(from) = links.sender(token) else {
                let dropped =
                    if is_multicast { &counters.datagrams_unwanted } else { &counters.datagrams_refused };
                dropped.inc();
                return;
            };
            while !messages.is_empty() {
                match P::Message::decode(&mut messages) {
                    Ok(message) => cast.push((from, message)),
                    // A datagram with undecodable bytes is refused, but the link stays, because any process
                    // can forge a datagram.
                    Err(_) => {
                        counters.datagrams_refused.inc();
                        return;
                    }
                }
            }
        });
        let inputs = cast.len();
        self.counters.messages_received.inc_by(inputs as u64);
        for (from, message) in cast.drain(..) {
            // An earlier message of the batch may have made the protocol end the link.
            if self.links.is_linked(from) {
                self.handle(now, Input::Cast { from, message });
            }
        }
        self.cast = cast;
        inputs
    }

    fn take_commands(&mut self, now: Time) -> usize {
        let mut count = 0;
        while count < self.limits.commands_per_turn {
            match self.commands.try_recv() {
                Ok(mut command) => {
                    self.host.complete_command(&mut command);
                    self.handle(now, Input::Command(command));
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.shared.stop.store(true, Ordering::Release);
                    break;
                }
            }
            count += 1;
        }
        self.counters.commands.inc_by(count as u64);
        count
    }

    /// Serves clients, and reads from each at most the bytes of one read.
    fn take_clients(&mut self, now: Time) -> usize {
        let (Some(clients), Some(door)) = (&mut self.clients, self.host.door()) else { return 0 };
        clients.attend(self.links.events(), now);
        clients.take_fresh().into_iter().for_each(|client| door.opened(client, now));
        let mut asked = std::mem::take(&mut self.asked);
        let mut inputs = 0;
        for _ in 0..clients.runnable() {
            let Some(client) = self.clients.as_mut().and_then(Clients::next) else { break };
            while let (Some(clients), Some(door)) = (&mut self.clients, self.host.door()) {
                let mut ask = |command| asked.push(command);
                let flow = clients.feed(client, now, |input| door.take(client, input, now, &mut ask));
                inputs += asked.len();
                let goes_on = flow == Some(Flow::Held) && !asked.is_empty();
                for command in asked.drain(..) {
                    self.handle(now, Input::Command(command));
                }
                if !goes_on {
                    break;
                }
                // The commands may have completed the request for which the client is held.
                if let (Some(clients), Some(door)) = (&mut self.clients, self.host.door()) {
                    door.give(clients);
                }
            }
        }
        self.asked = asked;
        if let (Some(clients), Some(door)) = (&mut self.clients, self.host.door()) {
            clients.take_gone().into_iter().for_each(|client| door.closed(client));
        }
        inputs
    }

    /// Handles the queued messages of this process to itself. Messages that are queued meanwhile wait for the
    /// next call.
    fn take_own(&mut self, now: Time) -> usize {
        let count = self.pending.to_self.len();
        for _ in 0..count {
            let message = self.pending.to_self.pop_front().expect("only this loop takes from it");
            self.handle(now, Input::Receive { from: self.me, message });
        }
        count
    }

    /// Handles the commands that the host has made of events. Commands that it makes meanwhile wait for the
    /// next call. Sets `now` to the time after the host's work, so that the protocol sees how long the work
    /// took.
    fn take_completed(&mut self, now: &mut Time) -> usize {
        let count = self.pending.completed.len();
        if count > 0 {
            *now = clock::now();
        }
        for _ in 0..count {
            let command = self.pending.completed.pop_front().expect("only this loop takes from it");
            self.handle(*now, Input::Command(command));
        }
        count
    }

    #[inline]
    fn handle(&mut self, now: Time, input: Input<P>) {
        let chance = &mut self.chance;
        let mut random = || chance.bits();
        let mut cx = Context { now, me: self.me, random: &mut random };
        let mut sink = ReactorSink {
            links: &mut self.links,
            datagrams: &mut self.datagrams,
            host: &mut self.host,
            pending: &mut self.pending,
            me: self.me,
            now,
        };
        self.protocol.handle(&mut cx, input, &mut sink);
        while let Some(ticket) = sink.pending.persisted.take() {
            self.protocol.handle(&mut cx, Input::Persisted(ticket), &mut sink);
        }
    }
}

/// Time between two turns while the disk is far behind. The loop then only serves deadlines.
const PRESSED_PAUSE: Duration = Duration::from_millis(1);

impl<P: Protocol> Handle<P> {
    /// Queues a command. Waits while the queue is full.
    pub fn command(&self, command: P::Command) -> Result<(), Stopped<P::Command>> {
        self.commands.send(command).map_err(|unsent| Stopped(unsent.into_inner()))?;
        self.owner.shared.wake();
        Ok(())
    }

    /// Queues a command unless the queue is full. Never blocks.
    pub fn try_command(&self, command: P::Command) -> Result<(), CommandError<P::Command>> {
        self.commands.try_send(command).map_err(command_error)?;
        self.owner.shared.wake();
        Ok(())
    }

    /// Returns the addresses that the process listens on, in the order of [`Config`]'s `listen` and then
    /// `listening`, with the actual ports.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.owner.addresses
    }

    /// Returns the reactor's counters.
    pub fn counters(&self) -> &Counters {
        &self.owner.counters
    }

    /// Ends the protocol thread after the current turn, and waits for its end. The thread first writes
    /// pending messages as far as sockets take them; queued commands are lost. If the protocol thread itself
    /// calls this, the call does not wait.
    pub fn stop(&self) -> Result<(), Panicked> {
        self.owner.stop()
    }

    /// Waits until the protocol thread has ended.
    pub fn wait(&self) -> Result<(), Panicked> {
        self.owner.join()
    }
}

impl<P: Protocol> Clone for Handle<P> {
    fn clone(&self) -> Self {
        Handle { commands: self.commands.clone(), owner: self.owner.clone() }
    }
}

impl<P: Protocol> fmt::Debug for Handle<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("addresses", &self.owner.addresses).finish_non_exhaustive()
    }
}

impl LoopShared {
    /// Wakes the loop if it sleeps. The caller must already have queued its work.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        // If several threads bring work to a sleeping loop, only one pays for the wake-up.
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            self.waker.wake().expect("the waker's descriptor is ours");
        }
    }
}

impl HandleOwner {
    fn stop(&self) -> Result<(), Panicked> {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        self.join()
    }

    fn join(&self) -> Result<(), Panicked> {
        if thread::current().id() == self.thread_id {
            return Ok(());
        }
        // The lock is held while joining, so that concurrent callers return only after the thread has ended.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take()
            && thread.join().is_err()
        {
            self.panicked.store(true, Ordering::Relaxed);
        }
        if self.panicked.load(Ordering::Relaxed) { Err(Panicked) } else { Ok(()) }
    }
}

impl Drop for HandleOwner {
    fn drop(&mut self) {
        // A panicked thread has printed its own panic, and no caller is left that could receive it.
        let _ = self.stop();
    }
}
