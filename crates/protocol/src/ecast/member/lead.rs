//! A member's reaction to the announcements of routers.

use super::{Member, MemberEvent};
use crate::{
    ecast::Position,
    id::{Generation, Peer, ProcessId},
    seam::{Context, Sink},
    time::Time,
};

impl Member {
    /// Handles a router's announcement of the routers and the leader.
    pub(super) fn on_lead(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        lead: (Generation, Option<ProcessId>, Vec<Peer>, u64),
        out: &mut dyn Sink<Self>,
    ) {
        let (generation, leader, routers, learned) = lead;
        if generation.is_later(self.generation()) {
            self.enter(generation, from, out);
            if self.delivered() > Position(0) {
                // The new generation's history was cut without this member's deliveries, so this member is
                // out.
                return self.wedge(out);
            }
        } else if generation != self.generation() {
            self.refused += 1;
            return;
        }
        self.deliveries.renew_base();
        if self.history.is_tail_unheard() {
            // The router may not have received this member's report, and the time for reports is over. So the
            // member sends an empty report. The router's answer says whether the member still belongs to the
            // domain.
            self.send_tail(from, Vec::new(), out);
        }
        self.routers.note(from, leader);
        if self.routers.is_outdated(&routers, learned) {
            // An announcement of a router that lags, or that is no longer a router, is out of date. But such
            // a router may be the only one in reach.
            if self.routers.target().is_none() {
                let random = (cx.random)();
                self.routers.choose(None, random);
                self.queue.resend();
            }
            return;
        }
        let (gone, new) = self.routers.adopt(&routers, from, leader, learned);
        for router in gone {
            out.forget(router);
        }
        for router in new {
            out.reach(router.id, &router.address);
        }
        self.routers.follow(leader);
        if leader == Some(from) {
            self.deliveries.confirm_to = Some(from);
            self.deliveries.repairing = false;
        }
        let before = self.routers.target();
        let random = (cx.random)();
        self.routers.choose(None, random);
        // A router that announces a leader has a new leader, or a new way to the leader: messages through
        // this router may be lost.
        let rerouted = self.routers.target() != before || self.routers.target() == Some(from);
        if rerouted {
            self.queue.resend();
        }
        out.emit(MemberEvent::Lead { leader, routers });
        if rerouted && leader.is_some() {
            out.emit(MemberEvent::Rerouted);
        }
    }

    /// Updates whether a router in reach knows a leader, and reports changes.
    pub(super) fn look_for_leader(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        if let Some(adrift) = self.routers.look_for_leader(now, self.settings.adrift_after) {
            out.emit(MemberEvent::Adrift(adrift));
        }
    }
}
