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
    /// Whether an error told the client that the first write stands, by refusing a second one.
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
