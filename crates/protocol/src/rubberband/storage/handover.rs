//! The state that a removed process hands to its next life ([keeping](crate::rubberband::keeping)).

use std::{collections::VecDeque, fmt};

use super::{
    decisions::HeldWrite, outbox::Outboxes, replies::Replies, settings::StorageSettings, verdicts::Verdicts,
    work::QueuedStep,
};
use crate::rubberband::{Config, KeptRows};

/// The state of a storage process that is no longer a member, except its engine.
pub struct Handover {
    pub(super) keeps: KeptRows,
    pub(super) settings: StorageSettings,
    /// The last configuration that the process knew.
    pub(super) config: Config,
    pub(super) queue: VecDeque<QueuedStep>,
    pub(super) held: HeldWrite,
    pub(super) verdicts: Verdicts,
    pub(super) replies: Replies,
    pub(super) outboxes: Outboxes,
    /// Number of the next record of saved fragments.
    pub(super) next_saved: u64,
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover").field("keeps", &self.keeps).finish_non_exhaustive()
    }
}

impl Handover {
    /// Returns the kept rows.
    pub fn keeps(&self) -> KeptRows {
        self.keeps
    }
}
