//! The dissemination of a view's soft messages: the streams of all members, the receipts that say who holds
//! which part of them, and the ways to other members.

use std::collections::BTreeMap;

use super::{context::MemberContext, installed::InstalledView, ordered::OrderedQueue};
use crate::{
    ecast::Position,
    group::{
        CAST_HEAD_BYTES, Direct, Message, View,
        caller_commands::PendingSend,
        lanes::{CastRoute, Lanes},
        message::Holders,
        receipts::{Receipts, Sum, Tick, Tree, WaitReason},
        stream::{MessageRun, Receipt, Soft, Stream, Streams, TakeResult},
    },
    id::ProcessId,
    seam::{Destination, MulticastAddress},
    time::Time,
};

/// Largest number of gaps of a stream that a member requests at once.
const HOLES_MAX: usize = 16;

/// The soft messages of the installed view at a member, and everything by which they reach other members.
#[derive(Debug, Default)]
pub(super) struct Dissemination {
    pub(super) streams: Streams,
    pub(super) receipts: Receipts,
    lanes: Lanes,
    /// The number of this member's last soft update that was sent.
    sent: u64,
    /// The position after which other members deliver this member's soft messages: the position of its last
    /// ordered message that was delivered here, or a position that the host chose.
    after: Position,
    /// For each stream that was requested since the last tick, the first number of the request.
    asked: BTreeMap<ProcessId, u64>,
    /// Time at which gaps that are still open will be requested.
    gaps_at: Option<Time>,
    /// For each other member, the number of this member's soft updates that the other member held at the last
    /// tick.
    held_before: BTreeMap<ProcessId, u64>,
    /// The group's multicast address.
    address: Option<MulticastAddress>,
    /// Time at which this member learned the address.
    addressed: Time,
}

impl Dissemination {
    /// Begins a view. Its streams are empty.
    pub(super) fn begin(&mut self, view: &View) {
        self.streams = Streams::new(view.ids(), view.number);
        self.lanes.begin(|id| view.entry(id).is_some());
        self.receipts.begin();
        self.gaps_at = None;
        self.sent = 0;
        self.asked.clear();
        self.held_before.clear();
    }

    /// Returns the size of the held messages, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.streams.iter().map(|(_, stream)| stream.bytes).sum()
    }

    /// Returns the memory of all messages, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.streams.iter().map(|(_, stream)| stream.memory()).sum()
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

    /// Makes this member's later messages follow this position at all members.
    pub(super) fn follow(&mut self, at: Position) {
        self.after = self.after.max(at);
    }

    /// Returns the number of updates of a member that were delivered here.
    pub(super) fn delivered(&self, sender: ProcessId) -> u64 {
        self.streams.get(sender).map_or(0, |stream| stream.delivered)
    }

    /// Returns this member's stream.
    pub(super) fn own(&self, me: ProcessId) -> &Stream {
        self.streams.get(me).expect("a member has a stream")
    }

    /// Adds this member's messages from `next` to its stream, until the window is full. The messages are
    /// delivered here at once: `sent` gets each message, with the number of its first update.
    pub(super) fn take_own(
        &mut self,
        me: ProcessId,
        window_bytes: usize,
        mut next: impl FnMut() -> Option<PendingSend>,
        mut sent: impl FnMut(PendingSend, u64),
    ) {
        let stream = self.streams.get_mut(me).expect("a member has a stream");
        assert_eq!(stream.delivered, stream.received(), "a soft message is delivered at its sender at once");
        while stream.bytes < window_bytes
            && let Some(send) = next()
        {
            let first = stream.received() + 1;
            let fit = stream.take(first, Soft { after: self.after, pack: send.pack.clone() }, 0);
            assert_eq!(fit, TakeResult::Next, "a process's own soft message is the next in its stream");
            stream.delivered = stream.received();
            self.receipts.owe();
            sent(send, first);
        }
    }

    /// Takes another member's messages. At most `room` bytes of them may wait after a gap. Returns whether
    /// messages of that stream are accepted: the stream belongs to another member of the view.
    pub(super) fn take(
        &mut self,
        context: &mut MemberContext<'_>,
        me: ProcessId,
        (sender, first): (ProcessId, u64),
        messages: Vec<Soft>,
        room: usize,
    ) -> bool {
        // This process knows its own stream best, and only members have streams to repair.
        let Some(stream) = self.streams.get_mut(sender).filter(|_| sender != me) else { return false };
        let (mut news, mut next) = (false, first);
        for soft in messages {
            let first = next;
            next = next.saturating_add(soft.count());
            // Messages that are already here cause a new receipt, too, because their sender may not know that
            // they arrived.
            news |= stream.take(first, soft, room) != TakeResult::Gap;
        }
        if news {
            self.receipts.owe();
        }
        self.note_gap(context, sender);
        true
    }

    /// Handles another member's receipt of messages.
    pub(super) fn on_receipt(
        &mut self,
        context: &mut MemberContext<'_>,
        here: &InstalledView,
        from: ProcessId,
        receipt: &Receipt,
    ) {
        self.streams.receipt(from, &receipt.counts, receipt.ordered);
        let held = receipt.counts.get(&here.me).copied().unwrap_or(0);
        self.lanes.confirmed(from, held.min(self.sent));
        // The sender sent these messages before this receipt, but casts may be lost or late.
        if let (Some(sent), Some(stream)) = (receipt.counts.get(&from), self.streams.get_mut(from)) {
            stream.announce(*sent);
            self.note_gap(context, from);
        }
        // Other members can repair messages that the sender's link cannot deliver: their receipts show that
        // they hold these messages.
        for (&sender, &count) in &receipt.counts {
            // Only members have streams, and a correct member sends no count for other processes.
            let Some(next) = self.streams.get(sender).map(|stream| stream.received() + 1) else { continue };
            let reached = sender == from || context.linked.contains(&sender);
            if sender != here.me && !reached && count >= next && !self.has_asked(sender, next) {
                self.ask(context, here, from, (sender, next));
            }
        }
    }

    /// Handles a receipt for several members: each of these members holds at least the sums.
    pub(super) fn on_sum(&mut self, me: ProcessId, holders: Vec<ProcessId>, sum: &Sum) {
        let Sum { counts, ordered } = sum;
        let confirmed = counts.get(&me).copied().unwrap_or(0).min(self.sent);
        for (id, at) in holders.into_iter().zip(ordered).filter(|(id, _)| *id != me) {
            self.streams.receipt(id, counts, *at);
            self.lanes.confirmed(id, confirmed);
        }
    }

    /// Whether a stream was requested from this number on since the last tick.
    pub(super) fn has_asked(&self, sender: ProcessId, from: u64) -> bool {
        self.asked.get(&sender) == Some(&from)
    }

    /// Requests from `holder` the messages of a stream that begin at number `from`.
    pub(super) fn ask(
        &mut self,
        context: &mut MemberContext<'_>,
        here: &InstalledView,
        holder: ProcessId,
        (sender, from): (ProcessId, u64),
    ) {
        self.asked.insert(sender, from);
        here.say(context, vec![holder], Direct::Want { sender, from });
    }

    /// Forgets which streams were requested, so that requests may be repeated at once.
    pub(super) fn ask_again(&mut self) {
        self.asked.clear();
    }

    /// Notes that a stream may have a gap. The gap is requested only if it stays open for a while, because
    /// casts may overtake one another.
    fn note_gap(&mut self, context: &mut MemberContext<'_>, sender: ProcessId) {
        let Some(stream) = self.streams.get(sender).filter(|stream| stream.lacks()) else { return };
        if self.gaps_at.is_none() && !self.has_asked(sender, stream.received() + 1) {
            let at = context.now + context.settings.gap_patience;
            self.gaps_at = Some(at);
            context.effects.wake(at);
        }
    }

    /// Whether other members have sent messages that are missing here.
    pub(super) fn lacks(&self, others: &[ProcessId]) -> bool {
        others.iter().any(|id| self.streams.get(*id).is_some_and(Stream::lacks))
    }

    /// Whether gaps have been open for long enough to be requested. If not, makes the process call the
    /// members again once the gaps will have been open for long enough.
    pub(super) fn are_gaps_due(&self, context: &mut MemberContext<'_>) -> bool {
        match self.gaps_at {
            Some(at) if at <= context.now => true,
            Some(at) => {
                context.effects.wake(at);
                false
            }
            None => false,
        }
    }

    /// Requests the gaps in the streams of these members.
    pub(super) fn ask_for_gaps(
        &mut self,
        context: &mut MemberContext<'_>,
        here: &InstalledView,
        others: &[ProcessId],
    ) {
        self.gaps_at = None;
        for &sender in others {
            let Some(stream) = self.streams.get(sender).filter(|stream| stream.lacks()) else { continue };
            let next = stream.received() + 1;
            let holds = |id: &&ProcessId| {
                let received = self.streams.receipt_of(**id).and_then(|receipt| receipt.counts.get(&sender));
                context.linked.contains(id)
                    && (**id == sender || received.is_some_and(|count| *count >= next))
            };
            // Only the sender of a missing message holds it for certain.
            let holder = Some(&sender).filter(holds).or_else(|| others.iter().find(holds));
            let Some(&holder) = holder.filter(|_| !self.has_asked(sender, next)) else { continue };
            let holes = stream.holes(HOLES_MAX);
            self.asked.insert(sender, next);
            context.effects.gaps += 1;
            for (first, last) in holes {
                here.say(context, vec![holder], Direct::Gap { sender, first, last });
            }
        }
    }

    /// Sends part of a stream again.
    pub(super) fn repeat(
        &mut self,
        context: &mut MemberContext<'_>,
        here: &InstalledView,
        to: ProcessId,
        sender: ProcessId,
        (first, last): (u64, u64),
    ) {
        let Some(stream) = self.streams.get(sender) else {
            context.effects.refused += 1;
            return;
        };
        let Some(run) = stream.messages(first..=last, context.settings.piece_bytes) else { return };
        let MessageRun { first, last, messages, .. } = run;
        if sender == here.me {
            context.effects.fallbacks += u64::from(self.lanes.repaired(to, (first, last), context.now));
        }
        context.effects.resent += last - first + 1;
        here.say(context, vec![to], Direct::Soft { sender, first, messages });
    }

    /// Sends the new messages of this member's stream. They go by the group's address to the members that
    /// multicast reaches, and as separate casts in small pieces to the members that only such casts reach.
    /// To all other members they go over links.
    pub(super) fn send_own(
        &mut self,
        context: &mut MemberContext<'_>,
        here: &InstalledView,
        others: &[ProcessId],
    ) {
        let (sender, now) = (here.me, context.now);
        let window = context.settings.cast_window_bytes;
        let room = context.settings.cast_bytes.saturating_sub(CAST_HEAD_BYTES);
        // Other members may learn of the address, and begin to listen to it, a little later than this member.
        let known = now.since(self.addressed) >= context.settings.interval * 2;
        let address = self.address.filter(|_| known);
        while self.sent < self.own(sender).received() {
            let first = self.sent + 1;
            let takes = |lanes: &Lanes, id: &ProcessId, way, bytes| {
                (way == CastRoute::Alone || address.is_some())
                    && context.linked.contains(id)
                    && lanes.is_open(*id, way, now, bytes, window)
            };
            let (mut heard, mut casts, mut links) = (Vec::new(), Vec::new(), others.to_vec());
            let mut run = None;
            let passes = |id| {
                [CastRoute::Multicast, CastRoute::Alone].iter().any(|way| takes(&self.lanes, id, *way, 0))
            };
            if window > 0 && others.iter().any(passes) {
                run = self.own(sender).messages(first..=u64::MAX, room);
            }
            if let Some(MessageRun { last, bytes, .. }) = run
                && bytes <= room
            {
                (heard, links) =
                    others.iter().partition(|id| takes(&self.lanes, id, CastRoute::Multicast, bytes));
                if heard.len() < 2 {
                    // For only one member, a separate copy costs no more than a multicast.
                    (heard, links) = (Vec::new(), others.to_vec());
                }
                (casts, links) =
                    links.into_iter().partition(|id| takes(&self.lanes, id, CastRoute::Alone, bytes));
                for (way, ids) in [(CastRoute::Multicast, &heard), (CastRoute::Alone, &casts)] {
                    ids.iter().for_each(|id| self.lanes.cast(*id, way, last, bytes));
                }
            }
            if heard.is_empty() && casts.is_empty() {
                run = self.own(sender).messages(first..=u64::MAX, context.settings.piece_bytes);
            }
            // In a view without other members, messages are freed before they can be sent.
            let Some(MessageRun { first, last, messages, .. }) = run else { break };
            self.sent = last;
            let direct = Direct::Soft { sender, first, messages };
            if heard.is_empty() && casts.is_empty() {
                here.say(context, links, direct);
                continue;
            }
            if !links.is_empty() {
                here.say(context, links, direct.clone());
            }
            let message = Message::Group { group: here.group, view: here.view.number, direct };
            if !casts.is_empty() {
                context.effects.cast += casts.len() as u64;
                context.effects.casts.push((Destination::Many(casts), message.clone()));
            }
            if let Some(address) = address.filter(|_| !heard.is_empty()) {
                context.effects.multicast += 1;
                context.effects.multicasts.push((address, heard, message));
            }
        }
    }

    /// Sends receipts that are due.
    pub(super) fn send_receipts(
        &mut self,
        context: &mut MemberContext<'_>,
        here: &InstalledView,
        others: &[ProcessId],
        queue: &OrderedQueue,
    ) {
        let tree = here.tree(context);
        if tree.is_large() && self.own(here.me).bytes >= context.settings.window_bytes / 2 {
            self.receipts.ask_for_room();
        }
        if let Some((to, asks)) = self.receipts.settle(context.now, others, tree) {
            let (of, counts, ordered) =
                (Holders::Sender, self.streams.counts(), vec![queue.confirmed_through()]);
            here.say(context, to, Direct::Receipts { of, asks, ordered, counts });
        }
        if tree.is_large() {
            self.send_branch_receipts(context, here, tree, queue);
        }
    }

    /// Returns the receivers of the receipt that goes down: the members directly below and, at the root, also
    /// the members that asked, because perhaps no other member reaches them.
    fn receivers_below(&self, here: &InstalledView, tree: Tree) -> Vec<ProcessId> {
        let mut to = here.ranked(tree.below());
        if tree.above().is_none() {
            let apart = self.receipts.askers().filter(|id| !to.contains(id));
            to.extend(apart.collect::<Vec<_>>());
        }
        to
    }

    /// Returns the receipt of this member's branch, if it has to be sent now.
    fn take_branch_receipt(&mut self, here: &InstalledView, tree: Tree, queue: &OrderedQueue) -> Option<Sum> {
        if !self.receipts.may_send_branch() {
            return None;
        }
        let Dissemination { streams, receipts, .. } = self;
        let branch = here.ranked(tree.branch());
        // The first entry of the branch is this member.
        let others = &branch[1..];
        let held =
            others.iter().map(|id| streams.receipt_of(*id).map_or(Position(0), |receipt| receipt.ordered));
        let ordered = std::iter::once(queue.confirmed_through()).chain(held).collect();
        let passed = tree.above().is_none().then_some(queue.passed());
        receipts.branch(ordered, passed, || streams.least(others.iter()))
    }

    /// Sends the receipt of this member's branch up the tree, and the receipt of all members down the tree.
    fn send_branch_receipts(
        &mut self,
        context: &mut MemberContext<'_>,
        here: &InstalledView,
        tree: Tree,
        queue: &OrderedQueue,
    ) {
        let branch = self.take_branch_receipt(here, tree, queue);
        let (up, down) = match tree.above() {
            None => (None, branch),
            above => (branch.zip(above), self.receipts.passed_down()),
        };
        let up = up.map(|(sum, above)| (Holders::Branch, here.ranked(above..above + 1), sum));
        let down = down.map(|sum| (Holders::Everyone, self.receivers_below(here, tree), sum));
        for (of, to, Sum { counts, ordered }) in up.into_iter().chain(down) {
            here.say(context, to, Direct::Receipts { of, asks: false, ordered, counts });
        }
    }

    /// Handles a tick, after which requests are repeated. `waits` is the reason to wait for other members.
    /// `is_apart` says whether the link to the member above is missing.
    pub(super) fn tick(&mut self, tree: Tree, waits: WaitReason, is_apart: bool) -> Tick {
        self.asked.clear();
        self.receipts.tick(tree, (self.held_bytes(), self.streams.freed()), waits, is_apart)
    }

    /// Sends the messages of this member's stream again to each of these members that lacks some of them and
    /// has confirmed none since the last call.
    pub(super) fn push_on(
        &mut self,
        context: &mut MemberContext<'_>,
        here: &InstalledView,
        others: &[ProcessId],
    ) {
        let (me, all) = (here.me, self.streams.received(here.me));
        for &other in others {
            let receipt = self.streams.receipt_of(other);
            let held = receipt.and_then(|receipt| receipt.counts.get(&me)).copied().unwrap_or(0);
            if held < all && self.held_before.insert(other, held) == Some(held) {
                self.repeat(context, here, other, me, (held + 1, u64::MAX));
            }
        }
    }
}
