//! Detours: messages go through other routers if a member and the lead router, or two routers, cannot talk.
//!
//! A router tells the next router on its way to the leader which members it reaches, itself or through other
//! routers. A router that does not lead passes members' messages on towards the leader ([`Message::Up`]). The
//! leader's messages for a member that it does not reach itself go back the same way ([`Message::Down`]). To
//! the member, the router at the other end of its link looks like the leader.
//!
//! A router's withdrawal of such a statement may never arrive: the path may be cut in that direction only, or
//! not have broken yet. So a router relies on another router's statement only as long as the two talk
//! ([`Paxos::talks_with`](crate::paxos::Paxos::talks_with)). If they do not talk, the first router neither
//! delivers through the other router nor passes its statement on.
//!
//! A detour promises nothing new. Each of its links is lossless and FIFO while it stands. If a link breaks,
//! the routers before that link report again which members they reach, and the leader sends everything
//! unconfirmed to these members again. A member sends messages again if it gets no news of them. Duplicates,
//! and late messages from an abandoned way, are recognised as after a change of leader.

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};

use super::{
    Message, Router, Routing,
    reach::{HOPS_MAX, is_reached},
};
use crate::{
    id::ProcessId,
    seam::{Context, Destination, Sink},
    time::Time,
    wire::Wire,
};

impl<R: Routing> Router<R> {
    /// Whether messages can reach `member`, directly or through another router.
    pub(super) fn reaches(&self, member: ProcessId) -> bool {
        is_reached(&self.linked, &self.detours, &self.order, member)
    }

    /// Returns the next router towards the leader; `None` at the leader itself, or if no way is known.
    fn up(&self) -> Option<ProcessId> {
        if self.paxos.is_leader() {
            return None;
        }
        self.paxos.detour().or_else(|| self.paxos.leader().filter(|leader| self.linked.contains(leader)))
    }

    /// Sends a message to a member, through another router if necessary.
    pub(super) fn send_to_member(&self, member: ProcessId, message: Message, out: &mut dyn Sink<Self>) {
        match self.detours.through(member) {
            Some(router) if !self.linked.contains(&member) => {
                let down = Message::Down { member, hops: HOPS_MAX, message: encoded(&message) };
                out.send(Destination::One(router), down, None);
            }
            _ => out.send(Destination::One(member), message, None),
        }
    }

    /// Passes a member's message on towards the leader. Returns whether there was a way.
    pub(super) fn hand_up(
        &self,
        member: ProcessId,
        hops: u8,
        message: &Message,
        out: &mut dyn Sink<Self>,
    ) -> bool {
        let Some(next) = self.up().filter(|_| hops > 0) else { return false };
        let up = Message::Up { member, hops: hops - 1, message: encoded(message) };
        out.send(Destination::One(next), up, None);
        true
    }

    /// Handles a member's message that came through another router.
    pub(super) fn on_up(
        &mut self,
        cx: &mut Context<'_>,
        member: ProcessId,
        hops: u8,
        mut bytes: Bytes,
        out: &mut dyn Sink<Self>,
    ) {
        match Message::decode(&mut bytes) {
            Ok(
                message @ (Message::Route(_)
                | Message::Confirm { .. }
                | Message::Repair
                | Message::Inject { .. }
                | Message::InjectLatest { .. }),
            ) if bytes.is_empty() => {
                self.monitor.heard(member, cx.now);
                self.member_sent(cx, member, hops, message, out);
            }
            _ => self.refused += 1,
        }
    }

    /// Handles the leader's message for a member, or passes it on.
    pub(super) fn on_down(&mut self, member: ProcessId, hops: u8, bytes: Bytes, out: &mut dyn Sink<Self>) {
        if !self.linked.contains(&member) {
            if let Some(next) = self.detours.through(member).filter(|_| hops > 0) {
                let down = Message::Down { member, hops: hops - 1, message: bytes };
                out.send(Destination::One(next), down, None);
            }
            return;
        }
        let mut rest = bytes;
        match Message::decode(&mut rest) {
            Ok(
                message @ (Message::Notice(_)
                | Message::Deliver(_)
                | Message::InjectRefused { .. }
                | Message::Latest { .. }),
            ) if rest.is_empty() => {
                out.send(Destination::One(member), message, None);
            }
            _ => self.refused += 1,
        }
    }

    /// Handles another router's statement of the members that it reaches.
    pub(super) fn on_reach(&mut self, router: ProcessId, members: Vec<ProcessId>, now: Time) {
        let new: BTreeSet<ProcessId> = members.into_iter().collect();
        let old = if new.is_empty() {
            self.detours.talking.remove(&router);
            self.detours.reached.remove(&router)
        } else {
            if self.paxos.talks_with(router, now) {
                self.detours.talking.insert(router);
            }
            self.detours.reached.insert(router, new.clone())
        };
        self.resend_over_new_route(old.into_iter().flatten().chain(new).collect());
    }

    /// Updates the list of routers with which this router talks. Only their statements about reached members
    /// count.
    pub(super) fn update_talking_routers(&mut self, now: Time) {
        let routers = self.detours.reached.keys().copied();
        let talking: BTreeSet<ProcessId> = routers.filter(|&it| self.paxos.talks_with(it, now)).collect();
        let changed = &self.detours.talking ^ &talking;
        if !changed.is_empty() {
            self.detours.talking = talking;
            let members = changed.iter().filter_map(|router| self.detours.reached.get(router));
            self.resend_over_new_route(members.flatten().copied().collect());
        }
    }

    /// Handles a change of the way to these members: sends everything unconfirmed, and all outcomes, to the
    /// members again.
    fn resend_over_new_route(&mut self, members: BTreeSet<ProcessId>) {
        self.detours.due = true;
        for member in members.into_iter().filter(|member| !self.linked.contains(member)) {
            let reached = self.reaches(member);
            let Some(dispatch) = &mut self.dispatch else { continue };
            dispatch.link(member, reached);
            if let Some(sender) = self.order.sender(member).filter(|_| reached) {
                // Outcomes may have been lost on the old way.
                let first = sender.learned.saturating_sub(self.settings.credit) + 1;
                dispatch.answer(&self.order, member, first, sender.learned);
            }
        }
    }

    /// Handles a broken link to `peer`: everything that went through it is lost.
    pub(super) fn detour_unlinked(&mut self, peer: ProcessId, now: Time) {
        if self.detours.reported_to == Some(peer) {
            self.detours.reported_to = None;
        }
        self.detours.due = true;
        if self.detours.reached.contains_key(&peer) {
            self.on_reach(peer, Vec::new(), now);
        }
    }

    /// Reports to the next router towards the leader which members this router reaches, if that changed.
    pub(super) fn report_reach(&mut self, out: &mut dyn Sink<Self>) {
        let up = self.up();
        if up == self.detours.reported_to && !self.detours.due {
            return;
        }
        if let Some(before) = self.detours.reported_to.filter(|before| up != Some(*before)) {
            out.send(Destination::One(before), Message::Reach { members: Vec::new() }, None);
        }
        if let Some(up) = up {
            let routers = self.paxos.members();
            let behind_up = self.detours.reached.get(&up);
            let through = self.detours.all().filter(|it| behind_up.is_none_or(|behind| !behind.contains(it)));
            let all: BTreeSet<ProcessId> = self.linked.iter().copied().chain(through).collect();
            let members = all.into_iter().filter(|it| !routers.iter().any(|router| router.id == *it));
            out.send(Destination::One(up), Message::Reach { members: members.collect() }, None);
        }
        (self.detours.reported_to, self.detours.due) = (up, false);
    }
}

fn encoded(message: &Message) -> Bytes {
    let mut bytes = BytesMut::new();
    message.encode(&mut bytes);
    bytes.freeze()
}

#[cfg(test)]
mod tests;
