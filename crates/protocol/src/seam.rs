//! How protocols meet the world and each other.
//!
//! A protocol is handed one [`Input`] at a time and answers through a [`Sink`]. Layers compose by ownership: a parent
//! owns its child, hands it inputs by [`Input::map`] and a [`Lift`] for its outputs, which wraps the child's messages into
//! the parent's and appends the child's events to a reusable queue; afterwards the parent loops until that queue is empty.
//!
//! A *link* between two processes is lossless and FIFO within a session. On [`Input::Unlinked`] any suffix of what was
//! sent may be lost; the protocol resends after the next [`Input::Linked`]. Batching is by draining: inputs that arrived
//! together are handed over one after another, and [`Input::Drained`] closes them; protocols flush there and not before.
//!
//! A *cast* ([`Sink::cast`]) is a datagram beside a link: it may be lost, come twice, be overtaken by whatever was sent later, on the
//! link too, and overtake what was sent before. It goes to a process to which a link stands and comes from one to which a link stands
//! ([`Input::Cast`]), so a [`Policy`] that forbids the link forbids it, too. Nothing else is promised. It may be of an
//! earlier session of the same two processes, so a protocol that casts puts into its messages what it tells old ones by. A host may
//! have no datagrams, for all peers or for some: then a cast goes over the link and arrives as [`Input::Receive`].
//! A *multicast* ([`Sink::multicast`]) is a cast to whoever listens to an address ([`Sink::listen`]). A process hears there what is not meant for it,
//! too, and sorts that out by what is in the message; what it sends by the address it does not hear itself.
//!
//! **Commands.** One that asks for something bears a name of the asker's, and ends in exactly one event that bears it as well: it
//! has come about, or the reason why not. What only lends help (where routers may be, that a task is done) or is about another
//! command (that nobody waits for it any more) asks for nothing, and has no end of its own.
//!
//! **Disk.** A protocol writes records ([`Sink::persist`]) and says of a message which record must be on disk before it may
//! leave. A host keeps these rules:
//!
//! 1. Records become durable in the order in which they were written. [`Input::Persisted`] means all up to its ticket.
//! 2. To one peer messages leave in the order of sending: one that waits for its record holds back those behind it. What
//!    was sent by [`Sink::send_aside`] is on a lane of its own, which never waits, and keeps its order there.
//! 3. What waits for a link's session that has ended is dropped, as if it had been sent and lost.
//! 4. After a crash a protocol is made again from the records that are durable, which are a prefix of those it wrote, from
//!    the last [`Sink::collect`] on. It goes on under its incarnation only if all that was durable can be read.
//!
//! Without a disk every record is durable at once, nothing waits, and a process that ends is gone for good.
//!
//! **Who may be linked.** A protocol may be choosy ([`Protocol::policy`]). Each end of a link shows a *pass*, and the link comes
//! about only if the [`Policy`] of each admits the other's. Most protocols take [`Anyone`] and never meet this.

use std::{convert::Infallible, fmt, net::Ipv4Addr, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    id::ProcessId,
    time::{Duration, Time},
    wire::Wire,
};

/// A sans-IO protocol state machine.
pub trait Protocol {
    /// What it exchanges with its peers.
    type Message;
    /// What must be on disk before certain messages may leave.
    type Record: Wire;
    /// What its user asks of it.
    type Command;
    /// What it tells its user.
    type Event;

    /// Takes one input and writes every consequence into `out`.
    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>)
    where
        Self: Sized;

    /// When [`Input::Deadline`] is wanted next; at or after this instant, never before.
    fn deadline(&self) -> Option<Time>;

    /// How long input may gather, so that its handling is shared by more of it. A wish: nothing depends on it.
    fn gathering(&self) -> Duration {
        Duration::ZERO
    }

    /// Who may be linked with it when it begins. Later it says so by [`Sink::adopt`].
    fn policy(&self) -> Arc<dyn Policy> {
        Arc::new(Anyone)
    }
}

/// What the world lends to a protocol during one call.
pub struct Context<'a> {
    /// The present instant.
    pub now: Time,
    /// The process itself.
    pub me: ProcessId,
    /// Uniform random bits; the simulator's come from the seed.
    pub random: &'a mut dyn FnMut() -> u64,
}

/// One thing that happened.
pub enum Input<P: Protocol + ?Sized> {
    /// A peer's message arrived.
    Receive {
        /// Who sent it; the runtime vouches for it by the hello of the link.
        from: ProcessId,
        /// What.
        message: P::Message,
    },
    /// A peer's cast arrived. A link to it stands; that it sent this now, in this order, or once, nobody vouches for.
    Cast {
        /// The peer that sent it.
        from: ProcessId,
        /// Its message.
        message: P::Message,
    },
    /// The user asks for something.
    Command(P::Command),
    /// The instant told by [`Protocol::deadline`] has come.
    Deadline,
    /// Every record up to this ticket is on disk.
    Persisted(Ticket),
    /// A link to `peer` stands; lossless and FIFO until it is unlinked.
    Linked {
        /// Whom it reaches.
        peer: ProcessId,
        /// Which session; a number that never repeats for this pair.
        session: Session,
    },
    /// The link broke (reset, closed or refused): any suffix of what was sent may be lost.
    Unlinked {
        /// Whom it reached.
        peer: ProcessId,
    },
    /// Bytes of a message that is still under way arrived from `peer`: a sign of life, and nothing else. A large message
    /// takes its time, and whatever its sender says meanwhile waits behind it.
    Progress {
        /// Whose message.
        peer: ProcessId,
    },
    /// The end of a batch of inputs: now flush.
    Drained,
}

impl<P: Protocol> Input<P> {
    /// The same input for a protocol inside this one: messages and commands are turned into its own.
    pub fn map<C: Protocol>(
        self,
        message: impl FnOnce(P::Message) -> C::Message,
        command: impl FnOnce(P::Command) -> C::Command,
    ) -> Input<C> {
        let Ok(input) = self.try_map(|it| Ok::<_, Infallible>(message(it)), |it| Ok(command(it)));
        input
    }

    /// The same for a protocol that understands some of the messages and commands alone.
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

/// Where a protocol's outputs go.
pub trait Sink<P: Protocol + ?Sized> {
    /// Sends, but not before `after` is on disk, nor before what was sent to the same peer earlier. To a peer without a link
    /// the message is dropped; a link that comes up later starts empty.
    fn send(&mut self, to: Destination, message: P::Message, after: Option<Ticket>);
    /// Sends at once: a sign of life, and what else may overtake messages that wait for the disk. Without a disk none waits.
    fn send_aside(&mut self, to: Destination, message: P::Message) {
        self.send(to, message, None);
    }
    /// Casts: sends at once, and may lose it, double it and change its place among others. The message has at most
    /// [`CAST_BYTES_MAX`] bytes; a longer one is for [`Sink::send`]. A host without datagrams sends it over the link, which is better
    /// in all of this.
    fn cast(&mut self, to: Destination, message: P::Message) {
        self.send(to, message, None);
    }
    /// Casts to all who listen to an address, of whom `to` are meant: one message leaves, and the network copies it. Each of those who hear it has
    /// a fate of its own, and those to whom no link stands are not handed it. A host without multicast casts to each that is meant.
    fn multicast(&mut self, address: MulticastAddress, to: Vec<ProcessId>, message: P::Message) {
        let _ = address;
        self.cast(Destination::Many(to), message);
    }
    /// Begins to take casts to this address, until [`Sink::ignore`]. Nobody is told whether they arrive.
    fn listen(&mut self, address: MulticastAddress) {
        let _ = address;
    }
    /// Ends [`Sink::listen`].
    fn ignore(&mut self, address: MulticastAddress) {
        let _ = address;
    }
    /// Writes a record. In memory mode it is complete at once, and [`Input::Persisted`] comes before the next input.
    fn persist(&mut self, record: P::Record) -> Ticket;
    /// Records before this one, which is durable, are needed no more, except those that are `kept`, in ascending order. Without
    /// a disk none is kept.
    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        let _ = (before, kept);
    }
    /// Tells the user.
    fn emit(&mut self, event: P::Event);
    /// Tells where `peer` listens, and that a link to it is wanted until [`Sink::forget`].
    fn reach(&mut self, peer: ProcessId, address: &str);
    /// The link to `peer` is wanted no more.
    fn forget(&mut self, peer: ProcessId);
    /// This policy decides from now on who may be linked. Links that it forbids are broken before anything else is sent or
    /// handed over. With a disk, the pass is on it before anything else is sent.
    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        panic!("the links of this host know no policies, and {policy:?} would not be kept");
    }
}

/// The rule for who may be linked with a protocol: each end shows a pass, and both judge the other's.
pub trait Policy: fmt::Debug + Send + Sync {
    /// What this end shows; at most [`PASS_BYTES_MAX`] bytes.
    fn pass(&self) -> Bytes;

    /// Whether an end that shows this may be linked. The bytes are from outside.
    fn admits(&self, theirs: &[u8]) -> bool;

    /// Why an end that shows this is not admitted, for people.
    fn refusal(&self, theirs: &[u8]) -> String {
        format!("its pass of {} bytes is not admitted", theirs.len())
    }
}

/// No cast is longer, in bytes of the protocol's own messages: with what hosts add it is one datagram, which loopback carries whole and
/// Ethernet in six fragments.
pub const CAST_BYTES_MAX: usize = 8 << 10;

/// No pass is longer.
pub const PASS_BYTES_MAX: usize = 64;

/// Everybody may be linked, whatever they show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anyone;

impl Policy for Anyone {
    fn pass(&self) -> Bytes {
        Bytes::new()
    }

    fn admits(&self, _: &[u8]) -> bool {
        true
    }
}

/// The sink of a protocol inside `P`: what it sends leaves as a message of `P`, its records are among those of `P`, and its
/// events go to a closure.
pub struct Lift<'a, P: Protocol, M, E> {
    out: &'a mut dyn Sink<P>,
    message: M,
    event: E,
}

impl<'a, P: Protocol, M, E> Lift<'a, P, M, E> {
    /// For a child `C`. `message` wraps what it sends, or drops it; `event` takes what it tells. Both may put something out
    /// before it.
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

/// A multicast address: what is cast to it reaches all who listen. It is one of those of IPv4 that an organisation may use as it likes
/// (239.192.0.0/14), by its number, which is below [`MULTICAST_ADDRESSES`]. Others may use the same for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MulticastAddress(pub u32);

/// There are so many multicast addresses.
pub const MULTICAST_ADDRESSES: u32 = 1 << 18;

/// The first of them.
const FIRST_MULTICAST: Ipv4Addr = Ipv4Addr::new(239, 192, 0, 0);

impl MulticastAddress {
    /// The address of the network.
    pub fn ip(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(FIRST_MULTICAST) + self.0 % MULTICAST_ADDRESSES)
    }
}

/// Whom a message goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// One process. A process may send to itself: it is delivered like any other message, later.
    One(ProcessId),
    /// Several: encoded once.
    Many(Vec<ProcessId>),
}

/// Counts records of one process; one counter for all its protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ticket(pub u64);

/// The asker's name for a command that ends in exactly one event. Of those under way no two bear the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// Counts links between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Session(pub u64);
