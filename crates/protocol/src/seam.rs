//! The seam: the interface of protocols to the world and to each other.
//!
//! A protocol takes one [`Input`] at a time and answers through a [`Sink`]. Layers compose by ownership: a
//! parent owns its child and passes it inputs by [`Input::map`], and a [`Lift`] for its outputs. The lift
//! wraps the child's messages into the parent's and appends the child's events to a reusable queue;
//! afterwards the parent loops until that queue is empty.
//!
//! A *link* between two processes is lossless and FIFO within a session. On [`Input::Unlinked`] any suffix of
//! the sent messages may be lost; the protocol resends after the next [`Input::Linked`]. Inputs that arrive
//! together are a batch: the host passes them on one after another, and [`Input::Drained`] ends the batch. A
//! protocol sends what it gathered during the batch at that end, and not before.
//!
//! A *cast* ([`Sink::cast`]) is a datagram in addition to a link. It may be lost or come twice. Later
//! messages may overtake it, messages on the link included, and it may overtake earlier messages. A cast
//! needs a standing link between sender and receiver ([`Input::Cast`]), so a [`Policy`] that forbids the link
//! forbids the cast, too. Nothing else is promised. A cast may be of an earlier session of the same two
//! processes, so its message must carry the data by which a protocol recognizes old casts. A host may have no
//! datagrams, for all peers or for some: then a cast goes over the link and arrives as [`Input::Receive`]. A
//! *multicast* ([`Sink::multicast`]) is a cast to all processes that listen to an address ([`Sink::listen`]).
//! A listener also gets messages that are not meant for it, and recognizes them by their content. It does not
//! get its own messages.
//!
//! **Commands.** A command with a request carries a name that the asker chose, and ends in exactly one event
//! with that name. The event reports that the request has taken effect, or why not. A command that only gives
//! help (addresses of routers, the completion of a task), or that acts on an earlier command, requests
//! nothing. No event answers it.
//!
//! **Disk.** A protocol writes records ([`Sink::persist`]), and names for a message the record that must be
//! on disk before the message may leave. A host keeps these rules:
//!
//! 1. Records become durable in the order in which they were written. [`Input::Persisted`] covers all up to
//!    its ticket.
//! 2. Messages to one peer leave in the order of sending: a message that waits for its record delays the
//!    messages behind it. Messages of [`Sink::send_aside`] have a lane of their own, which never waits, and
//!    keeps its order.
//! 3. A message that waits when its link's session ends is dropped, as if it had been sent and lost.
//! 4. After a crash a protocol is rebuilt from the durable records, which are a prefix of the records that it
//!    wrote, from the last [`Sink::collect`] on. It keeps its incarnation only if all durable records can be
//!    read.
//!
//! Without a disk every record is durable at once, nothing waits, and a process that ends is gone for good.
//!
//! **Policies.** A protocol may choose its peers ([`Protocol::policy`]). Each end of a link shows a *pass*,
//! and the link exists only if the [`Policy`] of each admits the other's pass. Most protocols take
//! [`Anyone`].

use std::{convert::Infallible, net::Ipv4Addr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    id::ProcessId,
    time::{Duration, Time},
    wire::Wire,
};

pub use crate::policy::{Anyone, PASS_BYTES_MAX, Policy};

/// A sans-IO protocol state machine.
pub trait Protocol {
    /// The messages that the protocol exchanges with its peers.
    type Message;
    /// The records that must be on disk before certain messages may leave.
    type Record: Wire;
    /// The commands of the protocol's user.
    type Command;
    /// The events for the protocol's user.
    type Event;

    /// Takes one input and writes every consequence into `out`.
    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>)
    where
        Self: Sized;

    /// Returns the instant at which the protocol wants the next [`Input::Deadline`]. That input comes at this
    /// instant or later, never earlier.
    fn deadline(&self) -> Option<Time>;

    /// Returns how long the host may hold back input, so that it passes on more input at a time. This is a
    /// wish of the protocol: no promise depends on it.
    fn gathering(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the policy with which the protocol begins. Later policies come by [`Sink::adopt`].
    fn policy(&self) -> Arc<dyn Policy> {
        Arc::new(Anyone)
    }
}

/// The resources that a protocol may use during one call.
pub struct Context<'a> {
    /// The present instant.
    pub now: Time,
    /// The process itself.
    pub me: ProcessId,
    /// A source of uniform random bits; in the simulator, the bits come from the seed.
    pub random: &'a mut dyn FnMut() -> u64,
}

/// One event from outside.
pub enum Input<P: Protocol + ?Sized> {
    /// A peer's message arrived.
    Receive {
        /// The message's sender, for whom the runtime vouches by the link's hello.
        from: ProcessId,
        /// The message.
        message: P::Message,
    },
    /// A peer's cast arrived, while a link to the peer stands. Nobody vouches that the peer sent the cast
    /// just now, in this order, or only once.
    Cast {
        /// The peer that sent the message.
        from: ProcessId,
        /// The cast's message.
        message: P::Message,
    },
    /// A command of the user.
    Command(P::Command),
    /// The instant of [`Protocol::deadline`] has come.
    Deadline,
    /// Every record up to this ticket is on disk.
    Persisted(Ticket),
    /// A link to `peer` is up. The link is lossless and FIFO until [`Input::Unlinked`].
    Linked {
        /// The peer.
        peer: ProcessId,
        /// The session. Its number is never used again between this process and the peer.
        session: Session,
    },
    /// The link broke (reset, closed or refused). Any suffix of the sent messages may be lost.
    Unlinked {
        /// The peer.
        peer: ProcessId,
    },
    /// Bytes of an unfinished message arrived from `peer`: a sign of life, and nothing else. A large message
    /// takes long, and its sender's other messages wait behind it.
    Progress {
        /// The peer.
        peer: ProcessId,
    },
    /// The end of a batch of inputs: protocols flush now.
    Drained,
}

impl<P: Protocol> Input<P> {
    /// Converts the input for a protocol inside this one, with its messages and commands.
    pub fn map<C: Protocol>(
        self,
        message: impl FnOnce(P::Message) -> C::Message,
        command: impl FnOnce(P::Command) -> C::Command,
    ) -> Input<C> {
        let Ok(input) = self.try_map(|it| Ok::<_, Infallible>(message(it)), |it| Ok(command(it)));
        input
    }

    /// Converts the input for a protocol that understands only some of the messages and commands. Returns the
    /// error of `message` or `command` for a message or command that the protocol does not understand.
    pub fn try_map<C: Protocol, E>(
        self,
        message: impl FnOnce(P::Message) -> Result<C::Message, E>,
        command: impl FnOnce(P::Command) -> Result<C::Command, E>,
    ) -> Result<Input<C>, E> {
        Ok(match self {
            Input::Receive { from, message: it } => Input::Receive { from, message: message(it)? },
            Input::Cast { from, message: it } => Input::Cast { from, message: message(it)? },
            Input::Command(it) => Input::Command(command(it)?),
            Input::Deadline => Input::Deadline,
            Input::Persisted(ticket) => Input::Persisted(ticket),
            Input::Linked { peer, session } => Input::Linked { peer, session },
            Input::Unlinked { peer } => Input::Unlinked { peer },
            Input::Progress { peer } => Input::Progress { peer },
            Input::Drained => Input::Drained,
        })
    }
}

/// The receiver of a protocol's outputs.
pub trait Sink<P: Protocol + ?Sized> {
    /// Sends a message, once `after` is on disk, and after earlier messages to the same peer. A message to a
    /// peer without a link is dropped; it is not sent on a later link.
    fn send(&mut self, to: Destination, message: P::Message, after: Option<Ticket>);
    /// Sends a message at once, ahead of messages that wait for the disk. Serves for signs of life, and for
    /// other messages that may overtake earlier ones. Without a disk nothing waits.
    fn send_aside(&mut self, to: Destination, message: P::Message) {
        self.send(to, message, None);
    }
    /// Casts a message: sends it at once. The network may lose, double or reorder it. The message has at most
    /// [`CAST_BYTES_MAX`] bytes; a longer message needs [`Sink::send`]. A host without datagrams sends the
    /// message over the link, which is better in every respect.
    fn cast(&mut self, to: Destination, message: P::Message) {
        self.send(to, message, None);
    }
    /// Casts a message to all listeners of an address, of which `to` are the intended receivers: one message
    /// leaves, and the network copies it. It may be lost at each listener separately, and a listener without
    /// a link does not get it. A host without multicast casts to each intended receiver.
    fn multicast(&mut self, address: MulticastAddress, to: Vec<ProcessId>, message: P::Message) {
        let _ = address;
        self.cast(Destination::Many(to), message);
    }
    /// Begins to receive casts to this address, until [`Sink::ignore`]. The protocol gets no report whether
    /// casts can arrive.
    fn listen(&mut self, address: MulticastAddress) {
        let _ = address;
    }
    /// Ends [`Sink::listen`].
    fn ignore(&mut self, address: MulticastAddress) {
        let _ = address;
    }
    /// Writes a record. Without a disk, the record is durable at once, and [`Input::Persisted`] comes before
    /// any other input. This also holds for records that are written while an [`Input::Persisted`] is
    /// handled.
    fn persist(&mut self, record: P::Record) -> Ticket;
    /// Releases all records before the durable record `before`, except the records in `kept`, which are in
    /// ascending order. Without a disk no record is kept.
    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        let _ = (before, kept);
    }
    /// Passes an event to the user.
    fn emit(&mut self, event: P::Event);
    /// Requests a link to `peer`, which listens at `address`, until [`Sink::forget`].
    fn reach(&mut self, peer: ProcessId, address: &str);
    /// Withdraws the request for a link to `peer`.
    fn forget(&mut self, peer: ProcessId);
    /// Replaces the policy for links. Links that it forbids are broken before any other output or input. With
    /// a disk, the new pass is on the disk before anything else is sent.
    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        panic!("the links of this host know no policies, and {policy:?} would not be kept");
    }
}

/// Upper bound of a cast, in bytes of the protocol's own messages. With the host's additions it is one
/// datagram, which loopback carries whole and Ethernet in six fragments.
pub const CAST_BYTES_MAX: usize = 8 << 10;

/// The sink of a protocol inside `P`: its messages leave as messages of `P`, its records are among the
/// records of `P`, and its events go to a closure.
pub struct Lift<'a, P: Protocol, M, E> {
    out: &'a mut dyn Sink<P>,
    message: M,
    event: E,
}

impl<'a, P: Protocol, M, E> Lift<'a, P, M, E> {
    /// Makes the sink of a child `C`. `message` wraps or drops the child's messages; `event` takes the
    /// child's events. Both closures may first write outputs of their own.
    pub fn new<C: Protocol>(out: &'a mut dyn Sink<P>, message: M, event: E) -> Self
    where
        M: FnMut(&mut dyn Sink<P>, &Destination, C::Message) -> Option<P::Message>,
        E: FnMut(&mut dyn Sink<P>, C::Event),
    {
        Lift { out, message, event }
    }
}

impl<P, C, M, E> Sink<C> for Lift<'_, P, M, E>
where
    P: Protocol,
    C: Protocol<Record: Into<P::Record>>,
    M: FnMut(&mut dyn Sink<P>, &Destination, C::Message) -> Option<P::Message>,
    E: FnMut(&mut dyn Sink<P>, C::Event),
{
    fn send(&mut self, to: Destination, message: C::Message, after: Option<Ticket>) {
        if let Some(message) = (self.message)(self.out, &to, message) {
            self.out.send(to, message, after);
        }
    }

    fn send_aside(&mut self, to: Destination, message: C::Message) {
        if let Some(message) = (self.message)(self.out, &to, message) {
            self.out.send_aside(to, message);
        }
    }

    fn cast(&mut self, to: Destination, message: C::Message) {
        if let Some(message) = (self.message)(self.out, &to, message) {
            self.out.cast(to, message);
        }
    }

    fn multicast(&mut self, address: MulticastAddress, to: Vec<ProcessId>, message: C::Message) {
        let to = Destination::Many(to);
        if let (Some(message), Destination::Many(to)) = ((self.message)(self.out, &to, message), to) {
            self.out.multicast(address, to, message);
        }
    }

    fn listen(&mut self, address: MulticastAddress) {
        self.out.listen(address);
    }

    fn ignore(&mut self, address: MulticastAddress) {
        self.out.ignore(address);
    }

    fn persist(&mut self, record: C::Record) -> Ticket {
        self.out.persist(record.into())
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        self.out.collect(before, kept);
    }

    fn emit(&mut self, event: C::Event) {
        (self.event)(self.out, event);
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.out.reach(peer, address);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.out.forget(peer);
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        self.out.adopt(policy);
    }
}

/// A multicast address: a cast to it reaches all listeners. The number, which is below
/// [`MULTICAST_ADDRESSES`], stands for one of the IPv4 addresses that an organisation may use freely
/// (239.192.0.0/14). Programs outside the cluster may use the same address for other purposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MulticastAddress(pub u32);

/// Number of multicast addresses.
pub const MULTICAST_ADDRESSES: u32 = 1 << 18;

/// The first multicast address.
const FIRST_MULTICAST: Ipv4Addr = Ipv4Addr::new(239, 192, 0, 0);

impl MulticastAddress {
    /// Returns the network address.
    pub fn ip(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(FIRST_MULTICAST) + self.0 % MULTICAST_ADDRESSES)
    }
}

/// The receivers of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// One process. A process may send to itself: such a message is delivered like any other, later.
    One(ProcessId),
    /// Several processes; the message is encoded once.
    Many(Vec<ProcessId>),
}

/// The number of a record in its process. All protocols of the process share one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Wire)]
pub struct Ticket(pub u64);

/// The asker's name for a command that ends in exactly one event. No two commands in progress share a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// The number of a link between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Wire)]
pub struct Session(pub u64);
