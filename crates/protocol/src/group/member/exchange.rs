//! What members say to each other directly: soft messages, receipts, repairs, pieces of a state.

use super::{Direct, Event, Member, Position, Scene};
use crate::{
    group::{
        receipts::Tick,
        stream::{Fit, Receipt, Soft},
    },
    id::ProcessId,
};

impl Member {
    /// Another member says something.
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
                // Where the host has not handed it over, the joiner asks again.
                if let Some(piece) = piece.filter(|_| self.knows(from)) {
                    self.say(scene, vec![from], view, piece);
                }
                return;
            }
            Direct::Word { body } => {
                // Past the views, so past the state that is awaited as well.
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
                self.on_soft(scene, from, (sender, first), messages);
            }
            Direct::Receipts { counts, ordered, asks } => {
                if asks {
                    self.receipts.asked_by(from, scene.now + scene.settings.interval * 2);
                }
                self.on_receipts(scene, from, &Receipt { counts, ordered });
            }
            Direct::Want { sender, from: number } => {
                self.repeat(scene, from, sender, number);
            }
            Direct::StateWanted { .. } | Direct::State { .. } | Direct::Word { .. } => {
                unreachable!("taken above")
            }
        }
    }

    /// Keeps a message of a later view until that is installed here.
    fn keep(&mut self, scene: &mut Scene<'_>, from: ProcessId, view: Position, direct: Direct) {
        let bytes = match &direct {
            Direct::Soft { messages, .. } => messages.iter().map(Soft::bytes).sum(),
            Direct::Receipts { counts, .. } => 64 + counts.len() * 32,
            // It is asked for again.
            _ => return,
        };
        if self.knows(from) && self.early_bytes + bytes <= scene.settings.window_bytes {
            self.early_bytes += bytes;
            self.early.push((from, view, direct));
        }
    }

    fn on_soft(
        &mut self,
        scene: &mut Scene<'_>,
        from: ProcessId,
        (sender, first): (ProcessId, u64),
        messages: Vec<Soft>,
    ) {
        // This process knows best what it sent, and repairs of a stream come from members only.
        let Some(stream) = self.streams.get_mut(sender).filter(|_| sender != self.me) else {
            scene.effects.refused += 1;
            return;
        };
        let (mut gap, mut news) = (false, false);
        for (place, soft) in (0u64..).zip(messages) {
            match stream.take(first.saturating_add(place), soft) {
                Fit::Next => news = true,
                // Its sender may not know that it is here.
                Fit::Known => news = true,
                Fit::Gap => {
                    gap = true;
                    break;
                }
            }
        }
        let next = stream.received() + 1;
        if news {
            self.receipts.owe();
        }
        if gap && self.asked.insert(sender, next) != Some(next) {
            scene.effects.gaps += 1;
            self.say(scene, vec![from], self.view.number, Direct::Want { sender, from: next });
        }
        self.deliver(scene);
        self.repair(scene);
    }

    fn on_receipts(&mut self, scene: &mut Scene<'_>, from: ProcessId, receipt: &Receipt) {
        self.streams.receipt(from, receipt);
        // What its sender cannot bring here, others can: they show that they hold it.
        for (&sender, &count) in &receipt.counts {
            let next = self.streams.received(sender) + 1;
            let reached = sender == from || scene.linked.contains(&sender);
            if sender != self.me && !reached && count >= next && self.asked.insert(sender, next) != Some(next)
            {
                self.say(scene, vec![from], self.view.number, Direct::Want { sender, from: next });
            }
        }
        self.deliver(scene);
    }

    /// Sends part of a stream once more.
    fn repeat(&self, scene: &mut Scene<'_>, to: ProcessId, sender: ProcessId, first: u64) {
        let Some(stream) = self.streams.get(sender) else {
            scene.effects.refused += 1;
            return;
        };
        let messages = stream.from(first, scene.settings.piece_bytes);
        if !messages.is_empty() {
            scene.effects.resent += messages.len() as u64;
            self.say(scene, vec![to], self.view.number, Direct::Soft { sender, first, messages });
        }
    }

    /// The end of a batch: what is new leaves.
    pub(in crate::group) fn drained(&mut self, scene: &mut Scene<'_>) {
        if !self.is_member() {
            return;
        }
        let (others, view) = (self.others(), self.view.number);
        self.streams.free(&others);
        self.pump(scene);
        self.pack(scene);
        let own = self.streams.get(self.me).expect("a member has a stream");
        while self.sent < own.received() {
            let (sender, first) = (self.me, self.sent + 1);
            let messages = own.from(first, scene.settings.piece_bytes);
            if messages.is_empty() {
                break;
            }
            self.sent += messages.len() as u64;
            self.say(scene, others.clone(), view, Direct::Soft { sender, first, messages });
        }
        self.tell_receipts(scene, &others);
        if others.is_empty() {
            self.streams.free(&others);
        }
    }

    /// Tells what is held here to whom it is due.
    fn tell_receipts(&mut self, scene: &mut Scene<'_>, others: &[ProcessId]) {
        let size = self.size(scene);
        if size.is_large() && self.own_stream().bytes >= scene.settings.window_bytes / 2 {
            self.receipts.ask_for_room();
        }
        let Some((to, asks)) = self.receipts.settle(scene.now, others, size) else { return };
        let (counts, ordered) = (self.streams.counts(), self.confirmed_through);
        self.say(scene, to, self.view.number, Direct::Receipts { counts, ordered, asks });
    }

    /// Time has passed: what got lost is said again.
    pub(in crate::group) fn tick(&mut self, scene: &mut Scene<'_>) {
        self.ask_state(scene, true);
        if !self.is_member() {
            return;
        }
        self.asked.clear();
        self.attempts += 1;
        let (held, waiting) = self.held();
        let waits = waiting > 0 || !self.flushes.is_empty();
        if self.receipts.tick(self.size(scene), (held, self.streams.freed()), waits) == Tick::PushOn {
            self.push_on(scene);
        }
        self.repair(scene);
        self.chase(scene);
    }

    /// Sends to others what they have lacked of the own stream since the last tick.
    fn push_on(&mut self, scene: &mut Scene<'_>) {
        let all = self.streams.received(self.me);
        for other in self.others() {
            let receipt = self.streams.receipt_of(other);
            let held = receipt.and_then(|receipt| receipt.counts.get(&self.me)).copied().unwrap_or(0);
            if held < all && self.held_before.insert(other, held) == Some(held) {
                self.repeat(scene, other, self.me, held + 1);
            }
        }
    }
}
