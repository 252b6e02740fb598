//! Answers that rest on the leader's state alone (003 §VI.A.3; rule S16).
//!
//! **Promise.** A read sees every change that was answered before the read was called.
//!
//! A deposed leader may not know that it is deposed. So an answer waits until a majority is known to have
//! followed the leader's ballot after the read was called. Only the present incarnations of members count. If
//! a change of the members is open, a majority of the members after the change is needed, too. A later leader
//! has the promises of a majority before any of its proposals is chosen, and a replica that follows this
//! ballot has promised nothing to a later leader. One replica is in both majorities. So any later leader
//! answered its first call after the read was called. All earlier answers belong to this reign or to former
//! reigns, and the leader is settled, so it has the changes of these answers. The answer also waits until all
//! changes that the read saw are chosen: otherwise they would vanish with the reign.
//!
//! A leader learns in two ways that its reign still stands. One way is cheap for many reads, the other way
//! for few reads.
//!
//! ```text
//!  asked      client ─ Calls ─▶ leader ─ Confirm ─▶ backups ─ Confirmed ─▶ leader ─ Answers ─▶ client
//!  4 hops
//!
//!  announced  client ─ Calls ─▶ leader (executes meanwhile)
//!  3 hops     └─ Reads ──────────────────▶ backups ─ ReadsConfirmed ─▶ leader ─ Answers ─▶ client
//! ```
//!
//! *Asked*: the leader asks once for all reads of a batch of inputs, so many reads cost one round.
//! *Announced* is the source's way: the client announces the read to all replicas, and each replica that does
//! not lead confirms to the leader that it follows. Announced reads save a hop, but cost messages for each
//! read, so they suit few reads.
//!
//! **Attacks on announced reads.**
//!
//! - *A confirmation overtakes its read.* The leader keeps such confirmations for a while, and their number
//!   is bounded.
//! - *A backup does not follow, or the client's message does not reach it*: one direction is cut. If a read
//!   is not confirmed two ticks later, the leader asks for it as for any other read. If that fails too, the
//!   reign ends.
//! - *Two leaders.* Each backup confirms to the leader that it follows at the end of the backup's batch of
//!   inputs. The older leader gets only confirmations that were sent before any promise to the newer leader.
//! - *A confirmation of an earlier attempt is counted for a later attempt of the same read.* This does no
//!   harm, because the call was made before either attempt.
//! - *A backup confirms, ends, and comes back as another process*: the backup was alive after the read was
//!   called, and had promised no other leader. Once a change has removed the former process, its
//!   confirmations no longer count.
//! - *The members change between two confirmations.* All confirmations are counted against the members at the
//!   moment of the last confirmation, like the confirmations of a round (`paxos::confirm`).

use std::collections::{BTreeMap, VecDeque};

use super::{CallId, CallOutcome};
use crate::id::ProcessId;

/// Answers that wait until the changes that they saw are chosen, and until the reign is known to have stood
/// after the call.
#[derive(Debug, Default)]
pub(super) struct Reads {
    waiting: VecDeque<WaitingRead>,
    /// The number of the last question to the log, which asks whether the reign still stands.
    asked: u64,
    /// Whether calls have come since the last question to the log.
    uncovered: bool,
    /// The number of the last question that the log confirmed.
    confirmed: u64,
    /// Reads that their clients have announced to the replicas. Each stays until it is executed and the reign
    /// is known to have stood.
    announced: BTreeMap<CallId, AnnouncedRead>,
    /// Confirmations of announced reads, for reads that have not arrived themselves: the confirmations since
    /// the last tick, and the confirmations between the last two ticks.
    early_confirmations: [BTreeMap<CallId, Vec<ProcessId>>; 2],
    /// Answers that wait only until the changes that they saw are chosen.
    confirmed_reads: VecDeque<WaitingRead>,
    /// The memory of all waiting answers, in bytes.
    bytes: usize,
}

#[derive(Debug)]
struct WaitingRead {
    /// The number of the last instance whose change the read saw.
    seen: u64,
    /// The number of the question to the log that covers the read.
    question: u64,
    client: ProcessId,
    id: CallId,
    outcome: CallOutcome,
}

/// A read that its client has announced to the replicas.
#[derive(Debug, Default)]
struct AnnouncedRead {
    /// The last instance whose change the read saw, the client, and the answer. `None` until the read is
    /// executed.
    result: Option<(u64, ProcessId, CallOutcome)>,
    /// The replicas that confirmed this read.
    by: Vec<ProcessId>,
    /// Whether a tick has passed since the read came.
    old: bool,
    /// The number of the question to the log that covers the read. Set only if confirmations took too long.
    question: Option<u64>,
}

impl Reads {
    /// Returns the number of the question that will cover a call that has come just now.
    pub(super) fn cover(&mut self) -> u64 {
        self.uncovered = true;
        self.asked + 1
    }

    /// Returns the number of the question to ask at the end of a batch of inputs, if calls need one.
    pub(super) fn question(&mut self) -> Option<u64> {
        std::mem::take(&mut self.uncovered).then(|| {
            self.asked += 1;
            self.asked
        })
    }

    /// Returns the memory of the waiting answers, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of the last question.
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    /// Continues the questions in the same ballot. New questions get numbers above `asked`.
    pub(super) fn continue_above(&mut self, asked: u64) {
        assert!(self.asked == 0, "no question was asked before the numbers are continued");
        (self.asked, self.confirmed) = (asked, asked);
    }

    /// Begins to count confirmations of a read that its client has announced to the replicas. Returns whether
    /// this is the first attempt of this call.
    pub(super) fn expect(&mut self, id: CallId) -> bool {
        if self.announced.contains_key(&id) {
            return false;
        }
        let by = self
            .early_confirmations
            .iter_mut()
            .filter_map(|early_confirmations| early_confirmations.remove(&id))
            .flatten()
            .collect();
        self.announced.insert(id, AnnouncedRead { by, ..AnnouncedRead::default() });
        true
    }

    /// Counts a replica's confirmation of a read that the client has announced to it.
    pub(super) fn follows(&mut self, from: ProcessId, id: CallId, majority: impl Fn(&[ProcessId]) -> bool) {
        let by = match self.announced.get_mut(&id) {
            Some(announced) => &mut announced.by,
            None if self.early_confirmations[0].len() < EARLY_MAX => {
                self.early_confirmations[0].entry(id).or_default()
            }
            None => return,
        };
        if !by.contains(&from) {
            by.push(from);
        }
        self.close(id, majority);
    }

    /// Records the answer of an announced read, which was executed on the state after instance `seen`.
    pub(super) fn executed_announced(
        &mut self,
        seen: u64,
        client: ProcessId,
        id: CallId,
        outcome: CallOutcome,
        majority: impl Fn(&[ProcessId]) -> bool,
    ) {
        let announced =
            self.announced.get_mut(&id).expect("a read is expected until it is executed and confirmed");
        self.bytes += WAITING_BYTES + outcome.bytes();
        announced.result = Some((seen, client, outcome));
        self.close(id, majority);
    }

    /// If an announced read is confirmed and executed, moves its answer to the answers that wait only for the
    /// changes that they saw.
    fn close(&mut self, id: CallId, majority: impl Fn(&[ProcessId]) -> bool) {
        if let Some(AnnouncedRead { result: Some(_), by, question, .. }) = self.announced.get(&id)
            && (majority(by) || question.is_some_and(|question| question <= self.confirmed))
            && let Some(AnnouncedRead { result: Some((seen, client, outcome)), .. }) =
                self.announced.remove(&id)
        {
            self.confirmed_reads.push_back(WaitingRead { seen, question: 0, client, id, outcome });
        }
    }

    /// Handles a tick: announced reads that lack confirmations for too long are covered by a question to the
    /// log.
    pub(super) fn tick(&mut self) {
        self.early_confirmations.swap(0, 1);
        self.early_confirmations[0].clear();
        let question = self.asked + 1;
        for announced in self.announced.values_mut() {
            if std::mem::replace(&mut announced.old, true) && announced.question.is_none() {
                announced.question = Some(question);
                self.uncovered = true;
            }
        }
    }

    /// Records the answer of a call, which was executed on the state after instance `seen`.
    pub(super) fn executed(
        &mut self,
        seen: u64,
        question: u64,
        client: ProcessId,
        id: CallId,
        outcome: CallOutcome,
    ) {
        self.bytes += WAITING_BYTES + outcome.bytes();
        self.waiting.push_back(WaitingRead { seen, question, client, id, outcome });
    }

    /// Whether answers wait until they may be sent.
    pub(super) fn owe(&self) -> bool {
        let executed = self.announced.values().any(|announced| announced.result.is_some());
        executed || !self.waiting.is_empty() || !self.confirmed_reads.is_empty()
    }

    /// Records that the reign stood when the questions up to `through` were asked.
    pub(super) fn confirmed(&mut self, through: u64) {
        self.confirmed = self.confirmed.max(through);
        let covered =
            |announced: &AnnouncedRead| announced.question.is_some_and(|question| question <= through);
        let covered = self.announced.iter().filter(|(_, announced)| covered(announced)).map(|(id, _)| *id);
        for id in covered.collect::<Vec<_>>() {
            self.close(id, |_| false);
        }
    }

    /// Removes and returns the next answer that may be given when all instances up to `chosen` are chosen.
    pub(super) fn next(&mut self, chosen: u64) -> Option<(ProcessId, CallId, CallOutcome)> {
        let may = |read: &mut WaitingRead| read.seen <= chosen && read.question <= self.confirmed;
        let read = self.waiting.pop_front_if(may).or_else(|| self.confirmed_reads.pop_front_if(may))?;
        self.bytes -= WAITING_BYTES + read.outcome.bytes();
        Some((read.client, read.id, read.outcome))
    }
}

/// The memory of a waiting answer in addition to the answer itself, in bytes.
const WAITING_BYTES: usize = 72;

/// The maximum number of announced reads whose early confirmations are kept between two ticks.
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
    fn an_announced_read_needs_a_majority_an_execution_and_its_seen_instance() {
        let mut reads = Reads::default();
        assert!(reads.expect(id(1)) && !reads.expect(id(1)));
        reads.follows(process(2), id(1), one_other);
        assert_eq!(numbers(&mut reads, 9), []);
        reads.executed_announced(5, process(100), id(1), CallOutcome::Full, one_other);
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
            reads.executed_announced(0, process(100), id(number), CallOutcome::Full, one_other);
            assert_eq!(numbers(&mut reads, 0).len(), usize::from(known), "{number}");
            reads.tick();
        }
        for number in 0..2 * EARLY_MAX as u64 {
            reads.follows(process(2), id(100 + number), one_other);
        }
        assert_eq!(reads.early_confirmations[0].len(), EARLY_MAX);
    }

    #[test]
    fn an_unconfirmed_announced_read_is_asked_about() {
        let mut reads = Reads::default();
        reads.expect(id(1));
        reads.executed_announced(0, process(100), id(1), CallOutcome::Full, one_other);
        reads.tick();
        assert_eq!(reads.question(), None);
        reads.tick();
        assert_eq!(reads.question(), Some(1));
        assert_eq!(numbers(&mut reads, 0), []);
        reads.confirmed(1);
        assert_eq!(numbers(&mut reads, 0), [1]);
    }
}
