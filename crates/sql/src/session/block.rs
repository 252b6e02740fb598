//! The state of a session's block, with its savepoints and its cursors.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use quorate_table::{operation::ReceivedResult, schema::KeyRange};

use super::{deferred::DeferredWrite, reference_check::ReferenceCheck, setting::Settings, steps::Steps};
use crate::{
    budget::MemoryReservation,
    error::{Result, SqlError},
    finish::Rows,
    locks::BlockLocks,
    statement::{Field, Isolation},
};

/// The state of the session's block.
pub(super) enum TransactionBlock {
    None,
    Open(OpenBlock),
    Failed(OpenBlock),
}

impl TransactionBlock {
    /// Returns the open block, if the client began it.
    pub(super) fn begun(&mut self) -> Option<&mut OpenBlock> {
        match self {
            TransactionBlock::Open(open) if !open.is_implicit => Some(open),
            _ => None,
        }
    }
}

pub(super) struct OpenBlock {
    /// Whether the session opened the block, because several statements came together. The block ends with
    /// their message or at their Sync.
    pub(super) is_implicit: bool,
    pub(super) read_only: bool,
    pub(super) isolation: Isolation,
    /// Whether a statement has read or written, so that the isolation level is fixed.
    pub(super) has_begun: bool,
    /// The statements that COMMIT sends.
    pub(super) steps: Steps,
    /// The writes that were not tried, in the order of their steps; bounded by the steps.
    pub(super) deferred: VecDeque<DeferredWrite>,
    /// The checks of references that wait for COMMIT; bounded by the memory of the session.
    pub(super) checks: Vec<ReferenceCheck>,
    /// The courtesy locks of the block's rows.
    pub(super) locks: BlockLocks,
    /// A description of the definition of a table that was applied. A definition takes effect at once.
    pub(super) defined: Option<String>,
    /// Whether the client knows that the definition stands, because an error refused a write and said so.
    pub(super) client_knows_definition_stands: bool,
    /// The settings from before the block.
    pub(super) saved: Settings,
    /// The old values of settings that SET LOCAL changed.
    pub(super) local: BTreeMap<String, Option<String>>,
    pub(super) began: i64,
    /// The savepoints, oldest first.
    pub(super) savepoints: Vec<Savepoint>,
}

pub(super) struct Savepoint {
    pub(super) name: String,
    pub(super) cursors: BTreeSet<String>,
    pub(super) settings: Settings,
    pub(super) local: BTreeMap<String, Option<String>>,
    /// Number of steps.
    pub(super) steps: usize,
    pub(super) defined: Option<String>,
}

impl OpenBlock {
    /// Removes all steps from the first deferred write on, because the client receives an error in place of
    /// its result. Savepoints behind it go, too.
    pub(super) fn forget_deferred(&mut self) {
        if let Some(first) = self.deferred.front() {
            let step = first.step;
            self.cut(step);
        }
    }

    /// Records that the first deferred write failed, and removes all steps behind it.
    pub(super) fn fail_deferred(&mut self, received: Vec<(KeyRange, ReceivedResult)>) -> Result<()> {
        let Some(failed) = self.deferred.pop_front() else { return Ok(()) };
        self.cut(failed.step + 1);
        self.steps.set_received(failed.step, received)
    }

    fn cut(&mut self, len: usize) {
        self.steps.truncate(len);
        self.savepoints.retain(|savepoint| savepoint.steps <= len);
        self.deferred.clear();
    }

    /// Returns the index of the latest savepoint with this name.
    pub(super) fn place(&self, name: &str) -> Result<usize> {
        self.savepoints
            .iter()
            .rposition(|savepoint| savepoint.name == name)
            .ok_or_else(|| SqlError::new("3B001", format!("savepoint \"{name}\" does not exist")))
    }
}

/// A cursor.
pub(super) struct Cursor {
    pub(super) rows: Rows,
    /// Memory of the rows under way from the ranges, freed with the cursor.
    pub(super) _hold: MemoryReservation,
    pub(super) fields: Arc<Vec<Field>>,
}
