//! A member's knowledge of the routers: their set, the leader, and the router to which the member sends.

use std::collections::BTreeMap;

use super::link::{LeaderKnowledge, RouterLink};
use crate::{
    id::{Peer, ProcessId},
    time::{Duration, Time},
};

/// The routers that a member knows.
#[derive(Debug, Default)]
pub(super) struct KnownRouters {
    /// The routers, and the state of the links to them.
    links: BTreeMap<ProcessId, RouterLink>,
    leader: Option<ProcessId>,
    /// The router to which messages are sent.
    target: Option<ProcessId>,
    course: LeaderKnowledge,
    /// Number of log entries that the announcing router had learned when it announced the present set of
    /// routers.
    as_of: u64,
}

impl KnownRouters {
    /// Returns the leader, as far as this member knows.
    pub(super) fn leader(&self) -> Option<ProcessId> {
        self.leader
    }

    /// Returns the leader's address, if the leader is known and its link stands.
    pub(super) fn leader_address(&self) -> Option<&str> {
        let link = self.links.get(&self.leader?)?;
        link.heard.then_some(link.address.as_str())
    }

    /// Returns the router to which messages are sent.
    pub(super) fn target(&self) -> Option<ProcessId> {
        self.target
    }

    /// Returns the routers in the order of their ids.
    pub(super) fn ids(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.links.keys().copied()
    }

    /// Whether this process is a router.
    pub(super) fn contains(&self, router: ProcessId) -> bool {
        self.links.contains_key(&router)
    }

    /// Adds processes that may be routers. `reach` gets the processes that are new.
    pub(super) fn seed(&mut self, seeds: Vec<Peer>, mut reach: impl FnMut(ProcessId, &str)) {
        for seed in seeds {
            self.links.entry(seed.id).or_insert_with(|| {
                reach(seed.id, &seed.address);
                RouterLink { address: seed.address, heard: false, says: None, stale: false }
            });
        }
    }

    /// Notes that a router has named the leader on its link.
    pub(super) fn note(&mut self, from: ProcessId, leader: Option<ProcessId>) {
        if let Some(link) = self.links.get_mut(&from) {
            link.heard = true;
            (link.says, link.stale) = (leader, false);
        }
    }

    /// Whether an announced set of routers is older than the known set.
    pub(super) fn is_outdated(&self, routers: &[Peer], learned: u64) -> bool {
        let same = routers.len() == self.links.len()
            && routers.iter().all(|router| self.links.contains_key(&router.id));
        !same && learned < self.as_of
    }

    /// Replaces the set of routers by the set that `from` announced together with the leader, after it had
    /// learned `learned` log entries. `from` stays in the set in any case. Returns the processes that are no
    /// longer routers, and the new routers.
    pub(super) fn adopt<'a>(
        &mut self,
        routers: &'a [Peer],
        from: ProcessId,
        leader: Option<ProcessId>,
        learned: u64,
    ) -> (Vec<ProcessId>, Vec<&'a Peer>) {
        self.as_of = self.as_of.max(learned);
        let is_gone = |known: &ProcessId| *known != from && !routers.iter().any(|router| router.id == *known);
        let gone: Vec<ProcessId> = self.ids().filter(is_gone).collect();
        for router in &gone {
            self.links.remove(router);
        }
        let mut new = Vec::new();
        for router in routers {
            self.links.entry(router.id).or_insert_with(|| {
                new.push(router);
                let heard = router.id == from;
                let says = leader.filter(|_| heard);
                RouterLink { address: router.address.clone(), heard, says, stale: false }
            });
        }
        (gone, new)
    }

    /// Notes the leader that a router announced, `None` if that router knows no leader.
    pub(super) fn follow(&mut self, leader: Option<ProcessId>) {
        // A former leader may report the end of its lead only after its successor has announced itself.
        let stands = || self.leader.filter(|leader| self.leads(*leader));
        self.leader = leader.or_else(stands).or_else(|| self.led_by()).or(self.leader);
    }

    /// Forgets the leader, and all routers except the router with which a generation begins. Returns the
    /// routers that were forgotten.
    pub(super) fn begin(&mut self, router: ProcessId) -> Vec<ProcessId> {
        let others: Vec<ProcessId> = self.ids().filter(|other| *other != router).collect();
        self.links.retain(|id, _| *id == router);
        for link in self.links.values_mut() {
            link.heard = false;
        }
        (self.leader, self.target, self.as_of) = (None, None, 0);
        others
    }

    /// Notes that the link to a process has ended.
    pub(super) fn unlinked(&mut self, peer: ProcessId) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.heard = false;
        }
    }

    /// Returns the leader, if a router in reach knows one.
    pub(super) fn led_by(&self) -> Option<ProcessId> {
        self.links.values().filter(|link| link.heard).find_map(|link| self.believed(link))
    }

    /// Returns the leader that a router names. If the named router is in reach, it must itself report that it
    /// leads.
    fn believed(&self, link: &RouterLink) -> Option<ProcessId> {
        link.says.filter(|leader| !self.hears(*leader) || self.leads(*leader))
    }

    /// Whether a router is in reach and has recently reported that it leads.
    fn leads(&self, router: ProcessId) -> bool {
        let link = self.links.get(&router).filter(|link| link.heard && !link.stale);
        link.is_some_and(|link| link.says == Some(router))
    }

    /// Updates whether a router in reach knows a leader. Returns a change to report: whether the member is
    /// adrift now.
    pub(super) fn look_for_leader(&mut self, now: Time, adrift_after: Duration) -> Option<bool> {
        let led = self.led_by().is_some();
        let (course, news) = match self.course {
            LeaderKnowledge::Adrift if led => (LeaderKnowledge::Led, Some(false)),
            _ if led => (LeaderKnowledge::Led, None),
            LeaderKnowledge::Led => (LeaderKnowledge::Drifting(now + adrift_after), None),
            LeaderKnowledge::Drifting(at) if at <= now => (LeaderKnowledge::Adrift, Some(true)),
            same => (same, None),
        };
        self.course = course;
        news
    }

    /// Returns the time at which the member reports that it is adrift, unless a router names a leader
    /// earlier.
    pub(super) fn adrift_at(&self) -> Option<Time> {
        if let LeaderKnowledge::Drifting(at) = self.course { Some(at) } else { None }
    }

    /// Doubts the leader, because submitted messages have no news. If another router knows of no leader, the
    /// leader's own statement is old: its process may be stopped while its links stand.
    pub(super) fn doubt_leader(&mut self) {
        let leaderless = self.links.values().any(|link| link.heard && link.says.is_none());
        let leader = self.leader.and_then(|leader| self.links.get_mut(&leader));
        if let Some(link) = leader.filter(|_| leaderless) {
            link.stale = true;
        }
    }

    /// Trusts a router's statement again, because news came from it. Returns whether it was in doubt.
    pub(super) fn trust(&mut self, router: ProcessId) -> bool {
        self.links.get_mut(&router).is_some_and(|link| std::mem::take(&mut link.stale))
    }

    /// Whether a router is in reach.
    pub(super) fn hears(&self, router: ProcessId) -> bool {
        self.links.get(&router).is_some_and(|link| link.heard)
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
                let mut heard: Vec<(ProcessId, &RouterLink)> =
                    self.links.iter().filter(|(_, link)| link.heard).map(|(id, link)| (*id, link)).collect();
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
