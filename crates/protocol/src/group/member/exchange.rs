//! The direct messages of members: soft messages, receipts, repairs, pieces of a state.

use super::{GroupMember, context::MemberContext};
use crate::{
    ecast::Position,
    group::{
        Direct, Event,
        feed::RequestReason,
        message::Holders,
        receipts::{SafeNews, Sum, Tick, WaitReason},
        stream::{Receipt, Soft},
    },
    id::ProcessId,
};

impl GroupMember {
    /// Handles a direct message of another member.
    pub(in crate::group) fn on_direct(
        &mut self,
        context: &mut MemberContext<'_>,
        from: ProcessId,
        view: Position,
        direct: Direct,
    ) {
        match direct {
            Direct::StateWanted { offset } => {
                let piece = self.feed.answer(view, offset, context.settings.piece_bytes);
                // If the host has not yet provided the state, there is no answer now, and the joiner asks
                // again.
                if let Some(piece) = piece.filter(|_| self.knows(from)) {
                    self.here.send_in_view(view, context, vec![from], piece);
                }
                return;
            }
            Direct::Word { body } => {
                // A host's bytes are independent of views, so they do not wait for an awaited state either.
                let group = self.here.group;
                context.effects.events.extend(self.knows(from).then_some(Event::Said { group, from, body }));
                return;
            }
            Direct::State { offset, total, piece } => {
                return self.on_state(context, from, view, (offset, total), &piece);
            }
            _ => {}
        }
        if view > self.here.view.number {
            return self.keep(context, from, view, direct);
        }
        if view < self.here.view.number || !self.is_member() {
            return;
        }
        if !self.knows(from) || self.here.view.entry(from).is_none() {
            context.effects.firewalled += 1;
            return;
        }
        match direct {
            Direct::Soft { sender, first, messages } => {
                self.on_soft(context, (sender, first), messages);
            }
            Direct::Receipts { of, counts, ordered, asks } => {
                if asks {
                    self.soft.receipts.asked_by(from, context.now + context.settings.interval * 2);
                }
                match (of, &ordered[..]) {
                    (Holders::Sender, &[ordered]) => {
                        self.on_receipts(context, from, &Receipt { counts, ordered })
                    }
                    (Holders::Sender, _) => context.effects.refused += 1,
                    (of, _) => self.on_round(context, from, of, Sum { counts, ordered }),
                }
            }
            Direct::Want { sender, from: number } => {
                self.soft.repeat(context, &self.here, from, sender, (number, u64::MAX));
            }
            Direct::Gap { sender, first, last } => {
                self.soft.repeat(context, &self.here, from, sender, (first, last));
            }
            Direct::StateWanted { .. } | Direct::State { .. } | Direct::Word { .. } => {
                unreachable!("taken above")
            }
        }
    }

    /// Keeps a soft message or a receipt of a later view until that view is installed here, if there is room
    /// for it.
    fn keep(&mut self, context: &mut MemberContext<'_>, from: ProcessId, view: Position, direct: Direct) {
        if !matches!(direct, Direct::Soft { .. } | Direct::Receipts { .. }) {
            // A request for messages or for a gap is dropped, because its sender repeats it.
            return;
        }
        if self.knows(from) {
            self.early.keep(from, view, direct, context.settings.window_bytes);
        }
    }

    fn on_soft(
        &mut self,
        context: &mut MemberContext<'_>,
        (sender, first): (ProcessId, u64),
        messages: Vec<Soft>,
    ) {
        // After its report, a member keeps no messages that came after a gap.
        let room = if self.change.has_reported() { 0 } else { context.settings.ahead_bytes };
        if !self.soft.take(context, self.here.me, (sender, first), messages, room) {
            context.effects.refused += 1;
            return;
        }
        self.deliver(context);
        self.repair(context);
    }

    fn on_receipts(&mut self, context: &mut MemberContext<'_>, from: ProcessId, receipt: &Receipt) {
        self.soft.on_receipt(context, &self.here, from, receipt);
        self.deliver(context);
    }

    /// Handles a receipt for several members that came through the tree: each of these members holds at least
    /// the sums.
    fn on_round(&mut self, context: &mut MemberContext<'_>, from: ProcessId, of: Holders, mut sum: Sum) {
        let tree = self.here.tree(context);
        let rank = self.here.view.ids().position(|id| id == from);
        let holders: Vec<ProcessId> = match (of, rank) {
            (Holders::Branch, Some(rank)) if tree.below().contains(&rank) => {
                self.here.ranked(tree.of(rank).branch())
            }
            (Holders::Everyone, Some(_)) => self.here.ranked(tree.of(0).branch()),
            _ => Vec::new(),
        };
        if holders.is_empty() || holders.len() != sum.ordered.len() {
            context.effects.refused += 1;
            return;
        }
        self.soft.on_sum(self.here.me, holders, &sum);
        if of == Holders::Everyone {
            sum.counts.retain(|sender, _| self.soft.streams.get(*sender).is_some());
            self.soft.receipts.pass_down(sum);
        } else {
            let awaited = self.ordered.first().map_or(SafeNews::Nothing, |first| self.awaited(first));
            self.soft.receipts.note_receipt_from_below(awaited);
        }
        self.deliver(context);
    }

    /// Requests gaps that were open for long enough, and the next piece of a state, if that request is due.
    pub(in crate::group) fn ask_for_due(&mut self, context: &mut MemberContext<'_>) {
        if self.soft.are_gaps_due(context) {
            self.ask_for_gaps(context);
        }
        if self.feed.is_due() {
            self.ask_state(context, RequestReason::Next);
        }
    }

    /// Requests the gaps of all streams.
    fn ask_for_gaps(&mut self, context: &mut MemberContext<'_>) {
        // During a change, `repair` requests the missing messages from the members that reported them.
        let others = if self.change.cut().is_some() { Vec::new() } else { self.others() };
        self.soft.ask_for_gaps(context, &self.here, &others);
    }

    /// Ends a batch of inputs: new messages and receipts leave now.
    pub(in crate::group) fn drained(&mut self, context: &mut MemberContext<'_>) {
        if !self.is_member() {
            return;
        }
        let others = self.others();
        self.soft.streams.free(&others);
        self.pump(context);
        self.submit(context);
        self.soft.send_own(context, &self.here, &others);
        self.soft.send_receipts(context, &self.here, &others, &self.ordered);
        if others.is_empty() {
            self.soft.streams.free(&others);
        }
    }

    /// Handles a tick: sends messages and requests again if they may be lost.
    pub(in crate::group) fn tick(&mut self, context: &mut MemberContext<'_>) {
        self.ask_state(context, RequestReason::Again);
        if !self.is_member() {
            return;
        }
        self.change.tick();
        let stands = self.ordered.tick();
        let waits = match self.ordered.len() > 0 {
            _ if !self.flushes.is_empty() => WaitReason::Flush,
            true if stands => WaitReason::Stuck,
            true => WaitReason::Moving,
            false => WaitReason::Nothing,
        };
        let tree = self.here.tree(context);
        let is_apart = tree
            .above()
            .is_some_and(|above| !context.linked.contains(&self.here.view.members[above].peer.id));
        if self.soft.tick(tree, waits, is_apart) == Tick::PushOn {
            let others = self.others();
            self.soft.push_on(context, &self.here, &others);
        }
        self.ask_for_gaps(context);
        self.repair(context);
        self.chase(context);
    }
}
