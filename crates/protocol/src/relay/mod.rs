//! Relay: two processes that cannot talk directly talk by way of a router.
//!
//! **Promise.** Between two processes of which at least one is no router, a link stands as long as both have links to some
//! router, whatever becomes of the path between them: cut, cut in one direction, or never there. To the protocol above such
//! a link is any other: lossless and FIFO within a session, told by `Linked` and `Unlinked`, with sessions that never
//! repeat. A path that is cut is noticed and gone round within [`Settings::silence_max`] and a round trip; where processors
//! are free, within [`Settings::silence_min`]. While nothing is cut, nothing is relayed.
//!
//! **Source.** Alfatafta et al., *Toward a Generic Fault Tolerance Technique for Partial Network Partitioning* (Nifty), OSDI
//! 2020: most systems fail under partial partitions because each of their parts holds a belief about the network of its own,
//! and a layer below all of them that goes round the cut ends it for all of them. We differ: there is no table of routes and
//! nothing is flooded, because only routers relay and every process has links to all of them; so two legs always suffice.
//!
//! **Why here, and not in each protocol.** Weighed: confirmations and deliveries of E-Cast by way of another router; probes
//! by a third process before a suspicion; the lead moving to who hears more. The first mends one pair of roles out of five
//! (gateways read from storage processes, storage processes exchange verdicts and rows, all tell supers that they live), the
//! second spares a healthy process but leaves its range without confirmations, and the third moves the standstill to another
//! pair. Below the protocols one mechanism serves all pairs, and what they prove of links stays as it is.
//! Links between routers are never relayed: elections decide by who hears whom ([`paxos`](crate::paxos)).
//!
//! **Roles.** Of two *ends*, the *opener* asks; the *relay* is a router to which both have links.
//!
//! ```text
//!  opener               relay               other end
//!    │ Open(number) ─────▶│ ──────────────────▶│   I do not hear you
//!    │ ◀──────────────────│◀──────────── Accept │   I am here; nothing changes yet
//!    │ Begin(session) ───▶│ ──────────────────▶│   both give up their direct link, if any
//!    │ ◀── Data, Taken, Alive, in both directions ──▶ │
//!    │                    │                    │   the direct link stands again, and is heard for a while:
//!    │ Close(session) ───▶│ ──────────────────▶│
//!    │ Return ───────────────────────────────▶│   on the direct link; whichever comes first ends the session
//! ```
//!
//! **Noticing.** Neighbours send each other a [`Message::Beat`] every [`Settings::interval`]; a [`Detector`] judges them by
//! their habit. The protocol above is told when a router was heard last ([`Relayed::routers_heard`]): who hears none is cut off, and has no
//! way to be told so. A cut of one direction stops both, because the system that is not acknowledged sends nothing new. An end
//! asks if it is deaf to the other, or wants a link that has been broken for [`Settings::unlinked_max`]. Other
//! ends know nothing of the cut and lose nothing.
//!
//! **Rules, and why they are safe.**
//! 1. *One link a pair.* To the protocol above either the direct link stands or a session does. Who begins a session first
//!    breaks the direct link: what was on its way there is lost, which is what `Unlinked` says. Frames of a link that was given
//!    up are dropped until the world has told its end.
//! 2. *A stale `Open` changes nothing.* It is answered with `Accept`, and only an opener that still asks under that number,
//!    and is still deaf, begins. So a process that was paused is not torn from its links by what waited for it.
//! 3. *Both open at once.* The attempt of the smaller id goes on: it ignores the other's, and the other gives up its own.
//! 4. *FIFO without a gap.* Each leg is a link, and the relay passes on what arrives at once. If a leg breaks, the end that
//!    has it knows, and the relay tells the other ([`Message::Undelivered`]). A piece that does not follow what came before ends the
//!    session. A session's name is made of a number of each end, never used again.
//! 5. *No loops.* What was carried once is for the process it reaches, and is never carried on.
//! 6. *Who may be linked.* Both ends judge the other's pass ([`Policy`]) when a session begins, and when one adopts another
//!    policy. The relay vouches for who they are by the hello of its links, incarnations included.
//! 7. *Back.* A direct link that was made anew is proof that both directions pass: its hello was answered. It is used once
//!    it has been heard for [`Settings::hold`], so that a link that flaps does not. Who speaks on it first ends
//!    the session; the other follows at the first message that arrives there.
//!
//! **Bounds.** `stream::WINDOW_BYTES` of a session are under way in each direction, so a relay holds at most that for each; more
//! waits at the sender, up to what a neighbour that does not read may owe. A relay remembers the pairs that it carries
//! for, of neighbours only. An attempt that comes to nothing is repeated at another router, and then ever more rarely, up to
//! `RETRY_MAX`: a dead process costs its peers a small message a second until it is a member no more.
//!
//! **What it costs.** While no session stands, a message is passed on after one comparison; neighbours exchange six or seven small
//! messages a second, at instants that all processes of a machine have in common ([`Time::next_multiple`]).

mod ends;
mod links;
mod message;
mod stream;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    detector::{self, Detector},
    id::ProcessId,
    seam::{Context, Destination, Input, MulticastAddress, Policy, Protocol, Session, Sink, Ticket},
    time::{Duration, Time},
    wire::Wire,
};

pub use self::message::{Envelope, Message, Parcel};
use stream::Stream;

/// How patient a relay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often neighbours send a sign of life.
    pub interval: Duration,
    /// No neighbour counts as out of hearing sooner.
    pub silence_min: Duration,
    /// A silent neighbour counts as out of hearing no later.
    pub silence_max: Duration,
    /// How long a link that is wanted may be broken.
    pub unlinked_max: Duration,
    /// How long an attempt may take.
    pub answer_max: Duration,
    /// How long a direct link must be heard before it is used again.
    pub hold: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            interval: Duration::from_millis(150),
            silence_min: Duration::from_millis(450),
            silence_max: Duration::from_secs(1),
            unlinked_max: Duration::from_millis(250),
            answer_max: Duration::from_millis(400),
            hold: Duration::from_secs(1),
        }
    }
}

/// The longest pause between attempts.
const RETRY_MAX: Duration = Duration::from_secs(1);
const RETRY_MIN: Duration = Duration::from_millis(250);

/// A protocol whose links may be relayed.
pub trait Relayed: Protocol {
    /// Whether this process is a router.
    fn is_router(&self) -> bool;

    /// The routers that it knows of, those that should relay first.
    fn routers(&self) -> Vec<ProcessId>;

    /// When any of these routers gave its last sign of life on a link to this process: told at each [interval](Settings::interval), as long as such
    /// a link stands. A link on which nothing comes may stand for ten seconds, and no router relays what does not reach one.
    fn routers_heard(&mut self, last: Time) {
        let _ = last;
    }

    /// An event is about to be told: the moment to put the relay's figures into it.
    fn figure(event: &mut Self::Event, figures: Figures) {
        let _ = (event, figures);
    }
}

/// What a relay has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Sessions of this process that stand.
    pub sessions: u64,
    /// Sessions of this process that began.
    pub begun: u64,
    /// Pairs that it carries for.
    pub pairs: u64,
    /// Bytes that it carried.
    pub carried_bytes: u64,
    /// Messages that made no sense.
    pub refused: u64,
}

/// A protocol, and the links below it.
pub struct Relay<P: Protocol> {
    inner: P,
    ends: Ends<P::Message>,
}

/// All of a relay but the protocol above it.
struct Ends<M> {
    settings: Settings,
    /// Whether this process is a router.
    router: bool,
    policy: Arc<dyn Policy>,
    /// Direct links that stand.
    direct: BTreeMap<ProcessId, Direct>,
    /// Direct links that were given up, of which the world has not told the end yet.
    severed: BTreeSet<ProcessId>,
    /// Links that the protocol above wants, and where they lead.
    wanted: BTreeMap<ProcessId, String>,
    detector: Detector,
    /// Attempts and sessions.
    detours: BTreeMap<ProcessId, Detour>,
    /// Pairs that this router carries for.
    carried: BTreeSet<(ProcessId, ProcessId)>,
    /// Who was heard last, and when: of many messages of a turn the first counts.
    heard: Option<(ProcessId, Time)>,
    tick_at: Time,
    /// The number of the last attempt.
    number: u32,
    /// What the protocol above is to be told.
    up: VecDeque<Up<M>>,
    figures: Figures,
}

/// A direct link.
struct Direct {
    session: Session,
    /// Since when it has stood and been heard.
    since: Time,
    heard: Time,
}

/// How a peer is reached by way of a router, or may be.
#[derive(Default)]
struct Detour {
    asking: Option<Asking>,
    offer: Option<Offer>,
    road: Option<Road>,
    /// The router that was tried last.
    tried: Option<ProcessId>,
    failures: u32,
    /// No attempt before.
    again: Time,
    /// A session ended without a direct link in its place: there is nothing to wait for.
    urgent: bool,
}

/// An attempt of this process.
struct Asking {
    via: ProcessId,
    number: u32,
    until: Time,
}

/// An attempt of the other end that was accepted.
struct Offer {
    via: ProcessId,
    session: Session,
    /// What the other end shows.
    pass: Bytes,
    until: Time,
}

/// A session that stands.
struct Road {
    via: ProcessId,
    session: Session,
    /// What the other end shows.
    pass: Bytes,
    /// Whether this end began it.
    opener: bool,
    stream: Stream,
}

/// News for the protocol above.
enum Up<M> {
    Linked { peer: ProcessId, session: Session },
    Unlinked { peer: ProcessId },
    Message { from: ProcessId, message: M },
    Progress { peer: ProcessId },
}

impl<P: Relayed> Relay<P>
where
    P::Message: Wire,
{
    /// A protocol that begins.
    pub fn new(inner: P, settings: Settings) -> Self {
        let detector = Detector::new(detector::Settings {
            interval: settings.interval,
            silence_min: settings.silence_min,
            silence_max: settings.silence_max,
            unlinked_max: settings.unlinked_max,
        });
        let ends = Ends {
            settings,
            router: inner.is_router(),
            policy: inner.policy(),
            direct: BTreeMap::new(),
            severed: BTreeSet::new(),
            wanted: BTreeMap::new(),
            detector,
            detours: BTreeMap::new(),
            carried: BTreeSet::new(),
            heard: None,
            tick_at: Time::ZERO,
            number: 0,
            up: VecDeque::new(),
            figures: Figures::default(),
        };
        Relay { inner, ends }
    }

    /// The protocol above.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// What it has done.
    pub fn figures(&self) -> Figures {
        self.ends.figures()
    }

    fn give(&mut self, cx: &mut Context<'_>, input: Input<P>, out: &mut dyn Sink<Self>) {
        let Relay { inner, ends } = self;
        let (me, now) = (cx.me, cx.now);
        inner.handle(cx, input, &mut Above { ends, out, me, now });
    }

    /// Tells the protocol above what there is to tell.
    fn tell(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        while let Some(news) = self.ends.up.pop_front() {
            let input = match news {
                Up::Linked { peer, session } => Input::Linked { peer, session },
                Up::Unlinked { peer } => Input::Unlinked { peer },
                Up::Message { from, message } => Input::Receive { from, message },
                Up::Progress { peer } => Input::Progress { peer },
            };
            self.give(cx, input, out);
        }
    }

    /// A message of the protocol above came by a direct link, while some session stands or a link was given up.
    fn sift(&mut self, cx: &mut Context<'_>, from: ProcessId, message: P::Message, out: &mut dyn Sink<Self>) {
        if from != cx.me && !self.ends.direct.contains_key(&from) {
            // It comes from a link that was given up.
            return;
        }
        // The other end speaks directly again.
        self.ends.follow(cx.me, cx.now, from, out);
        self.ends.up.push_back(Up::Message { from, message });
    }
}

impl<P: Relayed> Protocol for Relay<P>
where
    P::Message: Wire,
{
    type Message = Envelope<P::Message>;
    type Record = P::Record;
    type Command = P::Command;
    type Event = P::Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        let (me, now) = (cx.me, cx.now);
        match input {
            Input::Receive { from, message: Envelope::Plain(message) } => {
                self.ends.hear(from, now);
                if self.ends.is_plain() {
                    self.give(cx, Input::Receive { from, message }, out);
                } else {
                    self.sift(cx, from, message, out);
                }
            }
            // It says nothing of the links: it went beside them.
            Input::Cast { from, message: Envelope::Plain(message) } => {
                if self.ends.is_plain() || self.ends.direct.contains_key(&from) || self.ends.has_road(from) {
                    self.give(cx, Input::Cast { from, message }, out);
                }
            }
            Input::Cast { message: Envelope::Relay(_), .. } => self.ends.figures.refused += 1,
            Input::Receive { from, message: Envelope::Relay(message) } => {
                self.ends.receive(me, now, from, message, &self.inner, out);
            }
            Input::Command(command) => self.give(cx, Input::Command(command), out),
            Input::Persisted(ticket) => self.give(cx, Input::Persisted(ticket), out),
            Input::Deadline => {
                if self.ends.tick_at <= now {
                    self.ends.tick(me, now, &self.inner, out);
                    if let Some(last) = self.ends.heard_of(&self.inner.routers()) {
                        self.inner.routers_heard(last);
                    }
                    self.tell(cx, out);
                }
                if self.inner.deadline().is_some_and(|deadline| deadline <= now) {
                    self.give(cx, Input::Deadline, out);
                }
            }
            Input::Linked { peer, session } => self.ends.linked(now, peer, session, out),
            Input::Unlinked { peer } => self.ends.unlinked(me, now, peer, out),
            Input::Progress { peer } => {
                self.ends.hear(peer, now);
                if !self.ends.has_road(peer) {
                    self.give(cx, Input::Progress { peer }, out);
                }
            }
            Input::Drained => {
                self.give(cx, Input::Drained, out);
                self.ends.flush(out);
            }
        }
        self.tell(cx, out);
    }

    fn deadline(&self) -> Option<Time> {
        [self.inner.deadline(), self.ends.deadline()].into_iter().flatten().min()
    }

    fn gathering(&self) -> Duration {
        self.inner.gathering()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.inner.policy()
    }
}

/// The sink of the protocol above.
struct Above<'a, P: Protocol> {
    ends: &'a mut Ends<P::Message>,
    out: &'a mut dyn Sink<Relay<P>>,
    me: ProcessId,
    now: Time,
}

impl<P> Sink<P> for Above<'_, P>
where
    P: Relayed,
    P::Message: Wire,
{
    fn send(&mut self, to: Destination, message: P::Message, after: Option<Ticket>) {
        if self.ends.are_direct() {
            return self.out.send(to, Envelope::Plain(message), after);
        }
        if let Some(to) = self.ends.divert(self.me, self.now, to, &message, after, self.out) {
            self.out.send(to, Envelope::Plain(message), after);
        }
    }

    fn send_aside(&mut self, to: Destination, message: P::Message) {
        // What goes by way of a router has one lane.
        if self.ends.are_direct() {
            return self.out.send_aside(to, Envelope::Plain(message));
        }
        if let Some(to) = self.ends.divert(self.me, self.now, to, &message, None, self.out) {
            self.out.send_aside(to, Envelope::Plain(message));
        }
    }

    fn cast(&mut self, to: Destination, message: P::Message) {
        // Datagrams hardly pass between two without a direct link.
        if self.ends.are_direct() {
            return self.out.cast(to, Envelope::Plain(message));
        }
        if let Some(to) = self.ends.divert(self.me, self.now, to, &message, None, self.out) {
            self.out.cast(to, Envelope::Plain(message));
        }
    }

    fn multicast(&mut self, address: MulticastAddress, to: Vec<ProcessId>, message: P::Message) {
        if self.ends.are_direct() {
            return self.out.multicast(address, to, Envelope::Plain(message));
        }
        match self.ends.divert(self.me, self.now, Destination::Many(to), &message, None, self.out) {
            Some(Destination::Many(to)) => self.out.multicast(address, to, Envelope::Plain(message)),
            Some(one) => self.out.cast(one, Envelope::Plain(message)),
            None => {}
        }
    }

    fn listen(&mut self, address: MulticastAddress) {
        self.out.listen(address);
    }

    fn ignore(&mut self, address: MulticastAddress) {
        self.out.ignore(address);
    }

    fn persist(&mut self, record: P::Record) -> Ticket {
        self.out.persist(record)
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        self.out.collect(before, kept);
    }

    fn emit(&mut self, mut event: P::Event) {
        P::figure(&mut event, self.ends.figures());
        self.out.emit(event);
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.ends.reach(self.me, self.now, peer, address);
        self.out.reach(peer, address);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.ends.forget(self.me, peer, self.out);
        self.out.forget(peer);
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        self.ends.adopt(self.me, self.now, policy.clone(), self.out);
        self.out.adopt(policy);
    }
}
