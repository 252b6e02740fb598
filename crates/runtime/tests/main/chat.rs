//! A protocol that obeys commands and reports inputs, and the test harness for it.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::{BufMut, Bytes, BytesMut};
use crossbeam_channel::{Receiver, Sender, unbounded};
use quorate_protocol::{
    Anyone, Context, Destination, DomainId, Generation, Input, MulticastAddress, Policy, ProcessId, Protocol,
    Session, Sink, Ticket, Time,
    ecast::Fence,
    relay::Relayed,
    wire::{self, Wire, WireError},
};
use quorate_runtime::{Config, Handle, Host, Reactor, chance};

/// Time after which a test fails. A correct process needs far less.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A message with a number and a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) number: u64,
    pub(crate) payload: Bytes,
}

/// Tag of an encoded note; any other tag is malformed.
pub(crate) const NOTE: u8 = 7;

impl Wire for Note {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u8(NOTE);
        out.put_u64_le(self.number);
        wire::put_bytes(out, &self.payload);
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        match wire::take_u8(input)? {
            NOTE => Ok(Note { number: wire::take_u64(input)?, payload: wire::take_bytes(input)? }),
            other => Err(WireError::Tag(other)),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Command {
    Reach(ProcessId, String),
    Adopt(Fence),
    Forget(ProcessId),
    Send(Destination, Note),
    /// Send a peer this many notes, numbered from 0, with payloads of this many bytes.
    Flood(ProcessId, u64, usize),
    /// Cast this many notes to a peer, in one turn.
    Cast(ProcessId, u64),
    /// Multicast this many notes to an address, for these receivers.
    Multicast(MulticastAddress, Vec<ProcessId>, u64),
    /// Start listening to an address (true) or stop (false).
    Listen(MulticastAddress, bool),
    /// Return every note to its sender.
    Echo,
    /// From the next link on, send notes without end, numbered from 0 on each link. Panic unless the peer's
    /// notes arrive in order, from 0 on and without a gap.
    Stream,
    /// Emit an event when this instant has come.
    Alarm(Time),
    /// Persist this many records, each followed by a note to itself.
    Persist(u64),
    /// Emit this number.
    Report(u64),
    /// Block the protocol thread until the other end is dropped.
    Pause(Receiver<()>),
    Panic,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Linked(ProcessId, Session),
    Unlinked(ProcessId),
    Note(ProcessId, Note),
    /// A note that arrived as a cast.
    Cast(ProcessId, Note),
    Alarm(Time),
    Persisted(Ticket),
    Outdated(Generation),
    Reported(u64),
    Drained,
}

#[derive(Default)]
pub(crate) struct Chat {
    pub(crate) echo: bool,
    pub(crate) stream: bool,
    /// The numbers of the next note to send and the next to receive, by linked peer.
    pub(crate) streams: BTreeMap<ProcessId, (u64, u64)>,
    pub(crate) alarm: Option<Time>,
    /// Whether to report the ends of batches.
    pub(crate) report_drained: bool,
    /// The routers and this process's id, if its links may be relayed.
    pub(crate) routers: Vec<ProcessId>,
    pub(crate) me: Option<ProcessId>,
    /// The policy, if the process does not admit everybody.
    pub(crate) fence: Option<Fence>,
}

impl Protocol for Chat {
    type Message = Note;
    type Record = ();
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match input {
            Input::Receive { from, message } => {
                if let Some((_, expected)) = self.streams.get_mut(&from) {
                    assert_eq!(message.number, *expected, "the next note of {from}");
                    *expected += 1;
                    // Every hundredth note requests a hundred others, so the stream keeps itself going.
                    if message.number.is_multiple_of(100) {
                        self.send_stream(from, 100, out);
                    }
                    return;
                }
                if self.echo && from != cx.me {
                    out.send(Destination::One(from), message.clone(), None);
                }
                out.emit(Event::Note(from, message));
            }
            Input::Command(command) => match command {
                Command::Reach(peer, address) => out.reach(peer, &address),
                Command::Forget(peer) => out.forget(peer),
                Command::Adopt(fence) => {
                    self.fence = Some(fence);
                    out.adopt(Arc::new(fence));
                }
                Command::Send(to, note) => out.send(to, note, None),
                Command::Flood(to, count, bytes) => {
                    let payload = Bytes::from(vec![b'x'; bytes]);
                    for number in 0..count {
                        out.send(Destination::One(to), Note { number, payload: payload.clone() }, None);
                    }
                }
                Command::Multicast(address, to, count) => {
                    for number in 0..count {
                        out.multicast(address, to.clone(), Note { number, payload: Bytes::new() });
                    }
                }
                Command::Listen(address, true) => out.listen(address),
                Command::Listen(address, false) => out.ignore(address),
                Command::Cast(to, count) => {
                    for number in 0..count {
                        out.cast(Destination::One(to), Note { number, payload: Bytes::new() });
                    }
                }
                Command::Echo => self.echo = true,
                Command::Stream => self.stream = true,
                Command::Alarm(at) => self.alarm = Some(at),
                Command::Persist(count) => {
                    for number in 0..count {
                        let ticket = out.persist(());
                        let note = Note { number, payload: Bytes::new() };
                        out.send(Destination::One(cx.me), note, Some(ticket));
                    }
                }
                Command::Report(number) => out.emit(Event::Reported(number)),
                Command::Pause(until) => assert!(until.recv().is_err()),
                Command::Panic => panic!("as the test wants"),
            },
            Input::Deadline => {
                assert!(self.alarm.take().is_some_and(|alarm| alarm <= cx.now), "never before its time");
                out.emit(Event::Alarm(cx.now));
            }
            Input::Persisted(ticket) => out.emit(Event::Persisted(ticket)),
            Input::Linked { peer, session } => {
                out.emit(Event::Linked(peer, session));
                if self.stream {
                    assert_eq!(self.streams.insert(peer, (0, 0)), None, "one link at a time");
                    self.send_stream(peer, 1000, out);
                }
            }
            Input::Unlinked { peer } => {
                out.emit(Event::Unlinked(peer));
                self.streams.remove(&peer);
            }
            Input::Cast { from, message } => out.emit(Event::Cast(from, message)),
            Input::Progress { .. } => {}
            Input::Drained if self.report_drained => out.emit(Event::Drained),
            Input::Drained => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.alarm
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match self.fence {
            Some(fence) => Arc::new(fence),
            None => Arc::new(Anyone),
        }
    }
}

impl Chat {
    fn send_stream(&mut self, to: ProcessId, count: u64, out: &mut dyn Sink<Self>) {
        let (next, _) = self.streams.get_mut(&to).expect("only called while linked");
        for number in *next..*next + count {
            // Sizes vary, so that cuts and reads end at any byte of a note.
            let payload = Bytes::from_static(&[b'y'; 300]).slice(..(number % 300) as usize);
            out.send(Destination::One(to), Note { number, payload }, None);
        }
        *next += count;
    }
}

impl Relayed for Chat {
    fn is_router(&self) -> bool {
        self.me.is_some_and(|me| self.routers.contains(&me))
    }

    fn routers(&self) -> Vec<ProcessId> {
        self.routers.clone()
    }
}

pub(crate) struct Listener(pub(crate) Sender<Event>);

impl<P: Protocol<Event = Event>> Host<P> for Listener {
    fn policy_mismatch(&mut self, _: ProcessId, ours: &[u8], theirs: &[u8]) {
        let [ours, theirs] = [ours, theirs].map(|pass| Fence::of_pass(pass).expect("only fences are choosy"));
        if ours.is_out(theirs) {
            let _ = self.0.send(Event::Outdated(theirs.generation));
        }
    }

    fn event(&mut self, event: Event, _: Time) {
        // A test that has seen enough drops its end.
        let _ = self.0.send(event);
    }
}

/// A running reactor with the protocol.
pub(crate) struct Process {
    pub(crate) id: ProcessId,
    pub(crate) handle: Handle<Chat>,
    pub(crate) events: Receiver<Event>,
}

pub(crate) const DOMAIN: DomainId = DomainId(0xd0);

/// Returns a process id that no other process has.
pub(crate) fn id(node: u64) -> ProcessId {
    ProcessId { node, incarnation: chance::incarnation() }
}

/// Returns a configuration that listens on a port chosen by the system.
pub(crate) fn config(id: ProcessId) -> Config {
    Config::new(DOMAIN, id, vec!["127.0.0.1:0".parse().unwrap()])
}

impl Process {
    pub(crate) fn start() -> Process {
        static NODES: AtomicU64 = AtomicU64::new(1);
        Process::with(config(id(NODES.fetch_add(1, Ordering::Relaxed))))
    }

    pub(crate) fn with(config: Config) -> Process {
        Process::running(Chat::default(), config)
    }

    pub(crate) fn running(chat: Chat, config: Config) -> Process {
        let (sender, events) = unbounded();
        let id = config.me;
        let handle = Reactor::start(chat, Listener(sender), config).expect("starts");
        Process { id, handle, events }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.handle.addresses()[0]
    }

    pub(crate) fn command(&self, command: Command) {
        self.handle.command(command).expect("runs");
    }

    pub(crate) fn reach(&self, peer: &Process) {
        self.command(Command::Reach(peer.id, peer.address().to_string()));
    }

    pub(crate) fn note(&self, to: &Process, number: u64) {
        self.command(Command::Send(Destination::One(to.id), Note { number, payload: Bytes::new() }));
    }

    /// Waits for the next event.
    #[track_caller]
    pub(crate) fn next(&self) -> Event {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    /// Expects the next event to be a link.
    #[track_caller]
    pub(crate) fn linked(&self, peer: &Process) -> Session {
        match self.next() {
            Event::Linked(id, session) if id == peer.id => session,
            other => panic!("{other:?} instead of a link to {}", peer.id),
        }
    }

    /// Expects the next event to be the end of a link, or a failed dial.
    #[track_caller]
    pub(crate) fn unlinked(&self, peer: ProcessId) {
        assert_eq!(self.next(), Event::Unlinked(peer));
    }

    /// Expects the next event to be a note.
    #[track_caller]
    pub(crate) fn noted(&self, from: &Process, number: u64) {
        match self.next() {
            Event::Note(id, note) if id == from.id && note.number == number => {}
            other => panic!("{other:?} instead of note {number} from {}", from.id),
        }
    }
}

/// Starts two linked processes.
pub(crate) fn pair() -> (Process, Process) {
    let (a, b) = (Process::start(), Process::start());
    a.reach(&b);
    assert_eq!(a.linked(&b), b.linked(&a), "both ends name the session alike");
    (a, b)
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < limit, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
