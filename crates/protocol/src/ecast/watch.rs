//! The lead router's list of the members that it watches, with the other routers' opinions of them. The
//! monitor decides by this list which members to expel ([`monitor`](super::monitor)).

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    detector::{self, Detector},
    id::ProcessId,
    suspicion::SecondOpinion,
    time::Time,
};

/// The lead router's knowledge of the members that it watches.
pub(super) struct MemberMonitor {
    pub(super) detector: Detector,
    /// Members that seem to have failed, with the opinions of other routers.
    pub(super) second_opinions: BTreeMap<ProcessId, SecondOpinion>,
    /// The number of the last second opinion.
    pub(super) second_opinion: u64,
    /// Members whose expulsion was proposed, each with the time of the proposal.
    pub(super) accused: BTreeMap<ProcessId, Time>,
    /// Whether the members have changed since this router listed the members that it watches.
    pub(super) is_stale: bool,
    pub(super) tick_at: Time,
    /// Number of expulsions that this router proposed.
    pub(super) expelled: u64,
}

/// The number in probes that belong to no second opinion.
pub(super) const NO_SECOND_OPINION: u64 = 0;

impl MemberMonitor {
    pub(super) fn new(settings: detector::Settings) -> Self {
        MemberMonitor {
            detector: Detector::new(settings),
            second_opinions: BTreeMap::new(),
            second_opinion: NO_SECOND_OPINION,
            accused: BTreeMap::new(),
            is_stale: true,
            tick_at: Time::ZERO,
            expelled: 0,
        }
    }

    /// Starts over, because this router begins to lead: all members count as alive at first.
    pub(super) fn begin(&mut self) {
        *self = MemberMonitor {
            second_opinion: self.second_opinion,
            expelled: self.expelled,
            ..MemberMonitor::new(self.detector.settings())
        };
    }

    /// Notes that the members changed.
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
        self.second_opinions.values_mut().for_each(|second_opinion| second_opinion.unlinked(peer));
    }

    /// Returns the time of the next check, `None` if this router watches no member.
    pub(super) fn deadline(&self) -> Option<Time> {
        (self.is_stale || self.detector.watched().next().is_some()).then_some(self.tick_at)
    }

    /// Watches exactly these members.
    pub(super) fn list(&mut self, members: BTreeSet<ProcessId>, linked: &BTreeSet<ProcessId>, now: Time) {
        let gone: Vec<ProcessId> = self.detector.watched().filter(|it| !members.contains(it)).collect();
        for process in gone {
            self.detector.unwatch(process);
            self.second_opinions.remove(&process);
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
