//! A member's knowledge of the routers: their set, the leader, and the router to which the member sends.

use super::{
    Member, MemberEvent,
    link::{LeaderKnowledge, RouterLink},
};
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
        if generation.is_later(self.generation) {
            self.enter(generation, from, out);
            if self.delivered > Position(0) {
                // The new generation's history was cut without this member's deliveries, so this member is
                // out.
                return self.wedge(out);
            }
        } else if generation != self.generation {
            self.refused += 1;
            return;
        }
        if std::mem::take(&mut self.base_is_old) {
            self.base = Position(0);
        }
        if self.tail_unheard {
            // The new generation's history has been cut. If this member's report was lost, the router answers
            // that the member is out.
            self.tell_tail(from, Vec::new(), out);
        }
        if let Some(link) = self.routers.get_mut(&from) {
            link.heard = true;
            (link.says, link.stale) = (leader, false);
        }
        let same = routers.len() == self.routers.len()
            && routers.iter().all(|router| self.routers.contains_key(&router.id));
        if !same && learned < self.routers_as_of {
            // A router that lags, or is a router no longer, has old news. But such a router may be the only
            // one in reach.
            if self.target.is_none() {
                let random = (cx.random)();
                self.choose(None, random);
                self.resend();
            }
            return;
        }
        self.routers_as_of = self.routers_as_of.max(learned);
        self.adopt(&routers, from, leader, out);
        // A former leader may announce only after its successor has spoken that it leads no longer.
        let stands = || self.leader.filter(|leader| self.leads(*leader));
        self.leader = leader.or_else(stands).or_else(|| self.led_by()).or(self.leader);
        if leader == Some(from) {
            self.confirm_to = Some(from);
            self.repairing = false;
        }
        let before = self.target;
        let random = (cx.random)();
        self.choose(None, random);
        // A router that announces a leader has a new leader, or a new way to the leader: messages through
        // this router may be lost.
        if self.target != before || self.target == Some(from) {
            self.resend();
        }
        out.emit(MemberEvent::Lead { leader, routers });
    }

    /// Replaces the set of routers, as `from` announced it together with the leader.
    fn adopt(
        &mut self,
        routers: &[Peer],
        from: ProcessId,
        leader: Option<ProcessId>,
        out: &mut dyn Sink<Self>,
    ) {
        let gone: Vec<ProcessId> = self
            .routers
            .keys()
            .copied()
            .filter(|known| !routers.iter().any(|router| router.id == *known))
            .collect();
        for router in gone {
            if router != from {
                self.routers.remove(&router);
                out.forget(router);
            }
        }
        for router in routers {
            self.routers.entry(router.id).or_insert_with(|| {
                out.reach(router.id, &router.address);
                let heard = router.id == from;
                let says = leader.filter(|_| heard);
                RouterLink { address: router.address.clone(), heard, says, stale: false }
            });
        }
    }

    /// Returns the leader, if a router in reach knows one.
    pub(super) fn led_by(&self) -> Option<ProcessId> {
        self.routers.values().filter(|link| link.heard).find_map(|link| self.believed(link))
    }

    /// Returns the leader that a router names. If the named router is in reach, it must itself report that it
    /// leads.
    fn believed(&self, link: &RouterLink) -> Option<ProcessId> {
        link.says.filter(|leader| !self.hears(*leader) || self.leads(*leader))
    }

    /// Whether a router is in reach and has recently reported that it leads.
    fn leads(&self, router: ProcessId) -> bool {
        let link = self.routers.get(&router).filter(|link| link.heard && !link.stale);
        link.is_some_and(|link| link.says == Some(router))
    }

    /// Updates whether a router in reach knows a leader, and reports changes.
    pub(super) fn look_for_leader(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        let led = self.led_by().is_some();
        self.course = match self.course {
            LeaderKnowledge::Adrift if led => {
                out.emit(MemberEvent::Adrift(false));
                LeaderKnowledge::Led
            }
            _ if led => LeaderKnowledge::Led,
            LeaderKnowledge::Led => LeaderKnowledge::Drifting(now + self.settings.adrift_after),
            LeaderKnowledge::Drifting(at) if at <= now => {
                out.emit(MemberEvent::Adrift(true));
                LeaderKnowledge::Adrift
            }
            same => same,
        };
    }

    /// Doubts the leader, because submitted messages have no news. If another router knows of no leader, the
    /// leader's own statement is old: its process may be stopped while its links stand.
    pub(super) fn doubt_leader(&mut self) {
        let leaderless = self.routers.values().any(|link| link.heard && link.says.is_none());
        let leader = self.leader.and_then(|leader| self.routers.get_mut(&leader));
        if let Some(link) = leader.filter(|_| leaderless) {
            link.stale = true;
        }
    }

    pub(super) fn hears(&self, router: ProcessId) -> bool {
        self.routers.get(&router).is_some_and(|link| link.heard)
    }

    /// Returns the leader, or a router that passes messages on to it.
    pub(super) fn leader_or_way(&self) -> Option<ProcessId> {
        self.leader.filter(|&leader| self.hears(leader)).or(self.target)
    }

    /// Chooses the router to send to: the leader if possible, else a router that knows a leader and passes
    /// messages on, else any router in reach.
    pub(super) fn choose(&mut self, avoid: Option<ProcessId>, random: u64) {
        self.target =
            self.leader.filter(|leader| self.leads(*leader) && Some(*leader) != avoid).or_else(|| {
                let mut heard: Vec<(ProcessId, &RouterLink)> = self
                    .routers
                    .iter()
                    .filter(|(_, link)| link.heard)
                    .map(|(id, link)| (*id, link))
                    .collect();
                if heard.len() > 1 {
                    heard.retain(|(router, _)| Some(*router) != avoid);
                }
                if heard.iter().any(|(_, link)| self.believed(link).is_some()) {
                    heard.retain(|(_, link)| self.believed(link).is_some());
                }
                (!heard.is_empty()).then(|| heard[(random % heard.len() as u64) as usize].0)
            });
    }
}
