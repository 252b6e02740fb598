//! A member: one process in one group. It holds streams, delivers messages, and takes part in view changes.

mod change;
mod checkpoints;
mod context;
mod dissemination;
mod early;
mod exchange;
mod installed;
mod neighbours;
mod ordered;
mod progress;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

pub(super) use self::context::{Effects, MemberContext, Submission};
use self::{
    checkpoints::Checkpoints,
    dissemination::Dissemination,
    early::EarlyMessages,
    installed::InstalledView,
    neighbours::Neighbours,
    ordered::{OrderedQueue, WaitingMessage},
    progress::ChangeProgress,
};
use super::{
    CommandOutcome, Direct, Event, Failure, Group, GroupId, Mark, Offer, Pack, Phi, Place, SeatId,
    SendStrength, View,
    addresses::Meter,
    caller_commands::{CallerCommands, PendingSend},
    feed::Feed,
    receipts::SafeNews,
    routing::{Control, Header},
    updates::Updates,
};
use crate::{
    ecast::{Class, Position},
    id::ProcessId,
    seam::{CommandId, MulticastAddress},
    time::Time,
};

/// The decision about the next ordered message.
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
    joins: Joins,
    /// The group's state as of the last control message delivered here. `None` until this process waits for
    /// admission.
    group: Option<Group>,
    here: InstalledView,
    /// The members of the group's view, as of the order's last delivery here.
    places: BTreeSet<(ProcessId, SeatId)>,
    soft: Dissemination,
    ordered: OrderedQueue,
    change: ChangeProgress,
    flushes: Vec<(CommandId, BTreeMap<ProcessId, u64>, Position)>,
    checkpoints: Checkpoints,
    early: EarlyMessages,
    meter: Meter,
    caller_commands: CallerCommands,
    feed: Feed,
    neighbours: Neighbours,
    /// Whether something happened in this turn, so that the process has to call the member at the end of the
    /// turn.
    pub(super) stirred: bool,
    /// Whether work depends on time, so that the process has to call the member at each tick.
    pub(super) awake: bool,
}

impl GroupMember {
    /// Makes a member that is about to join.
    pub(super) fn new(id: GroupId, me: ProcessId, offer: Offer, joins: Joins, numbered: u64) -> Self {
        let caller_commands = CallerCommands::joining(joins.id, numbered);
        GroupMember {
            joins,
            group: None,
            here: InstalledView { group: id, me, view: View::default() },
            places: BTreeSet::new(),
            soft: Dissemination::default(),
            ordered: OrderedQueue::default(),
            change: ChangeProgress::default(),
            flushes: Vec::new(),
            checkpoints: Checkpoints::new(offer),
            early: EarlyMessages::default(),
            meter: Meter::default(),
            caller_commands,
            feed: Feed::default(),
            neighbours: Neighbours::default(),
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
        self.is_member().then_some(&self.here.view)
    }

    /// Returns the size of held soft messages, in bytes, and the number of ordered messages that wait.
    pub(super) fn held(&self) -> (usize, usize) {
        (self.soft.held_bytes(), self.ordered.len())
    }

    /// Returns the member's memory for the group, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.soft.memory() + self.early.bytes() + self.caller_commands.bytes() + self.feed.bytes()
    }

    /// Whether the passing of time has no effect here: nothing is held, awaited, or in progress.
    pub(super) fn is_at_rest(&self) -> bool {
        let still = self.flushes.is_empty()
            && self.caller_commands.is_settled()
            && self.caller_commands.first().is_none();
        let still = still && self.soft.receipts.are_sent() && !self.soft.lacks(&self.others());
        still && self.held() == (0, 0) && self.is_member() && !self.is_changing() && self.feed.is_live()
    }

    /// Whether a change of the view is in progress.
    pub(super) fn is_changing(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.change.is_some())
    }

    fn is_member(&self) -> bool {
        self.here.is_member()
    }

    /// Returns the processes to which links are needed from now on, with their addresses, and the processes
    /// to which links are no longer needed.
    pub(super) fn reach(&mut self) -> (Vec<(ProcessId, String)>, Vec<ProcessId>) {
        self.neighbours.update(self.here.me, self.group.as_ref())
    }

    /// Returns the largest number that the member has given to an ordered or safe send.
    pub(super) fn numbered(&self) -> u64 {
        self.caller_commands.numbered()
    }

    /// Ends the member. Returns the processes to which the process kept links for this member.
    pub(super) fn into_reached(self) -> BTreeSet<ProcessId> {
        self.neighbours.into_reached()
    }

    /// Returns the multicast address at which this process listens for the group's messages.
    pub(super) fn address(&self) -> Option<MulticastAddress> {
        self.soft.address()
    }

    /// Sets the group's address.
    pub(super) fn readdress(&mut self, now: Time, address: Option<MulticastAddress>) {
        self.soft.readdress(now, address);
    }

    /// Returns the group's rate over the last `seconds`, if it has to be reported to the routers.
    pub(super) fn rate(&mut self, seconds: f64) -> Option<u8> {
        let view = &self.here.view;
        let reports = view.rank(self.here.me) == Some(0);
        self.meter.read(seconds, reports.then_some(view.members.len()), self.address().is_some())
    }

    /// Returns the other members that are not suspected.
    fn others(&self) -> Vec<ProcessId> {
        let lives = |id: &ProcessId| {
            *id != self.here.me && self.group.as_ref().is_some_and(|group| !group.dropped.contains(id))
        };
        self.here.view.ids().filter(lives).collect()
    }

    /// Queues the caller's request to leave.
    pub(super) fn leave(&mut self, context: &mut MemberContext<'_>, id: CommandId) {
        if self.caller_commands.is_leaving() {
            return context.effects.done(id, Err(Failure::NotMember));
        }
        self.caller_commands.leave(id);
        self.pump(context);
    }

    /// Queues the caller's seats behind everything sent so far.
    pub(super) fn seats(&mut self, context: &mut MemberContext<'_>, seats: Vec<SeatId>) {
        self.caller_commands.seat(seats);
        self.pump(context);
    }

    /// Takes the caller's send.
    pub(super) fn send(
        &mut self,
        context: &mut MemberContext<'_>,
        id: CommandId,
        strength: SendStrength,
        pack: Pack,
    ) {
        // The message leaves together with other messages at the end of the turn.
        let result = if self.caller_commands.is_closed() {
            Err(Failure::NotMember)
        } else if !context.in_touch {
            Err(Failure::OutOfTouch)
        } else if pack.bytes().len() > context.settings.body_bytes_max {
            Err(Failure::Full(context.settings.body_bytes_max))
        } else {
            self.caller_commands.push(PendingSend { id, strength, pack }, context.settings.queue_bytes_max)
        };
        if let Err(failure) = result {
            context.effects.done(id, Err(failure));
        }
    }

    /// Starts a flush for the caller.
    pub(super) fn flush(&mut self, context: &mut MemberContext<'_>, id: CommandId) {
        if !self.may_send() {
            return context.effects.done(id, Err(Failure::NotMember));
        }
        if !context.in_touch {
            return context.effects.done(id, Err(Failure::OutOfTouch));
        }
        // Earlier sends leave before the flush begins.
        self.pump(context);
        self.flushes.push((id, self.soft.streams.delivered(), self.ordered.passed()));
        self.end_flushes(context);
        if !self.flushes.is_empty() && self.here.tree(context).is_large() {
            self.soft.receipts.ask();
        }
    }

    fn end_flushes(&mut self, context: &mut MemberContext<'_>) {
        let others = self.others();
        let GroupMember { flushes, soft: Dissemination { streams, .. }, .. } = self;
        flushes.retain(|(id, counts, ordered)| {
            let done = others.iter().all(|other| streams.holds(*other, counts, *ordered));
            if done {
                context.effects.done(*id, Ok(CommandOutcome::Flushed));
            }
            !done
        });
    }

    /// Queues the caller's request to save the state.
    pub(super) fn save(&mut self, context: &mut MemberContext<'_>, id: CommandId, last: bool) {
        if !self.may_send() || self.caller_commands.is_closed() {
            return context.effects.done(id, Err(Failure::NotMember));
        }
        if last {
            self.caller_commands.close(id);
        }
        // Earlier sends leave before the save is submitted.
        self.pump(context);
        if !last {
            self.submit_save(context, id, true);
        }
    }

    fn submit_save(&mut self, context: &mut MemberContext<'_>, id: CommandId, by_all: bool) {
        self.checkpoints.submit(id);
        context.effects.control(&Control::Save { group: self.here.group, by_all });
    }

    /// Whether this checkpoint, or a newer one, is known.
    pub(super) fn knows_checkpoint(&self, checkpoint: Mark) -> bool {
        self.checkpoints.newest().is_some_and(|newest| newest >= checkpoint)
    }

    /// Notes that a member has saved a checkpoint.
    pub(super) fn note_saved_checkpoint(&mut self, checkpoint: Mark) {
        self.checkpoints.kept(checkpoint);
    }

    /// Notes the checkpoint of a process that asked to join.
    pub(super) fn note_offered_checkpoint(&mut self, offer: Offer) {
        self.checkpoints.offered(offer);
    }

    /// Makes all members deliver this member's later soft messages only after the message at this position.
    /// If this process has passed only an earlier position in its present membership, that earlier position
    /// counts instead. Then `at` is of an earlier membership, and the other members delivered its message
    /// before the present view.
    pub(super) fn follow(&mut self, at: Position) {
        self.soft.follow(at.min(self.through()));
    }

    /// Sends the caller's bytes to another member, independently of views.
    pub(super) fn send_bytes(&mut self, context: &mut MemberContext<'_>, to: ProcessId, body: Bytes) {
        let here = &self.here;
        if here.view.entry(to).is_some() && to != here.me && body.len() <= context.settings.body_bytes_max {
            here.say(context, vec![to], Direct::Word { body });
        }
    }

    /// Stores the host's state as of a view.
    pub(super) fn checkpoint(&mut self, view: Position, state: Bytes) {
        self.feed.give(view, state);
    }

    /// Ends a send of this member after the order has reported that the send will not be delivered here.
    pub(super) fn failed(&mut self, context: &mut MemberContext<'_>, number: u64, failure: Failure) {
        // Later sends wait behind the failed send. A failure here means that the process is about to learn
        // that it was dropped.
        if let Some(id) = self.caller_commands.settle(number) {
            context.effects.done(id, Err(failure));
        }
    }

    /// Ends all commands, because this process was dropped.
    pub(super) fn wedge(&mut self, effects: &mut Effects) {
        for (id, ..) in self.flushes.drain(..) {
            effects.done(id, Err(Failure::Wedged));
        }
        for id in self.checkpoints.drain() {
            effects.done(id, Err(Failure::Wedged));
        }
        self.caller_commands.wedge(&mut effects.events);
    }

    /// Handles that this process is in touch with the order again, or is no longer in touch.
    pub(super) fn resume(&mut self, context: &mut MemberContext<'_>) {
        if !context.in_touch {
            // Queued sends fail now, because their callers would otherwise wait until the routers are
            // reachable again.
            self.caller_commands.fail_queued(&mut context.effects.events);
            for (id, ..) in self.flushes.drain(..) {
                context.effects.done(id, Err(Failure::OutOfTouch));
            }
        }
        self.deliver(context);
    }

    /// Queues an ordered message for delivery.
    pub(super) fn on_ordered(
        &mut self,
        context: &mut MemberContext<'_>,
        at: Position,
        sender: ProcessId,
        header: Header,
        body: Bytes,
    ) {
        if !self.is_member() {
            context.effects.refused += 1;
            return;
        }
        self.ordered.push(WaitingMessage { at, sender, header, body });
        self.deliver(context);
    }

    /// Returns the number of soft messages of the same sender that must be delivered before this ordered
    /// message; 0 if the ordered message was sent in an earlier view.
    fn behind(&self, waiting: &WaitingMessage) -> u64 {
        if waiting.header.view == self.here.view.number { waiting.header.behind } else { 0 }
    }

    /// Whether some of the soft messages that must be delivered before this message lie beyond the cut.
    fn lacks_predecessors(&self, waiting: &WaitingMessage) -> bool {
        self.change.end_of(waiting.sender).is_some_and(|end| self.behind(waiting) > end)
    }

    /// Confirms ordered messages whose soft predecessors are here.
    fn confirm(&mut self) {
        while let Some(waiting) = self.ordered.unconfirmed() {
            if self.soft.streams.received(waiting.sender) < self.behind(waiting)
                && !self.lacks_predecessors(waiting)
            {
                return;
            }
            let (at, awaited) = (waiting.at, self.awaited(waiting));
            self.ordered.confirm(at);
            self.soft.receipts.hurry(awaited);
            self.soft.receipts.owe();
        }
    }

    /// Returns the news for which an ordered message may wait: receipts of all members, of some members, or
    /// nothing.
    fn awaited(&self, waiting: &WaitingMessage) -> SafeNews {
        let members = self.here.view.members.len();
        match waiting.header.safe.map(|phi| phi.of(members)) {
            None | Some(..=1) => SafeNews::Nothing,
            Some(wanted) if wanted >= members => SafeNews::All,
            Some(_) => SafeNews::Some,
        }
    }

    fn fate(&self, waiting: &WaitingMessage) -> MessageFate {
        let delivered = self.soft.delivered(waiting.sender);
        let behind = self.behind(waiting);
        if waiting.header.view > self.here.view.number {
            // The view began after this message's place in the order, so the message's sender cannot have
            // been in that view.
            return MessageFate::Voided;
        }
        if self.lacks_predecessors(waiting) {
            let end = self.change.end_of(waiting.sender).unwrap_or(0);
            return match waiting.header.safe {
                None | Some(Phi::All) => MessageFate::Voided,
                // Members that died may already have delivered the message.
                Some(_) if delivered == end && self.change.installing => MessageFate::Delivered,
                Some(_) => MessageFate::Waits,
            };
        }
        if delivered < behind {
            return MessageFate::Waits;
        }
        match waiting.header.safe {
            Some(phi) if !self.change.installing && !self.is_safe(waiting.at, phi) => MessageFate::Waits,
            _ => MessageFate::Delivered,
        }
    }

    /// Whether φ members have every ordered message up to `at`.
    fn is_safe(&self, at: Position, phi: Phi) -> bool {
        let others = self.others();
        let confirmed =
            |id: &&ProcessId| self.soft.streams.receipt_of(**id).is_some_and(|receipt| receipt.ordered >= at);
        let own = usize::from(self.ordered.confirmed_through() >= at);
        let wanted = phi.of(self.here.view.members.len()).min(others.len() + 1);
        own + others.iter().filter(confirmed).count() >= wanted
    }

    /// Delivers all messages that may be delivered.
    fn deliver(&mut self, context: &mut MemberContext<'_>) {
        if !self.is_member() || !context.in_touch && !self.change.installing {
            return;
        }
        self.confirm();
        while self.deliver_ordered(context) | self.deliver_soft(context) {}
        self.end_flushes(context);
        self.pump(context);
    }

    fn deliver_ordered(&mut self, context: &mut MemberContext<'_>) -> bool {
        let mut moved = false;
        while let Some(waiting) = self.ordered.first() {
            let fate = self.fate(waiting);
            if matches!(fate, MessageFate::Waits) {
                break;
            }
            let waiting = self
                .ordered
                .pop()
                .expect("the queue is not empty, because its first entry was just looked at");
            self.soft.receipts.owe();
            moved = true;
            if matches!(fate, MessageFate::Delivered) {
                self.deliver_one(context, waiting);
            } else {
                assert_ne!(waiting.sender, self.here.me, "no message of a surviving sender is voided");
            }
        }
        moved
    }

    fn deliver_one(&mut self, context: &mut MemberContext<'_>, waiting: WaitingMessage) {
        let WaitingMessage { at, sender, header, body } = waiting;
        let delivered = self.soft.delivered(sender);
        if header.view == self.here.view.number && header.behind > delivered {
            self.change.add_missing(sender, header.behind - delivered);
        }
        let (updates, whole) = Updates::ordered(at, body);
        context.effects.refused += u64::from(!whole);
        if let Some(updates) = updates {
            self.emit(context, Event::Deliver { group: self.here.group, sender, updates });
        }
        if sender == self.here.me {
            self.soft.follow(at);
            let sent = self.caller_commands.settle(header.number);
            context.effects.events.extend(sent.map(|id| Event::Sent { id, first: Place::Ordered(at, 0) }));
        }
    }

    /// Returns the position up to which everything ordered was delivered, voided, or part of the member's
    /// first state.
    fn through(&self) -> Position {
        self.ordered.passed().max(self.here.view.number)
    }

    fn deliver_soft(&mut self, context: &mut MemberContext<'_>) -> bool {
        let (mut moved, through) = (false, self.through());
        let senders: Vec<ProcessId> = self.soft.streams.iter().map(|(id, _)| id).collect();
        for sender in senders {
            let limit = self.change.limit_of(sender);
            let mut next = || {
                self.soft
                    .streams
                    .get_mut(sender)
                    .expect("every listed sender has a stream")
                    .deliver(limit, through)
            };
            while let Some((first, pack)) = next() {
                moved = true;
                self.meter.count(1);
                let updates = Updates::new(Place::Soft(first), pack);
                let event = Event::Deliver { group: self.here.group, sender, updates };
                context.effects.events.extend(self.feed.pass(event));
            }
        }
        moved
    }

    /// Whether the member may send anything for its caller now.
    fn may_send(&self) -> bool {
        self.is_member() && self.feed.is_live()
    }

    /// Delivers this member's waiting soft sends, as far as they are allowed. Ordered and safe sends wait for
    /// the end of the turn.
    fn pump(&mut self, context: &mut MemberContext<'_>) {
        if !self.may_send() {
            return;
        }
        if !self.change.has_reported()
            && !self.is_changing()
            && context.in_touch
            && self.caller_commands.is_settled()
        {
            self.send_soft(context);
        }
        if let Some(id) = self.caller_commands.may_close() {
            self.submit_save(context, id, false);
        }
        if let Some(seats) = self.caller_commands.may_seat() {
            context.effects.control(&Control::Seats { group: self.here.group, seats });
        }
        if self.caller_commands.may_leave() {
            context.effects.control(&Control::Leave { group: self.here.group });
        }
    }

    /// Submits ordered and safe sends to the order, at the end of a turn.
    pub(super) fn submit(&mut self, context: &mut MemberContext<'_>) {
        if !self.may_send() {
            return;
        }
        let (group, me) = (self.here.group, self.here.me);
        let (view, behind) = (self.here.view.number, self.soft.own(me).received());
        while let Some((number, strength, pack)) = self.caller_commands.submit() {
            let safe = if let SendStrength::Safe(phi) = strength { Some(phi) } else { None };
            let header = Header { group, view, behind, number, safe };
            let (body, send) = (header.before(pack.bytes()), Some((group, number)));
            context.effects.submits.push(Submission { class: Class::Data, body, send });
        }
    }

    fn send_soft(&mut self, context: &mut MemberContext<'_>) {
        let GroupMember { caller_commands, soft, feed, meter, here, .. } = self;
        let (group, me) = (here.group, here.me);
        let next = || match caller_commands.first() {
            Some(first) if first.strength == SendStrength::Soft => caller_commands.pop(),
            _ => None,
        };
        soft.take_own(me, context.settings.window_bytes, next, |PendingSend { id, pack, .. }, first| {
            meter.count(1);
            let updates = Updates::new(Place::Soft(first), pack);
            let event = Event::Deliver { group, sender: me, updates };
            context.effects.events.extend(feed.pass(event));
            context.effects.events.push(Event::Sent { id, first: Place::Soft(first) });
        });
    }

    /// Passes an event to the host, or queues the event behind an awaited state.
    fn emit(&mut self, context: &mut MemberContext<'_>, event: Event) {
        context.effects.events.extend(self.feed.pass(event));
    }
}
