//! A member: an application process that submits, delivers and confirms (002 §5.4, algorithm 1).

mod durable;
mod generation;
mod link;
mod routers;
mod window;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;

pub use self::window::Submissions;
use self::{
    link::{LeaderKnowledge, RouterLink},
    window::Window,
};
use super::{
    Class, MessageId, Outcome, Position,
    block::{DeliverBlock, DeliveryKind},
    message::{Message, Notice},
    reform::RecentDeliveries,
};
use crate::{
    admission::NotAdmitted,
    id::{Generation, Peer, ProcessId},
    paxos,
    seam::{Context, Destination, Input, Policy, Protocol, Sink, Ticket},
    time::{Duration, Time},
};

/// Settings of a member.
#[derive(Clone, Debug)]
pub struct MemberSettings {
    /// Whether the user reports executed messages; if not, a delivered message counts as executed.
    pub executes: bool,
    /// Time without news of submitted messages before the member sends them again, to another router if
    /// necessary. Large messages get more time.
    pub resend_after: Duration,
    /// Maximum number of bytes in progress. A single larger message is allowed.
    pub window_bytes: usize,
    /// Time without a known leader before the member reports that it is adrift. An election takes less.
    pub adrift_after: Duration,
}

impl Default for MemberSettings {
    fn default() -> Self {
        MemberSettings {
            executes: false,
            resend_after: Duration::from_secs(1),
            window_bytes: 32 << 20,
            adrift_after: Duration::from_millis(1_500),
        }
    }
}

/// Commands of a member.
#[derive(Clone, Debug)]
pub enum MemberCommand {
    /// Submits a message. Ends in exactly one of [`MemberEvent::Outcome`] and [`MemberEvent::NotSent`].
    Submit {
        /// The user's name of the message.
        token: u64,
        /// The message's class.
        class: Class,
        /// The message.
        body: Bytes,
    },
    /// Processes that may be routers. The member asks for links to them until one of them lists the routers.
    /// Has no effect while a link to the leader stands.
    Seeds(Vec<Peer>),
    /// Takes a message back if it has not been sent. The message then ends in [`MemberEvent::NotSent`];
    /// otherwise it ends in its outcome as usual.
    Withdraw {
        /// The user's name of the message.
        token: u64,
    },
    /// Takes back all data messages that have not been sent; each ends in [`MemberEvent::NotSent`].
    WithdrawData,
    /// The user has executed deliveries.
    Executed {
        /// Last position executed.
        through: Position,
    },
    /// The user has made deliveries durable, so routers need not send them again. For a member with a disk
    /// ([`Member::persist`]).
    Durable {
        /// Last durable position.
        through: Position,
    },
    /// Delivers a message after everything ordered so far, without ordering it. If no destination gets it, it
    /// ends in [`MemberEvent::NotInjected`]; otherwise the destinations answer.
    Inject {
        /// The user's name of the message.
        token: u64,
        /// The message.
        body: Bytes,
    },
}

/// Events of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// A message at its position.
    Deliver {
        /// The position in the total order.
        at: Position,
        /// The message's name.
        id: MessageId,
        /// The message's class.
        class: Class,
        /// The message.
        body: Bytes,
        /// Data that routing added for this destination.
        attachment: Option<Bytes>,
    },
    /// An injected message. Everything for this process up to `at` has been delivered, and nothing later.
    Injected {
        /// The stamp: the last position ordered when the message was injected.
        at: Position,
        /// The process that injected the message.
        sender: ProcessId,
        /// The sender's name of the message.
        token: u64,
        /// The message.
        body: Bytes,
        /// Whether this member stands at the position `at` of the order. If not, the sender must ask again.
        fits: bool,
    },
    /// The outcome of a submitted message.
    Outcome {
        /// The user's name of the message.
        token: u64,
        /// The message's name in the order.
        id: MessageId,
        /// The outcome.
        outcome: Outcome,
    },
    /// A submitted message was never sent, and never will be.
    NotSent {
        /// The user's name of the message.
        token: u64,
    },
    /// An injected message was delivered nowhere.
    NotInjected {
        /// The user's name of the message.
        token: u64,
    },
    /// The present routers and leader.
    Lead {
        /// The leader, if known.
        leader: Option<ProcessId>,
        /// All routers.
        routers: Vec<Peer>,
    },
    /// No router in reach has known a leader for a while (`true`), or one knows a leader again (`false`).
    /// Meanwhile nothing is ordered.
    Adrift(bool),
    /// A founder that this process follows wants a report. The user sends it [`Member::witness`], with the
    /// configuration at the last delivered position.
    WitnessWanted {
        /// The founder.
        founder: ProcessId,
    },
    /// This process is no longer a member: it must stop, and may come back under a new id.
    Wedged,
}

/// An application process's end of E-Cast.
pub struct Member {
    me: ProcessId,
    settings: MemberSettings,
    /// The routers, and the state of the links to them.
    routers: BTreeMap<ProcessId, RouterLink>,
    leader: Option<ProcessId>,
    /// The router to which messages are sent.
    target: Option<ProcessId>,
    /// Numbered messages without an outcome, and the messages after them.
    window: Window,
    control: VecDeque<(u64, Bytes)>,
    data: VecDeque<(u64, Bytes)>,
    credit: u64,
    delivered: Position,
    executed: Position,
    /// Position up to which routers need not send messages again. `None` for a member without a disk, which
    /// never needs a delivered message again.
    durable: Option<Position>,
    /// Record that must be durable before a submission is sent.
    after: Option<Ticket>,
    /// The router to which to confirm at the end of the batch.
    confirm_to: Option<ProcessId>,
    /// The router to ask for repair at the end of the batch.
    repair_from: Option<ProcessId>,
    /// Time at which the window is sent again, unless news comes.
    resend_at: Option<Time>,
    course: LeaderKnowledge,
    /// Whether a repair was asked for, and no delivery has fitted since.
    repairing: bool,
    /// The generation of the routers to which this member listens.
    generation: Generation,
    /// The last earlier generation of which the member heard more than the beginning. Kept deliveries come
    /// from that generation, or earlier ones.
    generation_before: Generation,
    /// The generation of the last delivery.
    delivered_in: Generation,
    /// Whether the survivor may lack this member's report: the member has not yet seen a sign that the report
    /// arrived.
    tail_unheard: bool,
    /// Number of log entries behind the present set of routers, as announced.
    routers_as_of: u64,
    /// The last deliveries, which a later generation of routers may not know.
    kept: RecentDeliveries,
    /// All messages up to this position are stable, as routers of the generation reported. `base_is_old` says
    /// that the report is of an earlier generation.
    base: Position,
    base_is_old: bool,
    /// The members whose answers counted when the generation began.
    counted: (Generation, Vec<ProcessId>),
    /// The founder that this process follows, as long as its link stands.
    pledged: Option<ProcessId>,
    wedged: bool,
    /// The latest reason that a router gave for not admitting this process.
    not_admitted: Option<NotAdmitted>,
    refused: u64,
    resends: u64,
}

/// Time added to the patience for each byte in progress: one second for 2 MiB.
const BYTE_PATIENCE: Duration = Duration::from_nanos(500);

/// Time before the member tries to join again after a refusal.
const REJOIN_AFTER: Duration = Duration::from_millis(200);

impl Member {
    /// Creates a member that has submitted nothing. Its first message must make it a member.
    pub fn new(me: ProcessId, settings: MemberSettings) -> Self {
        Member {
            me,
            settings,
            routers: BTreeMap::new(),
            leader: None,
            target: None,
            window: Window::default(),
            control: VecDeque::new(),
            data: VecDeque::new(),
            credit: 0,
            delivered: Position(0),
            executed: Position(0),
            durable: None,
            after: None,
            confirm_to: None,
            repair_from: None,
            resend_at: None,
            course: LeaderKnowledge::Joining,
            repairing: false,
            generation: Generation::FIRST,
            generation_before: Generation::FIRST,
            delivered_in: Generation::FIRST,
            tail_unheard: false,
            routers_as_of: 0,
            kept: RecentDeliveries::default(),
            base: Position(0),
            base_is_old: false,
            counted: (Generation::FIRST, Vec::new()),
            pledged: None,
            wedged: false,
            not_admitted: None,
            refused: 0,
            resends: 0,
        }
    }

    /// Submits a message between two inputs, as [`MemberCommand::Submit`] does. It is sent at the end of the
    /// batch.
    pub fn submit(&mut self, token: u64, class: Class, body: Bytes) {
        match class {
            Class::Control => self.control.push_back((token, body)),
            Class::Data => self.data.push_back((token, body)),
        }
    }

    /// Returns the token of a message of this process, by its number. `None` if its outcome was reported long
    /// ago.
    pub fn token(&self, number: u64) -> Option<u64> {
        self.window.token(number)
    }

    /// Returns the last position delivered here.
    pub fn delivered(&self) -> Position {
        self.delivered
    }

    /// Returns the generation of the routers to which this member listens.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether the last delivery here belongs to the generation of this process.
    pub fn is_of_its_generation(&self) -> bool {
        self.delivered_in == self.generation
    }

    /// Returns the last position executed here.
    pub fn executed(&self) -> Position {
        if self.settings.executes { self.executed } else { self.delivered }
    }

    /// Returns the number of messages without an outcome: numbered ones, and waiting ones.
    pub fn outstanding(&self) -> (usize, usize) {
        (self.window.len(), self.control.len() + self.data.len())
    }

    /// Returns the latest reason that a router gave for not admitting this process.
    pub fn not_admitted(&self) -> Option<&NotAdmitted> {
        self.not_admitted.as_ref().filter(|_| self.delivered == Position(0))
    }

    /// Returns the number of messages from peers that were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether this process is no longer a member.
    pub fn is_wedged(&self) -> bool {
        self.wedged
    }

    /// Returns the number of times that the window was sent again.
    pub fn resends(&self) -> u64 {
        self.resends
    }

    /// Returns the leader, as far as this member knows.
    pub fn leader(&self) -> Option<ProcessId> {
        self.leader
    }

    /// Returns the leader's address, if the leader is known and its link stands.
    pub fn leader_address(&self) -> Option<&str> {
        let link = self.routers.get(&self.leader?)?;
        link.heard.then_some(link.address.as_str())
    }

    /// Whether a control message that is submitted now would be sent at once.
    pub fn can_send(&self) -> bool {
        self.target.is_some() && !self.wedged && !self.tail_unheard
    }

    /// Returns the routers, as far as this member knows.
    pub fn routers(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.routers.keys().copied()
    }

    /// Whether data messages wait for credit.
    pub fn starved(&self) -> bool {
        !self.data.is_empty() && self.window.number() >= self.credit
    }

    /// Prepares to send the whole window again, because it may have been lost on the way to the log.
    fn resend(&mut self) {
        self.resends += u64::from(self.window.resend());
    }

    fn on_notice(&mut self, now: Time, notice: Notice, out: &mut dyn Sink<Self>) {
        self.tail_unheard = false;
        let mut news = notice.credit > self.credit;
        self.credit = self.credit.max(notice.credit);
        for (first, count) in notice.stable {
            for number in self.window.recent_of(first, u64::from(count)) {
                news |= self.answer(number, Outcome::Stable, out);
            }
            for number in self.window.aside_of(first, u64::from(count)) {
                news |= self.answer(number, Outcome::Stable, out);
            }
        }
        for (number, outcome) in notice.others {
            news |= self.answer(number, outcome, out);
        }
        for number in self.window.advance(self.settings.window_bytes) {
            self.answer(number, Outcome::MaybeApplied, out);
        }
        // A leader that finds a new way to this process repeats the outcomes that it knows, and the awaited
        // ones may not be among them. So only real news restarts the timer.
        if news || self.window.is_empty() {
            self.resend_at = (!self.window.is_empty()).then(|| now + self.patience());
        }
        if notice.wedged {
            self.wedge(out);
        }
    }

    /// Reports an outcome to the user, unless it was reported before. Returns whether the outcome is reported
    /// now.
    fn answer(&mut self, number: u64, outcome: Outcome, out: &mut dyn Sink<Self>) -> bool {
        let Some(token) = self.window.answer(number) else { return false };
        let id = MessageId { sender: self.me, number };
        out.emit(MemberEvent::Outcome { token, id, outcome });
        true
    }

    fn wedge(&mut self, out: &mut dyn Sink<Self>) {
        if std::mem::replace(&mut self.wedged, true) {
            return;
        }
        for number in self.window.open() {
            // The message may have been ordered before this process was removed.
            self.answer(number, Outcome::MaybeApplied, out);
        }
        for (token, _) in self.control.drain(..).chain(self.data.drain(..)) {
            out.emit(MemberEvent::NotSent { token });
        }
        out.emit(MemberEvent::Wedged);
    }

    fn on_deliver(&mut self, from: ProcessId, block: DeliverBlock, out: &mut dyn Sink<Self>) {
        self.confirm_to = Some(from);
        self.tail_unheard = false;
        self.base = self.base.max(block.base);
        let (mut last, kept) = (Position(0), block.detached());
        for item in block.into_items() {
            let Ok(item) = item else {
                self.refused += 1;
                break;
            };
            last = item.at;
            let fits = item.previous <= self.delivered;
            if item.kind == DeliveryKind::Injected {
                let fits = fits && self.delivered <= item.at;
                let (at, sender, token, body) = (item.at, item.sender, item.number, item.body);
                out.emit(MemberEvent::Injected { at, sender, token, body, fits });
                continue;
            }
            if item.at <= self.delivered {
                continue;
            }
            if !fits {
                // S4: an earlier message for this process is missing. One repair sends everything again.
                if !std::mem::replace(&mut self.repairing, true) {
                    self.repair_from = Some(from);
                }
                continue;
            }
            self.repairing = false;
            self.delivered_in = self.generation;
            let class = if item.kind == DeliveryKind::Control { Class::Control } else { Class::Data };
            self.delivered = item.at;
            out.emit(MemberEvent::Deliver {
                at: item.at,
                id: MessageId { sender: item.sender, number: item.number },
                class,
                body: item.body,
                attachment: item.attachment,
            });
        }
        self.kept.push(last, kept);
    }

    /// Numbers waiting messages as far as credit allows, and sends all numbered messages that have not been
    /// sent.
    fn send(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        // A message without a number was never sent and can be taken back, so nothing gets a number while no
        // router is in reach. The same holds while this process may be out: a second submission, even of its
        // joining, would be ordered.
        let Some(target) = self.target.filter(|_| self.can_send()) else { return };
        while let Some((token, body)) = self.control.pop_front() {
            self.window.push(token, Class::Control, body);
        }
        while self.window.number() < self.credit
            && self.window.bytes() < self.settings.window_bytes
            && let Some((token, body)) = self.data.pop_front()
        {
            self.window.push(token, Class::Data, body);
        }
        let mut sent = false;
        self.window.blocks(self.me, |block| {
            out.send(Destination::One(target), Message::Route(block), self.after);
            sent = true;
        });
        if sent {
            self.resend_at.get_or_insert(now + self.patience());
        }
    }

    /// Returns the time to wait for news. A large message takes long to copy, order and deliver, longest on
    /// busy processors. Sending it again too early would make it slower still.
    fn patience(&self) -> Duration {
        self.settings.resend_after + BYTE_PATIENCE * u32::try_from(self.window.bytes()).unwrap_or(u32::MAX)
    }

    fn command(&mut self, command: MemberCommand, out: &mut dyn Sink<Self>) {
        match command {
            MemberCommand::Submit { token, .. } if self.wedged => out.emit(MemberEvent::NotSent { token }),
            MemberCommand::Submit { token, class, body } => self.submit(token, class, body),
            MemberCommand::Seeds(seeds) => {
                // Routers that are known name each other. But all known routers may be gone, or be routers no
                // longer.
                if !self.led_by().is_some_and(|leader| self.hears(leader)) {
                    for seed in seeds {
                        self.routers.entry(seed.id).or_insert_with(|| {
                            out.reach(seed.id, &seed.address);
                            RouterLink { address: seed.address, heard: false, says: None, stale: false }
                        });
                    }
                }
            }
            MemberCommand::Durable { through } => self.on_durable(through),
            MemberCommand::Withdraw { token } => {
                let before = self.control.len() + self.data.len();
                self.control.retain(|(other, _)| *other != token);
                self.data.retain(|(other, _)| *other != token);
                if self.control.len() + self.data.len() < before {
                    out.emit(MemberEvent::NotSent { token });
                }
            }
            MemberCommand::WithdrawData => {
                for (token, _) in self.data.drain(..) {
                    out.emit(MemberEvent::NotSent { token });
                }
            }
            MemberCommand::Executed { through } => {
                assert!(
                    through <= self.delivered,
                    "a message is executed only after its delivery, but {through} was not delivered"
                );
                if through > self.executed {
                    self.executed = through;
                    self.confirm_to = self.confirm_to.or(self.leader_or_way());
                }
            }
            MemberCommand::Inject { token, body } => match self.leader_or_way() {
                Some(leader) if !self.wedged => {
                    out.send(Destination::One(leader), Message::Inject { token, body }, None);
                }
                _ => out.emit(MemberEvent::NotInjected { token }),
            },
        }
    }
}

impl Protocol for Member {
    type Message = Message;
    type Record = paxos::Record;
    type Command = MemberCommand;
    type Event = MemberEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match input {
            Input::Receive { from, message } => match message {
                Message::Lead { generation, leader, routers, learned } => {
                    self.on_lead(cx, from, (generation, leader, routers, learned), out);
                    self.look_for_leader(cx.now, out);
                }
                Message::Gather { generation } => {
                    self.on_gather(from, generation, out);
                    self.look_for_leader(cx.now, out);
                }
                Message::Call if !self.wedged => self.on_call(from, out),
                Message::Refound { generation } if !self.wedged => {
                    self.on_refound(from, generation, out);
                    self.look_for_leader(cx.now, out);
                }
                Message::Release => self.pledged = self.pledged.filter(|founder| *founder != from),
                Message::Counted { generation, members } if generation == self.generation => {
                    self.counted = (generation, members);
                }
                // The messages below count only if a router sent them.
                _ if !self.routers.contains_key(&from) => self.refused += 1,
                Message::Notice(notice) => {
                    if let Some(link) = self.routers.get_mut(&from).filter(|link| link.stale) {
                        link.stale = false;
                        self.look_for_leader(cx.now, out);
                    }
                    self.on_notice(cx.now, notice, out);
                }
                Message::Deliver(block) => self.on_deliver(from, block, out),
                Message::NotAdmitted(why) => {
                    self.not_admitted = Some(why);
                    // The reason for the refusal may vanish soon: the process in the way may be dead.
                    let again = cx.now + REJOIN_AFTER;
                    self.resend_at = self.resend_at.map(|at| at.min(again));
                }
                Message::InjectRefused { token } => out.emit(MemberEvent::NotInjected { token }),
                Message::Probe { asker, second_opinion } if !self.wedged => {
                    out.send(Destination::One(from), Message::Alive { asker, second_opinion }, None);
                }
                _ => self.refused += 1,
            },
            Input::Command(command) => self.command(command, out),
            Input::Deadline => {
                if self.resend_at.is_some_and(|at| at <= cx.now) {
                    self.resend_at = Some(cx.now + self.patience());
                    self.doubt_leader();
                    let random = (cx.random)();
                    self.choose(self.target, random);
                    self.resend();
                    self.repairing = false;
                    self.send(cx.now, out);
                }
                self.look_for_leader(cx.now, out);
            }
            // Nobody casts to members.
            Input::Cast { .. } => self.refused += 1,
            Input::Persisted(_) => {}
            Input::Progress { .. } => {}
            // The member sends nothing on a new link: the router speaks first, and names the leader.
            Input::Linked { .. } => {}
            Input::Unlinked { peer } => {
                self.pledged = self.pledged.filter(|founder| *founder != peer);
                if let Some(link) = self.routers.get_mut(&peer) {
                    link.heard = false;
                }
                self.repairing = false;
                if self.target == Some(peer) {
                    let random = (cx.random)();
                    self.choose(Some(peer), random);
                    self.resend();
                }
                self.look_for_leader(cx.now, out);
            }
            Input::Drained => {
                if let Some(router) = self.repair_from.take() {
                    out.send(Destination::One(router), Message::Repair, None);
                }
                if let Some(router) = self.confirm_to.take() {
                    let (through, executed) = (self.delivered, self.executed());
                    let confirm = Message::Confirm { through, executed, durable: self.durable() };
                    out.send(Destination::One(router), confirm, None);
                }
                self.send(cx.now, out);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        let adrift_at = if let LeaderKnowledge::Drifting(at) = self.course { Some(at) } else { None };
        [self.resend_at, adrift_at].into_iter().flatten().min()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        Arc::new(self.fence())
    }
}

#[cfg(test)]
mod tests;
