//! Standing for leader: a pre-vote that disturbs nobody, then phase 1.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ballot, Core, Message, Prepare, Slot, Value};
use crate::{id::ProcessId, time::Time};

/// An attempt to lead.
#[derive(Debug)]
pub(super) struct Candidacy {
    /// What was asked of the others.
    pub(super) prepare: Prepare,
    /// How far it is.
    pub(super) stage: Stage,
    /// Who refused.
    pub(super) refused: BTreeSet<ProcessId>,
    /// When to give up.
    pub(super) until: Time,
}

/// The two rounds of a candidacy.
#[derive(Debug)]
pub(super) enum Stage {
    /// Would a majority promise? Nobody promises anything yet, so a candidate that is cut off raises no ballot.
    PreVote(BTreeSet<ProcessId>),
    /// Phase 1.
    Prepare(BTreeMap<ProcessId, Promise>),
}

/// What [`Message::Promise`] carries.
#[derive(Debug)]
pub(super) struct Promise {
    pub(super) accepted: Ballot,
    pub(super) last: Slot,
    pub(super) chosen: Slot,
    pub(super) start: Slot,
    pub(super) values: Vec<Value>,
}

impl Candidacy {
    pub(super) fn new(core: &Core, ballot: Ballot, until: Time) -> Candidacy {
        let prepare = Prepare { ballot, accepted: core.accepted, last: core.log.last(), chosen: core.chosen };
        Candidacy {
            prepare,
            stage: Stage::PreVote(BTreeSet::from([core.me.id])),
            refused: BTreeSet::new(),
            until,
        }
    }

    /// What the others are asked at this stage.
    pub(super) fn question(&self) -> Message {
        match self.stage {
            Stage::PreVote(_) => Message::PreVote(self.prepare),
            Stage::Prepare(_) => Message::Prepare(self.prepare),
        }
    }

    /// Whether a majority of the members said yes. The members are those behind the last slot *known* to be chosen, and
    /// promises make more known: a candidate that comes with old members counts anew with each set that they reveal.
    pub(super) fn is_carried(&self, core: &Core) -> bool {
        match &self.stage {
            Stage::PreVote(votes) => core.has_majority(votes),
            Stage::Prepare(promises) => core.has_majority(promises.keys().chain([&core.me.id])),
        }
    }

    /// Whether so many refused that no majority can come.
    pub(super) fn is_hopeless(&self, core: &Core) -> bool {
        let left: Vec<_> =
            core.members.iter().map(|peer| peer.id).filter(|id| !self.refused.contains(id)).collect();
        !core.has_majority(&left)
    }
}

impl Promise {
    /// Whether it keeps its form: it carries all that it must, for this candidate.
    pub(super) fn is_whole(&self, prepare: &Prepare) -> bool {
        let Some(end) = self.start.0.checked_add(self.values.len() as u64) else { return false };
        let beats = (self.accepted, self.last) > (prepare.accepted, prepare.last);
        self.start == prepare.chosen
            && self.chosen <= self.last
            && end >= self.chosen.0
            && (!beats || end == self.last.0.max(self.start.0))
    }

    /// The part that is known to be chosen.
    pub(super) fn learned(&self) -> &[Value] {
        &self.values[..self.chosen.0.saturating_sub(self.start.0) as usize]
    }
}

/// The log that a candidate must go on with: of those promised, the one of the highest ballot, and of these the longest.
/// `None` when it is the candidate's own.
pub(super) fn best<'a>(prepare: &Prepare, promises: &'a BTreeMap<ProcessId, Promise>) -> Option<&'a Promise> {
    promises
        .values()
        .filter(|promise| (promise.accepted, promise.last) > (prepare.accepted, prepare.last))
        .max_by_key(|promise| (promise.accepted, promise.last))
}
