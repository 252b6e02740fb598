//! A router. Its lowest layer is the log, above the log it keeps the history, and while the router leads, the
//! dispatch is on top.

mod generation;
mod log;

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;

use super::{
    Ordered, Position, RouterRefusal, Routing,
    commands::{Commands, RouterCommand, RouterEvent},
    dispatch::{Dispatch, Watermarks},
    entry::LogEntry,
    message::{Message, Notice},
    order::Order,
    poll::MemberPoll,
    reach::{Detours, HOPS_MAX, is_reached},
    reform::{Gathering, Reformed, Tail},
    unconfirmed::UnconfirmedInjections,
    watch::MemberMonitor,
};
use crate::{
    admission::NotAdmitted,
    detector::Opinion,
    id::{Generation, Peer, ProcessId},
    paxos::{self, Change, Paxos},
    seam::{CommandId, Context, Destination, Input, Policy, Protocol, Sink},
    suspicion::Patience,
    time::{Duration, Time},
};

/// Settings of a router.
#[derive(Clone, Debug)]
pub struct RouterSettings {
    /// Settings of the log.
    pub paxos: paxos::Settings,
    /// Maximum number of unexecuted data messages of one member.
    pub credit: u64,
    /// Time for which the router may wait for other traffic before it logs which positions became stable.
    pub stable_delay: Duration,
    /// The generation of the router.
    pub generation: Generation,
    /// The version of routing that the router's fence showed in its former life; 1 if the router has shown
    /// none yet.
    pub routing: u32,
    /// Maximum number of stable messages kept after an unstable message. If there are more, the router keeps
    /// unstable messages separately.
    pub kept_max: usize,
    /// Patience of the lead router with a member about which it has asked the other routers.
    pub patience: Patience,
}

impl Default for RouterSettings {
    fn default() -> Self {
        RouterSettings {
            paxos: paxos::Settings::default(),
            credit: 16_384,
            stable_delay: Duration::from_millis(5),
            generation: Generation::FIRST,
            routing: 1,
            kept_max: 1 << 16,
            patience: Patience::default(),
        }
    }
}

/// The state of a router, for operators.
#[derive(Clone, Debug)]
pub struct RouterStatus {
    /// Last position learned.
    pub position: Position,
    /// The position up to which all messages are stable.
    pub base: Position,
    /// The leader.
    pub leader: Option<ProcessId>,
    /// All routers.
    pub routers: Vec<Peer>,
    /// The generation of the router.
    pub generation: Generation,
    /// The beginning of the router's generation, unless it is the first generation.
    pub reformed: Option<Reformed>,
    /// Number of distinct configurations kept.
    pub configs: usize,
    /// While leading: each member's number of unconfirmed deliveries.
    pub lags: Vec<(ProcessId, usize)>,
    /// While leading: number of times that deliveries were sent again.
    pub resends: u64,
    /// Number of expulsions that this router proposed, while it led.
    pub expelled: u64,
    /// Number of messages from peers that were refused.
    pub refused: u64,
}

/// A router (002 §5.5, algorithm 2).
pub struct Router<R: Routing> {
    pub(super) settings: RouterSettings,
    pub(super) paxos: Paxos,
    pub(super) order: Order<R>,
    pub(super) dispatch: Option<Dispatch>,
    pub(super) unconfirmed: UnconfirmedInjections,
    pub(super) linked: BTreeSet<ProcessId>,
    pub(super) detours: Detours,
    /// Watches the members while this router leads.
    pub(super) monitor: MemberMonitor,
    /// Time at which positions that became stable are logged, even without other traffic.
    stable_due: Option<Time>,
    /// Whether something was proposed since the last drain.
    proposed: bool,
    /// Whether the founding entry was proposed.
    pub(super) founding: bool,
    /// Whether entries about stability must be proposed again.
    unlogged: bool,
    /// Buffer for the log's events, reused.
    events: Vec<paxos::Event>,
    /// Operators' commands that have not ended.
    pub(super) commands: Commands,
    /// The collection of members' deliveries, while a generation begins with this router.
    pub(super) gathering: Option<Gathering>,
    /// Whether a former life of this router may have ended while it collected members' deliveries.
    resumes: bool,
    /// The founder's questions to members whether they follow it, if no router survived.
    pub(super) member_poll: Option<MemberPoll>,
    /// Linked processes that this router asked for their deliveries and that have not answered. Their other
    /// messages are ignored: they were sent in an earlier generation.
    pub(super) asked: BTreeSet<ProcessId>,
    /// The version of routing that the router's fence shows.
    pub(super) routing: u32,
    pub(super) refused: u64,
}

impl<R: Routing> Router<R> {
    /// Creates a router. The router has just founded its log, has read it from a disk, or is about to join
    /// it. If a former life began this generation and ended before the log recorded the beginning, the router
    /// asks the members again ([`Reformed`](super::Reformed)).
    pub fn new(paxos: Paxos, config: R::Config, settings: RouterSettings) -> Self {
        Router {
            resumes: settings.generation.survivor == paxos.me().incarnation,
            order: Order::new(config, settings.kept_max),
            monitor: MemberMonitor::new(settings.paxos.detector),
            routing: settings.routing,
            settings,
            paxos,
            dispatch: None,
            unconfirmed: UnconfirmedInjections::default(),
            linked: BTreeSet::new(),
            detours: Detours::default(),
            stable_due: None,
            proposed: false,
            founding: false,
            unlogged: false,
            events: Vec::new(),
            commands: Commands::default(),
            gathering: None,
            member_poll: None,
            asked: BTreeSet::new(),
            refused: 0,
        }
    }

    /// Whether this router leads.
    pub fn is_leader(&self) -> bool {
        self.dispatch.is_some()
    }

    /// Returns a description of the beginning of this generation, once it is known; `None` in the first
    /// generation.
    pub fn reformed(&self) -> Option<&Reformed> {
        self.order.reformed()
    }

    /// Returns the log that orders this router's messages.
    pub fn log(&self) -> &Paxos {
        &self.paxos
    }

    /// Returns the number of routers that the domain keeps.
    pub fn wanted(&self) -> usize {
        self.settings.paxos.wanted
    }

    /// Returns the newest configuration.
    pub fn config(&self) -> &R::Config {
        self.order.config()
    }

    /// Returns the last position learned.
    pub fn position(&self) -> Position {
        self.order.last()
    }

    /// Returns the position up to which all messages are stable.
    pub fn base(&self) -> Position {
        self.order.base()
    }

    /// Returns the number of times that deliveries were sent again; 0 unless leading.
    pub fn resends(&self) -> u64 {
        self.dispatch.as_ref().map_or(0, |dispatch| dispatch.resends)
    }

    /// Returns the kept history after `position`, for checkers: every unstable message, and some stable
    /// messages.
    pub fn live_after(&self, position: Position) -> impl Iterator<Item = (Position, &Ordered)> {
        self.order.live_messages().behind(position)
    }

    /// Returns the state for operators.
    pub fn status(&self) -> RouterStatus {
        RouterStatus {
            position: self.position(),
            base: self.base(),
            leader: self.paxos.leader(),
            routers: self.paxos.members().to_vec(),
            generation: self.settings.generation,
            reformed: self.order.reformed().cloned(),
            configs: self.order.configs(),
            lags: self.dispatch.iter().flat_map(|dispatch| dispatch.lags()).collect(),
            resends: self.resends(),
            expelled: self.monitor.expelled,
            refused: self.refused + self.order.malformed,
        }
    }

    /// Sends a process the reason why its joining was refused.
    fn send_refusal(&self, process: ProcessId, why: NotAdmitted, out: &mut dyn Sink<Self>) {
        if self.linked.contains(&process) {
            out.send(Destination::One(process), Message::NotAdmitted(why), None);
        }
    }

    /// Proposes the founding configuration, as the founder's first entry.
    fn found(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if self.is_leader() && !self.order.is_founded() && !std::mem::replace(&mut self.founding, true) {
            let entry = LogEntry::encode_founded(self.order.config());
            self.propose(cx, entry, out);
        }
    }

    /// Notifies a process that it is no longer a member.
    fn send_departure_notice(&self, process: ProcessId, out: &mut dyn Sink<Self>) {
        if self.linked.contains(&process) || self.detours.through(process).is_some() {
            let notice = Notice { wedged: true, ..Notice::default() };
            self.send_to_member(process, Message::Notice(notice), out);
        }
    }

    fn lead(&mut self, leader: Option<ProcessId>, out: &mut dyn Sink<Self>) {
        if self.paxos.is_leader() {
            // The router still leads, or leads again: its own proposals and the members' messages may have
            // been lost.
            self.unlogged = self.dispatch.as_ref().is_some_and(Dispatch::has_unlogged);
            if self.dispatch.is_none() && self.gathering.is_none() {
                let (linked, detours, order) = (&self.linked, &self.detours, &self.order);
                let reached = |process| is_reached(linked, detours, order, process);
                self.dispatch = Some(Dispatch::new(order, self.settings.credit, reached));
                self.monitor.begin();
            }
        } else {
            self.dispatch = None;
            self.stable_due = None;
        }
        // A member that hears of a leader, even again, sends its unstable messages again, because proposals
        // may have been lost.
        self.announce_leader(self.linked.iter().copied().collect(), out);
        out.emit(RouterEvent::Leader(leader));
        self.paused(out);
    }

    /// Announces the leader to processes. Before the cut is known, no process learns the leader: a process
    /// that learns the leader although no router asked it for its deliveries counts as out.
    fn announce_leader(&self, mut to: Vec<ProcessId>, out: &mut dyn Sink<Self>) {
        if self.gathering.is_some() {
            return;
        }
        let routers = self.paxos.members();
        to.retain(|process| !routers.iter().any(|router| router.id == *process));
        if !to.is_empty() && !routers.is_empty() {
            let learned = self.paxos.applied().0;
            let (generation, leader) = (self.settings.generation, self.paxos.leader_known());
            let lead = Message::Lead { generation, leader, routers: routers.to_vec(), learned };
            out.send(Destination::Many(to.clone()), lead, None);
            // A process that departed while no leader could reach it learns of its departure now, even if it
            // has nothing to ask.
            for process in to.into_iter().filter(|process| self.order.is_departed(*process)) {
                self.send_departure_notice(process, out);
            }
        }
    }

    /// Starts an operator's change of the routers.
    fn change(&mut self, cx: &mut Context<'_>, id: CommandId, change: Change, out: &mut dyn Sink<Self>) {
        let is_router = self.paxos.members().iter().any(|router| router.id == cx.me);
        let begun = if !is_router {
            Err(RouterRefusal::NotRouter)
        } else if self.gathering.is_some() {
            Err(RouterRefusal::GenerationBegins)
        } else {
            self.commands.begin(id, change.clone())
        };
        match begun {
            Ok(()) => self.drive(cx, Input::Command(command_of(change)), out),
            refused => out.emit(RouterEvent::Ended { id, result: refused }),
        }
    }

    fn receive(&mut self, cx: &mut Context<'_>, from: ProcessId, message: Message, out: &mut dyn Sink<Self>) {
        let said = match &message {
            Message::Tail(tail) => Some(tail.generation),
            Message::Witness(witness) => Some(witness.tail.generation),
            _ => None,
        };
        if said == Some(self.settings.generation) {
            self.asked.remove(&from);
        }
        match message {
            // No router may join before the cut: a router that never collected deliveries might become
            // leader. The joining router will ask again.
            Message::Paxos(paxos::Message::Join { .. })
                if self.gathering.is_some() || self.member_poll.is_some() => {}
            Message::Paxos(message) => {
                if let paxos::Message::Join { peer } = &message
                    && let Some(by) = R::of_node(self.order.config(), peer.id.node)
                {
                    // A member has this node number already.
                    let message = Message::Paxos(paxos::Message::NodeInUse { by });
                    return out.send(Destination::One(from), message, None);
                }
                self.drive(cx, Input::Receive { from, message }, out);
            }
            Message::Pledge(pledge) => self.on_pledge(from, pledge, out),
            Message::Witness(witness) if self.member_poll.is_some() => {
                self.on_witness(cx, from, *witness, out);
            }
            // A `Witness` that comes too late is treated like a `Tail`.
            Message::Witness(witness) => {
                let tail = Tail { blocks: Vec::new(), ..witness.tail };
                self.receive(cx, from, Message::Tail(tail), out);
            }
            // This router has just joined and does not know the members yet. It announces the leader again
            // once it knows them, and then the process answers again.
            Message::Tail(_) if self.gathering.is_none() && !self.knows_beginning() => {}
            Message::Tail(tail) => self.on_tail(cx, from, tail, out),
            // The router ignores messages of a process that did not follow into this generation, and messages
            // that a process sent before it answered. While the router collects deliveries, it ignores all
            // messages.
            _ if self.order.is_fenced(from) => self.send_departure_notice(from, out),
            _ if self.gathering.is_some() || self.member_poll.is_some() || self.asked.contains(&from) => {}
            Message::Route(_)
            | Message::Confirm { .. }
            | Message::Repair
            | Message::Inject { .. }
            | Message::InjectLatest { .. } => {
                self.member_sent(cx, from, HOPS_MAX, message, out);
            }
            // Only routers may relay for each other.
            Message::Up { .. } | Message::Down { .. } | Message::Reach { .. } if !self.is_router(from) => {
                self.refused += 1;
            }
            Message::Up { member, hops, message } => self.on_up(cx, member, hops, message, out),
            Message::Down { member, hops, message } => self.on_down(member, hops, message, out),
            Message::Reach { members } => self.on_reach(from, members, cx.now),
            // A message that reaches this router goes no further, because it has no way to the leader. So the
            // router gives no opinion, and neither protects a suspect nor agrees with the suspicion.
            Message::AskOpinion { .. } | Message::Alive { .. } if !self.paxos.reaches_leader(cx.now) => {}
            Message::AskOpinion { about, second_opinion } if self.may_ask(from) => {
                self.on_ask_opinion(from, about, second_opinion, out);
            }
            // This router itself asked, and has noted the sign of life.
            Message::Alive { asker, .. } if asker == cx.me => {}
            Message::Alive { asker, second_opinion } if self.may_ask(asker) => {
                let heard = Message::Opinion { about: from, second_opinion, opinion: Opinion::Heard };
                out.send(Destination::One(asker), heard, None);
            }
            Message::Opinion { about, second_opinion, opinion } if self.is_router(from) => {
                self.on_opinion(cx, from, about, (second_opinion, opinion), out);
            }
            // The sender has not joined. It announces the routers on all its links, also to routers, which
            // ignore the announcement.
            Message::Lead { .. } => {}
            Message::Notice(_)
            | Message::Deliver(_)
            | Message::InjectRefused { .. }
            | Message::Latest { .. }
            | Message::NotAdmitted(_)
            | Message::Gather { .. }
            | Message::Call
            | Message::Refound { .. }
            | Message::Counted { .. }
            | Message::Release
            | Message::AskOpinion { .. }
            | Message::Opinion { .. }
            | Message::Probe { .. }
            | Message::Alive { .. } => self.refused += 1,
        }
    }

    /// Collects a member's last deliveries. If they come too late, the member learns whether it departed.
    fn on_tail(&mut self, cx: &mut Context<'_>, from: ProcessId, tail: Tail, out: &mut dyn Sink<Self>) {
        match &mut self.gathering {
            _ if self.order.is_fenced(from) => self.send_departure_notice(from, out),
            Some(gathering) => {
                let known = R::is_member(self.order.config(), from);
                gathering.take(from, tail, known);
                self.finish_gathering(cx, out);
            }
            // The tail is too late, and this router may not know the member's deliveries beyond the cut. A
            // process without deliveries may join.
            None if tail.delivered > Position(0) && !R::is_member(self.order.config(), from) => {
                self.send_departure_notice(from, out);
            }
            None => out.send(Destination::One(from), Message::Notice(Notice::default()), None),
        }
    }

    /// Tells the asker whether there is a link to `about`. If so, asks `about` for a sign of life.
    fn on_ask_opinion(
        &self,
        asker: ProcessId,
        about: ProcessId,
        second_opinion: u64,
        out: &mut dyn Sink<Self>,
    ) {
        let linked = self.linked.contains(&about);
        if linked {
            out.send(Destination::One(about), Message::Probe { asker, second_opinion }, None);
        }
        let opinion = if linked { Opinion::Linked } else { Opinion::Unlinked };
        out.send(Destination::One(asker), Message::Opinion { about, second_opinion, opinion }, None);
    }

    fn is_router(&self, process: ProcessId) -> bool {
        self.paxos.members().iter().any(|router| router.id == process)
    }

    /// Whether `process` may ask which members this router hears.
    fn may_ask(&self, process: ProcessId) -> bool {
        R::is_member(self.order.config(), process) || self.is_router(process)
    }

    /// Returns the router that has the same node number as `from`, or a member with that number that is
    /// linked to this router. `from` is no member.
    fn node_holder(&self, from: ProcessId) -> Option<Peer> {
        let config = self.order.config();
        if R::is_member(config, from) {
            return None;
        }
        let router = self.paxos.members().iter().find(|router| router.id.node == from.node).cloned();
        router.or_else(|| R::of_node(config, from.node).filter(|member| self.linked.contains(&member.id)))
    }

    /// Handles a member's message. The member sent it to this router, or to another router that passed it on.
    pub(super) fn member_sent(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        hops: u8,
        message: Message,
        out: &mut dyn Sink<Self>,
    ) {
        if self.order.is_fenced(from) {
            return self.send_departure_notice(from, out);
        }
        let leads = self.paxos.is_leader();
        match message {
            // The router that has a link to the leader proposes the block.
            Message::Route(_) if !leads && self.paxos.detour().is_some() => {
                self.hand_up(from, hops, &message, out);
            }
            Message::Confirm { .. } | Message::Repair if !leads => {
                self.hand_up(from, hops, &message, out);
            }
            Message::Inject { .. } | Message::InjectLatest { .. }
                if !leads && self.hand_up(from, hops, &message, out) => {}
            Message::Route(bytes) => match LogEntry::decode(bytes.clone()) {
                Ok(LogEntry::Route(block)) if block.sender == from && block.is_sound() => {
                    if self.order.is_departed(from) {
                        return self.send_departure_notice(from, out);
                    }
                    if let Some(node_holder) = self.node_holder(from) {
                        return self.send_refusal(from, NotAdmitted::NodeInUse(node_holder), out);
                    }
                    let expected = self.order.expected(from);
                    if block.first < expected {
                        self.answer(from, block.first, block.last().min(expected - 1), out);
                    }
                    if block.last() >= expected {
                        self.propose(cx, bytes, out);
                    }
                }
                _ => self.refused += 1,
            },
            Message::Confirm { through, executed, durable } => {
                if let Some(dispatch) = &mut self.dispatch {
                    // A true confirmation cannot be ahead of the history. A forged one must not make the
                    // routers forget anything.
                    let last = self.order.last();
                    if through <= last && executed <= through && durable <= through {
                        dispatch.confirm(from, Watermarks { through, executed, durable });
                    } else {
                        self.refused += 1;
                    }
                }
            }
            Message::Repair => {
                if let Some(dispatch) = &mut self.dispatch {
                    dispatch.resend(from);
                }
            }
            Message::Inject { token, body } => {
                let injected = self
                    .dispatch
                    .as_mut()
                    .is_some_and(|dispatch| dispatch.inject(&self.order, from, token, &body));
                if !injected {
                    self.send_to_member(from, Message::InjectRefused { token }, out);
                }
            }
            Message::InjectLatest { token, body } => {
                if !self.inject_latest(from, token, &body) {
                    self.send_to_member(from, Message::InjectRefused { token }, out);
                }
            }
            _ => unreachable!("members send no other message"),
        }
    }

    fn answer(&mut self, sender: ProcessId, first: u64, last: u64, out: &mut dyn Sink<Self>) {
        if let Some(dispatch) = &mut self.dispatch {
            dispatch.answer(&self.order, sender, first, last);
            return;
        }
        let Some(known) = self.order.sender(sender) else { return };
        let mut notice = Notice::default();
        for number in first..=last {
            if let Some(outcome) = known.outcome(number) {
                notice.push(number, outcome);
            }
        }
        self.send_to_member(sender, Message::Notice(notice), out);
    }

    pub(super) fn propose(&mut self, cx: &mut Context<'_>, payload: Bytes, out: &mut dyn Sink<Self>) {
        self.proposed = true;
        self.drive(cx, Input::Command(paxos::Command::Propose { payload }), out);
    }

    /// Logs which positions became stable, when that is due, or at no extra cost together with other
    /// proposals.
    fn log_stability(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let Some(dispatch) = &mut self.dispatch else { return };
        if std::mem::take(&mut self.unlogged) {
            for entry in dispatch.unlogged() {
                self.propose(cx, entry, out);
            }
        }
        let Some(dispatch) = &mut self.dispatch else { return };
        if !dispatch.has_stable() {
            return;
        }
        let due = *self.stable_due.get_or_insert(cx.now + self.settings.stable_delay);
        if (self.proposed || due <= cx.now)
            && let Some(entry) = dispatch.stable_entry()
        {
            self.stable_due = None;
            self.propose(cx, entry, out);
        }
    }

    fn flush(&mut self, out: &mut dyn Sink<Self>) {
        self.report_reach(out);
        let Some(mut dispatch) = self.dispatch.take() else { return };
        dispatch.flush(&self.order, &mut |to, message| self.send_to_member(to, message, out));
        self.dispatch = Some(dispatch);
    }
}

impl<R: Routing> Protocol for Router<R> {
    type Message = Message;
    type Record = paxos::Record;
    type Command = RouterCommand;
    type Event = RouterEvent<R::Config>;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        if self.resumes {
            self.resume(cx, out);
        }
        match input {
            Input::Receive { from, message } => {
                self.monitor.heard(from, cx.now);
                self.receive(cx, from, message, out);
            }
            Input::Command(RouterCommand::Change { id, change }) => self.change(cx, id, change, out),
            Input::Command(RouterCommand::Pause { id }) => self.pause(cx, id, out),
            Input::Command(RouterCommand::Reform { id, patience }) => self.reform(cx, id, patience, out),
            Input::Command(RouterCommand::Refound { id, before, members, patience }) => {
                self.refound(cx, id, (before, members), patience, out);
            }
            Input::Command(RouterCommand::Seeds(seeds)) => {
                self.drive(cx, Input::Command(paxos::Command::Seeds(seeds)), out);
            }
            Input::Deadline => {
                self.drive(cx, Input::Deadline, out);
                self.update_talking_routers(cx.now);
                self.watch(cx, out);
                self.finish_gathering(cx, out);
                self.finish_refounding(cx, out);
                self.log_stability(cx, out);
            }
            Input::Persisted(ticket) => self.drive(cx, Input::Persisted(ticket), out),
            Input::Linked { peer, session } => {
                self.linked.insert(peer);
                self.monitor.linked(peer, cx.now);
                self.commands.linked(peer);
                self.detours.due = true;
                self.drive(cx, Input::Linked { peer, session }, out);
                if self.order.is_fenced(peer) && self.gathering.is_none() {
                    self.announce_leader(vec![peer], out);
                    self.linked.remove(&peer);
                    return;
                }
                if let Some(dispatch) = &mut self.dispatch {
                    dispatch.link(peer, true);
                }
                self.announce_leader(vec![peer], out);
                self.gather(vec![peer], out);
                self.call(peer, out);
            }
            Input::Unlinked { peer } => {
                self.linked.remove(&peer);
                self.monitor.unlinked(peer, cx.now);
                self.asked.remove(&peer);
                self.drive(cx, Input::Unlinked { peer }, out);
                self.detour_unlinked(peer, cx.now);
                let reached = self.reaches(peer);
                if let Some(dispatch) = &mut self.dispatch {
                    dispatch.link(peer, reached);
                }
            }
            // Nobody casts to routers.
            Input::Cast { .. } => self.refused += 1,
            Input::Progress { peer } => {
                self.monitor.heard(peer, cx.now);
                self.drive(cx, Input::Progress { peer }, out);
            }
            Input::Drained => {
                self.found(cx, out);
                self.log_stability(cx, out);
                self.ask_latest(cx, out);
                // Proposals are sent first, because most of their hops still lie ahead. Without proposals,
                // agreed messages go to the members before the other routers learn of the agreement: the
                // other routers wait for nothing, and each sending takes time.
                if !self.paxos.has_proposals() {
                    self.flush(out);
                }
                self.drive(cx, Input::Drained, out);
                self.proposed = false;
                self.flush(out);
                // Positions that become stable during `flush` are not logged at once: the log entry waits for
                // other traffic, or for its deadline.
                self.log_stability(cx, out);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        let gathered = self.gathering.as_ref().and_then(Gathering::until);
        let followed = self.member_poll.as_ref().map(MemberPoll::until);
        let watches = self.is_leader().then(|| self.monitor.deadline()).flatten();
        [self.paxos.deadline(), self.stable_due, gathered, followed, watches].into_iter().flatten().min()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        Arc::new(self.fence())
    }
}

fn command_of(change: Change) -> paxos::Command {
    match change {
        Change::Add(peer) => paxos::Command::AddRouter(peer),
        Change::Remove(router) => paxos::Command::RemoveRouter(router),
    }
}

#[cfg(test)]
mod tests;
