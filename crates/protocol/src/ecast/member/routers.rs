//! The routers as a member knows them: who routes, who leads, and to whom it sends.

use super::{Member, MemberEvent};
use crate::{
    ecast::Position,
    id::{Generation, Peer, ProcessId},
    seam::{Context, Sink},
    time::Time,
};

#[derive(Debug)]
pub(super) struct RouterLink {
    pub(super) address: String,
    /// A link stands, and on it the router has said who leads in the generation that this process belongs to. What is sent to
    /// one that has not may be ordered in a later generation.
    pub(super) heard: bool,
    /// Who leads, by its last word. A leader says so of itself for as long as a majority follows it.
    pub(super) says: Option<ProcessId>,
    /// That word is old: nothing came from it for a while that should have, and another router knows of no leader.
    pub(super) stale: bool,
}

/// Whether a router leads, as far as this process hears.
#[derive(Clone, Copy, Debug)]
pub(super) enum Course {
    /// Nobody has, yet.
    Joining,
    Led,
    /// Nobody does; that is told at this instant.
    Drifting(Time),
    /// It was told.
    Adrift,
}

impl Member {
    /// A router says who routes and who leads.
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
                // The cut has been made, without what was delivered here.
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
            // The cut has been made. Whoever it does not know, because what it had to say was lost, is told that it is out.
            self.tell_tail(from, Vec::new(), out);
        }
        if let Some(link) = self.routers.get_mut(&from) {
            link.heard = true;
            (link.says, link.stale) = (leader, false);
        }
        let same = routers.len() == self.routers.len()
            && routers.iter().all(|router| self.routers.contains_key(&router.id));
        if !same && learned < self.routers_as_of {
            // One that lags, or is no router any more, has old news; but it may be all that is in reach.
            if self.target.is_none() {
                let random = (cx.random)();
                self.choose(None, random);
                self.resend();
            }
            return;
        }
        self.routers_as_of = self.routers_as_of.max(learned);
        self.adopt(&routers, from, leader, out);
        // A router that led before the network took another shape may say that it leads no more after its successor spoke.
        let stands = || self.leader.filter(|leader| self.leads(*leader));
        self.leader = leader.or_else(stands).or_else(|| self.led_by()).or(self.leader);
        if leader == Some(from) {
            self.confirm_to = Some(from);
            self.repairing = false;
        }
        let before = self.target;
        let random = (cx.random)();
        self.choose(None, random);
        // A router that speaks up has a new leader, or a new way to it: what went through it may be lost.
        if self.target != before || self.target == Some(from) {
            self.resend();
        }
        out.emit(MemberEvent::Lead { leader, routers });
    }

    /// These are the routers from now on, by the word of `from`, which names this leader.
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

    /// The router that leads, if a router in reach knows of one.
    pub(super) fn led_by(&self) -> Option<ProcessId> {
        self.routers.values().filter(|link| link.heard).find_map(|link| self.believed(link))
    }

    /// The leader that a router names: one that is in reach itself leads only if it says the same.
    fn believed(&self, link: &RouterLink) -> Option<ProcessId> {
        link.says.filter(|leader| !self.hears(*leader) || self.leads(*leader))
    }

    /// Whether a router is in reach and has said lately that it leads.
    fn leads(&self, router: ProcessId) -> bool {
        let link = self.routers.get(&router).filter(|link| link.heard && !link.stale);
        link.is_some_and(|link| link.says == Some(router))
    }

    /// Looks whether a router in reach knows of a leader.
    pub(super) fn look_for_leader(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        let led = self.led_by().is_some();
        self.course = match self.course {
            Course::Adrift if led => {
                out.emit(MemberEvent::Adrift(false));
                Course::Led
            }
            _ if led => Course::Led,
            Course::Led => Course::Drifting(now + self.settings.adrift_after),
            Course::Drifting(at) if at <= now => {
                out.emit(MemberEvent::Adrift(true));
                Course::Adrift
            }
            same => same,
        };
    }

    /// There is no news of what was submitted. If another router knows of no leader, the leader's own word is old: its
    /// process may be stopped, with its links standing.
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

    /// The leader, or a router that hands on what is meant for it.
    pub(super) fn leader_or_way(&self) -> Option<ProcessId> {
        self.leader.filter(|&leader| self.hears(leader)).or(self.target)
    }

    /// Chooses the router to send to: the leader where possible, else one that knows of a leader and hands on to it, else any that is
    /// heard.
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
