//! Relay: two processes that cannot talk directly talk through a router.
//!
//! **Promise.** Consider two processes of which at least one is no router. A link stands between them as long
//! as both have links to some router, whatever the state of the path between them: cut, cut in one direction,
//! or missing from the start. To the protocol above, such a link is like any other: lossless and FIFO within
//! a session, announced by `Linked` and `Unlinked`, with sessions that never repeat. A cut path is noticed
//! and replaced within [`Settings::silence_max`] and a round trip; on idle processors within
//! [`Settings::silence_min`]. While nothing is cut, nothing is relayed.
//!
//! **Source.** Alfatafta et al., *Toward a Generic Fault Tolerance Technique for Partial Network
//! Partitioning* (Nifty), OSDI 2020: most systems fail under partial partitions because each of their parts
//! has its own belief about the network. A layer below all parts that routes messages around the cut solves
//! this for all of them. We differ: there is no table of routes, and nothing is flooded. Only routers relay,
//! and every process has links to all routers, so two legs always suffice.
//!
//! **Why here, and not in each protocol.** We considered three alternatives. E-Cast could send confirmations
//! and deliveries through another router. A third process could probe before a suspicion. The lead could move
//! to a router that hears more. The first alternative repairs one pair of roles out of five (gateways read
//! from storage processes, storage processes exchange verdicts and rows, all send signs of life to supers).
//! The second alternative spares a healthy process but leaves its range without confirmations. The third
//! alternative only moves the standstill to another pair of processes. Below the protocols, one mechanism
//! serves all pairs, and their proofs about links stay valid. Links between routers are never relayed,
//! because elections depend on who hears whom ([`paxos`](crate::paxos)).
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
//! **Noticing.** Neighbours send each other a [`Message::Beat`] every [`Settings::interval`]; a [`Detector`]
//! judges them by their habit. The protocol above learns when a router was last heard
//! ([`Relayed::routers_heard`]). A process that hears no router is cut off, and no message can inform it. A
//! cut of one direction stops both directions, because a sender without acknowledgements sends nothing new.
//! An end asks for a session if it does not hear the other end, or wants a link that has been broken for
//! [`Settings::unlinked_max`]. Processes outside the cut notice nothing and lose nothing.
//!
//! **Rules, and why they are safe.**
//! 1. *One link per pair.* To the protocol above, either the direct link stands or a session does. The end
//!    that begins a session first breaks the direct link. Messages on their way over that link are lost,
//!    which is the meaning of `Unlinked`. Frames of an abandoned link are dropped until the host has
//!    announced its end.
//! 2. *A stale `Open` changes nothing.* The answer is `Accept`. Only an opener that still asks under that
//!    number, and still hears nothing from the other end, begins the session. So a process that was paused
//!    does not lose its links because of messages that waited for it.
//! 3. *Both open at once.* The attempt of the smaller id continues: that process ignores the other attempt,
//!    and the other end gives up its own.
//! 4. *FIFO without gaps.* Each leg is a link, and the relay passes every message on at once. If a leg
//!    breaks, its end notices, and the relay tells the other end ([`Message::Undelivered`]). A piece that
//!    does not continue the earlier pieces ends the session. A session's name consists of one number of each
//!    end, never used again.
//! 5. *No loops.* A carried message is for the process that it reaches, and is never carried further.
//! 6. *Permission.* Both ends judge the other's pass ([`Policy`]) when a session begins, and when an end
//!    adopts another policy. The relay vouches for their identities, incarnations included, by the hello of
//!    its links.
//! 7. *Return.* A new direct link proves that both directions work, because its hello was answered. The link
//!    is used once the peer has been heard on it for [`Settings::hold`], so that a flapping link is not used.
//!    The end that first speaks on the direct link ends the session. The other end follows at the first
//!    message that arrives on the direct link.
//!
//! **Bounds.** At most `stream::WINDOW_BYTES` of a session are in transit in each direction, so a relay holds
//! at most that number of bytes. Further bytes wait at the sender, up to the limit for a neighbour that does
//! not read. A relay remembers the pairs that it serves, which are neighbours only. A failed attempt is
//! repeated at another router, and then at growing intervals up to `RETRY_MAX`. So a dead process costs its
//! peers one small message a second until that process is no longer a member.
//!
//! **Cost.** While no session stands, a message is passed on after one comparison. Neighbours exchange six or
//! seven small messages a second, at instants that all processes of a machine share
//! ([`Time::next_multiple`]).

mod ends;
mod links;
mod message;
mod relayed;
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

pub use self::{
    message::{EndMessage, Envelope, Message},
    relayed::{Counters, Relayed, Wrapper, leader_last},
};
use stream::Stream;

/// Settings of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Interval of signs of life between neighbours.
    pub interval: Duration,
    /// Minimum time since a neighbour's last message before the neighbour counts as unheard.
    pub silence_min: Duration,
    /// Time since a neighbour's last message after which the neighbour always counts as unheard.
    pub silence_max: Duration,
    /// Time for which a wanted link may be broken before a session is requested.
    pub unlinked_max: Duration,
    /// Time after which an unanswered attempt has failed.
    pub answer_max: Duration,
    /// Time for which the peer must be heard on a direct link before the link is used again.
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

/// A protocol, with the links below it.
pub struct Relay<P: Protocol> {
    inner: P,
    ends: Ends<P::Message>,
}

/// The state of a relay, without the protocol above it.
struct Ends<M> {
    settings: Settings,
    /// Whether this process is a router.
    router: bool,
    policy: Arc<dyn Policy>,
    /// Direct links that stand.
    direct: BTreeMap<ProcessId, Direct>,
    /// Peers whose direct links were given up, while the host has not yet announced the end of these links.
    abandoned: BTreeSet<ProcessId>,
    /// Peers to which the protocol above wants links, with their addresses.
    wanted: BTreeMap<ProcessId, String>,
    detector: Detector,
    /// Attempts and sessions, by the process at the other end.
    relay_states: BTreeMap<ProcessId, RelayState>,
    /// Pairs for which this router relays.
    carried: BTreeSet<(ProcessId, ProcessId)>,
    /// The process and the time of the last call of `hear`. Further messages of this process at this time
    /// would change nothing, so `hear` skips them.
    heard: Option<(ProcessId, Time)>,
    tick_at: Time,
    /// The number of this process's last attempt.
    number: u32,
    /// Events that the protocol above has yet to receive.
    events: VecDeque<RelayEvent<M>>,
    counters: Counters,
}

/// A direct link.
struct Direct {
    session: Session,
    /// Time since which the link has stood, and the peer was heard without a long gap.
    since: Time,
    heard: Time,
}

/// The session with a peer through a router, or the attempts to begin such a session.
#[derive(Default)]
struct RelayState {
    attempt: Option<SessionAttempt>,
    accepted: Option<AcceptedAttempt>,
    relayed: Option<RelayedSession>,
    /// The router that was last tried.
    tried: Option<ProcessId>,
    failures: u32,
    /// Time before which no further attempt is made.
    again: Time,
    /// Whether a session ended without a direct link in its place, so that the next attempt is made at once.
    urgent: bool,
}

/// An attempt of this process.
struct SessionAttempt {
    via: ProcessId,
    number: u32,
    until: Time,
}

/// An attempt of the other end that this end has accepted.
struct AcceptedAttempt {
    via: ProcessId,
    session: Session,
    /// The other end's pass.
    pass: Bytes,
    until: Time,
}

/// A session that stands.
struct RelayedSession {
    via: ProcessId,
    session: Session,
    /// The other end's pass.
    pass: Bytes,
    /// Whether this end began the session.
    opener: bool,
    stream: Stream,
}

/// An event for the protocol above.
enum RelayEvent<M> {
    Linked { peer: ProcessId, session: Session },
    Unlinked { peer: ProcessId },
    Message { from: ProcessId, message: M },
    Progress { peer: ProcessId },
}

impl<P: Relayed> Relay<P>
where
    P::Message: Wire,
{
    /// Creates a relay below a protocol that starts.
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
            abandoned: BTreeSet::new(),
            wanted: BTreeMap::new(),
            detector,
            relay_states: BTreeMap::new(),
            carried: BTreeSet::new(),
            heard: None,
            tick_at: Time::ZERO,
            number: 0,
            events: VecDeque::new(),
            counters: Counters::default(),
        };
        Relay { inner, ends }
    }

    /// Returns the protocol above.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// Returns the relay's counters.
    pub fn counters(&self) -> Counters {
        self.ends.counters()
    }

    fn give(&mut self, cx: &mut Context<'_>, input: Input<P>, out: &mut dyn Sink<Self>) {
        let Relay { inner, ends } = self;
        let (me, now) = (cx.me, cx.now);
        inner.handle(cx, input, &mut Above { ends, out, me, now });
    }

    /// Passes all events to the protocol above.
    fn pass_events(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        while let Some(news) = self.ends.events.pop_front() {
            let input = match news {
                RelayEvent::Linked { peer, session } => Input::Linked { peer, session },
                RelayEvent::Unlinked { peer } => Input::Unlinked { peer },
                RelayEvent::Message { from, message } => Input::Receive { from, message },
                RelayEvent::Progress { peer } => Input::Progress { peer },
            };
            self.give(cx, input, out);
        }
    }

    /// Handles a direct message for the protocol above, while some session stands or some direct link was
    /// given up.
    fn sift(&mut self, cx: &mut Context<'_>, from: ProcessId, message: P::Message, out: &mut dyn Sink<Self>) {
        if from != cx.me && !self.ends.direct.contains_key(&from) {
            // The message comes from a direct link that was given up.
            return;
        }
        // The other end already uses the direct link again.
        self.ends.follow(cx.me, cx.now, from, out);
        self.ends.events.push_back(RelayEvent::Message { from, message });
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
            // A cast is no evidence about links, because casts do not use links.
            Input::Cast { from, message: Envelope::Plain(message) } => {
                if self.ends.is_plain() || self.ends.direct.contains_key(&from) || self.ends.has_relayed(from)
                {
                    self.give(cx, Input::Cast { from, message }, out);
                }
            }
            Input::Cast { message: Envelope::Relay(_), .. } => self.ends.counters.refused += 1,
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
                    self.pass_events(cx, out);
                }
                if self.inner.deadline().is_some_and(|deadline| deadline <= now) {
                    self.give(cx, Input::Deadline, out);
                }
            }
            Input::Linked { peer, session } => self.ends.linked(now, peer, session, out),
            Input::Unlinked { peer } => self.ends.unlinked(me, now, peer, out),
            Input::Progress { peer } => {
                self.ends.hear(peer, now);
                if !self.ends.has_relayed(peer) {
                    self.give(cx, Input::Progress { peer }, out);
                }
            }
            Input::Drained => {
                self.give(cx, Input::Drained, out);
                self.ends.flush(out);
            }
        }
        self.pass_events(cx, out);
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
        // A relayed session keeps the order of all its messages, so no message may overtake others there.
        if self.ends.are_direct() {
            return self.out.send_aside(to, Envelope::Plain(message));
        }
        if let Some(to) = self.ends.divert(self.me, self.now, to, &message, None, self.out) {
            self.out.send_aside(to, Envelope::Plain(message));
        }
    }

    fn cast(&mut self, to: Destination, message: P::Message) {
        // Datagrams rarely reach a process that has no direct link, so the cast is not tried then.
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
        P::add_counters(&mut event, self.ends.counters());
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
