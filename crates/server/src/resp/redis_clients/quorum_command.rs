//! A command on a map of partial quorums, and its parts: the operations that it consists of.

use bytes::Bytes;
use quorate::maps::{EndedOperation, OperationEnd, OperationKind};
use quorate_protocol::{
    Time,
    partial::{Action, Level, MapId, OperationOutcome, Rejection, Value},
};
use smallvec::SmallVec;

use crate::resp::{
    command_plan::{CommandPlan, PlanShape},
    dial::DrawnLevels,
};

/// A command whose operations are under way. The operations are the parts of the command.
pub(super) struct QuorumCommand {
    pub(super) shape: PlanShape,
    pub(super) map: MapId,
    pub(super) drawn: DrawnLevels,
    pub(super) keys: SmallVec<[Bytes; 1]>,
    pub(super) outcomes: SmallVec<[Option<OperationOutcome>; 1]>,
    /// Number of parts that have no outcome yet.
    pub(super) left: usize,
    /// Parts that the cell had no room for. They begin again when other parts of the command end.
    pub(super) turned_away: Vec<usize>,
    pub(super) writes: bool,
    /// Size of the values in `outcomes`, in bytes.
    pub(super) gathered: usize,
    /// The reason why values were dropped, if they were. Once all outcomes have come, the answer is a refusal
    /// with this reason.
    pub(super) refused: Option<DropReason>,
    /// Whether the command's values were dropped. The command reads again when it is the first of its client.
    pub(super) deferred: bool,
}

/// Operations of a command, each with the number of its part.
pub(super) type OperationParts = SmallVec<[(usize, (Bytes, Action)); 1]>;

/// The reason why a value is not kept until its answer can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropReason {
    /// The answer would exceed the limit of an answer.
    TooLarge,
    /// The clients together would hold too much memory.
    Busy,
}

/// Maximum number of parts that begin again when one part of their command has ended. So a command for which
/// the cell has little room continues with few parts at a time, and with more parts as room becomes free.
const BEGUN_AGAIN: usize = 2;

impl QuorumCommand {
    pub(super) fn new(work: &CommandPlan, map: MapId, drawn: DrawnLevels) -> QuorumCommand {
        QuorumCommand {
            shape: work.shape.clone(),
            map,
            drawn,
            keys: work.operations.iter().map(|(key, _)| key.clone()).collect(),
            outcomes: work.operations.iter().map(|_| None).collect(),
            left: work.operations.len(),
            turned_away: Vec::new(),
            writes: work.writes(),
            gathered: 0,
            refused: None,
            deferred: false,
        }
    }

    /// Whether the command changes nothing, so that its operations can be repeated.
    pub(super) fn only_reads(&self) -> bool {
        !self.writes && !self.shape.is_step() && !self.keys.is_empty()
    }

    /// Removes the value from an outcome if the answer does not contain it.
    pub(super) fn reduced(&self, outcome: OperationOutcome) -> OperationOutcome {
        match outcome {
            OperationOutcome::Found { value, expires, wall, newest, level } if !self.shape.tells_value() => {
                let value = match value {
                    Value::Nothing => Value::Nothing,
                    Value::String(_) => Value::String(Bytes::new()),
                    Value::Hash(_) => Value::Hash(Vec::new()),
                };
                OperationOutcome::Found { value, expires, wall, newest, level }
            }
            outcome => outcome,
        }
    }

    /// Drops the values that were found so far. Returns the size of the dropped values, in bytes.
    pub(super) fn drop_values(&mut self) -> usize {
        if self.gathered > 0 {
            self.outcomes.iter_mut().for_each(|outcome| *outcome = None);
        }
        std::mem::take(&mut self.gathered)
    }

    /// Drops all outcomes. The command reads again when it is the first of its client.
    pub(super) fn defer(&mut self) {
        self.outcomes.iter_mut().for_each(|outcome| *outcome = None);
        (self.left, self.refused, self.deferred) = (self.keys.len(), None, true);
    }

    /// Returns the reads of all parts, to be repeated.
    pub(super) fn all_reads(&self) -> OperationParts {
        (0..self.keys.len()).map(|part| (part, (self.keys[part].clone(), Action::Read))).collect()
    }

    /// Returns the number of parts that are under way.
    pub(super) fn running(&self) -> usize {
        self.left - self.turned_away.len()
    }

    /// Returns the parts that begin again because another part has ended. If no part may begin again, ends
    /// the parts that were turned away.
    pub(super) fn begin_again(&mut self, had_no_room: bool) -> OperationParts {
        if self.refused.is_some() || had_no_room && self.running() == 0 {
            for part in std::mem::take(&mut self.turned_away) {
                self.outcomes[part] = Some(OperationOutcome::Rejected(Rejection::Busy));
                self.left -= 1;
            }
        }
        if had_no_room {
            return OperationParts::new();
        }
        let first = self.turned_away.len().saturating_sub(BEGUN_AGAIN);
        // In the first step each part is a read. A second step that has several parts deletes the keys found.
        let action = if matches!(self.shape, PlanShape::Second(_)) { Action::Delete } else { Action::Read };
        self.turned_away
            .drain(first..)
            .map(|part| (part, (self.keys[part].clone(), action.clone())))
            .collect()
    }
}

/// The description of an operation, for the record of recent operations.
pub(super) struct OperationDescription {
    pub(super) level: Level,
    pub(super) deed: OperationKind,
    /// Whether the value that the operation writes has a limited life.
    mortal: bool,
}

impl OperationDescription {
    pub(super) fn new(action: &Action, level: Level) -> OperationDescription {
        let deed = match action {
            Action::Read => OperationKind::Read,
            Action::Put { .. } => OperationKind::Write,
            Action::Delete => OperationKind::Delete,
            Action::PutFields(_) | Action::Add(_) => OperationKind::Other,
        };
        OperationDescription { level, deed, mortal: matches!(action, Action::Put { lifetime: Some(_), .. }) }
    }

    /// Returns the entry of the operation in the record of recent operations, with the operation's outcome.
    pub(super) fn ended(
        &self,
        client: u64,
        (began, ended): (Time, Time),
        outcome: &OperationOutcome,
    ) -> EndedOperation {
        let (ending, mortal, deed) = match outcome {
            OperationOutcome::Found { value: Value::Hash(_), newest, .. } => {
                (OperationEnd::Done(*newest), false, OperationKind::Other)
            }
            OperationOutcome::Found { newest, expires, .. } => {
                (OperationEnd::Done(*newest), expires.is_some(), self.deed)
            }
            OperationOutcome::Done { stamp, .. } | OperationOutcome::Counted { stamp, .. } => {
                (OperationEnd::Done(*stamp), self.mortal, self.deed)
            }
            OperationOutcome::MaybeApplied => (OperationEnd::Unknown, self.mortal, self.deed),
            OperationOutcome::Unavailable
            | OperationOutcome::NotApplied
            | OperationOutcome::Unanswered
            | OperationOutcome::Rejected(_) => (OperationEnd::Failed, self.mortal, self.deed),
        };
        EndedOperation { client, began, ended, deed, ending, mortal }
    }
}
