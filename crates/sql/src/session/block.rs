//! The state of a session's block, with its savepoints and its cursors.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::setting::Settings;
use crate::{
    budget::MemoryReservation,
    error::{Result, SqlError},
    finish::Rows,
    statement::Field,
};

/// The state of the session's block.
pub(super) enum TransactionBlock {
    None,
    Open(OpenBlock),
    Failed(OpenBlock),
}

pub(super) struct OpenBlock {
    pub(super) read_only: bool,
    /// A description of the write that was applied.
    pub(super) written: Option<String>,
    /// Whether the client knows that the first write stands, because an error refused a second write and said
    /// so.
    pub(super) client_knows_write_stands: bool,
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
    pub(super) written: Option<String>,
}

/// The setting that names the next write.
pub(super) const REQUEST_ID: &str = "quorate.request_id";

impl TransactionBlock {
    /// Removes the name of an answered write from all settings that the end of the block, or a rollback to a
    /// savepoint, would restore. If the name came back, the next write would pass for a repetition and would
    /// not be executed.
    pub(super) fn forget_request(&mut self, name: &str) {
        let (TransactionBlock::Open(open) | TransactionBlock::Failed(open)) = self else { return };
        let local = open.savepoints.iter_mut().map(|savepoint| &mut savepoint.local).chain([&mut open.local]);
        for local in local {
            if let Some(old) = local.get_mut(REQUEST_ID) {
                old.take_if(|old| old == name);
            }
        }
        let savepoints = open.savepoints.iter_mut().map(|savepoint| &mut savepoint.settings);
        for settings in savepoints.chain([&mut open.saved]) {
            if settings.get(REQUEST_ID).is_some_and(|saved| saved == name) {
                settings.remove(REQUEST_ID);
            }
        }
    }
}

impl OpenBlock {
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
