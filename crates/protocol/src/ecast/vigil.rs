//! The lead router's vigil: who of the members that the routers judge lives ([suspicion](crate::suspicion)).
//!
//! It is soft state. A member that says something is heard; one that is silent is probed, so an idle member costs the lead router a few
//! messages a second. A member that seems to have failed has a hearing among the other routers, and is expelled by an entry of
//! the log if they do not hear it either.

use std::collections::{BTreeMap, BTreeSet};

use super::{Message, Router, Routing, entry::LogEntry};
use crate::{
    detector::{self, Detector, Opinion},
    id::ProcessId,
    seam::{Context, Destination, Sink},
    suspicion::{Hearing, Verdict},
    time::{Duration, Time},
};

/// What the lead router knows of those that it watches.
pub(super) struct Vigil {
    detector: Detector,
    /// Members that seem to have failed, and what other routers say of them.
    hearings: BTreeMap<ProcessId, Hearing>,
    /// The number of the last hearing.
    hearing: u64,
    /// Members whose expulsion was proposed, and when.
    accused: BTreeMap<ProcessId, Time>,
    /// Members came or went since those that are watched were listed.
    is_stale: bool,
    tick_at: Time,
    /// How many expulsions were proposed here.
    pub(super) expelled: u64,
}

/// An expulsion is proposed again after so long, should nothing have come of it.
const AGAIN: Duration = Duration::from_secs(1);
/// Probes that belong to no hearing carry this number.
const NO_HEARING: u64 = 0;

impl Vigil {
    pub(super) fn new(settings: detector::Settings) -> Self {
        Vigil {
            detector: Detector::new(settings),
            hearings: BTreeMap::new(),
            hearing: NO_HEARING,
            accused: BTreeMap::new(),
            is_stale: true,
            tick_at: Time::ZERO,
            expelled: 0,
        }
    }

    /// This router begins to lead: everybody has the benefit of the doubt.
    pub(super) fn begin(&mut self) {
        *self =
            Vigil { hearing: self.hearing, expelled: self.expelled, ..Vigil::new(self.detector.settings()) };
    }

    /// Members came or went.
    pub(super) fn reconfigured(&mut self) {
        self.is_stale = true;
    }

    pub(super) fn heard(&mut self, process: ProcessId, now: Time) {
        self.detector.heard(process, now);
    }

    pub(super) fn linked(&mut self, peer: ProcessId, now: Time) {
        self.detector.linked(peer, now);
    }

    pub(super) fn unlinked(&mut self, peer: ProcessId, now: Time) {
        self.detector.unlinked(peer, now);
        self.hearings.values_mut().for_each(|hearing| hearing.unlinked(peer));
    }

    /// When it is to look again, while this router leads. Where nobody is watched it never looks.
    pub(super) fn deadline(&self) -> Option<Time> {
        (self.is_stale || self.detector.watched().next().is_some()).then_some(self.tick_at)
    }

    /// Watches these, and nobody else.
    fn list(&mut self, members: BTreeSet<ProcessId>, linked: &BTreeSet<ProcessId>, now: Time) {
        let gone: Vec<ProcessId> = self.detector.watched().filter(|it| !members.contains(it)).collect();
        for process in gone {
            self.detector.unwatch(process);
            self.hearings.remove(&process);
            self.accused.remove(&process);
        }
        let watched: BTreeSet<ProcessId> = self.detector.watched().collect();
        for &process in members.difference(&watched) {
            self.detector.watch(process, now);
            if !linked.contains(&process) {
                self.detector.unlinked(process, now);
            }
        }
        self.is_stale = false;
    }
}

impl<R: Routing> Router<R> {
    /// Looks after the members, and expels those that died.
    pub(super) fn watch(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let due = self.is_leader() && self.vigil.deadline().is_some_and(|at| at <= cx.now);
        if !due || self.gathering.is_some() {
            return;
        }
        let interval = self.settings.paxos.detector.interval;
        self.vigil.tick_at = cx.now + interval;
        if self.vigil.is_stale {
            let config = self.order.config();
            let mut members = R::members(config);
            members
                .retain(|member| R::expulsion(config, *member).is_some() && !self.order.is_fenced(*member));
            self.vigil.list(members.into_iter().collect(), &self.linked, cx.now);
        }
        self.vigil.detector.tick(cx.now);
        for member in self.vigil.detector.watched().collect::<Vec<_>>() {
            self.look_after(cx, member, out);
        }
    }

    /// Asks for a sign of life of a silent member, and the other routers about one that seems to have failed.
    fn look_after(&mut self, cx: &mut Context<'_>, member: ProcessId, out: &mut dyn Sink<Self>) {
        let vigil = &mut self.vigil;
        let silence = vigil.detector.silence(member, cx.now).expect("it is watched");
        let is_suspect = vigil.detector.suspects(member, cx.now);
        let mut hearing = NO_HEARING;
        if is_suspect {
            let opened = vigil.hearings.entry(member).or_insert_with(|| {
                vigil.hearing += 1;
                Hearing::new(vigil.hearing, cx.now)
            });
            hearing = opened.number;
            let others = Destination::Many(self.other_routers(cx.me));
            out.send(others, Message::AskOpinion { about: member, hearing }, None);
        } else {
            vigil.hearings.remove(&member);
        }
        if silence >= self.settings.paxos.detector.interval * 3 && self.linked.contains(&member) {
            out.send(Destination::One(member), Message::Probe { asker: cx.me, hearing }, None);
        }
        if is_suspect {
            self.judge(cx, member, out);
        }
    }

    /// Another router gives its opinion of a member.
    pub(super) fn on_opinion(
        &mut self,
        cx: &mut Context<'_>,
        router: ProcessId,
        about: ProcessId,
        (number, opinion): (u64, Opinion),
        out: &mut dyn Sink<Self>,
    ) {
        if let Some(hearing) = self.vigil.hearings.get_mut(&about).filter(|hearing| hearing.number == number)
        {
            hearing.told(router, opinion, cx.now);
            self.judge(cx, about, out);
        }
    }

    /// Expels a member that has a hearing, if the other routers do not hear it either.
    fn judge(&mut self, cx: &mut Context<'_>, member: ProcessId, out: &mut dyn Sink<Self>) {
        if !self.is_leader() || !self.vigil.detector.suspects(member, cx.now) {
            return;
        }
        let (others, vigil, patience) = (self.other_routers(cx.me), &mut self.vigil, &self.settings.patience);
        let silent = vigil.detector.silence(member, cx.now).is_some_and(|it| it >= patience.silence);
        let again = vigil.accused.get(&member).is_none_or(|at| cx.now.since(*at) >= AGAIN);
        if !again || !silent && self.linked.contains(&member) {
            return;
        }
        let fresh = self.settings.paxos.detector.interval * 4;
        let hearing = &vigil.hearings[&member];
        let failed = !hearing.is_open(&others, cx.now, patience)
            && hearing.verdict((&others, &[]), cx.now, fresh, patience) != Verdict::Stays;
        // A lone router has nobody to ask.
        if others.is_empty() || failed {
            vigil.accused.insert(member, cx.now);
            vigil.expelled += 1;
            let learned = self.order.expected(member) - 1;
            self.propose(cx, LogEntry::encode_expelled(member, learned), out);
        }
    }

    fn other_routers(&self, me: ProcessId) -> Vec<ProcessId> {
        self.paxos.members().iter().map(|router| router.id).filter(|router| *router != me).collect()
    }
}

#[cfg(test)]
mod tests;
