//! Standing for leader: a pre-vote that disturbs nobody, then phase 1.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ballot, Better, Core, Message, Paxos, Prepare, Slot, Value};
use crate::{
    id::{Peer, ProcessId},
    quorum,
    seam::Sink,
    time::Time,
};

/// An attempt to lead.
#[derive(Debug)]
pub(super) struct Candidacy {
    /// What was asked of the others.
    pub(super) prepare: Prepare,
    /// How far it is.
    pub(super) stage: Stage,
    /// Who was asked.
    asked: BTreeSet<ProcessId>,
    /// Who refused at this stage.
    pub(super) refused: BTreeSet<ProcessId>,
    /// When to give up.
    pub(super) until: Time,
}

/// The two rounds of a candidacy.
#[derive(Debug)]
pub(super) enum Stage {
    /// Would a majority promise? Nobody promises anything yet, so a candidate that is cut off raises no ballot. A voter that
    /// says yes tells of its log, if that is the better one.
    PreVote(BTreeMap<ProcessId, Option<Better>>),
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
    pub(super) fn new(core: &Core, ballot: Ballot, now: Time, until: Time) -> Candidacy {
        let reach = core.reach_now(now) as u32;
        let (accepted, last, chosen) = (core.accepted, core.log.last(), core.chosen);
        let prepare = Prepare { ballot, accepted, last, chosen, reach };
        Candidacy {
            prepare,
            stage: Stage::PreVote(BTreeMap::from([(core.me.id, None)])),
            asked: BTreeSet::new(),
            refused: BTreeSet::new(),
            until,
        }
    }

    /// Goes on from the pre-vote to phase 1, and asks everybody once more: anyone may hold the log to go on with.
    pub(super) fn prepare(&mut self, core: &mut Core, out: &mut dyn Sink<Paxos>) {
        self.stage = Stage::Prepare(BTreeMap::new());
        self.refused.clear();
        core.send_all(self.asked.iter().copied().collect(), self.question(), out);
        self.ask(core, out);
    }

    /// Asks those that have a say and were not asked yet, and the members: should the change that this process holds be of a
    /// reign that is over, one of these knows.
    pub(super) fn ask(&mut self, core: &mut Core, out: &mut dyn Sink<Paxos>) {
        let mut asked = Vec::new();
        for peer in [self.electorate(core), &core.members].concat() {
            if peer.id != core.me.id && self.asked.insert(peer.id) {
                core.reach(&peer, out);
                asked.push(peer.id);
            }
        }
        core.send_all(asked, self.question(), out);
    }

    /// Whether `process` was asked.
    pub(super) fn asks(&self, process: ProcessId) -> bool {
        self.asked.contains(&process)
    }

    /// What the others are asked at this stage.
    pub(super) fn question(&self) -> Message {
        match self.stage {
            Stage::PreVote(_) => Message::PreVote(self.prepare),
            Stage::Prepare(_) => Message::Prepare(self.prepare),
        }
    }

    /// Who has a say: the members that the newest change makes in the log to go on with, chosen or not. Answers tell of better
    /// logs, and promises of more of the prefix, too; a candidate that comes with other members counts anew with each set
    /// that it learns so.
    pub(super) fn electorate<'a>(&'a self, core: &'a Core) -> &'a [Peer] {
        let (last, open) = match &self.stage {
            Stage::PreVote(votes) => match best_told(&self.prepare, votes) {
                None => return core.acting(),
                Some(best) => (best.last, Some(&best.members[..])),
            },
            Stage::Prepare(promises) => match best(&self.prepare, promises) {
                None => return core.acting(),
                Some(best) => (best.last, best.members_open()),
            },
        };
        // A log that ends within the chosen prefix makes no other members than that.
        open.filter(|_| last > core.chosen).unwrap_or(&core.members)
    }

    /// Whether a majority of those who have a say said yes.
    pub(super) fn is_carried(&self, core: &Core) -> bool {
        let electors: Vec<_> = self.electorate(core).iter().map(|peer| peer.id).collect();
        match &self.stage {
            Stage::PreVote(votes) => quorum::has_majority(&electors, votes.keys()),
            Stage::Prepare(promises) => quorum::has_majority(&electors, promises.keys().chain([&core.me.id])),
        }
    }

    /// Whether so many refused, or do not talk with this process, that no majority can come.
    pub(super) fn is_hopeless(&self, core: &Core, now: Time) -> bool {
        let electors: Vec<_> = self.electorate(core).iter().map(|peer| peer.id).collect();
        let may = |id: &&ProcessId| !self.refused.contains(id) && core.talks(**id, now);
        !quorum::has_majority(&electors, electors.iter().filter(may))
    }
}

impl Promise {
    /// Whether it keeps its form: it carries all that it must, for this candidate, and of what is not known to be chosen
    /// only the end changes the members.
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
                .any(|value| matches!(value, Value::Members(_)))
    }

    /// The members that its end would make, if it is a change of them.
    fn members_open(&self) -> Option<&[Peer]> {
        match self.values.last() {
            Some(Value::Members(open)) => Some(open),
            _ => None,
        }
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

/// The log that a candidate would have to go on with, of those that pre-votes told of, and its own.
fn best_told<'a>(prepare: &Prepare, votes: &'a BTreeMap<ProcessId, Option<Better>>) -> Option<&'a Better> {
    votes
        .values()
        .flatten()
        .filter(|log| (log.accepted, log.last) > (prepare.accepted, prepare.last))
        .max_by_key(|log| (log.accepted, log.last))
}
