//! Answers that rest on the leader's state alone (003 §VI.A.3; rule S16).

use std::collections::VecDeque;

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

    /// The reign stood when the questions up to this one were put.
    pub(super) fn confirmed(&mut self, through: u64) {
        self.confirmed = self.confirmed.max(through);
    }

    /// Takes the next answer that may be given, with everything up to instance `chosen` chosen.
    pub(super) fn next(&mut self, chosen: u64) -> Option<(ProcessId, CallId, Outcome)> {
        let may = |read: &mut Waiting| read.seen <= chosen && read.question <= self.confirmed;
        self.waiting.pop_front_if(may).map(|read| (read.client, read.id, read.outcome))
    }

    /// Processes whose answers wait.
    pub(super) fn clients(&self) -> impl Iterator<Item = ProcessId> {
        self.waiting.iter().map(|read| read.client)
    }
}
