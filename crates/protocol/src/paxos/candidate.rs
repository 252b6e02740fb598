//! Standing for election: first a pre-vote, which disturbs no other router, then phase 1.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ballot, Better, Core, Message, Prepare, Slot, SlotValue};
use crate::{
    id::{Peer, ProcessId},
    quorum,
    time::Time,
};

/// An attempt to become leader.
#[derive(Debug)]
pub(super) struct Candidacy {
    /// The candidate's question to the other routers.
    pub(super) prepare: Prepare,
    /// The present round of the candidacy.
    pub(super) stage: CandidateStage,
    /// Processes that the candidate asked.
    pub(super) asked: BTreeSet<ProcessId>,
    /// Processes that refused in this round.
    pub(super) refused: BTreeSet<ProcessId>,
    /// Time at which to give up the candidacy.
    pub(super) until: Time,
}

/// The two rounds of a candidacy.
#[derive(Debug)]
pub(super) enum CandidateStage {
    /// Asks whether a majority would promise. Nobody promises anything yet, so a candidate that is cut off
    /// raises no ballot. A voter that agrees describes its log if that log is better than the candidate's.
    PreVote(BTreeMap<ProcessId, Option<Better>>),
    /// Phase 1.
    Prepare(BTreeMap<ProcessId, Promise>),
}

/// The contents of [`Message::Promise`].
#[derive(Debug)]
pub(super) struct Promise {
    pub(super) accepted: Ballot,
    pub(super) last: Slot,
    pub(super) chosen: Slot,
    pub(super) start: Slot,
    pub(super) values: Vec<SlotValue>,
}

impl Candidacy {
    pub(super) fn new(core: &Core, ballot: Ballot, now: Time, until: Time) -> Candidacy {
        let reach = core.reach_now(now) as u32;
        let (accepted, last, chosen) = (core.accepted, core.log.last(), core.chosen);
        let prepare = Prepare { ballot, accepted, last, chosen, reach };
        Candidacy {
            prepare,
            stage: CandidateStage::PreVote(BTreeMap::from([(core.me.id, None)])),
            asked: BTreeSet::new(),
            refused: BTreeSet::new(),
            until,
        }
    }

    /// Whether the candidate asked `process`.
    pub(super) fn asks(&self, process: ProcessId) -> bool {
        self.asked.contains(&process)
    }

    /// Returns the question that the candidate asks in the present round.
    pub(super) fn question(&self) -> Message {
        match self.stage {
            CandidateStage::PreVote(_) => Message::PreVote(self.prepare),
            CandidateStage::Prepare(_) => Message::Prepare(self.prepare),
        }
    }

    /// Returns the electors: the members of the newest change, chosen or not, in the best known log. Answers
    /// describe better logs, and promises also reveal more of the prefix. A candidate that knows only old
    /// members counts its votes again with each later set of members that it learns in this way.
    pub(super) fn electorate<'a>(&'a self, core: &'a Core) -> &'a [Peer] {
        let (last, open) = match &self.stage {
            CandidateStage::PreVote(votes) => match best_described(&self.prepare, votes) {
                None => return core.acting(),
                Some(best) => (best.last, Some(&best.members[..])),
            },
            CandidateStage::Prepare(promises) => match best(&self.prepare, promises) {
                None => return core.acting(),
                Some(best) => (best.last, best.members_open()),
            },
        };
        // A log that ends within the chosen prefix contains no change of the members that the prefix lacks.
        open.filter(|_| last > core.chosen).unwrap_or(&core.members)
    }

    /// Whether a majority of the electors agreed.
    pub(super) fn is_carried(&self, core: &Core) -> bool {
        let electors: Vec<_> = self.electorate(core).iter().map(|peer| peer.id).collect();
        match &self.stage {
            CandidateStage::PreVote(votes) => quorum::has_majority(&electors, votes.keys()),
            CandidateStage::Prepare(promises) => {
                quorum::has_majority(&electors, promises.keys().chain([&core.me.id]))
            }
        }
    }

    /// Whether a majority has become impossible, because too many electors refused or do not talk with this
    /// process.
    pub(super) fn is_hopeless(&self, core: &Core, now: Time) -> bool {
        let electors: Vec<_> = self.electorate(core).iter().map(|peer| peer.id).collect();
        let may = |id: &&ProcessId| !self.refused.contains(id) && core.talks(**id, now);
        !quorum::has_majority(&electors, electors.iter().filter(may))
    }
}

impl Promise {
    /// Whether the promise has the correct form. It must carry everything that this candidate needs. Of the
    /// slots not known to be chosen, only the last slot may change the members.
    pub(super) fn is_whole(&self, prepare: &Prepare) -> bool {
        let Some(end) = self.start.0.checked_add(self.values.len() as u64) else { return false };
        let beats = (self.accepted, self.last) > (prepare.accepted, prepare.last);
        self.start == prepare.chosen
            && self.chosen <= self.last
            && end >= self.chosen.0
            && (!beats || end == self.last.0.max(self.start.0))
            && !self.values[self.learned().len()..]
                .iter()
                .rev()
                .skip(1)
                .any(|value| matches!(value, SlotValue::Members(_)))
    }

    /// Returns the members after the sender's last slot, if that slot changes the members.
    fn members_open(&self) -> Option<&[Peer]> {
        match self.values.last() {
            Some(SlotValue::Members(open)) => Some(open),
            _ => None,
        }
    }

    /// Returns the values known to be chosen.
    pub(super) fn learned(&self) -> &[SlotValue] {
        &self.values[..self.chosen.0.saturating_sub(self.start.0) as usize]
    }
}

/// Returns the promised log with which a candidate must continue: the longest of the logs of the highest
/// ballot. `None` if the candidate's own log is the best.
pub(super) fn best<'a>(prepare: &Prepare, promises: &'a BTreeMap<ProcessId, Promise>) -> Option<&'a Promise> {
    promises
        .values()
        .filter(|promise| (promise.accepted, promise.last) > (prepare.accepted, prepare.last))
        .max_by_key(|promise| (promise.accepted, promise.last))
}

/// Returns the best log that pre-votes described; `None` if the candidate's own log is the best.
fn best_described<'a>(
    prepare: &Prepare,
    votes: &'a BTreeMap<ProcessId, Option<Better>>,
) -> Option<&'a Better> {
    votes
        .values()
        .flatten()
        .filter(|log| (log.accepted, log.last) > (prepare.accepted, prepare.last))
        .max_by_key(|log| (log.accepted, log.last))
}
