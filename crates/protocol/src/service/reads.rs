//! Answers that rest on the leader's state alone (003 §VI.A.3; rule S16).
//!
//! **Promise.** A read sees everything that was answered before it was called for.
//!
//! A leader that was deposed does not know it. So an answer waits until a majority, whole incarnations of members and of those
//! that an open change would make, is known to have followed the leader's ballot after the read was called for. A later
//! leader has the promises of a majority before it has anything chosen, and a replica that follows this ballot has
//! promised it nothing: one replica is in both, so whatever the later leader answered, it answered after the
//! read was called for. All that was answered before is of this reign or of earlier ones, and the leader is settled: it has it.
//! The answer also waits until all that the read saw is chosen; it would be gone with the reign otherwise.
//!
//! There are two ways of knowing, and each costs where the other is cheap.
//!
//! ```text
//!  asked   client ── Calls ──▶ leader ── Confirm ──▶ backups ── Confirmed ──▶ leader ── Answers ──▶ client     4 hops
//!  told    client ── Calls ──▶ leader (executes meanwhile)
//!             └───── Reads ──▶ backups ── Told ─────────────────────────────▶ leader ── Answers ──▶ client     3 hops
//! ```
//!
//! *Asked*: the leader asks, once for all reads that came in a batch of inputs: many reads cost one round. *Told* is the
//! source's: the client tells all replicas, and each that does not lead confirms to the leader that it follows. A hop less, and
//! as many messages for each read: for few reads.
//!
//! **Attacks on told reads.**
//!
//! - *A confirmation overtakes its read.* It is kept for a while, and not more than so many are.
//! - *A backup does not follow, or the client's word does not reach it*: one direction is cut. A read that is not confirmed two
//!   ticks later is asked for, like any other. If that is in vain too, the reign ends.
//! - *Two leaders.* Each backup confirms to the one that it follows when its batch ends. The older leader gets at most what was said
//!   before the newer one was promised anything.
//! - *A confirmation of an earlier attempt is counted for a later one of the same read.* The call was made before either.
//! - *A backup confirms, ends, and comes back as another process*: it was alive after the read was called for, and had promised
//!   nobody else. As a process that is no member it counts for nothing from the change on that takes it out.
//! - *The members change between two confirmations.* They are counted for the members of the moment at which the last one comes,
//!   as those of a round are (`paxos::confirm`).

use std::collections::{BTreeMap, VecDeque};

use super::{CallId, Outcome};
use crate::id::ProcessId;

/// Answers that wait until what they saw is chosen, and until the reign is known to have stood after the call came.
#[derive(Debug, Default)]
pub(super) struct Reads {
    waiting: VecDeque<Waiting>,
    /// The last question that was put to the log.
    asked: u64,
    /// Whether calls have come that no question covers.
    uncovered: bool,
    /// The last question that was answered.
    confirmed: u64,
    /// Reads that the replicas were told of, until the reign is known to have stood and they are executed.
    told: BTreeMap<CallId, Told>,
    /// Confirmations of reads that have not come: since the last tick, and since the one before.
    early: [BTreeMap<CallId, Vec<ProcessId>>; 2],
    /// Answers that wait for what they saw alone.
    sure: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// The last instance whose change it saw.
    seen: u64,
    /// The question that covers it.
    question: u64,
    client: ProcessId,
    id: CallId,
    outcome: Outcome,
}

/// A read that the replicas were told of.
#[derive(Debug, Default)]
struct Told {
    /// The last instance whose change it saw, the client, and the answer.
    result: Option<(u64, ProcessId, Outcome)>,
    /// Replicas that followed after they were told of it.
    by: Vec<ProcessId>,
    /// Whether a tick came since it did.
    old: bool,
    /// The question that covers it, once it was too long in coming.
    question: Option<u64>,
}

impl Reads {
    /// A call came: the question that will cover it.
    pub(super) fn cover(&mut self) -> u64 {
        self.uncovered = true;
        self.asked + 1
    }

    /// The question to be put at the end of a batch of inputs, if there is one.
    pub(super) fn question(&mut self) -> Option<u64> {
        std::mem::take(&mut self.uncovered).then(|| {
            self.asked += 1;
            self.asked
        })
    }

    /// The last question that was put.
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    /// Questions up to this one were put before, in the same ballot.
    pub(super) fn go_on_behind(&mut self, asked: u64) {
        assert!(self.asked == 0, "it has asked nothing itself");
        (self.asked, self.confirmed) = (asked, asked);
    }

    /// A read came that the replicas were told of. Says whether it is the first of its name.
    pub(super) fn expect(&mut self, id: CallId) -> bool {
        if self.told.contains_key(&id) {
            return false;
        }
        let by = self.early.iter_mut().filter_map(|early| early.remove(&id)).flatten().collect();
        self.told.insert(id, Told { by, ..Told::default() });
        true
    }

    /// A replica followed after it was told of this read.
    pub(super) fn follows(&mut self, from: ProcessId, id: CallId, majority: impl Fn(&[ProcessId]) -> bool) {
        let by = match self.told.get_mut(&id) {
            Some(told) => &mut told.by,
            None if self.early[0].len() < EARLY_MAX => self.early[0].entry(id).or_default(),
            None => return,
        };
        if !by.contains(&from) {
            by.push(from);
        }
        self.close(id, majority);
    }

    /// A read that the replicas were told of was executed behind instance `seen`.
    pub(super) fn executed_told(
        &mut self,
        seen: u64,
        client: ProcessId,
        id: CallId,
        outcome: Outcome,
        majority: impl Fn(&[ProcessId]) -> bool,
    ) {
        let told = self.told.get_mut(&id).expect("a read is expected until it is executed and confirmed");
        told.result = Some((seen, client, outcome));
        self.close(id, majority);
    }

    /// Looks whether a read waits for nothing any more but what it saw.
    fn close(&mut self, id: CallId, majority: impl Fn(&[ProcessId]) -> bool) {
        if let Some(Told { result: Some(_), by, question, .. }) = self.told.get(&id)
            && (majority(by) || question.is_some_and(|question| question <= self.confirmed))
            && let Some(Told { result: Some((seen, client, outcome)), .. }) = self.told.remove(&id)
        {
            self.sure.push_back(Waiting { seen, question: 0, client, id, outcome });
        }
    }

    /// Time has passed: reads of which the replicas have not said enough are asked for.
    pub(super) fn tick(&mut self) {
        self.early.swap(0, 1);
        self.early[0].clear();
        let question = self.asked + 1;
        for told in self.told.values_mut() {
            if std::mem::replace(&mut told.old, true) && told.question.is_none() {
                told.question = Some(question);
                self.uncovered = true;
            }
        }
    }

    /// A call was executed behind instance `seen`.
    pub(super) fn executed(
        &mut self,
        seen: u64,
        question: u64,
        client: ProcessId,
        id: CallId,
        outcome: Outcome,
    ) {
        self.waiting.push_back(Waiting { seen, question, client, id, outcome });
    }

    /// Whether there are answers that wait.
    pub(super) fn owe(&self) -> bool {
        let executed = self.told.values().any(|told| told.result.is_some());
        executed || !self.waiting.is_empty() || !self.sure.is_empty()
    }

    /// The reign stood when the questions up to this one were put.
    pub(super) fn confirmed(&mut self, through: u64) {
        self.confirmed = self.confirmed.max(through);
        let covered = |told: &Told| told.question.is_some_and(|question| question <= through);
        let covered = self.told.iter().filter(|(_, told)| covered(told)).map(|(id, _)| *id);
        for id in covered.collect::<Vec<_>>() {
            self.close(id, |_| false);
        }
    }

    /// Takes the next answer that may be given, with everything up to instance `chosen` chosen.
    pub(super) fn next(&mut self, chosen: u64) -> Option<(ProcessId, CallId, Outcome)> {
        let may = |read: &mut Waiting| read.seen <= chosen && read.question <= self.confirmed;
        let read = self.waiting.pop_front_if(may).or_else(|| self.sure.pop_front_if(may))?;
        Some((read.client, read.id, read.outcome))
    }
}

/// Reads whose confirmations came first that are remembered between two ticks.
const EARLY_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{id::Incarnation, service::SessionId};

    fn process(node: u64) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(0) }
    }

    fn id(number: u64) -> CallId {
        CallId { session: SessionId(1), number }
    }

    fn one_other(by: &[ProcessId]) -> bool {
        !by.is_empty()
    }

    fn numbers(reads: &mut Reads, chosen: u64) -> Vec<u64> {
        std::iter::from_fn(|| reads.next(chosen)).map(|(_, id, _)| id.number).collect()
    }

    #[test]
    fn a_told_read_needs_a_majority_an_execution_and_what_it_saw() {
        let mut reads = Reads::default();
        assert!(reads.expect(id(1)) && !reads.expect(id(1)));
        reads.follows(process(2), id(1), one_other);
        assert_eq!(numbers(&mut reads, 9), []);
        reads.executed_told(5, process(100), id(1), Outcome::Full, one_other);
        assert_eq!(numbers(&mut reads, 4), [], "it saw instance 5");
        assert_eq!(numbers(&mut reads, 5), [1]);
    }

    #[test]
    fn confirmations_that_come_first_are_kept_for_two_ticks() {
        let mut reads = Reads::default();
        for number in 1..=3 {
            reads.follows(process(2), id(number), one_other);
        }
        for (number, known) in [(1, true), (2, true), (3, false)] {
            reads.expect(id(number));
            reads.executed_told(0, process(100), id(number), Outcome::Full, one_other);
            assert_eq!(numbers(&mut reads, 0).len(), usize::from(known), "{number}");
            reads.tick();
        }
        for number in 0..2 * EARLY_MAX as u64 {
            reads.follows(process(2), id(100 + number), one_other);
        }
        assert_eq!(reads.early[0].len(), EARLY_MAX);
    }

    #[test]
    fn a_told_read_that_nobody_confirms_is_asked_for() {
        let mut reads = Reads::default();
        reads.expect(id(1));
        reads.executed_told(0, process(100), id(1), Outcome::Full, one_other);
        reads.tick();
        assert_eq!(reads.question(), None);
        reads.tick();
        assert_eq!(reads.question(), Some(1));
        assert_eq!(numbers(&mut reads, 0), []);
        reads.confirmed(1);
        assert_eq!(numbers(&mut reads, 0), [1]);
    }
}
