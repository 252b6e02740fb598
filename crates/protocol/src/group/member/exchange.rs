//! The direct messages of members: soft messages, receipts, repairs, pieces of a state.

use super::{GroupMember, scene::Scene};
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
                    self.here.say_in(view, scene, vec![from], piece);
                }
                return;
            }
            Direct::Word { body } => {
                // A host's bytes are independent of views, so they do not wait for an awaited state either.
                let group = self.here.group;
                scene.effects.events.extend(self.knows(from).then_some(Event::Said { group, from, body }));
                return;
            }
            Direct::State { offset, total, piece } => {
                return self.on_state(scene, from, view, (offset, total), &piece);
            }
            _ => {}
        }
        if view > self.here.view.number {
            return self.keep(scene, from, view, direct);
        }
        if view < self.here.view.number || !self.is_member() {
            return;
        }
        if !self.knows(from) || self.here.view.entry(from).is_none() {
            scene.effects.firewalled += 1;
            return;
        }
        match direct {
            Direct::Soft { sender, first, messages } => {
                self.on_soft(scene, (sender, first), messages);
            }
            Direct::Receipts { of, counts, ordered, asks } => {
                if asks {
                    self.soft.receipts.asked_by(from, scene.now + scene.settings.interval * 2);
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
                self.soft.repeat(scene, &self.here, from, sender, (number, u64::MAX));
            }
            Direct::Gap { sender, first, last } => {
                self.soft.repeat(scene, &self.here, from, sender, (first, last));
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
        if self.knows(from) {
            self.early.keep(from, view, direct, scene.settings.window_bytes);
        }
    }

    fn on_soft(&mut self, scene: &mut Scene<'_>, (sender, first): (ProcessId, u64), messages: Vec<Soft>) {
        // After its report, a member keeps no messages that came after a gap.
        let room = if self.change.has_reported() { 0 } else { scene.settings.ahead_bytes };
        if !self.soft.take(scene, self.here.me, (sender, first), messages, room) {
            scene.effects.refused += 1;
            return;
        }
        self.deliver(scene);
        self.repair(scene);
    }

    fn on_receipts(&mut self, scene: &mut Scene<'_>, from: ProcessId, receipt: &Receipt) {
        self.soft.on_receipt(scene, &self.here, from, receipt);
        self.deliver(scene);
    }

    /// Handles a receipt for several members that came through the tree: each of these members holds at least
    /// the sums.
    fn on_round(&mut self, scene: &mut Scene<'_>, from: ProcessId, of: Holders, mut sum: Sum) {
        let tree = self.here.tree(scene);
        let rank = self.here.view.ids().position(|id| id == from);
        let holders: Vec<ProcessId> = match (of, rank) {
            (Holders::Branch, Some(rank)) if tree.below().contains(&rank) => {
                self.here.ranked(tree.of(rank).branch())
            }
            (Holders::Everyone, Some(_)) => self.here.ranked(tree.of(0).branch()),
            _ => Vec::new(),
        };
        if holders.is_empty() || holders.len() != sum.ordered.len() {
            scene.effects.refused += 1;
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
        self.deliver(scene);
    }

    /// Requests gaps that were open for long enough, and the next piece of a state, if that request is due.
    pub(in crate::group) fn ask_for_due(&mut self, scene: &mut Scene<'_>) {
        if self.soft.are_gaps_due(scene) {
            self.ask_for_gaps(scene);
        }
        if self.feed.is_due() {
            self.ask_state(scene, RequestReason::Next);
        }
    }

    /// Requests the gaps of all streams.
    fn ask_for_gaps(&mut self, scene: &mut Scene<'_>) {
        // During a change, `repair` requests the missing messages from the members that reported them.
        let others = if self.change.cut().is_some() { Vec::new() } else { self.others() };
        self.soft.ask_for_gaps(scene, &self.here, &others);
    }

    /// Ends a batch of inputs: new messages and receipts leave now.
    pub(in crate::group) fn drained(&mut self, scene: &mut Scene<'_>) {
        if !self.is_member() {
            return;
        }
        let others = self.others();
        self.soft.streams.free(&others);
        self.pump(scene);
        self.submit(scene);
        self.soft.send_own(scene, &self.here, &others);
        self.soft.send_receipts(scene, &self.here, &others, &self.ordered);
        if others.is_empty() {
            self.soft.streams.free(&others);
        }
    }

    /// Handles a tick: sends messages and requests again if they may be lost.
    pub(in crate::group) fn tick(&mut self, scene: &mut Scene<'_>) {
        self.ask_state(scene, RequestReason::Again);
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
        let tree = self.here.tree(scene);
        let is_apart =
            tree.above().is_some_and(|above| !scene.linked.contains(&self.here.view.members[above].peer.id));
        if self.soft.tick(tree, waits, is_apart) == Tick::PushOn {
            let others = self.others();
            self.soft.push_on(scene, &self.here, &others);
        }
        self.ask_for_gaps(scene);
        self.repair(scene);
        self.chase(scene);
    }
}
