//! The direct messages of members: soft messages, receipts, repairs, pieces of a state.

use super::{Destination, Direct, Event, GroupMember, Message, Position, Scene};
use crate::{
    group::{
        CAST_HEAD_BYTES,
        feed::RequestReason,
        lanes::{CastRoute, Lanes},
        message::Holders,
        receipts::{SafeNews, Sum, Tick, Tree, WaitReason},
        stream::{MessageRun, Receipt, Soft, Stream, TakeResult},
    },
    id::ProcessId,
};

/// Largest number of gaps of a stream that one request names.
const HOLES_MAX: usize = 16;

/// Returns the memory of a message of a later view, in bytes.
pub(super) fn early_bytes(direct: &Direct) -> usize {
    match direct {
        Direct::Soft { messages, .. } => messages.iter().map(Soft::bytes).sum(),
        Direct::Receipts { counts, ordered, .. } => 64 + counts.len() * 32 + ordered.len() * 8,
        _ => 0,
    }
}

impl GroupMember {
    /// Handles a direct message of another member.
    pub(in crate::group) fn on_direct(
        &mut self,
        scene: &mut Scene<'_>,
        from: ProcessId,
        view: Position,
        direct: Direct,
    ) {
        match direct {
            Direct::StateWanted { offset } => {
                let piece = self.feed.answer(view, offset, scene.settings.piece_bytes);
                // If the host has not yet provided the state, there is no answer now, and the joiner asks
                // again.
                if let Some(piece) = piece.filter(|_| self.knows(from)) {
                    self.say(scene, vec![from], view, piece);
                }
                return;
            }
            Direct::Word { body } => {
                // Such bytes are independent of views, so they do not wait for an awaited state either.
                let group = self.id;
                scene.effects.events.extend(self.knows(from).then_some(Event::Said { group, from, body }));
                return;
            }
            Direct::State { offset, total, piece } => {
                return self.on_state(scene, from, view, (offset, total), &piece);
            }
            _ => {}
        }
        if view > self.view.number {
            return self.keep(scene, from, view, direct);
        }
        if view < self.view.number || !self.is_member() {
            return;
        }
        if !self.knows(from) || self.view.entry(from).is_none() {
            scene.effects.firewalled += 1;
            return;
        }
        match direct {
            Direct::Soft { sender, first, messages } => {
                self.on_soft(scene, (sender, first), messages);
            }
            Direct::Receipts { of, counts, ordered, asks } => {
                if asks {
                    self.receipts.asked_by(from, scene.now + scene.settings.interval * 2);
                }
                match (of, &ordered[..]) {
                    (Holders::Sender, &[ordered]) => {
                        self.on_receipts(scene, from, &Receipt { counts, ordered })
                    }
                    (Holders::Sender, _) => scene.effects.refused += 1,
                    (of, _) => self.on_round(scene, from, of, Sum { counts, ordered }),
                }
            }
            Direct::Want { sender, from: number } => {
                self.repeat(scene, from, sender, (number, u64::MAX));
            }
            Direct::Gap { sender, first, last } => {
                self.repeat(scene, from, sender, (first, last));
            }
            Direct::StateWanted { .. } | Direct::State { .. } | Direct::Word { .. } => {
                unreachable!("taken above")
            }
        }
    }

    /// Keeps a message of a later view until that view is installed here.
    fn keep(&mut self, scene: &mut Scene<'_>, from: ProcessId, view: Position, direct: Direct) {
        if !matches!(direct, Direct::Soft { .. } | Direct::Receipts { .. }) {
            // The message does not fit, so it is dropped, and its sender has to send it again.
            return;
        }
        let bytes = early_bytes(&direct);
        if self.knows(from) && self.early_bytes + bytes <= scene.settings.window_bytes {
            self.early_bytes += bytes;
            self.early.push((from, view, direct));
        }
    }

    fn on_soft(&mut self, scene: &mut Scene<'_>, (sender, first): (ProcessId, u64), messages: Vec<Soft>) {
        // After its report, a member keeps no messages that came after a gap.
        let room = if self.limit.is_none() { scene.settings.ahead_bytes } else { 0 };
        // This process knows its own stream best, and only members have streams to repair.
        let Some(stream) = self.streams.get_mut(sender).filter(|_| sender != self.me) else {
            scene.effects.refused += 1;
            return;
        };
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
        self.note_gap(scene, sender);
        self.deliver(scene);
        self.repair(scene);
    }

    fn on_receipts(&mut self, scene: &mut Scene<'_>, from: ProcessId, receipt: &Receipt) {
        self.streams.receipt(from, &receipt.counts, receipt.ordered);
        let held = receipt.counts.get(&self.me).copied().unwrap_or(0);
        self.lanes.confirmed(from, held.min(self.sent));
        // The sender sent these messages before this receipt, but casts may be lost or late.
        if let (Some(sent), Some(stream)) = (receipt.counts.get(&from), self.streams.get_mut(from)) {
            stream.tell(*sent);
            self.note_gap(scene, from);
        }
        // Other members can repair messages that the sender's link cannot deliver: their receipts show that
        // they hold these messages.
        for (&sender, &count) in &receipt.counts {
            // Only members have streams, and a correct member sends no count for other processes.
            let Some(next) = self.streams.get(sender).map(|stream| stream.received() + 1) else { continue };
            let reached = sender == from || scene.linked.contains(&sender);
            if sender != self.me && !reached && count >= next && self.asked.insert(sender, next) != Some(next)
            {
                self.say(scene, vec![from], self.view.number, Direct::Want { sender, from: next });
            }
        }
        self.deliver(scene);
    }

    /// Handles a receipt for several members that came through the tree: each of these members holds at least
    /// the sums.
    fn on_round(&mut self, scene: &mut Scene<'_>, from: ProcessId, of: Holders, mut sum: Sum) {
        let tree = self.tree(scene);
        let rank = self.view.ids().position(|id| id == from);
        let holders: Vec<ProcessId> = match (of, rank) {
            (Holders::Branch, Some(rank)) if tree.below().contains(&rank) => {
                self.ranked(tree.of(rank).branch())
            }
            (Holders::Everyone, Some(_)) => self.ranked(tree.of(0).branch()),
            _ => Vec::new(),
        };
        if holders.is_empty() || holders.len() != sum.ordered.len() {
            scene.effects.refused += 1;
            return;
        }
        let Sum { counts, ordered } = &sum;
        let confirmed = counts.get(&self.me).copied().unwrap_or(0).min(self.sent);
        for (id, at) in holders.into_iter().zip(ordered).filter(|(id, _)| *id != self.me) {
            self.streams.receipt(id, counts, *at);
            self.lanes.confirmed(id, confirmed);
        }
        if of == Holders::Everyone {
            sum.counts.retain(|sender, _| self.streams.get(*sender).is_some());
            self.receipts.pass_down(sum);
        } else {
            let awaited = self.ordered.front().map_or(SafeNews::Nothing, |first| self.awaited(first));
            self.receipts.told_from_below(awaited);
        }
        self.deliver(scene);
    }

    /// Returns the members of these ranks.
    fn ranked(&self, ranks: impl Iterator<Item = usize>) -> Vec<ProcessId> {
        ranks.map(|rank| self.view.members[rank].peer.id).collect()
    }

    /// Notes that a stream may have a gap. The gap is requested only if it stays open for a while, because
    /// casts may overtake one another.
    fn note_gap(&mut self, scene: &mut Scene<'_>, sender: ProcessId) {
        let Some(stream) = self.streams.get(sender).filter(|stream| stream.lacks()) else { return };
        if self.gaps_at.is_none() && self.asked.get(&sender) != Some(&(stream.received() + 1)) {
            let at = scene.now + scene.settings.gap_patience;
            self.gaps_at = Some(at);
            scene.effects.wake(at);
        }
    }

    /// Whether other members have sent more messages than are held here.
    pub(super) fn lacks(&self) -> bool {
        self.others().into_iter().any(|id| self.streams.get(id).is_some_and(Stream::lacks))
    }

    /// Requests gaps that were open for long enough, and the next piece of a state, if that request is due.
    pub(in crate::group) fn ask_for_due(&mut self, scene: &mut Scene<'_>) {
        match self.gaps_at {
            Some(at) if at <= scene.now => self.ask_for_gaps(scene),
            Some(at) => scene.effects.wake(at),
            None => {}
        }
        if self.feed.is_due() {
            self.ask_state(scene, RequestReason::Next);
        }
    }

    /// Requests the gaps of all streams.
    fn ask_for_gaps(&mut self, scene: &mut Scene<'_>) {
        self.gaps_at = None;
        if self.cut.is_some() {
            // During a change, `repair` requests the missing messages from the members that reported them.
            return;
        }
        let (others, mut asks) = (self.others(), Vec::new());
        for &sender in &others {
            let Some(stream) = self.streams.get(sender).filter(|stream| stream.lacks()) else { continue };
            let next = stream.received() + 1;
            let holds = |id: &&ProcessId| {
                let told = self.streams.receipt_of(**id).and_then(|receipt| receipt.counts.get(&sender));
                scene.linked.contains(id) && (**id == sender || told.is_some_and(|count| *count >= next))
            };
            // Only the sender of a missing message holds it for certain.
            let holder = Some(&sender).filter(holds).or_else(|| others.iter().find(holds));
            if let Some(holder) = holder.filter(|_| self.asked.get(&sender) != Some(&next)) {
                asks.push((sender, next, *holder, stream.holes(HOLES_MAX)));
            }
        }
        for (sender, next, holder, holes) in asks {
            self.asked.insert(sender, next);
            scene.effects.gaps += 1;
            for (first, last) in holes {
                self.say(scene, vec![holder], self.view.number, Direct::Gap { sender, first, last });
            }
        }
    }

    /// Sends part of a stream again.
    fn repeat(&mut self, scene: &mut Scene<'_>, to: ProcessId, sender: ProcessId, (first, last): (u64, u64)) {
        let Some(stream) = self.streams.get(sender) else {
            scene.effects.refused += 1;
            return;
        };
        let Some(run) = stream.messages(first..=last, scene.settings.piece_bytes) else { return };
        let MessageRun { first, last, messages, .. } = run;
        if sender == self.me {
            scene.effects.fallbacks += u64::from(self.lanes.repaired(to, (first, last), scene.now));
        }
        scene.effects.resent += last - first + 1;
        self.say(scene, vec![to], self.view.number, Direct::Soft { sender, first, messages });
    }

    /// Ends a batch of inputs: new messages and receipts leave now.
    pub(in crate::group) fn drained(&mut self, scene: &mut Scene<'_>) {
        if !self.is_member() {
            return;
        }
        let others = self.others();
        self.streams.free(&others);
        self.pump(scene);
        self.submit(scene);
        self.send_own(scene, &others);
        self.tell_receipts(scene, &others);
        if others.is_empty() {
            self.streams.free(&others);
        }
    }

    /// Sends the new messages of the own stream: by the group's address to the members that it reaches, as
    /// separate casts in small pieces to the members that casts reach, and over links to all other members.
    fn send_own(&mut self, scene: &mut Scene<'_>, others: &[ProcessId]) {
        let (sender, view, now) = (self.me, self.view.number, scene.now);
        let window = scene.settings.cast_window_bytes;
        let room = scene.settings.cast_bytes.saturating_sub(CAST_HEAD_BYTES);
        // Other members may learn of the address, and begin to listen to it, a little later than this member.
        let known = now.since(self.addressed) >= scene.settings.interval * 2;
        let address = self.address.filter(|_| known);
        while self.sent < self.own_stream().received() {
            let first = self.sent + 1;
            let takes = |lanes: &Lanes, id: &ProcessId, way, bytes| {
                (way == CastRoute::Alone || address.is_some())
                    && scene.linked.contains(id)
                    && lanes.is_open(*id, way, now, bytes, window)
            };
            let (mut heard, mut casts, mut links) = (Vec::new(), Vec::new(), others.to_vec());
            let mut run = None;
            let passes = |id| {
                [CastRoute::Multicast, CastRoute::Alone].iter().any(|way| takes(&self.lanes, id, *way, 0))
            };
            if window > 0 && others.iter().any(passes) {
                run = self.own_stream().messages(first..=u64::MAX, room);
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
                run = self.own_stream().messages(first..=u64::MAX, scene.settings.piece_bytes);
            }
            // In a view without other members, messages are freed before they can be sent.
            let Some(MessageRun { first, last, messages, .. }) = run else { break };
            self.sent = last;
            let direct = Direct::Soft { sender, first, messages };
            if heard.is_empty() && casts.is_empty() {
                self.say(scene, links, view, direct);
                continue;
            }
            if !links.is_empty() {
                self.say(scene, links, view, direct.clone());
            }
            let message = Message::Group { group: self.id, view, direct };
            if !casts.is_empty() {
                scene.effects.cast += casts.len() as u64;
                scene.effects.casts.push((Destination::Many(casts), message.clone()));
            }
            if let Some(address) = address.filter(|_| !heard.is_empty()) {
                scene.effects.multicast += 1;
                scene.effects.multicasts.push((address, heard, message));
            }
        }
    }

    /// Sends receipts that are due.
    fn tell_receipts(&mut self, scene: &mut Scene<'_>, others: &[ProcessId]) {
        let tree = self.tree(scene);
        if tree.is_large() && self.own_stream().bytes >= scene.settings.window_bytes / 2 {
            self.receipts.ask_for_room();
        }
        if let Some((to, asks)) = self.receipts.settle(scene.now, others, tree) {
            let (of, counts, ordered) =
                (Holders::Sender, self.streams.counts(), vec![self.confirmed_through]);
            self.say(scene, to, self.view.number, Direct::Receipts { of, counts, ordered, asks });
        }
        if tree.is_large() {
            self.tell_round(scene, tree);
        }
    }

    /// Returns the receivers of the receipt that goes down: the members directly below and, at the root, also
    /// the members that asked, because no other member may reach them.
    fn told_down(&self, tree: Tree) -> Vec<ProcessId> {
        let mut to = self.ranked(tree.below());
        if tree.above().is_none() {
            let apart = self.receipts.askers().filter(|id| !to.contains(id));
            to.extend(apart.collect::<Vec<_>>());
        }
        to
    }

    /// Returns the receipt of the own branch, if it has to be sent now.
    fn branch_told(&mut self, tree: Tree) -> Option<Sum> {
        if !self.receipts.may_tell_branch() {
            return None;
        }
        let GroupMember { streams, receipts, confirmed_through, passed, .. } = self;
        let branch: Vec<ProcessId> = tree.branch().map(|rank| self.view.members[rank].peer.id).collect();
        // The first entry of the branch is this member.
        let others = &branch[1..];
        let held =
            others.iter().map(|id| streams.receipt_of(*id).map_or(Position(0), |receipt| receipt.ordered));
        let ordered = std::iter::once(*confirmed_through).chain(held).collect();
        let passed = tree.above().is_none().then_some(*passed);
        receipts.branch(ordered, passed, || streams.least(others.iter()))
    }

    /// Sends the receipt of the own branch up the tree, and the receipt of all members down.
    fn tell_round(&mut self, scene: &mut Scene<'_>, tree: Tree) {
        let told = self.branch_told(tree);
        let (up, down) = match tree.above() {
            None => (None, told),
            above => (told.zip(above), self.receipts.passed_down()),
        };
        let up = up.map(|(sum, above)| (Holders::Branch, self.ranked(above..above + 1), sum));
        let down = down.map(|sum| (Holders::Everyone, self.told_down(tree), sum));
        for (of, to, Sum { counts, ordered }) in up.into_iter().chain(down) {
            self.say(scene, to, self.view.number, Direct::Receipts { of, counts, ordered, asks: false });
        }
    }

    /// Handles a tick: sends messages and requests again that may be lost.
    pub(in crate::group) fn tick(&mut self, scene: &mut Scene<'_>) {
        self.ask_state(scene, RequestReason::Again);
        if !self.is_member() {
            return;
        }
        self.asked.clear();
        self.attempts += 1;
        let (held, waiting) = self.held();
        let stands = std::mem::replace(&mut self.passed_before, self.passed) == self.passed;
        let waits = match waiting > 0 {
            _ if !self.flushes.is_empty() => WaitReason::Flush,
            true if stands => WaitReason::Stuck,
            true => WaitReason::Moving,
            false => WaitReason::Nothing,
        };
        let tree = self.tree(scene);
        let is_apart =
            tree.above().is_some_and(|above| !scene.linked.contains(&self.view.members[above].peer.id));
        if self.receipts.tick(tree, (held, self.streams.freed()), waits, is_apart) == Tick::PushOn {
            self.push_on(scene);
        }
        self.ask_for_gaps(scene);
        self.repair(scene);
        self.chase(scene);
    }

    /// Sends members the messages of the own stream that they already lacked at the last tick.
    fn push_on(&mut self, scene: &mut Scene<'_>) {
        let all = self.streams.received(self.me);
        for other in self.others() {
            let receipt = self.streams.receipt_of(other);
            let held = receipt.and_then(|receipt| receipt.counts.get(&self.me)).copied().unwrap_or(0);
            if held < all && self.held_before.insert(other, held) == Some(held) {
                self.repeat(scene, other, self.me, (held + 1, u64::MAX));
            }
        }
    }
}
