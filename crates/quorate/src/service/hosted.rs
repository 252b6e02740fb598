//! The endpoint of one service in one process: a process that looks for the set, then a replica of it or its client.
//!
//! A set is told apart by random bits that only its members know at first. A joiner or a client knows a name, which makes the
//! channel, and addresses. It reaches for the processes there and shows an empty pass; whoever belongs to a set refuses that and
//! shows its own ([`Set`]). The node tells its host ([`Event::Stranger`](quorate_node::Event::Stranger)), and the host tells the
//! endpoint ([`Command::Begin`]). From then on the pass is the fence: no session comes about between two sets of one name.
//!
//! A replica that ended comes back as another process, at another address ([`tenant`](super::tenant)). Where it was, a *signpost* stays: it
//! shows the set as a replica does, and sends on those who ask it to the replicas that its successor knows.
//!
//! On disk, each record of a replica's log bears the pass of its set: a process that comes back knows by its journal alone of
//! which sets it was, however often the log was collected.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use crossbeam_channel::Sender;
use quorate_protocol::{
    Context, Destination, Duration, Input, Peer, Policy, ProcessId, Protocol, Sink, Ticket, Time, paxos,
    service::{
        self, Abort, Body, Client, ClientCommand, ClientEvent, ClientSettings, Fate, GroupId, Message,
        Pipelining, Replica, Settings,
    },
    wire::{Wire, WireError, need},
};

use super::{
    Carries,
    executor::Performer,
    export::Exported,
    host::Standing,
    inline::{Inline, Upshot},
    press::ITEM_BYTES_MAX,
    process::lock,
};

/// What the members of a set show: which it is, and what all replicas of it must agree in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) group: GroupId,
    pub(super) terms: Terms,
}

/// The founder's decisions for all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// A print of the state that the service began with.
    pub(super) beginning: u64,
    /// How many replicas there should be.
    pub(super) replicas: u8,
    /// Whether replicas keep their logs on disk: all do, or none does.
    pub(super) durable: bool,
}

impl Terms {
    /// Why a replica with these terms cannot belong to a set with those.
    pub(super) fn differ(self, those: Terms) -> Option<&'static str> {
        if self.beginning != those.beginning {
            return Some(
                "the service was founded with another first state: all replicas have to begin with the same",
            );
        }
        match (self.durable, those.durable) {
            (false, true) => Some("the replicas of this set keep their logs on disk, and this host has none"),
            (true, false) => {
                Some("the replicas of this set keep their logs in memory, and this host on disk")
            }
            _ => None,
        }
    }
}

impl Set {
    /// The set that shows this pass; none if it is no replica's.
    pub(super) fn of_pass(mut pass: &[u8]) -> Option<Set> {
        if pass.len() != REPLICA_PASS_BYTES {
            return None;
        }
        let (group, beginning, replicas) = (GroupId(pass.get_u64_le()), pass.get_u64_le(), pass.get_u8());
        let durable = match pass.get_u8() {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Set { group, terms: Terms { beginning, replicas, durable } })
    }

    fn pass(self) -> Bytes {
        let Set { group, terms } = self;
        let mut pass = BytesMut::with_capacity(REPLICA_PASS_BYTES);
        pass.put_u64_le(group.0);
        pass.put_u64_le(terms.beginning);
        pass.put_u8(terms.replicas);
        pass.put_u8(terms.durable.into());
        pass.freeze()
    }

    /// How replicas of it behave on a host that keeps them so.
    fn settings(self, keeping: Keeping) -> Settings {
        let mut log = paxos::Settings {
            wanted: usize::from(self.terms.replicas),
            log_bytes_kept: keeping.log_bytes_kept,
            ..paxos::Settings::default()
        };
        let whole_states = keeping.carries == Carries::State;
        if whole_states {
            // The latest state is all that anybody needs, beside what comes while that is given.
            (log.window_min, log.window_max) = (1, 1);
            log.log_bytes_kept = log.log_bytes_kept.min(STATES_BYTES_KEPT);
        }
        if self.terms.durable {
            log.checkpoint_bytes = Some(CHECKPOINT_BYTES);
            log.remove_after = REMOVE_DURABLE_AFTER;
        }
        Settings {
            log,
            whole_states,
            any_order: keeping.any_order,
            pipelining: keeping.pipelining,
            ..Settings::default()
        }
    }
}

/// A replica with a disk writes its whole state once so much of its log has been written, and forgets what was before.
const CHECKPOINT_BYTES: usize = 64 << 20;

/// Where a log carries whole states, no more of it is kept.
const STATES_BYTES_KEPT: usize = 2 * ITEM_BYTES_MAX;

/// A replica with a disk may come back as the one that it was, so it is given longer than one without.
const REMOVE_DURABLE_AFTER: Duration = Duration::from_secs(30);

/// A record of a replica's log, and the set whose log it is.
#[derive(Debug)]
pub(super) struct Record {
    set: Set,
    log: paxos::Record,
}

impl Wire for Record {
    fn encode(&self, out: &mut BytesMut) {
        out.put_slice(&self.set.pass());
        self.log.encode(out);
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        let set = take_set(input)?;
        Ok(Record { set, log: paxos::Record::decode(input)? })
    }
}

fn take_set(record: &mut Bytes) -> Result<Set, WireError> {
    need(record, REPLICA_PASS_BYTES)?;
    Set::of_pass(&record.split_to(REPLICA_PASS_BYTES)).ok_or(WireError::Body)
}

/// The pass of one who looks for a set. It admits nobody, so everybody shows what they are.
#[derive(Debug)]
struct Stranger;

impl Policy for Stranger {
    fn pass(&self) -> Bytes {
        Bytes::new()
    }

    fn admits(&self, _: &[u8]) -> bool {
        false
    }
}

/// The pass of a replica. It admits the replicas and the clients of its set.
#[derive(Debug)]
struct Member(Set);

impl Policy for Member {
    fn pass(&self) -> Bytes {
        self.0.pass()
    }

    fn admits(&self, theirs: &[u8]) -> bool {
        theirs == &self.pass()[..] || theirs == self.0.group.0.to_le_bytes()
    }
}

/// The pass of a client. It admits the replicas of its set.
#[derive(Debug)]
struct Caller(GroupId);

impl Policy for Caller {
    fn pass(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0.0.to_le_bytes())
    }

    fn admits(&self, theirs: &[u8]) -> bool {
        Set::of_pass(theirs).is_some_and(|set| set.group == self.0)
    }
}

const REPLICA_PASS_BYTES: usize = 18;

/// An endpoint of a service.
pub(super) enum Hosted {
    Seeker(Seeker),
    Replica(Box<Seated>),
    Client(Box<Client>),
    Signpost(Signpost),
}

/// The place at which a replica was that has become another process.
pub(super) struct Signpost {
    set: Set,
    /// What the process that it has become knows of the replicas.
    standing: Arc<Mutex<Standing>>,
}

impl Signpost {
    /// Sends on a client, or a process that asks for admission.
    fn receive(&self, from: ProcessId, message: &Message, out: &mut dyn Sink<Hosted>) {
        let Standing { leader, replicas, .. } = lock(&self.standing).clone();
        let members = replicas.into_iter().map(|(id, address)| Peer { id, address }).collect();
        let body = match message.body {
            Body::Paxos(paxos::Message::Join { .. }) => {
                Body::Paxos(paxos::Message::Refer { leader, members })
            }
            Body::Open { .. } | Body::Calls { .. } => Body::Redirect { leader, members },
            // Nobody waits for an answer.
            _ => return,
        };
        if message.group == self.set.group {
            out.send(Destination::One(from), Message { group: self.set.group, body }, None);
        }
    }
}

/// A replica of a set.
pub(super) struct Seated {
    set: Set,
    replica: Replica,
    /// The service, if it is executed here.
    inline: Option<Box<Inline>>,
}

/// How a host keeps a replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keeping {
    /// Bytes of log for those that lag.
    pub(super) log_bytes_kept: usize,
    pub(super) pipelining: Pipelining,
    /// What the service's log carries.
    pub(super) carries: Carries,
    /// Whether the service has threads of its own, which complete requests in any order.
    pub(super) any_order: bool,
}

/// An endpoint that does not know its set yet.
pub(super) struct Seeker {
    wanted: Wanted,
    /// Those that it reaches for, and where they listen.
    peers: BTreeMap<ProcessId, String>,
    /// Calls that wait for the set, the oldest first.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
}

/// The kind of endpoint that a seeker is going to be.
enum Wanted {
    Replica { me: Peer, keeping: Keeping, inline: Option<Box<Inline>> },
    Client(ClientSettings),
}

struct Waiting {
    end: Time,
    call: ClientCommand,
}

pub(super) enum Command {
    /// The processes at the addresses that were named.
    Seeds(Vec<Peer>),
    /// The set is founded here, or found elsewhere: to be said once. What comes later is passed over.
    Begin { set: Set, founded: bool },
    /// Results from the executor, and an operator's wishes.
    Results(Vec<service::Command>),
    /// A client's calls. Each ends in one [`Event::Client`].
    Calls(Vec<ClientCommand>),
    /// Somebody wants a copy of the state of a service that is executed here.
    Copy(Sender<Exported>),
}

pub(super) enum Event {
    Replica(service::Event),
    Client(ClientEvent),
    /// The service, which was executed here, cannot go on, for this reason. Its replica resigns.
    Broken(String),
    /// The service was executed here, and takes too long for that. It is to be given a thread, to which what comes from now on goes.
    Long(Box<dyn Performer>),
}

impl Hosted {
    /// A replica to be, which founds or joins a set. The service may be executed by it.
    pub(super) fn replica(me: Peer, keeping: Keeping, inline: Option<Box<Inline>>) -> Hosted {
        Hosted::seeker(Wanted::Replica { me, keeping, inline })
    }

    /// A client to be.
    pub(super) fn client(settings: ClientSettings) -> Hosted {
        Hosted::seeker(Wanted::Client(settings))
    }

    /// Sends those who look for the set on to the replicas of this standing.
    pub(super) fn signpost(set: Set, standing: Arc<Mutex<Standing>>) -> Hosted {
        Hosted::Signpost(Signpost { set, standing })
    }

    /// The address at which the others know the replica that wrote these records; none if they do not know it yet.
    pub(super) fn known_at(me: ProcessId, records: Vec<Bytes>, keeping: Keeping) -> Option<String> {
        let nowhere = Peer { id: me, address: String::new() };
        match Hosted::recovered(&nowhere, records, (keeping, None), Time::ZERO) {
            Err(Unrecovered::Moved(address)) => Some(address),
            _ => None,
        }
    }

    /// The replica that wrote these records, and its set.
    pub(super) fn recovered(
        me: &Peer,
        records: Vec<Bytes>,
        (keeping, inline): (Keeping, Option<Box<Inline>>),
        now: Time,
    ) -> Result<(Set, Hosted), Unrecovered> {
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
            return Err(Unrecovered::Corrupt(format!("it is the log of {} sets", sets.len())));
        };
        let replica = Replica::recover(set.group, me.clone(), set.settings(keeping), logs, now)
            .map_err(|error| Unrecovered::Corrupt(error.to_string()))?
            .expect("there are records");
        let known = replica.log().members().iter().find(|peer| peer.id == me.id);
        match known {
            Some(known) if known.address != me.address => Err(Unrecovered::Moved(known.address.clone())),
            _ => Ok((set, Hosted::Replica(Box::new(Seated { set, replica, inline })))),
        }
    }

    fn seeker(wanted: Wanted) -> Hosted {
        let (peers, waiting) = (BTreeMap::new(), VecDeque::new());
        Hosted::Seeker(Seeker { wanted, peers, waiting, waiting_bytes: 0 })
    }

    fn command(&mut self, cx: &mut Context<'_>, command: Command, out: &mut dyn Sink<Self>) {
        match (&mut *self, command) {
            (Hosted::Seeker(seeker), Command::Seeds(peers)) => seeker.reach(peers, out),
            (Hosted::Seeker(_), Command::Begin { set, founded }) => self.begin(cx, set, founded, out),
            (Hosted::Seeker(seeker), Command::Calls(calls)) => {
                for call in calls {
                    seeker.keep(cx.now, call, out);
                }
            }
            (Hosted::Replica(..), Command::Seeds(peers)) => {
                self.give(cx, Input::Command(service::Command::Seeds(peers)), out);
            }
            (Hosted::Replica(..), Command::Results(results)) => {
                for result in results {
                    self.give(cx, Input::Command(result), out);
                }
            }
            (Hosted::Client(_), Command::Seeds(peers)) => {
                self.give_client(cx, Input::Command(ClientCommand::Seeds(peers)), out);
            }
            (Hosted::Client(_), Command::Calls(calls)) => {
                for call in calls {
                    self.give_client(cx, Input::Command(call), out);
                }
            }
            // If it has been given a thread meanwhile, the copy is asked for again.
            (Hosted::Replica(seated), Command::Copy(wanted)) => {
                if let Some(inline) = &mut seated.inline {
                    inline.want_copy(wanted);
                }
            }
            (Hosted::Signpost(_), _) => {}
            // An operator's wish that came before there is a replica ends with the operator's patience.
            (Hosted::Seeker(_), Command::Results(_) | Command::Copy(_)) => {}
            // Several of those that are asked show the set.
            (Hosted::Replica(..) | Hosted::Client(_), Command::Begin { .. }) => {}
            (Hosted::Client(_), Command::Results(_) | Command::Copy(_))
            | (Hosted::Replica(..), Command::Calls(_)) => {
                unreachable!("a host asks each for what it is")
            }
        }
    }

    /// The set is known: the seeker becomes what it is wanted as.
    fn begin(&mut self, cx: &mut Context<'_>, set: Set, founded: bool, out: &mut dyn Sink<Self>) {
        let Hosted::Seeker(seeker) = self else { return };
        let peers = std::mem::take(&mut seeker.peers);
        let peers = peers.into_iter().map(|(id, address)| Peer { id, address }).collect();
        let waiting = std::mem::take(&mut seeker.waiting);
        let policy: Arc<dyn Policy>;
        *self = match &mut seeker.wanted {
            Wanted::Replica { me, keeping, inline } => {
                policy = Arc::new(Member(set));
                let (me, settings, inline) = (me.clone(), set.settings(*keeping), inline.take());
                let replica = match founded {
                    true => Replica::found(set.group, me, settings, cx.now),
                    false => Replica::join(set.group, me, peers, settings, cx.now),
                };
                Hosted::Replica(Box::new(Seated { set, replica, inline }))
            }
            Wanted::Client(settings) => {
                policy = Arc::new(Caller(set.group));
                Hosted::Client(Box::new(Client::new(set.group, peers, settings.clone())))
            }
        };
        out.adopt(policy);
        for Waiting { call, .. } in waiting {
            self.give_client(cx, Input::Command(call), out);
        }
    }

    fn give(&mut self, cx: &mut Context<'_>, input: Input<Replica>, out: &mut dyn Sink<Self>) {
        let Hosted::Replica(seated) = self else { unreachable!("it is asked as a replica") };
        let Seated { set, replica, inline } = &mut **seated;
        let Some(executed) = inline else {
            let emit = |out: &mut dyn Sink<Hosted>, event| Sink::emit(out, Event::Replica(event));
            return replica.handle(cx, input, &mut Below { out, set: Some(*set), emit });
        };
        let upshot = executed.give(cx, (*set, replica, input), out);
        if let Upshot::Broken(why) = &upshot {
            out.emit(Event::Broken(why.clone()));
        }
        if matches!(upshot, Upshot::Long)
            && let Some(inline) = inline.take()
        {
            out.emit(Event::Long(inline.into_performer()));
        }
    }

    fn give_client(&mut self, cx: &mut Context<'_>, input: Input<Client>, out: &mut dyn Sink<Self>) {
        let Hosted::Client(client) = self else { unreachable!("it is asked as a client") };
        let emit = |out: &mut dyn Sink<Hosted>, event| Sink::emit(out, Event::Client(event));
        client.handle(cx, input, &mut Below { out, set: None, emit });
    }
}

/// The reason why a replica is not made again from its records.
#[derive(Debug)]
pub(super) enum Unrecovered {
    /// What stands in the journal is no replica's log.
    Corrupt(String),
    /// The others know it at this address, and it would be elsewhere now.
    Moved(String),
}

/// The sink of a replica or a client.
pub(super) struct Below<'a, E> {
    pub(super) out: &'a mut dyn Sink<Hosted>,
    /// The set whose log is written.
    pub(super) set: Option<Set>,
    /// Where events go.
    pub(super) emit: E,
}

impl<C, E> Sink<C> for Below<'_, E>
where
    C: Protocol<Message = Message, Record = paxos::Record>,
    E: FnMut(&mut dyn Sink<Hosted>, C::Event),
{
    fn send(&mut self, to: Destination, message: Message, after: Option<Ticket>) {
        self.out.send(to, message, after);
    }

    fn send_aside(&mut self, to: Destination, message: Message) {
        self.out.send_aside(to, message);
    }

    fn persist(&mut self, log: paxos::Record) -> Ticket {
        self.out.persist(Record { set: self.set.expect("a client has no log"), log })
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

impl Protocol for Hosted {
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match (&mut *self, input) {
            (_, Input::Command(command)) => self.command(cx, command, out),
            (Hosted::Replica(..), input) => {
                let input = input.map(|message| message, |_| unreachable!("commands were handled above"));
                self.give(cx, input, out);
            }
            (Hosted::Client(_), input) => {
                let input = input.map(|message| message, |_| unreachable!("commands were handled above"));
                self.give_client(cx, input, out);
            }
            (Hosted::Seeker(seeker), Input::Deadline) => seeker.give_up(cx.now, out),
            (Hosted::Signpost(signpost), Input::Receive { from, message }) => {
                signpost.receive(from, &message, out);
            }
            // A seeker admits nobody, so it is linked with nobody, and a signpost waits for nothing.
            (Hosted::Seeker(_) | Hosted::Signpost(_), _) => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Hosted::Seeker(seeker) => seeker.waiting.front().map(|waiting| waiting.end),
            Hosted::Replica(seated) => seated.replica.deadline(),
            Hosted::Client(client) => client.deadline(),
            Hosted::Signpost(_) => None,
        }
    }

    fn gathering(&self) -> Duration {
        match self {
            Hosted::Seeker(_) | Hosted::Signpost(_) => Duration::ZERO,
            Hosted::Replica(seated) => seated.replica.gathering(),
            Hosted::Client(client) => client.gathering(),
        }
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match self {
            Hosted::Replica(seated) => Arc::new(Member(seated.set)),
            Hosted::Signpost(signpost) => Arc::new(Member(signpost.set)),
            // It adopts another policy with its set.
            Hosted::Seeker(_) | Hosted::Client(_) => Arc::new(Stranger),
        }
    }
}

impl Seeker {
    /// Reaches for those that were found, and for nobody else.
    fn reach(&mut self, found: Vec<Peer>, out: &mut dyn Sink<Hosted>) {
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
    fn keep(&mut self, now: Time, call: ClientCommand, out: &mut dyn Sink<Hosted>) {
        let Wanted::Client(settings) = &self.wanted else { unreachable!("clients are called") };
        match (call.command(), call) {
            // A call of a set that this process knew is never asked for before its set is known.
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
                self.waiting.push_back(Waiting { end: now + settings.wait, call });
            }
        }
    }

    fn give_up(&mut self, now: Time, out: &mut dyn Sink<Hosted>) {
        while let Some(Waiting { call, .. }) = self.waiting.pop_front_if(|waiting| waiting.end <= now) {
            self.waiting_bytes -= call.bytes();
            if let Some(command) = call.command() {
                out.emit(Event::Client(ClientEvent { command, fate: Fate::NotSent }));
            }
        }
    }
}
