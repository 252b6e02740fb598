//! The protocol thread: one per process, it never blocks, and everything a protocol does happens on it.
//!
//! ```text
//!   wait ─▶ read each readable link once, handing over its messages ─▶ commands ─▶ deadline ─▶ Drained
//!     ▲                                                                                            │
//!     └──────────── write what was sent, one call a link ◀─ messages to itself, Drained ◀──────────┘
//! ```
//!
//! Batching is by draining: nothing waits for a batch to fill, but whatever arrived while the last turn ran is one
//! batch. Under load a turn's fixed costs (one wait, a read and a write per link) are shared by hundreds of messages; an
//! idle process answers at once. What keeps a turn short: one read and one write of at most 1 MiB per link, and
//! [`Limits::commands_per_turn`](crate::config::Limits) commands.
//!
//! A protocol with much under way may have input gather a little longer ([`Protocol::gathering`]): turns are then that
//! far apart at least, as a network card moderates its interrupts.
//!
//! Casts go by datagrams, if the process has a socket for them (`datagram`): they are read before links are, and
//! written before links.
//!
//! Without a disk ([`Reactor::start`]) records are complete at once, and [`Input::Persisted`] comes before the next input. With
//! one ([`Reactor::start_on_disk`]) a turn's records are handed to the disk thread at its end, behind what may leave at once;
//! what waits is in `durable`.

mod driven;
mod durable;
mod world;

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
use quorate_protocol::{Context, DomainId, Duration, Input, ProcessId, Protocol, Ticket, Time, wire::Wire};
use thiserror::Error;
use tracing::warn;

pub use self::driven::Driven;
use self::{
    durable::{Durable, Spread},
    world::World,
};
use crate::{
    chance::Chance,
    clock,
    config::{Config, Limits, StartError, is_unspecified},
    counters::Counters,
    datagram::Datagrams,
    discover::{Answer, Presence},
    disk::{Disk, DiskError},
    door::{ClientLimits, Clients, Door, Flow},
    hello::{ADDRESS_BYTES_MAX, DOMAINS_MAX},
    link::{Happening, Identity, Links},
};

/// Where a protocol's events go. Called on the protocol thread: it must not block, and must not use
/// [`Handle::command`], which may wait for the very thread it is called on ([`Handle::try_command`] does not).
pub trait Host<P: Protocol>: Send {
    /// The protocol tells its user something.
    fn event(&mut self, event: P::Event, now: Time);

    /// A command that was handed over is about to be given to the protocol: the moment to put in what has gathered for it meanwhile, so
    /// that a busy protocol takes much at once.
    fn fill(&mut self, command: &mut P::Command) {
        let _ = command;
    }

    /// A turn that told events ends: the moment to pass on what was gathered, all at once.
    fn drained(&mut self, now: Time) {
        let _ = now;
    }

    /// A turn ends: the moment to look at what the protocol counts.
    fn turned(&mut self, protocol: &P) {
        let _ = protocol;
    }

    /// How the process stands in a domain of its own, for those who ask ([`discover`](crate::discover)).
    fn answer(&self, protocol: &P, domain: DomainId) -> Answer {
        let _ = domain;
        Answer { presence: Presence::Settled, pass: protocol.policy().pass() }
    }

    /// There is no link to a peer, because the [`Policy`](quorate_protocol::Policy) of one of the two does not admit the
    /// other: what the protocol shows, and what the peer shows.
    fn stranger(&mut self, peer: ProcessId, ours: &[u8], theirs: &[u8]) {
        let _ = (peer, ours, theirs);
    }

    /// The door for clients, if the reactor was started with one ([`Reactor::start_with_door`]).
    fn door(&mut self) -> Option<&mut dyn Door<P>> {
        None
    }

    /// The disk has failed, and the protocol thread ends. The process should end too: what it told to be durable is.
    fn disk_failed(&mut self, error: &DiskError) {
        let _ = error;
    }
}

/// A running reactor, for any thread. When the last clone is dropped, the reactor stops.
pub struct Handle<P: Protocol> {
    commands: Sender<P::Command>,
    owner: Arc<Owner>,
}

/// The protocol thread has ended; the command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the protocol thread has ended")]
pub struct Stopped<C>(pub C);

/// Why a command was not taken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Untaken<C> {
    /// [`Limits::commands_max`](crate::config::Limits) commands wait.
    #[error("too many commands wait for the protocol thread")]
    Full(C),
    /// The protocol thread has ended.
    #[error("the protocol thread has ended")]
    Stopped(C),
}

fn untaken<C>(unsent: TrySendError<C>) -> Untaken<C> {
    match unsent {
        TrySendError::Full(command) => Untaken::Full(command),
        TrySendError::Disconnected(command) => Untaken::Stopped(command),
    }
}

/// The protocol thread ended by a panic: an invariant was found broken. The process should end too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the protocol thread panicked")]
pub struct Panicked;

/// What the protocol thread and the handles share.
struct Shared {
    waker: Arc<Waker>,
    /// The loop is about to wait, or waits: who brings work must wake it.
    sleeping: AtomicBool,
    stop: AtomicBool,
}

/// What all handles share, and the protocol thread does not.
struct Owner {
    shared: Arc<Shared>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    panicked: AtomicBool,
    thread_id: thread::ThreadId,
    addresses: Vec<SocketAddr>,
    counters: Counters,
}

/// The loop and all it owns.
pub struct Reactor<P: Protocol, H> {
    protocol: P,
    host: H,
    me: ProcessId,
    limits: Limits,
    links: Links,
    /// For a protocol that casts.
    datagrams: Option<Datagrams>,
    counters: Counters,
    commands: Receiver<P::Command>,
    /// Of the host's door.
    clients: Option<Clients>,
    /// What clients ask for, reused.
    asked: Vec<P::Command>,
    shared: Arc<Shared>,
    chance: Chance,
    /// The messages of a datagram, reused.
    cast: Vec<(ProcessId, P::Message)>,
    outside: Outside<P>,
}

/// What a protocol has put out that is neither sent nor told yet.
struct Outside<P: Protocol> {
    /// Messages to itself.
    own: VecDeque<P::Message>,
    ticket: Ticket,
    persisted: Option<Ticket>,
    /// With a disk.
    durable: Option<Durable<P::Message>>,
    told: bool,
    spread: Spread,
}

impl<P, H> Reactor<P, H>
where
    P: Protocol + Send + 'static,
    P::Message: Wire + Send,
    P::Command: Send,
    H: Host<P> + 'static,
{
    /// Listens, and starts the protocol thread. Nothing is remembered when it ends.
    pub fn start(protocol: P, host: H, config: Config) -> Result<Handle<P>, StartError> {
        Reactor::start_with(protocol, host, config, None, None)
    }

    /// The same with a door for clients, which connect to `listener`, and perhaps on a disk. The host has to have a door
    /// ([`Host::door`]).
    pub fn start_with_door(
        protocol: P,
        host: H,
        config: Config,
        (listener, limits): (std::net::TcpListener, ClientLimits),
        disk: Option<Disk>,
    ) -> Result<Handle<P>, StartError> {
        Reactor::start_with(protocol, host, config, disk, Some((listener, limits)))
    }

    /// The same for a process that goes on from `disk`, or begins with it. The protocol was made from the records that were
    /// found there.
    pub fn start_on_disk(protocol: P, host: H, config: Config, disk: Disk) -> Result<Handle<P>, StartError> {
        Reactor::start_with(protocol, host, config, Some(disk), None)
    }

    fn start_with(
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
                "a protocol is made again as the one that it was"
            );
        }
        let (reactor, commands, addresses) = Reactor::new(protocol, host, config, disk, door)?;
        let (shared, counters) = (reactor.shared.clone(), reactor.counters.clone());
        let thread = thread::Builder::new().name("protocol".to_owned()).spawn(move || reactor.run())?;
        let owner = Owner {
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
    /// All of it but a thread, the way of commands to it, and where it listens.
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
                        warn!("no datagrams at {address}, what is cast goes over links: {error}");
                        None
                    }
                }
            }
        };
        let domains = [&[config.domain], &config.others[..]].concat();
        let identity = Identity {
            domains,
            policy: protocol.policy(),
            me: config.me,
            address,
            versions: config.versions,
            datagram_port: datagrams.as_ref().map_or(0, Datagrams::port),
            voice: datagrams.as_ref().map_or(0, Datagrams::voice),
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
            Arc::new(Shared { waker, sleeping: AtomicBool::new(false), stop: AtomicBool::new(false) });
        let durable = match disk {
            None => None,
            Some(disk) => {
                links.number_from(disk.number);
                let (starts, hearsay) = (disk.identity.starts.clone(), disk.journal.hearsay().clone());
                links.begin_from(starts, hearsay);
                let wake = shared.clone();
                Some(Durable::start(disk, counters.clone(), move || wake.rouse())?)
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
            outside: Outside {
                own: VecDeque::new(),
                ticket: Ticket(0),
                persisted: None,
                durable,
                told: false,
                spread: Spread::default(),
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
            if let Some(durable) = &mut self.outside.durable {
                failed = durable.hand_out(done, &mut self.links).err();
                if durable.has_failed() {
                    break;
                }
            }
            // Slept rather than waited: whatever comes meanwhile wakes nobody.
            let rest = self.protocol.gathering().saturating_sub(done.since(now));
            if !rest.is_zero() {
                thread::sleep(rest);
            }
            now = done;
        }
        self.end(failed);
    }

    /// Waits at most so long, and does what there is to do: from `now` on, until the instant that is returned.
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
        match self.outside.durable.take() {
            None => self.links.flush_all(),
            Some(durable) => {
                if !durable.is_silenced() {
                    durable.tell(&mut self.links);
                    self.links.flush_all();
                }
                if let Err(error) = durable.finish(self.links.hearsay()) {
                    self.host.disk_failed(&error);
                }
            }
        }
    }

    /// How long the network may be waited for.
    fn timeout(&mut self, now: Time) -> Option<Duration> {
        let mut sealing = None;
        if let Some(durable) = &self.outside.durable {
            if durable.is_pressed() {
                // Links have more to be read; looking for what else is due is cheap. The disk's news wake us.
                return Some(PRESSED_PAUSE);
            }
            sealing = durable.deadline();
        }
        let unread = self.datagrams.as_ref().is_some_and(Datagrams::is_readable);
        if unread || !self.outside.own.is_empty() || !self.commands.is_empty() {
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
        // Pairs with the fence in `Shared::rouse`: either we see the command (or the stop) that was put in before, or
        // its sender sees that we sleep, and wakes us.
        fence(Ordering::SeqCst);
        let durable = self.outside.durable.as_ref();
        let idle = !durable.is_some_and(Durable::has_news)
            && (self.commands.is_empty() || durable.is_some_and(Durable::is_pressed))
            && !self.shared.stop.load(Ordering::Relaxed);
        let timeout = if idle { timeout } else { Some(Duration::ZERO) };
        let waited = self.links.wait(timeout);
        self.shared.sleeping.store(false, Ordering::Relaxed);
        waited
    }

    /// Takes in everything that is there, and puts out everything that follows. Returns how many inputs there were.
    fn turn(&mut self, now: Time) -> usize {
        let mut inputs = 0;
        let readable = self.links.attend(now);
        if self.links.is_visited() {
            let (host, protocol) = (&self.host, &self.protocol);
            self.links.present(|domain| host.answer(protocol, domain));
        }
        inputs += self.take_happenings(now);
        inputs += self.take_durable(now);
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.attend(self.links.events());
        }
        if !self.outside.durable.as_ref().is_some_and(Durable::is_pressed) {
            // Before what was said of them over links.
            inputs += self.take_datagrams(now);
            for _ in 0..readable {
                self.links.read();
                inputs += self.take_happenings(now);
            }
            inputs += self.take_commands(now);
            inputs += self.take_clients(now);
        }
        if self.protocol.deadline().is_some_and(|deadline| deadline <= now) {
            self.handle(now, Input::Deadline);
            inputs += 1;
        }
        inputs += self.take_own(now);
        if inputs > 0 {
            self.handle(now, Input::Drained);
            // What it sent to itself just now is handled before anything is written: the consequences share the write.
            let own = self.take_own(now);
            if own > 0 {
                self.handle(now, Input::Drained);
                inputs += own;
            }
        }
        if std::mem::take(&mut self.outside.told) {
            self.host.drained(now);
        }
        self.host.turned(&self.protocol);
        if let (Some(clients), Some(door)) = (&mut self.clients, self.host.door()) {
            door.give(clients);
            clients.flush(now);
        }
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.flush();
        }
        self.links.flush();
        let Spread { sent, unlinked } = std::mem::take(&mut self.outside.spread);
        self.counters.messages_sent.inc_by(sent);
        self.counters.messages_unlinked.inc_by(unlinked);
        inputs
    }

    /// Records that became durable since the last turn.
    fn take_durable(&mut self, now: Time) -> usize {
        let Outside { durable: Some(durable), own, .. } = &mut self.outside else { return 0 };
        let Some(ticket) = durable.take_news(now, &mut self.links, own) else { return 0 };
        self.handle(now, Input::Persisted(ticket));
        1
    }

    fn take_happenings(&mut self, now: Time) -> usize {
        let mut inputs = 0;
        while let Some(happening) = self.links.happening() {
            match happening {
                Happening::Linked { peer, session } => self.handle(now, Input::Linked { peer, session }),
                Happening::OlderCopy { witness, told } => {
                    if let Some(durable) = &mut self.outside.durable {
                        durable.outdate(witness, told);
                    }
                }
                Happening::Stranger { peer, theirs } => {
                    self.host.stranger(peer, &self.links.pass(), &theirs);
                }
                Happening::Progress { from } => self.handle(now, Input::Progress { peer: from }),
                Happening::Unlinked { peer } => {
                    if let Some(durable) = &mut self.outside.durable {
                        durable.drop_held(peer);
                    }
                    self.handle(now, Input::Unlinked { peer });
                }
                Happening::Frames { from, mut frames } => {
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

    /// Hands over the casts that arrived, as far as links that stand give the right to them.
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
                    // Unlike a link, a datagram shows nothing of its sender's.
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
            // One before it may have had the protocol give the link up.
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
                    self.host.fill(&mut command);
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

    /// Requests of clients: of each what one read brought, at most.
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
                // What was waited for may have ended at once.
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

    /// Hands over what it had sent to itself before, but not what it sends to itself meanwhile.
    fn take_own(&mut self, now: Time) -> usize {
        let count = self.outside.own.len();
        for _ in 0..count {
            let message = self.outside.own.pop_front().expect("only this loop takes from it");
            self.handle(now, Input::Receive { from: self.me, message });
        }
        count
    }

    #[inline]
    fn handle(&mut self, now: Time, input: Input<P>) {
        let chance = &mut self.chance;
        let mut random = || chance.bits();
        let mut cx = Context { now, me: self.me, random: &mut random };
        let mut world = World {
            links: &mut self.links,
            datagrams: &mut self.datagrams,
            host: &mut self.host,
            outside: &mut self.outside,
            me: self.me,
            now,
        };
        self.protocol.handle(&mut cx, input, &mut world);
        while let Some(ticket) = world.outside.persisted.take() {
            self.protocol.handle(&mut cx, Input::Persisted(ticket), &mut world);
        }
    }
}

/// How long a reactor whose disk is far behind sleeps between looks at what is due.
const PRESSED_PAUSE: Duration = Duration::from_millis(1);

impl<P: Protocol> Handle<P> {
    /// Hands a command over; waits while too many others do.
    pub fn command(&self, command: P::Command) -> Result<(), Stopped<P::Command>> {
        self.commands.send(command).map_err(|unsent| Stopped(unsent.into_inner()))?;
        self.owner.shared.rouse();
        Ok(())
    }

    /// Hands a command over unless too many others wait; never blocks.
    pub fn try_command(&self, command: P::Command) -> Result<(), Untaken<P::Command>> {
        self.commands.try_send(command).map_err(untaken)?;
        self.owner.shared.rouse();
        Ok(())
    }

    /// Where it listens, in the order of [`Config`]'s `listen` and then `listening`, ports filled in.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.owner.addresses
    }

    /// What it counts.
    pub fn counters(&self) -> &Counters {
        &self.owner.counters
    }

    /// Stops after the turn under way and waits for that; what was sent is written as far as sockets take it, and
    /// commands still waiting are lost. On the protocol thread itself it only asks.
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

impl Shared {
    /// Wakes the loop if it sleeps. The work was put in before.
    fn rouse(&self) {
        fence(Ordering::SeqCst);
        // Of many that bring work to a sleeping loop, one pays for waking it.
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            self.waker.wake().expect("the waker's descriptor is ours");
        }
    }
}

impl Owner {
    fn stop(&self) -> Result<(), Panicked> {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.rouse();
        self.join()
    }

    fn join(&self) -> Result<(), Panicked> {
        if thread::current().id() == self.thread_id {
            return Ok(());
        }
        // The lock is held while joining, so that others who wait come back only when the thread has ended.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take()
            && thread.join().is_err()
        {
            self.panicked.store(true, Ordering::Relaxed);
        }
        if self.panicked.load(Ordering::Relaxed) { Err(Panicked) } else { Ok(()) }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // A panic has been printed by its own thread; nobody is left to be told.
        let _ = self.stop();
    }
}
