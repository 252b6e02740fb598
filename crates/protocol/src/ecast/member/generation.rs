//! A member's part at the beginning of a generation: it reports its deliveries and enters the generation
//! (`reform`, `refound`).

use std::sync::Arc;

use bytes::Bytes;

use super::{Member, MemberEvent};
use crate::{
    ecast::{Outcome, Position, block::DeliverBlock, message::Message, poll::Witness, reform::Tail},
    id::{Generation, ProcessId},
    seam::{Destination, Sink},
};

impl Member {
    /// Enters a generation. From now on the member listens only to routers of that generation, which will
    /// announce themselves.
    pub(super) fn enter(&mut self, generation: Generation, router: ProcessId, out: &mut dyn Sink<Self>) {
        self.history.enter(generation);
        // The messages after an open message that was put aside were answered, and this member no longer has
        // them. Routers of the new generation may lack some of these later messages. Routers learn the
        // messages of a sender only in order and without gaps (S3). So the member cannot send the open
        // message again, and its outcome stays unknown.
        for number in self.queue.window.aside() {
            self.answer(number, Outcome::MaybeApplied, out);
        }
        out.adopt(Arc::new(self.fence()));
        for other in self.routers.begin(router) {
            out.forget(other);
        }
        self.deliveries.enter();
    }

    /// Enters the generation that begins with the router `from`, unless that generation is old. Returns
    /// whether the member is in that generation. The member submits nothing to the router until the router
    /// has received the member's report.
    fn begin(&mut self, from: ProcessId, generation: Generation, out: &mut dyn Sink<Self>) -> bool {
        if generation.is_later(self.generation()) {
            self.enter(generation, from, out);
        } else if generation != self.generation() {
            self.refused += 1;
            return false;
        }
        // A lost report does no harm to a member without deliveries: such a member joins, perhaps a second
        // time.
        self.history.report(self.delivered() > Position(0));
        true
    }

    /// Reports this member's deliveries to the router with which a generation begins. No router of an earlier
    /// generation adds to these deliveries any longer.
    pub(super) fn on_gather(&mut self, from: ProcessId, generation: Generation, out: &mut dyn Sink<Self>) {
        if !self.begin(from, generation, out) {
            return;
        }
        self.send_tail(from, self.deliveries.kept.blocks(), out);
    }

    fn tail(&self, blocks: Vec<DeliverBlock>) -> Tail {
        Tail {
            generation: self.generation(),
            before: self.history.before(),
            delivered: self.delivered(),
            acknowledged: self.queue.window.acknowledged(),
            blocks,
        }
    }

    pub(super) fn send_tail(&self, router: ProcessId, blocks: Vec<DeliverBlock>, out: &mut dyn Sink<Self>) {
        out.send(Destination::One(router), Message::Tail(self.tail(blocks)), None);
    }

    /// Answers a founder, which is a router that has just started and got an operator's command to continue
    /// from members alone.
    pub(super) fn on_call(&mut self, from: ProcessId, out: &mut dyn Sink<Self>) {
        let pledge = self.history.pledge(from, self.routers.led_by());
        out.send(Destination::One(from), Message::Pledge(pledge), None);
    }

    /// Enters the generation that begins with a founder.
    pub(super) fn on_refound(&mut self, from: ProcessId, generation: Generation, out: &mut dyn Sink<Self>) {
        if !self.history.follows(from) {
            self.refused += 1;
            return;
        }
        if !self.begin(from, generation, out) {
            return;
        }
        out.emit(MemberEvent::WitnessWanted { founder: from });
    }

    /// Returns the report to the founder that this process follows. `config` is the encoded configuration at
    /// [`Member::delivered`], or empty if this member has no configuration.
    pub fn witness(&self, config: Bytes) -> Message {
        Message::Witness(Box::new(Witness {
            tail: self.tail(self.deliveries.kept.blocks()),
            kept_behind: self.deliveries.kept.behind(),
            base: self.deliveries.base(),
            sent: self.queue.window.number(),
            counted: self.history.counted(),
            config,
        }))
    }
}
