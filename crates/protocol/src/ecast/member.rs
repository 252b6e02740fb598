//! A member: an application process that submits, delivers and confirms (002 §5.4, algorithm 1).

mod deliveries;
mod durable;
mod generation;
mod history;
mod lead;
mod link;
mod queue;
mod routers;
mod window;

use std::sync::Arc;

use bytes::Bytes;

pub use self::window::Submissions;
use self::{
    deliveries::DeliveryProgress, history::GenerationHistory, queue::SubmissionQueue, routers::KnownRouters,
};
use super::{
    Class, MessageId, Outcome, Position,
    block::{DeliverBlock, DeliveryKind},
    message::{Message, Notice},
};
use crate::{
    admission::NotAdmitted,
    id::{Generation, Peer, ProcessId},
    paxos,
    relay::leader_last,
    seam::{Context, Destination, Input, Policy, Protocol, Sink},
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
        /// The token that the user gave the message.
        token: u64,
        /// The message's class.
        class: Class,
        /// The message.
        body: Bytes,
    },
    /// Names processes that may be routers. The member asks for links to them until one of them lists the
    /// routers. Has no effect while a link to the leader stands.
    Seeds(Vec<Peer>),
    /// Takes a message back if it has not been sent. A message that was taken back ends in
    /// [`MemberEvent::NotSent`]; any other message ends in its outcome as usual.
    Withdraw {
        /// The token that the user gave the message.
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
    /// Delivers a message after everything ordered so far, without ordering it. If no destination gets the
    /// message, the command ends in [`MemberEvent::NotInjected`]; otherwise the destinations answer.
    Inject {
        /// The token that the user gave the message.
        token: u64,
        /// Whether the lead router confirms by [`MemberEvent::Latest`] that the stamp covers everything that
        /// was stable at this command. The router may report [`MemberEvent::NotInjected`] instead although
        /// destinations answer.
        latest: bool,
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
        /// The token that the sender gave the message.
        token: u64,
        /// The message.
        body: Bytes,
        /// Whether this member stands at the position `at` of the order. If not, the sender must ask again.
        fits: bool,
    },
    /// The outcome of a submitted message.
    Outcome {
        /// The token that the user gave the message.
        token: u64,
        /// The message's name in the order.
        id: MessageId,
        /// The outcome.
        outcome: Outcome,
    },
    /// A submitted message was never sent, and never will be.
    NotSent {
        /// The token that the user gave the message.
        token: u64,
    },
    /// An injected message was delivered nowhere.
    NotInjected {
        /// The token that the user gave the message.
        token: u64,
    },
    /// The stamp of an injected message covers everything that was stable when it was injected.
    Latest {
        /// The token that the user gave the message.
        token: u64,
    },
    /// Messages to routers may have been lost, and a router that knows a leader is in reach. If an injected
    /// message has no answer yet, the user should inject it again.
    Rerouted,
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
    routers: KnownRouters,
    queue: SubmissionQueue,
    deliveries: DeliveryProgress,
    history: GenerationHistory,
    wedged: bool,
    /// The latest reason that a router gave for not admitting this process.
    not_admitted: Option<NotAdmitted>,
    refused: u64,
}

/// Time before the member tries to join again after a refusal.
const REJOIN_AFTER: Duration = Duration::from_millis(200);

impl Member {
    /// Creates a member that has submitted nothing. Its first message must make it a member.
    pub fn new(me: ProcessId, settings: MemberSettings) -> Self {
        Member {
            me,
            settings,
            routers: KnownRouters::default(),
            queue: SubmissionQueue::default(),
            deliveries: DeliveryProgress::default(),
            history: GenerationHistory::default(),
            wedged: false,
            not_admitted: None,
            refused: 0,
        }
    }

    /// Submits a message between two inputs, as [`MemberCommand::Submit`] does. It is sent at the end of the
    /// batch.
    pub fn submit(&mut self, token: u64, class: Class, body: Bytes) {
        self.queue.push(token, class, body);
    }

    /// Returns the token of a message of this process, by its number. `None` if its outcome was reported long
    /// ago.
    pub fn token(&self, number: u64) -> Option<u64> {
        self.queue.window.token(number)
    }

    /// Returns the last position that this member has delivered.
    pub fn delivered(&self) -> Position {
        self.deliveries.delivered()
    }

    /// Returns the generation of the routers to which this member listens.
    pub fn generation(&self) -> Generation {
        self.history.current()
    }

    /// Whether the last delivery here belongs to the generation of this process.
    pub fn is_of_its_generation(&self) -> bool {
        self.deliveries.is_of(self.generation())
    }

    /// Returns the last position that this member's user has executed.
    pub fn executed(&self) -> Position {
        if self.settings.executes { self.deliveries.executed() } else { self.deliveries.delivered() }
    }

    /// Returns two numbers of messages without an outcome: messages that have a number in the order, and
    /// messages that wait for a number.
    pub fn outstanding(&self) -> (usize, usize) {
        (self.queue.window.len(), self.queue.waiting())
    }

    /// Returns the latest reason that a router gave for not admitting this process.
    pub fn not_admitted(&self) -> Option<&NotAdmitted> {
        self.not_admitted.as_ref().filter(|_| self.delivered() == Position(0))
    }

    /// Returns the number of messages from peers that were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether the routers have removed this process, which is therefore no longer a member.
    pub fn is_wedged(&self) -> bool {
        self.wedged
    }

    /// Returns the number of times that the window was sent again.
    pub fn resends(&self) -> u64 {
        self.queue.resends()
    }

    /// Returns the leader, as far as this member knows.
    pub fn leader(&self) -> Option<ProcessId> {
        self.routers.leader()
    }

    /// Returns the leader's address, if the leader is known and its link stands.
    pub fn leader_address(&self) -> Option<&str> {
        self.routers.leader_address()
    }

    /// Whether a control message that is submitted now would be sent at once.
    pub fn can_send(&self) -> bool {
        self.routers.target().is_some() && !self.wedged && !self.history.is_tail_unheard()
    }

    /// Returns the routers, as far as this member knows.
    pub fn routers(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.routers.ids()
    }

    /// Returns the routers in the order in which they should relay links for this process.
    pub fn relays(&self) -> Vec<ProcessId> {
        leader_last(self.routers(), self.leader())
    }

    /// Whether data messages wait for credit to be sent.
    pub fn starved(&self) -> bool {
        self.queue.is_starved()
    }

    fn on_notice(&mut self, now: Time, notice: Notice, out: &mut dyn Sink<Self>) {
        self.history.reported();
        let mut news = self.queue.allow(notice.credit);
        for (first, count) in notice.stable {
            for number in self.queue.window.recent_of(first, u64::from(count)) {
                news |= self.answer(number, Outcome::Stable, out);
            }
            for number in self.queue.window.aside_of(first, u64::from(count)) {
                news |= self.answer(number, Outcome::Stable, out);
            }
        }
        for (number, outcome) in notice.others {
            news |= self.answer(number, outcome, out);
        }
        for number in self.queue.window.advance(self.settings.window_bytes) {
            self.answer(number, Outcome::MaybeApplied, out);
        }
        self.queue.noticed(news, now, self.settings.resend_after);
        if notice.wedged {
            self.wedge(out);
        }
    }

    /// Reports an outcome to the user, unless it was reported before. Returns whether the outcome is reported
    /// now.
    fn answer(&mut self, number: u64, outcome: Outcome, out: &mut dyn Sink<Self>) -> bool {
        let Some(token) = self.queue.window.answer(number) else { return false };
        let id = MessageId { sender: self.me, number };
        out.emit(MemberEvent::Outcome { token, id, outcome });
        true
    }

    fn wedge(&mut self, out: &mut dyn Sink<Self>) {
        if std::mem::replace(&mut self.wedged, true) {
            return;
        }
        for number in self.queue.window.open() {
            // The message may have been ordered before this process was removed.
            self.answer(number, Outcome::MaybeApplied, out);
        }
        for token in self.queue.withdraw_all() {
            out.emit(MemberEvent::NotSent { token });
        }
        out.emit(MemberEvent::Wedged);
    }

    fn on_deliver(&mut self, from: ProcessId, block: DeliverBlock, out: &mut dyn Sink<Self>) {
        let generation = self.generation();
        self.history.reported();
        self.deliveries.confirm_to = Some(from);
        self.deliveries.set_base(block.base);
        let (mut last, kept) = (Position(0), block.detached());
        for item in block.into_items() {
            let Ok(item) = item else {
                self.refused += 1;
                break;
            };
            last = item.at;
            if item.kind == DeliveryKind::Injected {
                let fits = (item.previous..=item.at).contains(&self.delivered());
                let (at, sender, token, body) = (item.at, item.sender, item.number, item.body);
                out.emit(MemberEvent::Injected { at, sender, token, body, fits });
                continue;
            }
            if !self.deliveries.take(from, generation, (item.previous, item.at)) {
                continue;
            }
            let class = if item.kind == DeliveryKind::Control { Class::Control } else { Class::Data };
            out.emit(MemberEvent::Deliver {
                at: item.at,
                id: MessageId { sender: item.sender, number: item.number },
                class,
                body: item.body,
                attachment: item.attachment,
            });
        }
        self.deliveries.kept.push(last, kept);
    }

    /// Confirms deliveries at the end of the batch.
    fn confirm(&mut self) {
        self.deliveries.confirm_to = self.deliveries.confirm_to.or(self.routers.leader_or_way());
    }

    /// Numbers waiting messages as far as credit allows, and sends all numbered messages that have not been
    /// sent.
    fn send(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        // A message without a number was never sent and can be taken back, so no message gets a number while
        // no router is in reach. The same holds while this process may be out: if it submitted again, even
        // its request to join would be ordered.
        let Some(target) = self.routers.target().filter(|_| self.can_send()) else { return };
        let MemberSettings { window_bytes, resend_after, .. } = self.settings;
        let sent = self.queue.send(self.me, window_bytes, |block, after| {
            out.send(Destination::One(target), Message::Route(block), after);
        });
        if sent {
            self.queue.expect_news(now, resend_after);
        }
    }

    fn command(&mut self, command: MemberCommand, out: &mut dyn Sink<Self>) {
        match command {
            MemberCommand::Submit { token, .. } if self.wedged => out.emit(MemberEvent::NotSent { token }),
            MemberCommand::Submit { token, class, body } => self.submit(token, class, body),
            MemberCommand::Seeds(seeds) => {
                // Routers that are known name each other. But all known routers may be gone, or be routers no
                // longer.
                if !self.routers.led_by().is_some_and(|leader| self.routers.hears(leader)) {
                    self.routers.seed(seeds, |id, address| out.reach(id, address));
                }
            }
            MemberCommand::Durable { through } => self.on_durable(through),
            MemberCommand::Withdraw { token } => {
                if self.queue.withdraw(token) {
                    out.emit(MemberEvent::NotSent { token });
                }
            }
            MemberCommand::WithdrawData => {
                for token in self.queue.withdraw_data() {
                    out.emit(MemberEvent::NotSent { token });
                }
            }
            MemberCommand::Executed { through } => {
                if self.deliveries.set_executed(through) {
                    self.confirm();
                }
            }
            MemberCommand::Inject { token, latest, body } => match self.routers.leader_or_way() {
                Some(leader) if !self.wedged => {
                    let inject = match latest {
                        true => Message::InjectLatest { token, body },
                        false => Message::Inject { token, body },
                    };
                    out.send(Destination::One(leader), inject, None);
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
                Message::Release => self.history.release(from),
                Message::Counted { generation, members } if generation == self.generation() => {
                    self.history.set_counted(members);
                }
                // The messages below count only if a router sent them.
                _ if !self.routers.contains(from) => self.refused += 1,
                Message::Notice(notice) => {
                    if self.routers.trust(from) {
                        self.look_for_leader(cx.now, out);
                    }
                    self.on_notice(cx.now, notice, out);
                }
                Message::Deliver(block) => self.on_deliver(from, block, out),
                Message::NotAdmitted(why) => {
                    self.not_admitted = Some(why);
                    // The reason for the refusal may vanish soon: the process that has the same node number
                    // may be dead.
                    self.queue.hasten(cx.now + REJOIN_AFTER);
                }
                Message::InjectRefused { token } => out.emit(MemberEvent::NotInjected { token }),
                Message::Latest { tokens } => {
                    tokens.into_iter().for_each(|token| out.emit(MemberEvent::Latest { token }));
                }
                Message::Probe { asker, second_opinion } if !self.wedged => {
                    out.send(Destination::One(from), Message::Alive { asker, second_opinion }, None);
                }
                _ => self.refused += 1,
            },
            Input::Command(command) => self.command(command, out),
            Input::Deadline => {
                if self.queue.resend_at().is_some_and(|at| at <= cx.now) {
                    self.queue.wait_again(cx.now, self.settings.resend_after);
                    self.routers.doubt_leader();
                    let random = (cx.random)();
                    self.routers.choose(self.routers.target(), random);
                    self.queue.resend();
                    self.deliveries.repairing = false;
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
                self.history.release(peer);
                self.routers.unlinked(peer);
                self.deliveries.repairing = false;
                if self.routers.target() == Some(peer) {
                    let random = (cx.random)();
                    self.routers.choose(Some(peer), random);
                    self.queue.resend();
                }
                self.look_for_leader(cx.now, out);
            }
            Input::Drained => {
                if let Some(router) = self.deliveries.repair_from.take() {
                    out.send(Destination::One(router), Message::Repair, None);
                }
                if let Some(router) = self.deliveries.confirm_to.take() {
                    let (through, executed) = (self.delivered(), self.executed());
                    let confirm = Message::Confirm { through, executed, durable: self.deliveries.durable() };
                    out.send(Destination::One(router), confirm, None);
                }
                self.send(cx.now, out);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        [self.queue.resend_at(), self.routers.adrift_at()].into_iter().flatten().min()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        Arc::new(self.fence())
    }
}

#[cfg(test)]
mod tests;
