//! The held write of a storage process, and the durability of its decisions.

use std::collections::VecDeque;

use super::work::{Evaluated, Write};
use crate::{ecast::Position, seam::Ticket, time::Time};

/// The held write, and the decisions on earlier writes that are on disk.
#[derive(Default)]
pub(super) struct WriteDecisions {
    /// The evaluated write that waits for verdicts, and the result of its evaluation here.
    holding: Option<(Box<Write>, Evaluated)>,
    /// Time at which the process asks for the verdicts on the held write.
    ask_at: Option<Time>,
    /// The decided write that the next batch settles first, and whether it is published.
    settle: Option<(Position, bool)>,
    /// Records of decisions that are not known to be durable, each with the position of its write.
    records: VecDeque<(Ticket, Position)>,
    /// Last position whose decision is on disk.
    decided: Position,
    /// Position at which a member last departed.
    pub(super) departed: Position,
}

impl WriteDecisions {
    /// Makes the decisions of a process that comes back from its disk. A member last departed at `departed`.
    pub(super) fn recovered(departed: Position) -> Self {
        WriteDecisions { departed, ..WriteDecisions::default() }
    }

    /// Holds a write until it is decided, and asks for verdicts from this time on.
    pub(super) fn hold(&mut self, write: Box<Write>, result: Evaluated, ask_at: Time) {
        self.holding = Some((write, result));
        self.ask_at = Some(ask_at);
    }

    /// Returns the held write.
    pub(super) fn held(&self) -> Option<&Write> {
        self.holding.as_ref().map(|(write, _)| &**write)
    }

    /// Whether a write is held.
    pub(super) fn is_holding(&self) -> bool {
        self.holding.is_some()
    }

    /// Takes the held write, which is decided now. The next batch publishes or drops its effects.
    pub(super) fn release(&mut self, publish: bool) -> Option<(Box<Write>, Evaluated)> {
        let (write, result) = self.holding.take()?;
        self.ask_at = None;
        self.settle = Some((write.at, publish));
        Some((write, result))
    }

    /// Drops the effects of an evaluated write with the next batch.
    pub(super) fn void(&mut self, at: Position) {
        self.settle = Some((at, false));
    }

    /// Takes the write that the next batch settles, and whether it is published.
    pub(super) fn next_settled(&mut self) -> Option<(Position, bool)> {
        self.settle.take()
    }

    /// Returns the time at which the process asks for the verdicts on the held write.
    pub(super) fn ask_at(&self) -> Option<Time> {
        self.ask_at
    }

    /// Returns the held write if it is time to ask for its verdicts. The process asks the next time at
    /// `again`.
    pub(super) fn due(&mut self, now: Time, again: Time) -> Option<&Write> {
        if self.ask_at.is_none_or(|at| at > now) || self.holding.is_none() {
            return None;
        }
        self.ask_at = Some(again);
        self.held()
    }

    /// Notes the record of the decision on the write at this position.
    pub(super) fn wrote(&mut self, record: Ticket, at: Position) {
        self.records.push_back((record, at));
    }

    /// Notes that all records up to `ticket` are durable.
    pub(super) fn persisted(&mut self, ticket: Ticket) {
        while let Some((_, at)) = self.records.pop_front_if(|(record, _)| *record <= ticket) {
            self.decided = at;
        }
    }

    /// Returns the last position whose decision is on disk.
    pub(super) fn decided(&self) -> Position {
        self.decided
    }

    /// Takes the writes that the next life has to settle: the held write, and the decided write.
    pub(super) fn hand_over(&mut self) -> HeldWrite {
        HeldWrite { holding: self.holding.take(), settle: self.settle.take() }
    }

    /// Makes the decisions of the next life of a process, which asks for missing verdicts at once.
    pub(super) fn taken_over(HeldWrite { holding, settle }: HeldWrite) -> Self {
        let ask_at = holding.is_some().then_some(Time::ZERO);
        WriteDecisions { holding, settle, ask_at, ..WriteDecisions::default() }
    }
}

/// The writes that a life of a process leaves to the next life.
pub(super) struct HeldWrite {
    holding: Option<(Box<Write>, Evaluated)>,
    settle: Option<(Position, bool)>,
}
