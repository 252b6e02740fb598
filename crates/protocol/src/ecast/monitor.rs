//! The lead router's monitor, which finds out whether the members that the routers judge are alive
//! ([suspicion](crate::suspicion)).
//!
//! The monitor is soft state. The lead router probes silent members, so an idle member costs it a few
//! messages a second. It asks the other routers about a member that seems to have failed. If they do not hear
//! the member either, a log entry expels it.

use super::{Message, Router, Routing, entry::LogEntry, watch::NO_SECOND_OPINION};
use crate::{
    detector::Opinion,
    id::ProcessId,
    seam::{Context, Destination, Sink},
    suspicion::{SecondOpinion, Verdict},
    time::Duration,
};

/// Time after which an expulsion that had no effect is proposed again.
const AGAIN: Duration = Duration::from_secs(1);

impl<R: Routing> Router<R> {
    /// Checks the members, and expels dead members.
    pub(super) fn watch(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let due = self.is_leader() && self.monitor.deadline().is_some_and(|at| at <= cx.now);
        if !due || self.gathering.is_some() {
            return;
        }
        let interval = self.settings.paxos.detector.interval;
        self.monitor.tick_at = cx.now + interval;
        if self.monitor.is_stale {
            let config = self.order.config();
            let mut members = R::members(config);
            members
                .retain(|member| R::expulsion(config, *member).is_some() && !self.order.is_fenced(*member));
            self.monitor.list(members.into_iter().collect(), &self.linked, cx.now);
        }
        self.monitor.detector.tick(cx.now);
        for member in self.monitor.detector.watched().collect::<Vec<_>>() {
            self.look_after(cx, member, out);
        }
    }

    /// Probes a silent member, and asks the other routers about a member that seems to have failed.
    fn look_after(&mut self, cx: &mut Context<'_>, member: ProcessId, out: &mut dyn Sink<Self>) {
        let monitor = &mut self.monitor;
        let silence = monitor
            .detector
            .silence(member, cx.now)
            .expect("the monitored member is watched by the detector");
        let is_suspect = monitor.detector.suspects(member, cx.now);
        let mut second_opinion = NO_SECOND_OPINION;
        if is_suspect {
            let opened = monitor.second_opinions.entry(member).or_insert_with(|| {
                monitor.second_opinion += 1;
                SecondOpinion::new(monitor.second_opinion, cx.now)
            });
            second_opinion = opened.number;
            let others = Destination::Many(self.other_routers(cx.me));
            out.send(others, Message::AskOpinion { about: member, second_opinion }, None);
        } else {
            monitor.second_opinions.remove(&member);
        }
        if silence >= self.settings.paxos.detector.interval * 3 && self.linked.contains(&member) {
            out.send(Destination::One(member), Message::Probe { asker: cx.me, second_opinion }, None);
        }
        if is_suspect {
            self.judge(cx, member, out);
        }
    }

    /// Handles another router's opinion of a member.
    pub(super) fn on_opinion(
        &mut self,
        cx: &mut Context<'_>,
        router: ProcessId,
        about: ProcessId,
        (number, opinion): (u64, Opinion),
        out: &mut dyn Sink<Self>,
    ) {
        if let Some(second_opinion) = self
            .monitor
            .second_opinions
            .get_mut(&about)
            .filter(|second_opinion| second_opinion.number == number)
        {
            second_opinion.record(router, opinion, cx.now);
            self.judge(cx, about, out);
        }
    }

    /// Expels a suspected member if the other routers do not hear it either.
    fn judge(&mut self, cx: &mut Context<'_>, member: ProcessId, out: &mut dyn Sink<Self>) {
        if !self.is_leader() || !self.monitor.detector.suspects(member, cx.now) {
            return;
        }
        let (others, monitor, patience) =
            (self.other_routers(cx.me), &mut self.monitor, &self.settings.patience);
        let silent = monitor.detector.silence(member, cx.now).is_some_and(|it| it >= patience.silence);
        let again = monitor.accused.get(&member).is_none_or(|at| cx.now.since(*at) >= AGAIN);
        if !again || !silent && self.linked.contains(&member) {
            return;
        }
        let fresh = self.settings.paxos.detector.interval * 4;
        let second_opinion = &monitor.second_opinions[&member];
        let failed = !second_opinion.is_open(&others, cx.now, patience)
            && second_opinion.verdict((&others, &[]), cx.now, fresh, patience) != Verdict::Stays;
        // A lone router has nobody to ask.
        if others.is_empty() || failed {
            monitor.accused.insert(member, cx.now);
            monitor.expelled += 1;
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
