//! Going round by other routers, where a member and the lead router, or two routers, cannot talk.
//!
//! A router tells the next one on its way to the leader which members it reaches, itself or for others. What a member sends
//! to a router that does not lead is handed on towards the leader ([`Message::Up`]), and what the leader has for a member
//! that it does not reach itself goes back the same way ([`Message::Down`]). To the member, the router that it is linked to
//! looks like the leader.
//!
//! A word that a router took back may be on its way for ever: its path to the other may be cut in that direction only, or not
//! have broken yet. So a router counts on what another said for as long as the two talk
//! ([`Paxos::talks_with`](crate::paxos::Paxos::talks_with)), and neither delivers through it nor tells of it otherwise.
//!
//! Nothing new is promised by the way. Each link of it is lossless and FIFO while it stands. Where one breaks, the routers
//! before it say anew whom they reach, and to these everything unconfirmed is sent again; a member sends again what it has
//! no news of. What comes twice, or late from a way that was left, is found out as it is after a change of the leader.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};

use super::{Message, Router, Routing, order::Order};
use crate::{
    id::ProcessId,
    seam::{Context, Destination, Sink},
    time::Time,
    wire::Wire,
};

/// What a router knows of members beyond its own links.
#[derive(Default)]
pub(super) struct Detours {
    /// The members that other routers reach for this one.
    reached: BTreeMap<ProcessId, BTreeSet<ProcessId>>,
    /// Those of these routers that this one talks with: the word of the others does not count.
    talking: BTreeSet<ProcessId>,
    /// The router that was told last whom this one reaches.
    told: Option<ProcessId>,
    /// It is to be told again.
    pub(super) due: bool,
}

impl Detours {
    /// The router that reaches `member` for this one.
    pub(super) fn through(&self, member: ProcessId) -> Option<ProcessId> {
        self.counting().find(|(_, members)| members.contains(&member)).map(|(router, _)| router)
    }

    fn all(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.counting().flat_map(|(_, members)| members).copied()
    }

    /// What those routers say that this one talks with.
    fn counting(&self) -> impl Iterator<Item = (ProcessId, &BTreeSet<ProcessId>)> {
        let counts = |(router, _): &(&ProcessId, _)| self.talking.contains(router);
        self.reached.iter().filter(counts).map(|(&router, members)| (router, members))
    }
}

impl<R: Routing> Router<R> {
    /// Whether something can be sent to `member`, directly or through another router.
    pub(super) fn reaches(&self, member: ProcessId) -> bool {
        is_reached(&self.linked, &self.detours, &self.order, member)
    }

    /// The next router towards the leader; `None` at the leader itself, or when none is known.
    fn up(&self) -> Option<ProcessId> {
        if self.paxos.is_leader() {
            return None;
        }
        self.paxos.detour().or_else(|| self.paxos.leader().filter(|leader| self.linked.contains(leader)))
    }

    /// Sends to a member, through another router if need be.
    pub(super) fn tell(&self, member: ProcessId, message: Message, out: &mut dyn Sink<Self>) {
        match self.detours.through(member) {
            Some(router) if !self.linked.contains(&member) => {
                let down = Message::Down { member, hops: HOPS_MAX, message: encoded(&message) };
                out.send(Destination::One(router), down, None);
            }
            _ => out.send(Destination::One(member), message, None),
        }
    }

    /// Hands on what a member means for the leader. Says whether it did.
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

    /// What a member sent through another router.
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
                | Message::Inject { .. }),
            ) if bytes.is_empty() => {
                self.vigil.heard(member, cx.now);
                self.member_sent(cx, member, hops, message, out);
            }
            _ => self.refused += 1,
        }
    }

    /// What the leader has for a member that another router may reach.
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
            Ok(message @ (Message::Notice(_) | Message::Deliver(_) | Message::InjectRefused { .. }))
                if rest.is_empty() =>
            {
                out.send(Destination::One(member), message, None);
            }
            _ => self.refused += 1,
        }
    }

    /// Another router says whom it reaches.
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
        self.reach_anew(old.into_iter().flatten().chain(new).collect());
    }

    /// Looks which of the routers that reach members for this one it still talks with, or again.
    pub(super) fn look_who_talks(&mut self, now: Time) {
        let routers = self.detours.reached.keys().copied();
        let talking: BTreeSet<ProcessId> = routers.filter(|&it| self.paxos.talks_with(it, now)).collect();
        let changed = &self.detours.talking ^ &talking;
        if !changed.is_empty() {
            self.detours.talking = talking;
            let members = changed.iter().filter_map(|router| self.detours.reached.get(router));
            self.reach_anew(members.flatten().copied().collect());
        }
    }

    /// The way to these members is another one, or none: everything unconfirmed is sent again, and all outcomes.
    fn reach_anew(&mut self, members: BTreeSet<ProcessId>) {
        self.detours.due = true;
        for member in members.into_iter().filter(|member| !self.linked.contains(member)) {
            let reached = self.reaches(member);
            let Some(dispatch) = &mut self.dispatch else { continue };
            dispatch.link(member, reached);
            if let Some(sender) = self.order.sender(member).filter(|_| reached) {
                // News of what it submitted may be lost with the way that it had before.
                let first = sender.learned.saturating_sub(self.settings.credit) + 1;
                dispatch.answer(&self.order, member, first, sender.learned);
            }
        }
    }

    /// The link to `peer` broke, with whatever went through it.
    pub(super) fn detour_unlinked(&mut self, peer: ProcessId, now: Time) {
        if self.detours.told == Some(peer) {
            self.detours.told = None;
        }
        self.detours.due = true;
        if self.detours.reached.contains_key(&peer) {
            self.on_reach(peer, Vec::new(), now);
        }
    }

    /// Tells the next router towards the leader whom this one reaches, if that changed.
    pub(super) fn tell_reach(&mut self, out: &mut dyn Sink<Self>) {
        let up = self.up();
        if up == self.detours.told && !self.detours.due {
            return;
        }
        if let Some(before) = self.detours.told.filter(|before| up != Some(*before)) {
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
        (self.detours.told, self.detours.due) = (up, false);
    }
}

fn encoded(message: &Message) -> Bytes {
    let mut bytes = BytesMut::new();
    message.encode(&mut bytes);
    bytes.freeze()
}

/// Whether something can be sent to `process`, directly or through another router.
pub(super) fn is_reached<R: Routing>(
    linked: &BTreeSet<ProcessId>,
    detours: &Detours,
    order: &Order<R>,
    process: ProcessId,
) -> bool {
    (linked.contains(&process) || detours.through(process).is_some()) && !order.is_fenced(process)
}

/// No way is longer; what would go round in circles ends.
pub(super) const HOPS_MAX: u8 = 16;

#[cfg(test)]
mod tests;
