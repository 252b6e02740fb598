//! A member: one process in one group. It holds streams, delivers messages, and takes part in view changes.

mod change;
mod exchange;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::{
    Backlog, CommandOutcome, Direct, Event, Failure, Group, GroupId, Mark, Message, Offer, Pack, Phi, Place,
    Record, SeatId, SendStrength, Settings, Standing, SurvivorReport, View,
    addresses::Meter,
    feed::Feed,
    front::{Front, PendingSend},
    lanes::Lanes,
    receipts::{Receipts, SafeNews, Tree},
    routing::{Control, Header},
    stream::{Soft, Stream, Streams, TakeResult},
    updates::Updates,
};
use crate::{
    ecast::{Class, Position},
    id::{Peer, ProcessId},
    seam::{CommandId, Destination, MulticastAddress},
    time::{Duration, Time},
};

/// A message for the order.
pub(super) struct Submission {
    pub(super) class: Class,
    pub(super) body: Bytes,
    /// The send that awaits the message's outcome.
    pub(super) send: Option<(GroupId, u64)>,
}

/// The effects that members request of their process.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) events: Vec<Event>,
    pub(super) sends: Vec<(Destination, Message)>,
    pub(super) casts: Vec<(Destination, Message)>,
    /// Casts by multicast address, with the processes that should receive each.
    pub(super) multicasts: Vec<(MulticastAddress, Vec<ProcessId>, Message)>,
    pub(super) submits: Vec<Submission>,
    /// Survivors' reports and completed repairs. Reports of several groups go out as one message, and so do
    /// repairs.
    pub(super) reports: Vec<(GroupId, SurvivorReport)>,
    pub(super) repaired: Vec<(GroupId, Position)>,
    /// Number of refused messages, which no correct peer sends.
    pub(super) refused: u64,
    /// Number of messages from processes that were dropped.
    pub(super) firewalled: u64,
    /// Number of views that began here.
    pub(super) views: u64,
    /// Longest time that own soft messages of a member waited for a view.
    pub(super) longest_wait: Duration,
    /// Number of gaps in the streams of other members that were requested.
    pub(super) gaps: u64,
    /// Number of soft messages that were sent again.
    pub(super) resent: u64,
    /// Number of casts, counted once for each receiving process.
    pub(super) cast: u64,
    /// Number of casts by an address.
    pub(super) multicast: u64,
    /// Number of times that casts to a process were given up.
    pub(super) fallbacks: u64,
    /// Time at which members next check for due work.
    pub(super) wake_at: Option<Time>,
}

impl Effects {
    fn done(&mut self, id: CommandId, result: Result<CommandOutcome, Failure>) {
        self.events.push(Event::Done { id, result });
    }

    /// Makes members check for due work at this instant at the latest.
    fn wake(&mut self, at: Time) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }

    fn control(&mut self, control: &Control) {
        self.submits.push(Submission { class: Class::Control, body: control.encode(), send: None });
    }
}

/// The resources that a member borrows from its process for one call.
pub(super) struct Scene<'a> {
    pub(super) now: Time,
    pub(super) settings: &'a Settings,
    pub(super) linked: &'a BTreeSet<ProcessId>,
    /// Whether a reachable router knows a leader.
    pub(super) in_touch: bool,
    pub(super) effects: &'a mut Effects,
}

/// An ordered message that is not yet delivered here.
#[derive(Debug)]
struct WaitingMessage {
    at: Position,
    sender: ProcessId,
    header: Header,
    body: Bytes,
}

/// The fate of the next ordered message.
enum MessageFate {
    Waits,
    Voided,
    Delivered,
}

/// The message by which a member joins.
#[derive(Debug)]
pub(super) struct Joins {
    /// The command to join.
    pub(super) id: CommandId,
    /// The token of the message.
    pub(super) token: u64,
    /// The number that the order gave to the message, once its outcome is known.
    pub(super) number: Option<u64>,
}

/// A member of one group, or a process that is about to join.
pub(super) struct GroupMember {
    id: GroupId,
    me: ProcessId,
    joins: Joins,
    /// The group as of the last control message delivered, once this process waits for admission.
    group: Option<Group>,
    /// The installed view. Until this process is in a view, the installed view does not contain it.
    view: View,
    /// The members of the group's view, as of the order's last delivery here.
    places: BTreeSet<(ProcessId, SeatId)>,
    streams: Streams,
    ordered: VecDeque<WaitingMessage>,
    /// Number of confirmed messages at the beginning of `ordered`. A message is confirmed once all its soft
    /// predecessors are here.
    confirmed: usize,
    /// The position up to which everything ordered is confirmed.
    confirmed_through: Position,
    /// The position up to which everything ordered was delivered, or voided.
    passed: Position,
    /// The position after which other members deliver own soft messages: that of the last own ordered message
    /// that was delivered here, or a position that the host chose.
    soft_after: Position,
    /// The last number of each stream that may be delivered during a change: the reported number, or the cut.
    limit: Option<BTreeMap<ProcessId, u64>>,
    cut: Option<BTreeMap<ProcessId, u64>>,
    /// Whether this member has confirmed that it holds all of the cut.
    repaired: bool,
    /// Time since which own soft messages wait for the next view.
    changing_since: Option<Time>,
    /// Time since which this member waits for the survivors.
    waiting_since: Time,
    /// Whether the change in progress ends now, so that no message has to wait.
    installing: bool,
    /// The number of the last own soft update that was sent.
    sent: u64,
    receipts: Receipts,
    /// Number of lost soft predecessors of delivered safe messages, for each sender.
    missing: BTreeMap<ProcessId, u64>,
    flushes: Vec<(CommandId, BTreeMap<ProcessId, u64>, Position)>,
    /// The known checkpoints of the group.
    record: Option<Record>,
    /// The checkpoint that the host offered.
    offer: Offer,
    /// Commands to save whose messages are not yet delivered here.
    saves: VecDeque<CommandId>,
    /// This member's commands that wait until the state at the beginning of the next view is saved; `None` if
    /// no member requested a save.
    keeps: Option<Vec<CommandId>>,
    /// Messages of later views.
    early: Vec<(ProcessId, Position, Direct)>,
    early_bytes: usize,
    /// For each stream that was requested since the last tick, the first number of the request.
    asked: BTreeMap<ProcessId, u64>,
    /// Time at which gaps that are still open will be requested.
    gaps_at: Option<Time>,
    lanes: Lanes,
    /// The group's multicast address.
    address: Option<MulticastAddress>,
    /// Time at which this member learned the address.
    addressed: Time,
    meter: Meter,
    /// Value of `passed` at the last tick.
    passed_before: Position,
    /// For each other member, the number of own soft updates that it held at the last tick.
    held_before: BTreeMap<ProcessId, u64>,
    /// Number of requests for repair in this change.
    attempts: usize,
    front: Front,
    feed: Feed,
    /// The processes to which this process keeps links for the group. They were computed for the view, and
    /// the numbers of dropped and joining processes, in `reached_for`.
    reached: BTreeSet<ProcessId>,
    reached_for: Option<(Position, usize, usize)>,
    /// Whether the process has to call the member at the end of the turn.
    pub(super) stirred: bool,
    /// Whether the process has to call the member at each tick.
    pub(super) awake: bool,
}

impl GroupMember {
    /// Makes a member that is about to join.
    pub(super) fn new(id: GroupId, me: ProcessId, offer: Offer, joins: Joins, numbered: u64) -> Self {
        let front = Front::joining(joins.id, numbered);
        GroupMember {
            id,
            me,
            joins,
            group: None,
            view: View::default(),
            places: BTreeSet::new(),
            streams: Streams::default(),
            ordered: VecDeque::new(),
            confirmed: 0,
            confirmed_through: Position(0),
            passed: Position(0),
            soft_after: Position(0),
            limit: None,
            cut: None,
            repaired: false,
            changing_since: None,
            waiting_since: Time::ZERO,
            installing: false,
            sent: 0,
            receipts: Receipts::default(),
            missing: BTreeMap::new(),
            flushes: Vec::new(),
            record: None,
            offer,
            saves: VecDeque::new(),
            keeps: None,
            early: Vec::new(),
            early_bytes: 0,
            asked: BTreeMap::new(),
            gaps_at: None,
            lanes: Lanes::default(),
            address: None,
            addressed: Time::ZERO,
            meter: Meter::default(),
            passed_before: Position(0),
            held_before: BTreeMap::new(),
            attempts: 0,
            front,
            feed: Feed::default(),
            reached: BTreeSet::new(),
            reached_for: None,
            stirred: false,
            awake: false,
        }
    }

    /// Notes that the message with this token has this number in the order.
    pub(super) fn joins_by(&mut self, token: u64, number: u64) {
        if self.joins.token == token {
            self.joins.number = Some(number);
        }
    }

    /// Whether the message with this number is this member's own request to join. The token is known until
    /// the outcome is known.
    pub(super) fn joined_by(&self, token: Option<u64>, number: u64) -> bool {
        token == Some(self.joins.token) || self.joins.number == Some(number)
    }

    /// Returns the installed view, if this process is in it.
    pub(super) fn view(&self) -> Option<&View> {
        (self.is_member()).then_some(&self.view)
    }

    /// Returns the size of held soft messages, in bytes, and the number of ordered messages that wait.
    pub(super) fn held(&self) -> (usize, usize) {
        (self.streams.iter().map(|(_, stream)| stream.bytes).sum(), self.ordered.len())
    }

    /// Returns the member's memory for the group, in bytes.
    pub(super) fn memory(&self) -> usize {
        let streams = self.streams.iter().map(|(_, stream)| stream.memory()).sum::<usize>();
        streams + self.early_bytes + self.front.bytes() + self.feed.bytes()
    }

    /// Whether the passing of time has no effect here: nothing is held, awaited, or in progress.
    pub(super) fn is_at_rest(&self) -> bool {
        let still = self.flushes.is_empty() && self.front.is_settled() && self.front.first().is_none();
        let still = still && self.receipts.are_told() && !self.lacks();
        still && self.held() == (0, 0) && self.is_member() && !self.is_changing() && self.feed.is_live()
    }

    /// Whether a change of the view is in progress.
    pub(super) fn is_changing(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.change.is_some())
    }

    fn is_member(&self) -> bool {
        self.view.entry(self.me).is_some()
    }

    /// Returns the processes to which links are needed from now on, with their addresses, and the processes
    /// to which links are no longer needed.
    pub(super) fn reach(&mut self) -> (Vec<(ProcessId, String)>, Vec<ProcessId>) {
        let group = self.group.as_ref();
        let now = group.map(|group| (group.view.number, group.dropped.len(), group.joining.len()));
        if std::mem::replace(&mut self.reached_for, now) == now {
            return (Vec::new(), Vec::new());
        }
        let neighbours = self.neighbours();
        let reached = std::mem::replace(&mut self.reached, neighbours.keys().copied().collect());
        let gone = reached.difference(&self.reached).copied().collect();
        (neighbours.into_iter().filter(|(id, _)| !reached.contains(id)).collect(), gone)
    }

    /// Returns the largest number that the member has given to an ordered or safe send.
    pub(super) fn numbered(&self) -> u64 {
        self.front.numbered()
    }

    /// Ends the member. Returns the processes to which the process kept links for this member.
    pub(super) fn into_reached(self) -> BTreeSet<ProcessId> {
        self.reached
    }

    /// Returns the multicast address at which this process listens for the group's messages.
    pub(super) fn address(&self) -> Option<MulticastAddress> {
        self.address
    }

    /// Sets the group's address.
    pub(super) fn readdress(&mut self, now: Time, address: Option<MulticastAddress>) {
        if std::mem::replace(&mut self.address, address) != address {
            self.addressed = now;
            self.lanes.readdress();
        }
    }

    /// Returns the group's rate over the last `seconds`, if it has to be reported to the routers.
    pub(super) fn rate(&mut self, seconds: f64) -> Option<u8> {
        let tells = self.view.rank(self.me) == Some(0);
        self.meter.read(seconds, tells.then_some(self.view.members.len()), self.address.is_some())
    }

    /// Returns the other members of the view that are not dropped, and the joining processes, with their
    /// addresses.
    fn neighbours(&self) -> BTreeMap<ProcessId, String> {
        let Some(group) = &self.group else { return BTreeMap::new() };
        let members =
            group.view.members.iter().map(|entry| &entry.peer).filter(|it| !group.dropped.contains(&it.id));
        let peers = members.chain(&group.joining).filter(|peer| peer.id != self.me);
        peers.map(|peer| (peer.id, peer.address.clone())).collect()
    }

    /// Returns the other members that are not suspected.
    fn others(&self) -> Vec<ProcessId> {
        let lives = |id: &ProcessId| {
            *id != self.me && self.group.as_ref().is_some_and(|group| !group.dropped.contains(id))
        };
        self.view.ids().filter(lives).collect()
    }

    /// Queues the caller's request to leave.
    pub(super) fn leave(&mut self, scene: &mut Scene<'_>, id: CommandId) {
        if self.front.is_leaving() {
            return scene.effects.done(id, Err(Failure::NotMember));
        }
        self.front.leave(id);
        self.pump(scene);
    }

    /// Queues the caller's seats behind everything sent so far.
    pub(super) fn seats(&mut self, scene: &mut Scene<'_>, seats: Vec<SeatId>) {
        self.front.seat(seats);
        self.pump(scene);
    }

    /// Takes the caller's send.
    pub(super) fn send(&mut self, scene: &mut Scene<'_>, id: CommandId, strength: SendStrength, pack: Pack) {
        // The message leaves with others at the end of the turn.
        let result = if self.front.is_closed() {
            Err(Failure::NotMember)
        } else if !scene.in_touch {
            Err(Failure::OutOfTouch)
        } else if pack.bytes().len() > scene.settings.body_bytes_max {
            Err(Failure::Full(scene.settings.body_bytes_max))
        } else {
            self.front.push(PendingSend { id, strength, pack }, scene.settings.queue_bytes_max)
        };
        if let Err(failure) = result {
            scene.effects.done(id, Err(failure));
        }
    }

    /// Starts a flush for the caller.
    pub(super) fn flush(&mut self, scene: &mut Scene<'_>, id: CommandId) {
        if !self.may_send() {
            return scene.effects.done(id, Err(Failure::NotMember));
        }
        if !scene.in_touch {
            return scene.effects.done(id, Err(Failure::OutOfTouch));
        }
        // Earlier sends leave before the flush begins.
        self.pump(scene);
        self.flushes.push((id, self.streams.delivered(), self.passed));
        self.end_flushes(scene);
        if !self.flushes.is_empty() && self.tree(scene).is_large() {
            self.receipts.ask();
        }
    }

    fn end_flushes(&mut self, scene: &mut Scene<'_>) {
        let others = self.others();
        let GroupMember { flushes, streams, .. } = self;
        flushes.retain(|(id, counts, ordered)| {
            let done = others.iter().all(|other| streams.holds(*other, counts, *ordered));
            if done {
                scene.effects.done(*id, Ok(CommandOutcome::Flushed));
            }
            !done
        });
    }

    /// Queues the caller's request to save the state.
    pub(super) fn save(&mut self, scene: &mut Scene<'_>, id: CommandId, last: bool) {
        if !self.may_send() || self.front.is_closed() {
            return scene.effects.done(id, Err(Failure::NotMember));
        }
        if last {
            self.front.close(id);
        }
        // Earlier sends leave before the save is submitted.
        self.pump(scene);
        if !last {
            self.submit_save(scene, id, true);
        }
    }

    fn submit_save(&mut self, scene: &mut Scene<'_>, id: CommandId, by_all: bool) {
        self.saves.push_back(id);
        scene.effects.control(&Control::Save { group: self.id, by_all });
    }

    /// Whether this checkpoint, or a newer one, is known.
    pub(super) fn knows_checkpoint(&self, checkpoint: Mark) -> bool {
        self.record.is_some_and(|known| known.newest >= checkpoint)
    }

    /// Notes that a member has saved a checkpoint.
    pub(super) fn told_kept(&mut self, checkpoint: Mark) {
        self.record = Some(Record::kept(self.record, checkpoint));
    }

    /// Notes the checkpoint of a process that asked to join.
    pub(super) fn told_offer(&mut self, offer: Offer) {
        if let Some(checkpoint) = offer.checkpoint {
            self.record = Some(Record::brought(self.record, checkpoint));
        }
    }

    /// Makes own soft messages follow this position at all members. If the position was delivered in an
    /// earlier life of this member, the other members have delivered it before this view.
    pub(super) fn follow(&mut self, at: Position) {
        self.soft_after = self.soft_after.max(at.min(self.through()));
    }

    /// Sends the caller's bytes to another member, independently of views.
    pub(super) fn say_word(&mut self, scene: &mut Scene<'_>, to: ProcessId, body: Bytes) {
        if self.view.entry(to).is_some() && to != self.me && body.len() <= scene.settings.body_bytes_max {
            self.say(scene, vec![to], self.view.number, Direct::Word { body });
        }
    }

    /// Stores the host's state as of a view.
    pub(super) fn checkpoint(&mut self, view: Position, state: Bytes) {
        self.feed.give(view, state);
    }

    /// Ends an own send after the order has reported that it will not be delivered here.
    pub(super) fn failed(&mut self, scene: &mut Scene<'_>, number: u64, failure: Failure) {
        // Later sends wait behind the failed send. A failure here means that the process is about to learn
        // that it was dropped.
        if let Some(id) = self.front.settle(number) {
            scene.effects.done(id, Err(failure));
        }
    }

    /// Ends all commands, because this process was dropped.
    pub(super) fn wedge(&mut self, effects: &mut Effects) {
        for (id, ..) in self.flushes.drain(..) {
            effects.done(id, Err(Failure::Wedged));
        }
        for id in self.saves.drain(..).chain(self.keeps.take().into_iter().flatten()) {
            effects.done(id, Err(Failure::Wedged));
        }
        self.front.wedge(&mut effects.events);
    }

    /// Reacts when this process gets in touch, or out of touch, with the order.
    pub(super) fn resume(&mut self, scene: &mut Scene<'_>) {
        if !scene.in_touch {
            // Otherwise the caller would wait until the routers are reachable again.
            self.front.turn_back(&mut scene.effects.events);
            for (id, ..) in self.flushes.drain(..) {
                scene.effects.done(id, Err(Failure::OutOfTouch));
            }
        }
        self.deliver(scene);
    }

    /// Queues an ordered message for delivery.
    pub(super) fn on_ordered(
        &mut self,
        scene: &mut Scene<'_>,
        at: Position,
        sender: ProcessId,
        header: Header,
        body: Bytes,
    ) {
        if !self.is_member() {
            scene.effects.refused += 1;
            return;
        }
        self.ordered.push_back(WaitingMessage { at, sender, header, body });
        self.deliver(scene);
    }

    /// Returns the number of soft messages of the same sender that must be delivered before this ordered
    /// message; 0 if the ordered message was sent in an earlier view.
    fn behind(&self, waiting: &WaitingMessage) -> u64 {
        if waiting.header.view == self.view.number { waiting.header.behind } else { 0 }
    }

    /// Whether some of the message's soft predecessors are beyond the cut.
    fn is_bereft(&self, waiting: &WaitingMessage) -> bool {
        let end = self.cut.as_ref().and_then(|cut| cut.get(&waiting.sender));
        end.is_some_and(|end| self.behind(waiting) > *end)
    }

    /// Confirms ordered messages whose soft predecessors are here.
    fn confirm(&mut self) {
        while let Some(waiting) = self.ordered.get(self.confirmed) {
            if self.streams.received(waiting.sender) < self.behind(waiting) && !self.is_bereft(waiting) {
                return;
            }
            self.confirmed += 1;
            self.confirmed_through = waiting.at;
            self.receipts.hurry(self.awaited(waiting));
            self.receipts.owe();
        }
    }

    /// Returns the kind of receipts for which an ordered message may wait.
    fn awaited(&self, waiting: &WaitingMessage) -> SafeNews {
        let members = self.view.members.len();
        match waiting.header.safe.map(|phi| phi.of(members)) {
            None | Some(..=1) => SafeNews::Nothing,
            Some(wanted) if wanted >= members => SafeNews::All,
            Some(_) => SafeNews::Some,
        }
    }

    fn fate(&self, waiting: &WaitingMessage) -> MessageFate {
        let delivered = self.streams.get(waiting.sender).map_or(0, |stream| stream.delivered);
        let behind = self.behind(waiting);
        if waiting.header.view > self.view.number {
            // The view began after this message's place in the order, so the message's sender cannot have
            // been in that view.
            return MessageFate::Voided;
        }
        if self.is_bereft(waiting) {
            let end = self.cut.as_ref().and_then(|cut| cut.get(&waiting.sender)).copied().unwrap_or(0);
            return match waiting.header.safe {
                None | Some(Phi::All) => MessageFate::Voided,
                // Members that died may already have delivered the message.
                Some(_) if delivered == end && self.installing => MessageFate::Delivered,
                Some(_) => MessageFate::Waits,
            };
        }
        if delivered < behind {
            return MessageFate::Waits;
        }
        match waiting.header.safe {
            Some(phi) if !self.installing && !self.is_safe(waiting.at, phi) => MessageFate::Waits,
            _ => MessageFate::Delivered,
        }
    }

    /// Whether φ members have every ordered message up to `at`.
    fn is_safe(&self, at: Position, phi: Phi) -> bool {
        let others = self.others();
        let confirmed =
            |id: &&ProcessId| self.streams.receipt_of(**id).is_some_and(|receipt| receipt.ordered >= at);
        let own = usize::from(self.confirmed_through >= at);
        own + others.iter().filter(confirmed).count() >= phi.of(self.view.members.len()).min(others.len() + 1)
    }

    /// Delivers all messages that may be delivered.
    fn deliver(&mut self, scene: &mut Scene<'_>) {
        if !self.is_member() || !scene.in_touch && !self.installing {
            return;
        }
        self.confirm();
        while self.deliver_ordered(scene) | self.deliver_soft(scene) {}
        self.end_flushes(scene);
        self.pump(scene);
    }

    fn deliver_ordered(&mut self, scene: &mut Scene<'_>) -> bool {
        let mut moved = false;
        while let Some(waiting) = self.ordered.front() {
            let fate = self.fate(waiting);
            if matches!(fate, MessageFate::Waits) {
                break;
            }
            let waiting = self
                .ordered
                .pop_front()
                .expect("the queue is not empty, because its first entry was just looked at");
            self.confirmed = self.confirmed.saturating_sub(1);
            self.confirmed_through = self.confirmed_through.max(waiting.at);
            self.passed = waiting.at;
            self.receipts.owe();
            moved = true;
            if matches!(fate, MessageFate::Delivered) {
                self.deliver_one(scene, waiting);
            } else {
                assert_ne!(waiting.sender, self.me, "no message of a surviving sender is voided");
            }
        }
        moved
    }

    fn deliver_one(&mut self, scene: &mut Scene<'_>, waiting: WaitingMessage) {
        let WaitingMessage { at, sender, header, body } = waiting;
        let delivered = self.streams.get(sender).map_or(0, |stream| stream.delivered);
        if header.view == self.view.number && header.behind > delivered {
            self.missing.insert(sender, header.behind - delivered);
        }
        let (updates, whole) = Updates::ordered(at, body);
        scene.effects.refused += u64::from(!whole);
        if let Some(updates) = updates {
            self.tell(scene, Event::Deliver { group: self.id, sender, updates });
        }
        if sender == self.me {
            self.soft_after = self.soft_after.max(at);
            let sent = self.front.settle(header.number);
            scene.effects.events.extend(sent.map(|id| Event::Sent { id, first: Place::Ordered(at, 0) }));
        }
    }

    /// Returns the position up to which everything ordered was delivered, voided, or part of the member's
    /// first state.
    fn through(&self) -> Position {
        self.passed.max(self.view.number)
    }

    fn deliver_soft(&mut self, scene: &mut Scene<'_>) -> bool {
        let (mut moved, through) = (false, self.through());
        let senders: Vec<ProcessId> = self.streams.iter().map(|(id, _)| id).collect();
        for sender in senders {
            let limit =
                self.limit.as_ref().map_or(u64::MAX, |limit| limit.get(&sender).copied().unwrap_or(0));
            let mut next = || {
                self.streams
                    .get_mut(sender)
                    .expect("every listed sender has a stream")
                    .deliver(limit, through)
            };
            while let Some((first, pack)) = next() {
                moved = true;
                self.meter.count(1);
                let updates = Updates::new(Place::Soft(first), pack);
                let event = Event::Deliver { group: self.id, sender, updates };
                scene.effects.events.extend(self.feed.pass(event));
            }
        }
        moved
    }

    /// Whether sends of the caller may leave at all.
    fn may_send(&self) -> bool {
        self.is_member() && self.feed.is_live()
    }

    /// Delivers own soft sends that wait, as far as they are allowed. Ordered and safe sends wait for the end
    /// of the turn.
    fn pump(&mut self, scene: &mut Scene<'_>) {
        if !self.may_send() {
            return;
        }
        if self.limit.is_none() && !self.is_changing() && scene.in_touch && self.front.is_settled() {
            self.send_soft(scene);
        }
        if let Some(id) = self.front.may_close() {
            self.submit_save(scene, id, false);
        }
        if let Some(seats) = self.front.may_seat() {
            scene.effects.control(&Control::Seats { group: self.id, seats });
        }
        if self.front.may_leave() {
            scene.effects.control(&Control::Leave { group: self.id });
        }
    }

    /// Submits ordered and safe sends to the order, at the end of a turn.
    pub(super) fn submit(&mut self, scene: &mut Scene<'_>) {
        if !self.may_send() {
            return;
        }
        let (view, behind) = (self.view.number, self.own_stream().received());
        while let Some((number, strength, pack)) = self.front.submit() {
            let safe = if let SendStrength::Safe(phi) = strength { Some(phi) } else { None };
            let header = Header { group: self.id, view, behind, number, safe };
            let (body, send) = (header.before(pack.bytes()), Some((self.id, number)));
            scene.effects.submits.push(Submission { class: Class::Data, body, send });
        }
    }

    /// Returns the member's place in the tree of its view.
    fn tree(&self, scene: &Scene<'_>) -> Tree {
        let rank = self.view.ids().position(|id| id == self.me).unwrap_or(0);
        Tree { rank, members: self.view.members.len(), width: scene.settings.receipts_at_once }
    }

    fn own_stream(&self) -> &Stream {
        self.streams.get(self.me).expect("a member has a stream")
    }

    fn send_soft(&mut self, scene: &mut Scene<'_>) {
        let after = self.soft_after;
        let GroupMember { front, streams, me, feed, id: group, .. } = self;
        let stream = streams.get_mut(*me).expect("a member has a stream");
        assert_eq!(stream.delivered, stream.received(), "a soft message is delivered at its sender at once");
        while front.first().is_some_and(|first| first.strength == SendStrength::Soft)
            && stream.bytes < scene.settings.window_bytes
        {
            let PendingSend { id, pack, .. } =
                front.pop().expect("the queue is not empty, because its first entry was just looked at");
            let first = stream.received() + 1;
            let fit = stream.take(first, Soft { after, pack: pack.clone() }, 0);
            assert_eq!(fit, TakeResult::Next, "a process's own soft message is the next in its stream");
            stream.delivered = stream.received();
            self.meter.count(1);
            self.receipts.owe();
            let updates = Updates::new(Place::Soft(first), pack);
            let event = Event::Deliver { group: *group, sender: *me, updates };
            scene.effects.events.extend(feed.pass(event));
            scene.effects.events.push(Event::Sent { id, first: Place::Soft(first) });
        }
    }

    /// Passes an event to the host, or queues the event behind an awaited state.
    fn tell(&mut self, scene: &mut Scene<'_>, event: Event) {
        scene.effects.events.extend(self.feed.pass(event));
    }

    fn say(&self, scene: &mut Scene<'_>, to: Vec<ProcessId>, view: Position, direct: Direct) {
        if !to.is_empty() {
            let message = Message::Group { group: self.id, view, direct };
            scene.effects.sends.push((Destination::Many(to), message));
        }
    }
}
