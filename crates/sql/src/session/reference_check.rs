//! The checks of references that a block has yet to make.

use std::sync::Arc;

use super::key_condition::KeyValues;
use crate::{backend::Table, budget::MemoryReservation, statement::upkeep::Upkeep};

/// Keys for which a reference has to be checked.
pub(super) struct ReferenceCheck {
    /// The table that was written.
    pub(super) table: Arc<Table>,
    pub(super) upkeep: Arc<Upkeep>,
    pub(super) side: ReferenceSide,
    /// Whether the check waits for COMMIT.
    pub(super) waits: bool,
    pub(super) keys: Vec<KeyValues>,
    /// Memory of the keys, freed together with the check.
    pub(super) _hold: MemoryReservation,
}

/// The reference of a check, by its index in the table's [`Upkeep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReferenceSide {
    /// The keys must exist in the parent.
    Parent(usize),
    /// The keys vanished from the table, and no child may refer to them.
    Child(usize),
}
