//! A member's part at the beginning of a generation: it reports its deliveries and enters the generation
//! (`reform`, `refound`).

use std::sync::Arc;

use bytes::Bytes;

use super::{Member, MemberEvent};
use crate::{
    ecast::{
        Outcome, Position,
        block::DeliverBlock,
        message::Message,
        poll::{Pledge, Witness},
        reform::Tail,
    },
    id::{Generation, ProcessId},
    seam::{Destination, Sink},
};

impl Member {
    /// Enters a generation: from now on the member listens only to its routers, which will announce
    /// themselves.
    pub(super) fn enter(&mut self, generation: Generation, router: ProcessId, out: &mut dyn Sink<Self>) {
        assert!(generation.is_later(self.generation), "a member only goes on to a later generation");
        let before = std::mem::replace(&mut self.generation, generation);
        if !std::mem::take(&mut self.tail_unheard) {
            self.generation_before = before;
        }
        // Routers of the new generation may lack messages between the ones put aside and the window, and so
        // could not learn the ones put aside.
        for number in self.window.aside() {
            self.answer(number, Outcome::MaybeApplied, out);
        }
        out.adopt(Arc::new(self.fence()));
        self.base_is_old = true;
        for other in self.routers.keys().copied().filter(|other| *other != router).collect::<Vec<_>>() {
            self.routers.remove(&other);
            out.forget(other);
        }
        for link in self.routers.values_mut() {
            link.heard = false;
        }
        self.leader = None;
        self.target = None;
        self.routers_as_of = 0;
        self.repairing = false;
        self.confirm_to = None;
        self.repair_from = None;
    }

    /// Enters the generation that begins with the router `from`, unless that generation is old. Returns
    /// whether the member is in that generation. The member submits nothing to the router until the router
    /// has received the member's report.
    fn begin(&mut self, from: ProcessId, generation: Generation, out: &mut dyn Sink<Self>) -> bool {
        if generation.is_later(self.generation) {
            self.enter(generation, from, out);
        } else if generation != self.generation {
            self.refused += 1;
            return false;
        }
        // A lost report does no harm to a member without deliveries: such a member joins, perhaps a second
        // time.
        self.tail_unheard = self.delivered > Position(0);
        true
    }

    /// Reports this member's deliveries to the router with which a generation begins. No router of an earlier
    /// generation adds to these deliveries any longer.
    pub(super) fn on_gather(&mut self, from: ProcessId, generation: Generation, out: &mut dyn Sink<Self>) {
        if !self.begin(from, generation, out) {
            return;
        }
        self.tell_tail(from, self.kept.blocks(), out);
    }

    fn tail(&self, blocks: Vec<DeliverBlock>) -> Tail {
        Tail {
            generation: self.generation,
            before: self.generation_before,
            delivered: self.delivered,
            acknowledged: self.window.acknowledged(),
            blocks,
        }
    }

    pub(super) fn tell_tail(&self, router: ProcessId, blocks: Vec<DeliverBlock>, out: &mut dyn Sink<Self>) {
        out.send(Destination::One(router), Message::Tail(self.tail(blocks)), None);
    }

    /// Answers a founder, which is a router that has just started and got an operator's command to continue
    /// from members alone.
    pub(super) fn on_call(&mut self, from: ProcessId, out: &mut dyn Sink<Self>) {
        let pledge = match (self.led_by(), self.pledged.filter(|founder| *founder != from)) {
            (Some(leader), _) => Pledge::Led(leader),
            (None, Some(founder)) => Pledge::FollowsAnother(founder),
            (None, None) => {
                self.pledged = Some(from);
                Pledge::Follows
            }
        };
        out.send(Destination::One(from), Message::Pledge(pledge), None);
    }

    /// Enters the generation that begins with a founder.
    pub(super) fn on_refound(&mut self, from: ProcessId, generation: Generation, out: &mut dyn Sink<Self>) {
        if self.pledged != Some(from) {
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
        let (told, ref counted) = self.counted;
        Message::Witness(Box::new(Witness {
            tail: self.tail(self.kept.blocks()),
            kept_behind: self.kept.behind(),
            base: self.base,
            sent: self.window.number(),
            counted: if told == self.generation_before { counted.clone() } else { Vec::new() },
            config,
        }))
    }
}
