//! The endpoint of one service in one process: a process that looks for the set, then a replica of it or its client.
//!
//! A set is told apart by random bits that only its members know at first. A joiner or a client knows a name, which makes the
//! channel, and addresses. It reaches for the processes there and shows an empty pass; whoever belongs to a set refuses that and
//! shows its own ([`Set`]). The node tells its host ([`Event::Stranger`](quorate_node::Event::Stranger)), and the host tells the
//! endpoint ([`Command::Begin`]). From then on the pass is the fence: no session comes about between two sets of one name.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Context, Duration, Input, Lift, Peer, Policy, ProcessId, Protocol, Sink, Time, paxos,
    service::{
        self, Abort, Client, ClientCommand, ClientEvent, ClientSettings, Fate, GroupId, Message, Replica,
        Settings,
    },
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
}

impl Set {
    /// The set that shows this pass; none if it is no replica's.
    pub(super) fn of_pass(mut pass: &[u8]) -> Option<Set> {
        if pass.len() != REPLICA_PASS_BYTES {
            return None;
        }
        let (group, beginning, replicas) = (GroupId(pass.get_u64_le()), pass.get_u64_le(), pass.get_u8());
        Some(Set { group, terms: Terms { beginning, replicas } })
    }
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
        let Set { group, terms } = self.0;
        let mut pass = BytesMut::with_capacity(REPLICA_PASS_BYTES);
        pass.put_u64_le(group.0);
        pass.put_u64_le(terms.beginning);
        pass.put_u8(terms.replicas);
        pass.freeze()
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

const REPLICA_PASS_BYTES: usize = 17;

/// An endpoint of a service.
pub(super) enum Hosted {
    Seeker(Seeker),
    Replica(Box<Replica>),
    Client(Box<Client>),
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
    Replica { me: Peer, log_bytes_kept: usize },
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
    /// Results from the executor.
    Results(Vec<service::Command>),
    /// A client's calls. Each ends in one [`Event::Client`].
    Calls(Vec<ClientCommand>),
}

pub(super) enum Event {
    Replica(service::Event),
    Client(ClientEvent),
}

impl Hosted {
    /// A replica to be, which founds or joins a set.
    pub(super) fn replica(me: Peer, log_bytes_kept: usize) -> Hosted {
        Hosted::seeker(Wanted::Replica { me, log_bytes_kept })
    }

    /// A client to be.
    pub(super) fn client(settings: ClientSettings) -> Hosted {
        Hosted::seeker(Wanted::Client(settings))
    }

    fn seeker(wanted: Wanted) -> Hosted {
        let (peers, waiting) = (BTreeMap::new(), VecDeque::new());
        Hosted::Seeker(Seeker { wanted, peers, waiting, waiting_bytes: 0 })
    }

    fn command(&mut self, cx: &mut Context<'_>, command: Command, out: &mut impl Sink<Self>) {
        match (&mut *self, command) {
            (Hosted::Seeker(seeker), Command::Seeds(peers)) => seeker.reach(peers, out),
            (Hosted::Seeker(_), Command::Begin { set, founded }) => self.begin(cx, set, founded, out),
            (Hosted::Seeker(seeker), Command::Calls(calls)) => {
                for call in calls {
                    seeker.keep(cx.now, call, out);
                }
            }
            (Hosted::Replica(_), Command::Seeds(peers)) => {
                self.give(cx, Input::Command(service::Command::Seeds(peers)), out);
            }
            (Hosted::Replica(_), Command::Results(results)) => {
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
            // Several of those that are asked show the set.
            (Hosted::Replica(_) | Hosted::Client(_), Command::Begin { .. }) => {}
            (Hosted::Seeker(_) | Hosted::Client(_), Command::Results(_))
            | (Hosted::Replica(_), Command::Calls(_)) => unreachable!("a host asks each for what it is"),
        }
    }

    /// The set is known: the seeker becomes what it is wanted as.
    fn begin(&mut self, cx: &mut Context<'_>, set: Set, founded: bool, out: &mut impl Sink<Self>) {
        let Hosted::Seeker(seeker) = self else { return };
        let peers = std::mem::take(&mut seeker.peers);
        let peers = peers.into_iter().map(|(id, address)| Peer { id, address }).collect();
        let waiting = std::mem::take(&mut seeker.waiting);
        let policy: Arc<dyn Policy>;
        *self = match &seeker.wanted {
            Wanted::Replica { me, log_bytes_kept } => {
                policy = Arc::new(Member(set));
                let log = paxos::Settings {
                    wanted: usize::from(set.terms.replicas),
                    log_bytes_kept: *log_bytes_kept,
                    ..paxos::Settings::default()
                };
                let (me, settings) = (me.clone(), Settings { log, ..Settings::default() });
                Hosted::Replica(Box::new(match founded {
                    true => Replica::found(set.group, me, settings, cx.now),
                    false => Replica::join(set.group, me, peers, settings, cx.now),
                }))
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

    fn give(&mut self, cx: &mut Context<'_>, input: Input<Replica>, out: &mut impl Sink<Self>) {
        let Hosted::Replica(replica) = self else { unreachable!("it is asked as a replica") };
        let mut lift = Lift::<Self, _, _, _>::new::<Replica>(
            out,
            |_, _, message| Some(message),
            |out, event| out.emit(Event::Replica(event)),
        );
        replica.handle(cx, input, &mut lift);
    }

    fn give_client(&mut self, cx: &mut Context<'_>, input: Input<Client>, out: &mut impl Sink<Self>) {
        let Hosted::Client(client) = self else { unreachable!("it is asked as a client") };
        let mut lift = Lift::<Self, _, _, _>::new::<Client>(
            out,
            |_, _, message| Some(message),
            |out, event| out.emit(Event::Client(event)),
        );
        client.handle(cx, input, &mut lift);
    }
}

impl Protocol for Hosted {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut impl Sink<Self>) {
        match (&mut *self, input) {
            (_, Input::Command(command)) => self.command(cx, command, out),
            (Hosted::Replica(_), input) => {
                let input = input.map(|message| message, |_| unreachable!("commands were handled above"));
                self.give(cx, input, out);
            }
            (Hosted::Client(_), input) => {
                let input = input.map(|message| message, |_| unreachable!("commands were handled above"));
                self.give_client(cx, input, out);
            }
            (Hosted::Seeker(seeker), Input::Deadline) => seeker.give_up(cx.now, out),
            // It admits nobody, so it is linked with nobody.
            (Hosted::Seeker(_), _) => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Hosted::Seeker(seeker) => seeker.waiting.front().map(|waiting| waiting.end),
            Hosted::Replica(replica) => replica.deadline(),
            Hosted::Client(client) => client.deadline(),
        }
    }

    fn gathering(&self) -> Duration {
        match self {
            Hosted::Seeker(_) => Duration::ZERO,
            Hosted::Replica(replica) => replica.gathering(),
            Hosted::Client(client) => client.gathering(),
        }
    }

    fn policy(&self) -> Arc<dyn Policy> {
        // An endpoint comes to its node as a seeker, and adopts another policy with its set.
        Arc::new(Stranger)
    }
}

impl Seeker {
    /// Reaches for those that were found, and for nobody else.
    fn reach(&mut self, found: Vec<Peer>, out: &mut impl Sink<Hosted>) {
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
    fn keep(&mut self, now: Time, call: ClientCommand, out: &mut impl Sink<Hosted>) {
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

    fn give_up(&mut self, now: Time, out: &mut impl Sink<Hosted>) {
        while let Some(Waiting { call, .. }) = self.waiting.pop_front_if(|waiting| waiting.end <= now) {
            self.waiting_bytes -= call.bytes();
            if let Some(command) = call.command() {
                out.emit(Event::Client(ClientEvent { command, fate: Fate::NotSent }));
            }
        }
    }
}
