//! A member: an application process that submits, delivers and confirms (002 §5.4, algorithm 1).

mod durable;
mod generation;
mod routers;
mod window;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;

pub use self::durable::Submissions;
use self::{
    routers::{Course, RouterLink},
    window::Window,
};
use super::{
    Class, MessageId, Outcome, Position,
    block::{DeliverBlock, DeliveryKind},
    message::{Message, Notice},
    reform::Kept,
};
use crate::{
    admission::NotAdmitted,
    id::{Generation, Peer, ProcessId},
    paxos,
    seam::{Context, Destination, Input, Policy, Protocol, Sink, Ticket},
    time::{Duration, Time},
};

/// How a member behaves.
#[derive(Clone, Debug)]
pub struct MemberSettings {
    /// Whether the user tells what has been executed; if not, delivered is executed.
    pub executes: bool,
    /// How long to wait for news of submitted messages before they are sent again, to another router if need be; longer
    /// if they are large.
    pub resend_after: Duration,
    /// How many bytes may be under way; one message may exceed it alone.
    pub window_bytes: usize,
    /// How long no router may be known to lead before that is told. An election is over sooner.
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

/// What a member may be asked.
#[derive(Clone, Debug)]
pub enum MemberCommand {
    /// Submit a message. Ends in exactly one of [`MemberEvent::Outcome`] and [`MemberEvent::NotSent`].
    Submit {
        /// The user's name for it.
        token: u64,
        /// What it may do.
        class: Class,
        /// The message.
        body: Bytes,
    },
    /// Processes that may be routers: links to them are wanted until one of them says who routes. Of no use while a link to
    /// the leader stands.
    Seeds(Vec<Peer>),
    /// Take a message back if it has not been sent: it ends in [`MemberEvent::NotSent`] then, and otherwise, as ever, in its
    /// outcome. The taking back has no end of its own.
    Withdraw {
        /// Which.
        token: u64,
    },
    /// Take back all data that has not been sent: each ends in [`MemberEvent::NotSent`].
    WithdrawData,
    /// Everything delivered up to here has been executed.
    Executed {
        /// Up to where.
        through: Position,
    },
    /// Everything delivered up to here need not be sent again. For a member with a disk ([`Member::persist`]).
    Durable {
        /// Up to where.
        through: Position,
    },
    /// Have a message delivered behind everything ordered so far, without ordering it. Ends in nothing here, or in
    /// [`MemberEvent::NotInjected`]: the destinations answer.
    Inject {
        /// The user's name for it.
        token: u64,
        /// The message.
        body: Bytes,
    },
}

/// What a member tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// A message at its position.
    Deliver {
        /// Where in the total order.
        at: Position,
        /// Which message.
        id: MessageId,
        /// What it may do.
        class: Class,
        /// The message.
        body: Bytes,
        /// What routing added for this destination.
        attachment: Option<Bytes>,
    },
    /// An injected message: everything destined here up to `at` has been delivered, and nothing beyond.
    Injected {
        /// The stamp.
        at: Position,
        /// Who injected it.
        sender: ProcessId,
        /// Its name there.
        token: u64,
        /// The message.
        body: Bytes,
        /// `false`: this member is elsewhere in the order, and the sender must ask anew.
        fits: bool,
    },
    /// What became of a submitted message.
    Outcome {
        /// The user's name for it.
        token: u64,
        /// Its name in the order.
        id: MessageId,
        /// The outcome.
        outcome: Outcome,
    },
    /// A submitted message was never sent, and never will be.
    NotSent {
        /// The user's name for it.
        token: u64,
    },
    /// An injected message was not delivered anywhere.
    NotInjected {
        /// The user's name for it.
        token: u64,
    },
    /// Who routes and who leads.
    Lead {
        /// The leader, if known.
        leader: Option<ProcessId>,
        /// All routers.
        routers: Vec<Peer>,
    },
    /// No router in reach has known a leader for a while (`true`), or one does again. Nothing is ordered meanwhile.
    Adrift(bool),
    /// A founder that this process follows wants to know what it has: to be told [`Member::witness`], with the configuration
    /// at the last position delivered before.
    WitnessWanted {
        /// The founder.
        founder: ProcessId,
    },
    /// This process is no member any more: it must stop, and may come back as a new one.
    Wedged,
}

/// An application process's end of E-Cast.
pub struct Member {
    me: ProcessId,
    settings: MemberSettings,
    /// The routers, and whether they are heard.
    routers: BTreeMap<ProcessId, RouterLink>,
    leader: Option<ProcessId>,
    /// The router that messages go to.
    target: Option<ProcessId>,
    /// Numbered messages without an outcome, and those behind them.
    window: Window,
    control: VecDeque<(u64, Bytes)>,
    data: VecDeque<(u64, Bytes)>,
    credit: u64,
    delivered: Position,
    executed: Position,
    /// What need not be sent again; of a member without a disk it is all that it delivered.
    durable: Option<Position>,
    /// What is submitted is not sent before this record is durable.
    after: Option<Ticket>,
    /// Whom to confirm to, once the batch is drained.
    confirm_to: Option<ProcessId>,
    /// Whom to ask for repair, once the batch is drained.
    repair_from: Option<ProcessId>,
    /// When the window is sent again for want of news.
    resend_at: Option<Time>,
    course: Course,
    /// A repair was asked for, and nothing has fitted since.
    repairing: bool,
    /// The generation of the routers that are listened to.
    generation: Generation,
    /// The last one before it of which more was heard than its beginning: what is kept was delivered there, or earlier.
    generation_before: Generation,
    /// The generation in which something was delivered last.
    delivered_in: Generation,
    /// What was said when the generation began may not have been heard: nothing has come of it yet.
    tail_unheard: bool,
    /// How much of the log was behind the present set of routers when we heard of it.
    routers_as_of: u64,
    /// What was delivered last: a later generation of routers may not know it.
    kept: Kept,
    /// Everything up to here is stable, as routers of the generation told; of an earlier one, until more is heard of this.
    base: Position,
    base_is_old: bool,
    /// Whose answers counted when the generation began.
    counted: (Generation, Vec<ProcessId>),
    /// The founder that this process follows, as long as a link to it stands.
    pledged: Option<ProcessId>,
    wedged: bool,
    /// Why it is not taken in, as it was told last.
    not_admitted: Option<NotAdmitted>,
    refused: u64,
    resends: u64,
}

/// Added to the patience with what is under way, for each of its bytes: 2 MiB take a second.
const BYTE_PATIENCE: Duration = Duration::from_nanos(500);

/// How long to wait before joining is tried again that was refused.
const REJOIN_AFTER: Duration = Duration::from_millis(200);

impl Member {
    /// A member that has submitted nothing; its first message is to make it one.
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
            course: Course::Joining,
            repairing: false,
            generation: Generation::FIRST,
            generation_before: Generation::FIRST,
            delivered_in: Generation::FIRST,
            tail_unheard: false,
            routers_as_of: 0,
            kept: Kept::default(),
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

    /// Submits between two inputs; it is sent at the end of the batch. Afterwards as [`MemberCommand::Submit`].
    pub fn submit(&mut self, token: u64, class: Class, body: Bytes) {
        match class {
            Class::Control => self.control.push_back((token, body)),
            Class::Data => self.data.push_back((token, body)),
        }
    }

    /// The last position delivered here.
    pub fn delivered(&self) -> Position {
        self.delivered
    }

    /// The generation of the routers that it listens to.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether what was delivered here last was delivered in the generation that this process belongs to.
    pub fn is_of_its_generation(&self) -> bool {
        self.delivered_in == self.generation
    }

    /// The last position executed here.
    pub fn executed(&self) -> Position {
        if self.settings.executes { self.executed } else { self.delivered }
    }

    /// Messages without an outcome: numbered ones and waiting ones.
    pub fn outstanding(&self) -> (usize, usize) {
        (self.window.len(), self.control.len() + self.data.len())
    }

    /// Why this process is not taken in, as it was told last.
    pub fn not_admitted(&self) -> Option<&NotAdmitted> {
        self.not_admitted.as_ref().filter(|_| self.delivered == Position(0))
    }

    /// Messages from peers that were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether this process is out.
    pub fn is_wedged(&self) -> bool {
        self.wedged
    }

    /// How often the window was sent again.
    pub fn resends(&self) -> u64 {
        self.resends
    }

    /// The router that leads, as far as known.
    pub fn leader(&self) -> Option<ProcessId> {
        self.leader
    }

    /// Where the router that leads listens, if it is known and a link to it stands.
    pub fn leader_address(&self) -> Option<&str> {
        let link = self.routers.get(&self.leader?)?;
        link.heard.then_some(link.address.as_str())
    }

    /// Whether a control message that is submitted now would be sent at once.
    pub fn can_send(&self) -> bool {
        self.target.is_some() && !self.wedged && !self.tail_unheard
    }

    /// The routers, as far as known.
    pub fn routers(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.routers.keys().copied()
    }

    /// Whether messages wait for credits.
    pub fn starved(&self) -> bool {
        !self.data.is_empty() && self.window.number() >= self.credit
    }

    /// What was sent may have been lost on the way to the log: all of it is sent again.
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
        // A leader that finds new ways to this process repeats what it knows, and may not have what is waited for.
        if news || self.window.is_empty() {
            self.resend_at = (!self.window.is_empty()).then(|| now + self.patience());
        }
        if notice.wedged {
            self.wedge(out);
        }
    }

    /// Tells the user, unless it was told before. Says whether it did.
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
            // It may have been ordered before we were dropped.
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
                // S4: something that was destined here is missing. One repair sends everything again.
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

    /// Numbers what may go, and sends what is numbered and not sent.
    fn send(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        // What has no number was never sent, and can be withdrawn: without a router in reach nothing gets one.
        // Nor while it may be that this process is out: what it submitted once more, its joining too, would be ordered.
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

    /// How long there may be no news. What is large takes long to be copied, ordered and delivered, longest where processors
    /// are busy; sent again for impatience, it would take longer still.
    fn patience(&self) -> Duration {
        self.settings.resend_after + BYTE_PATIENCE * u32::try_from(self.window.bytes()).unwrap_or(u32::MAX)
    }

    fn command(&mut self, command: MemberCommand, out: &mut dyn Sink<Self>) {
        match command {
            MemberCommand::Submit { token, .. } if self.wedged => out.emit(MemberEvent::NotSent { token }),
            MemberCommand::Submit { token, class, body } => self.submit(token, class, body),
            MemberCommand::Seeds(seeds) => {
                // Once the routers are known, they tell of each other; but all that are known may be gone, or routers no more.
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
                assert!(through <= self.delivered, "executed {through} before it was delivered");
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
                // From here on only routers are listened to.
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
                    // The reason may be gone soon: who was in the way may be dead.
                    let again = cx.now + REJOIN_AFTER;
                    self.resend_at = self.resend_at.map(|at| at.min(again));
                }
                Message::InjectRefused { token } => out.emit(MemberEvent::NotInjected { token }),
                Message::Probe { asker, hearing } if !self.wedged => {
                    out.send(Destination::One(from), Message::Alive { asker, hearing }, None);
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
            // Nobody casts here.
            Input::Cast { .. } => self.refused += 1,
            Input::Persisted(_) => {}
            Input::Progress { .. } => {}
            // A router speaks first: it says who leads.
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
        let adrift_at = if let Course::Drifting(at) = self.course { Some(at) } else { None };
        [self.resend_at, adrift_at].into_iter().flatten().min()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        Arc::new(self.fence())
    }
}

#[cfg(test)]
mod tests;
