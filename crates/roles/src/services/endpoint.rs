//! The endpoint of one service in one process. It begins as a seeker of the set, and becomes a replica or a
//! client of the set.
//!
//! A set is named by random bits that only its members know at first. A process that joins, or a client,
//! knows the service's name, which makes the channel, and some addresses. It reaches for the processes at
//! these addresses and shows an empty pass. A member of a set refuses that pass and shows its own ([`Set`]).
//! The node reports the refusal to its host (`PolicyMismatch`), and the host passes the set to the endpoint
//! ([`Command::Begin`]). From then on the pass is the fence: no session exists between two sets of one name.
//!
//! A replica that ended comes back as another process, at another address. A *redirect* remains at the
//! replica's former address: it shows the set as a replica does, and directs callers to other replicas. It
//! learns these replicas from its *successor*, the process that took the replica's place.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    sync::Arc,
};

use bytes::Bytes;
use quorate_protocol::{
    Context, Destination, Duration, Input, Peer, Policy, ProcessId, Protocol, Sink, Ticket, Time, paxos,
    service::{
        self, Abort, Body, Client, ClientCommand, ClientEvent, ClientSettings, Fate, Message, Replica,
    },
};

use super::{
    endpoint_host::{EndpointHost, InlineExecutor, ResultLatch, Successor},
    inline::{Inline, Upshot},
    set::{ClientPolicy, ReplicaOptions, ReplicaPolicy, SeekerPolicy, Set, SetRecord, take_set},
};

/// An endpoint of a service.
pub enum ServiceEndpoint<H: EndpointHost> {
    /// The endpoint looks for its set.
    Seeker(Box<Seeker<H>>),
    /// A replica of the set.
    Replica(Box<ServiceReplica<H>>),
    /// A client of the set.
    Client(Box<Client>),
    /// An endpoint at the former address of a replica.
    Redirect(Redirect<H>),
}

/// An endpoint at the former address of a replica that continues as another process.
pub struct Redirect<H: EndpointHost> {
    set: Set,
    /// The process that continues the replica's work.
    successor: H::Successor,
}

impl<H: EndpointHost> Redirect<H> {
    /// Redirects a client, or a process that asks for admission.
    fn receive(&self, from: ProcessId, message: &Message, out: &mut dyn Sink<ServiceEndpoint<H>>) {
        let (leader, members) = self.successor.replicas();
        let body = match message.body {
            Body::Paxos(paxos::Message::Join { .. }) => {
                Body::Paxos(paxos::Message::Refer { leader, members })
            }
            Body::Open { .. } | Body::Calls { .. } => Body::Redirect { leader, members },
            // The sender of any other message awaits no answer.
            _ => return,
        };
        if message.group == self.set.group {
            out.send(Destination::One(from), Message { group: self.set.group, body }, None);
        }
    }
}

/// A replica of a set.
pub struct ServiceReplica<H: EndpointHost> {
    set: Set,
    replica: Replica,
    /// The service, if this endpoint executes it itself and no thread does.
    inline: Option<Box<Inline<H::Executor>>>,
    /// The control of the thread that executes the service, if a thread executes it.
    latch: H::Latch,
}

impl<H: EndpointHost> ServiceReplica<H> {
    fn new(set: Set, replica: Replica, inline: Option<Box<Inline<H::Executor>>>) -> Box<ServiceReplica<H>> {
        Box::new(ServiceReplica { set, replica, inline, latch: H::Latch::default() })
    }
}

/// An endpoint that does not know its set yet.
pub struct Seeker<H: EndpointHost> {
    wanted: SeekerGoal<H>,
    /// The processes that the endpoint tries to reach, with their addresses.
    peers: BTreeMap<ProcessId, String>,
    /// Calls that wait for the set, oldest first.
    waiting: VecDeque<WaitingCall>,
    waiting_bytes: usize,
}

/// The kind of endpoint that a seeker will become.
enum SeekerGoal<H: EndpointHost> {
    Replica { me: Peer, options: Box<ReplicaOptions>, inline: Option<Box<Inline<H::Executor>>> },
    Client(ClientSettings),
}

struct WaitingCall {
    end: Time,
    call: ClientCommand,
}

/// A command to an endpoint.
pub enum Command<H: EndpointHost> {
    /// The processes at the configured addresses.
    Seeds(Vec<Peer>),
    /// Names the endpoint's set: this process founds the set, or has discovered it. Only the first command of
    /// this kind has an effect.
    Begin {
        /// The set.
        set: Set,
        /// Whether this process founds the set.
        founded: bool,
    },
    /// Results from the executor's thread.
    Executed(Vec<service::Command>, <H::Latch as ResultLatch>::Passage),
    /// A command of an operator, or of a host whose service has broken.
    Wish(service::Command),
    /// A client's calls. Each call ends in one [`Event::Client`].
    Calls(Vec<ClientCommand>),
    /// A request for a copy of the state of a service that is executed here.
    Copy(<H::Executor as InlineExecutor>::Receiver),
}

/// An event for the host of an endpoint.
pub enum Event<H: EndpointHost> {
    /// An order or news of the replica.
    Replica(service::Event),
    /// The end of a call, with the call's fate.
    Client(ClientEvent),
    /// The service was executed here and cannot continue, for this reason. Its replica resigns.
    Broken(String),
    /// The service was executed here and takes too long. The host must give it a thread, to which all later
    /// orders go.
    Long(H::Executor),
}

impl<H: EndpointHost> ServiceEndpoint<H> {
    /// Makes a seeker that founds or joins a set and then becomes a replica. `inline` holds the service if
    /// the endpoint executes it.
    pub fn replica(me: Peer, options: ReplicaOptions, inline: Option<Box<Inline<H::Executor>>>) -> Self {
        ServiceEndpoint::seeker(SeekerGoal::Replica { me, options: Box::new(options), inline })
    }

    /// Makes a seeker that becomes a client.
    pub fn client(settings: ClientSettings) -> Self {
        ServiceEndpoint::seeker(SeekerGoal::Client(settings))
    }

    /// Makes a redirect, which directs callers to the replicas that `successor` knows.
    pub fn redirect(set: Set, successor: H::Successor) -> Self {
        ServiceEndpoint::Redirect(Redirect { set, successor })
    }

    /// Returns the address at which the other replicas know the replica that wrote these records. Returns
    /// `None` if they do not know it yet.
    pub fn known_at(me: ProcessId, records: Vec<Bytes>, options: ReplicaOptions) -> Option<String> {
        let nowhere = Peer { id: me, address: String::new() };
        match Self::recovered(&nowhere, records, (options, None), Time::ZERO) {
            Err(Unrecovered::Moved(address)) => Some(address),
            _ => None,
        }
    }

    /// Rebuilds a replica and its set from the records that the replica wrote.
    pub fn recovered(
        me: &Peer,
        records: Vec<Bytes>,
        (options, inline): (ReplicaOptions, Option<Box<Inline<H::Executor>>>),
        now: Time,
    ) -> Result<(Set, Self), Unrecovered> {
        let mut sets = Vec::new();
        let mut logs = Vec::with_capacity(records.len());
        for mut record in records {
            let set = take_set(&mut record).map_err(|error| Unrecovered::Corrupt(error.to_string()))?;
            if !sets.contains(&set) {
                sets.push(set);
            }
            logs.push(record);
        }
        let [set] = sets[..] else {
            return Err(Unrecovered::Corrupt(format!(
                "the journal holds records of {} sets of replicas, but a replica belongs to one set",
                sets.len()
            )));
        };
        let replica = Replica::recover(set.group, me.clone(), set.settings(options), logs, now)
            .map_err(Unrecovered::Log)?
            .expect("there are records");
        let known = replica.log().members().iter().find(|peer| peer.id == me.id);
        match known {
            Some(known) if known.address != me.address => Err(Unrecovered::Moved(known.address.clone())),
            _ => Ok((set, ServiceEndpoint::Replica(ServiceReplica::new(set, replica, inline)))),
        }
    }

    /// Returns the replica, if the endpoint is one.
    pub fn as_replica(&self) -> Option<&Replica> {
        match self {
            ServiceEndpoint::Replica(service_replica) => Some(&service_replica.replica),
            _ => None,
        }
    }

    /// Returns the client, if the endpoint is one.
    pub fn as_client(&self) -> Option<&Client> {
        match self {
            ServiceEndpoint::Client(client) => Some(client),
            _ => None,
        }
    }

    /// Returns the service, if the endpoint is a replica and executes the service itself.
    pub fn inline(&self) -> Option<&Inline<H::Executor>> {
        match self {
            ServiceEndpoint::Replica(service_replica) => service_replica.inline.as_deref(),
            _ => None,
        }
    }

    fn seeker(wanted: SeekerGoal<H>) -> Self {
        let (peers, waiting) = (BTreeMap::new(), VecDeque::new());
        ServiceEndpoint::Seeker(Box::new(Seeker { wanted, peers, waiting, waiting_bytes: 0 }))
    }

    fn command(&mut self, cx: &mut Context<'_>, command: Command<H>, out: &mut dyn Sink<Self>) {
        match (&mut *self, command) {
            (ServiceEndpoint::Seeker(seeker), Command::Seeds(peers)) => seeker.reach(peers, out),
            (ServiceEndpoint::Seeker(_), Command::Begin { set, founded }) => {
                self.begin(cx, set, founded, out)
            }
            (ServiceEndpoint::Seeker(seeker), Command::Calls(calls)) => {
                for call in calls {
                    seeker.keep(cx.now, call, out);
                }
            }
            (ServiceEndpoint::Replica(..), Command::Seeds(peers)) => {
                self.give(cx, Input::Command(service::Command::Seeds(peers)), out);
            }
            (ServiceEndpoint::Replica(service_replica), Command::Executed(results, passage)) => {
                service_replica.latch.hold(&passage);
                for result in results {
                    self.give(cx, Input::Command(result), out);
                }
                self.watch_results();
            }
            (ServiceEndpoint::Replica(..), Command::Wish(wish)) => self.give(cx, Input::Command(wish), out),
            (ServiceEndpoint::Client(_), Command::Seeds(peers)) => {
                self.give_client(cx, Input::Command(ClientCommand::Seeds(peers)), out);
            }
            (ServiceEndpoint::Client(_), Command::Calls(calls)) => {
                for call in calls {
                    self.give_client(cx, Input::Command(call), out);
                }
            }
            // If a thread executes the service by now, the sender of the command sends its request again, to
            // the thread.
            (ServiceEndpoint::Replica(service_replica), Command::Copy(wanted)) => {
                if let Some(inline) = &mut service_replica.inline {
                    inline.want_copy(cx, wanted);
                }
            }
            (ServiceEndpoint::Redirect(_), _) => {}
            // If an operator's command arrives before the endpoint is a replica, the command is lost, and the
            // operator's wait for its outcome times out.
            (ServiceEndpoint::Seeker(_), Command::Executed(..) | Command::Wish(_) | Command::Copy(_)) => {}
            // The set is already known, because several of the reached processes show it.
            (ServiceEndpoint::Replica(..) | ServiceEndpoint::Client(_), Command::Begin { .. }) => {}
            (ServiceEndpoint::Client(_), Command::Executed(..) | Command::Wish(_) | Command::Copy(_))
            | (ServiceEndpoint::Replica(..), Command::Calls(_)) => {
                unreachable!("a host asks a replica or a client only for what that endpoint can do")
            }
        }
    }

    /// Turns the seeker into a replica or a client, because the set is known.
    fn begin(&mut self, cx: &mut Context<'_>, set: Set, founded: bool, out: &mut dyn Sink<Self>) {
        let ServiceEndpoint::Seeker(seeker) = self else { return };
        let peers = mem::take(&mut seeker.peers);
        let peers = peers.into_iter().map(|(id, address)| Peer { id, address }).collect();
        let waiting = mem::take(&mut seeker.waiting);
        let policy: Arc<dyn Policy>;
        *self = match &mut seeker.wanted {
            SeekerGoal::Replica { me, options, inline } => {
                policy = Arc::new(ReplicaPolicy(set));
                let (me, settings, inline) =
                    (me.clone(), set.settings(ReplicaOptions::clone(options)), inline.take());
                let replica = match founded {
                    true => Replica::found(set.group, me, settings, cx.now),
                    false => Replica::join(set.group, me, peers, settings, cx.now),
                };
                ServiceEndpoint::Replica(ServiceReplica::new(set, replica, inline))
            }
            SeekerGoal::Client(settings) => {
                policy = Arc::new(ClientPolicy(set.group));
                ServiceEndpoint::Client(Box::new(Client::new(set.group, peers, settings.clone())))
            }
        };
        out.adopt(policy);
        for WaitingCall { call, .. } in waiting {
            self.give_client(cx, Input::Command(call), out);
        }
    }

    fn give(&mut self, cx: &mut Context<'_>, input: Input<Replica>, out: &mut dyn Sink<Self>) {
        let ServiceEndpoint::Replica(service_replica) = self else {
            unreachable!("it is asked as a replica")
        };
        let ServiceReplica { set, replica, inline, .. } = &mut **service_replica;
        let Some(executed) = inline else {
            let emit = |out: &mut dyn Sink<ServiceEndpoint<H>>, event| Sink::emit(out, Event::Replica(event));
            return replica.handle(cx, input, &mut Below { out, set: Some(*set), emit });
        };
        let upshot = executed.give(cx, (*set, replica, input), out);
        if let Upshot::Broken(why) = &upshot {
            out.emit(Event::Broken(why.clone()));
        }
        if matches!(upshot, Upshot::Long)
            && let Some(inline) = inline.take()
        {
            out.emit(Event::Long(inline.into_executor()));
        }
    }

    /// Makes the executor's thread wait while the replica holds as many results as it may.
    fn watch_results(&mut self) {
        if let ServiceEndpoint::Replica(service_replica) = self {
            service_replica.latch.set(service_replica.replica.holds_too_much());
        }
    }

    fn give_client(&mut self, cx: &mut Context<'_>, input: Input<Client>, out: &mut dyn Sink<Self>) {
        let ServiceEndpoint::Client(client) = self else { unreachable!("it is asked as a client") };
        let emit = |out: &mut dyn Sink<ServiceEndpoint<H>>, event| Sink::emit(out, Event::Client(event));
        client.handle(cx, input, &mut Below { out, set: None, emit });
    }
}

/// The reason why a replica cannot be rebuilt from its records.
#[derive(Debug)]
pub enum Unrecovered {
    /// The journal's content is not a replica's log.
    Corrupt(String),
    /// The records of the log do not follow from each other.
    Log(paxos::Corrupt),
    /// The other replicas know this replica at this address, which is not its present address.
    Moved(String),
}

/// The sink that a replica or a client writes to. It passes effects on to the sink of the endpoint.
pub(super) struct Below<'a, H: EndpointHost, E> {
    pub(super) out: &'a mut dyn Sink<ServiceEndpoint<H>>,
    /// The set whose log is written; `None` for a client.
    pub(super) set: Option<Set>,
    /// The function that wraps events for the endpoint's sink.
    pub(super) emit: E,
}

impl<C, H, E> Sink<C> for Below<'_, H, E>
where
    H: EndpointHost,
    C: Protocol<Message = Message, Record = paxos::Record>,
    E: FnMut(&mut dyn Sink<ServiceEndpoint<H>>, C::Event),
{
    fn send(&mut self, to: Destination, message: Message, after: Option<Ticket>) {
        self.out.send(to, message, after);
    }

    fn send_aside(&mut self, to: Destination, message: Message) {
        self.out.send_aside(to, message);
    }

    fn persist(&mut self, log: paxos::Record) -> Ticket {
        self.out.persist(SetRecord { set: self.set.expect("a client has no log"), log })
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        self.out.collect(before, kept);
    }

    fn emit(&mut self, event: C::Event) {
        (self.emit)(self.out, event);
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.out.reach(peer, address);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.out.forget(peer);
    }
}

impl<H: EndpointHost> Protocol for ServiceEndpoint<H> {
    type Message = Message;
    type Record = SetRecord;
    type Command = Command<H>;
    type Event = Event<H>;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match (&mut *self, input) {
            (_, Input::Command(command)) => self.command(cx, command, out),
            (ServiceEndpoint::Replica(..), input) => {
                let input = input.map(|message| message, |_| unreachable!("commands were handled above"));
                self.give(cx, input, out);
                self.watch_results();
            }
            (ServiceEndpoint::Client(_), input) => {
                let input = input.map(|message| message, |_| unreachable!("commands were handled above"));
                self.give_client(cx, input, out);
            }
            (ServiceEndpoint::Seeker(seeker), Input::Deadline) => seeker.give_up(cx.now, out),
            (ServiceEndpoint::Redirect(redirect), Input::Receive { from, message }) => {
                redirect.receive(from, &message, out);
            }
            // Other inputs do not occur: a seeker admits no process, so it has no links, and a redirect has
            // no deadline.
            (ServiceEndpoint::Seeker(_) | ServiceEndpoint::Redirect(_), _) => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            ServiceEndpoint::Seeker(seeker) => seeker.waiting.front().map(|waiting| waiting.end),
            ServiceEndpoint::Replica(service_replica) => service_replica.replica.deadline(),
            ServiceEndpoint::Client(client) => client.deadline(),
            ServiceEndpoint::Redirect(_) => None,
        }
    }

    fn gathering(&self) -> Duration {
        match self {
            ServiceEndpoint::Seeker(_) | ServiceEndpoint::Redirect(_) => Duration::ZERO,
            ServiceEndpoint::Replica(service_replica) => service_replica.replica.gathering(),
            ServiceEndpoint::Client(client) => client.gathering(),
        }
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match self {
            ServiceEndpoint::Replica(service_replica) => Arc::new(ReplicaPolicy(service_replica.set)),
            ServiceEndpoint::Redirect(redirect) => Arc::new(ReplicaPolicy(redirect.set)),
            // A seeker gets another policy when it learns its set.
            ServiceEndpoint::Seeker(_) | ServiceEndpoint::Client(_) => Arc::new(SeekerPolicy),
        }
    }
}

impl<H: EndpointHost> Seeker<H> {
    /// Reaches for the processes that were found, and gives up all other processes.
    fn reach(&mut self, found: Vec<Peer>, out: &mut dyn Sink<ServiceEndpoint<H>>) {
        let found: BTreeMap<ProcessId, String> =
            found.into_iter().map(|peer| (peer.id, peer.address)).collect();
        for gone in self.peers.keys().filter(|id| !found.contains_key(*id)) {
            out.forget(*gone);
        }
        for (id, address) in found.iter().filter(|(id, _)| !self.peers.contains_key(*id)) {
            out.reach(*id, address);
        }
        self.peers = found;
    }

    /// Keeps a call until the set is known.
    fn keep(&mut self, now: Time, call: ClientCommand, out: &mut dyn Sink<ServiceEndpoint<H>>) {
        let SeekerGoal::Client(settings) = &self.wanted else { unreachable!("clients are called") };
        match (call.command(), call) {
            // `Again` asks about a call that was already made to a set, and no such call exists before the
            // set is known.
            (_, ClientCommand::Again { command, .. }) => {
                out.emit(Event::Client(ClientEvent { command, fate: Fate::Expired }));
            }
            (_, ClientCommand::Seeds(peers)) => self.reach(peers, out),
            (Some(command), call) if self.waiting_bytes + call.bytes() > settings.kept_bytes_max => {
                let fate = match call {
                    ClientCommand::Part { .. } | ClientCommand::Commit { .. } => Fate::Aborted(Abort::Gone),
                    _ => Fate::NotSent,
                };
                out.emit(Event::Client(ClientEvent { command, fate }));
            }
            (_, call) => {
                self.waiting_bytes += call.bytes();
                self.waiting.push_back(WaitingCall { end: now + settings.wait, call });
            }
        }
    }

    fn give_up(&mut self, now: Time, out: &mut dyn Sink<ServiceEndpoint<H>>) {
        while let Some(WaitingCall { call, .. }) = self.waiting.pop_front_if(|waiting| waiting.end <= now) {
            self.waiting_bytes -= call.bytes();
            if let Some(command) = call.command() {
                out.emit(Event::Client(ClientEvent { command, fate: Fate::NotSent }));
            }
        }
    }
}
