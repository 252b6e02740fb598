//! The checkpoints of a storage process: the checkpoint in progress, and the facts of the last checkpoint.

use super::{
    fragment_index::FragmentIndex,
    stage::{Checkpoint, CheckpointStage, NextPiece},
};
use crate::{
    ecast::Position,
    time::{Duration, Time},
};

/// The checkpoint in progress, and the facts of the last checkpoint.
pub(super) struct CheckpointProgress {
    pub(super) current: Option<Checkpoint>,
    /// The version that a checkpoint no longer needs and the engine must release.
    pub(super) version_to_release: Option<Position>,
    /// Bytes of the last checkpoint.
    pub(super) bytes: u64,
    /// Start of the last checkpoint, or of the process.
    begun_at: Option<Time>,
    /// The fragments that checkpoints have written.
    pub(super) fragment_index: FragmentIndex,
}

impl CheckpointProgress {
    /// Makes the progress of a process that has begun no checkpoint. Checkpoints of earlier lives wrote these
    /// fragments.
    pub(super) fn new(fragment_index: FragmentIndex) -> Self {
        CheckpointProgress {
            current: None,
            version_to_release: None,
            bytes: 0,
            begun_at: None,
            fragment_index,
        }
    }

    /// Returns the time since a checkpoint last began, or since the first call.
    pub(super) fn since(&mut self, now: Time) -> Duration {
        now.since(*self.begun_at.get_or_insert(now))
    }

    /// Notes that a checkpoint begins.
    pub(super) fn begin(&mut self, now: Time) {
        self.begun_at = Some(now);
    }

    /// Whether the journal after the last checkpoint, which began `since` ago and has `journal_bytes` bytes,
    /// is long enough for the next checkpoint.
    pub(super) fn is_due(&self, least: u64, since: Duration, journal_bytes: u64) -> bool {
        // A checkpoint is due once the journal is as long as the last checkpoint. So a disk writes
        // everything at most twice.
        if journal_bytes >= least.max(self.bytes) {
            return true;
        }
        // Executing the journal again takes many times longer than reading its effects. So a disk that has
        // been mostly idle may write a checkpoint earlier.
        let few = (least / PARTS).max(1);
        let pace = u128::from(least / PACE_SECONDS) * since.as_millis() / 1_000;
        journal_bytes >= few && pace >= u128::from(self.bytes.max(few))
    }

    /// Drops a checkpoint that still waits in the queue, because the steps queued before it will not be
    /// executed.
    pub(super) fn drop_due(&mut self) {
        self.current.take_if(|checkpoint| matches!(checkpoint.stage, CheckpointStage::Due));
    }

    /// Drops the checkpoint in progress. Returns the version that the engine keeps for it.
    pub(super) fn drop_current(&mut self) -> Option<Position> {
        let begun = self.current.take();
        let read = begun.filter(|it| {
            matches!(it.stage, CheckpointStage::Rows(_) | CheckpointStage::Written(_, NextPiece::Rows(_)))
        });
        self.version_to_release.take().or(read.map(|it| it.at))
    }
}

/// Divisor: a checkpoint may begin once the journal has 1/4 of `checkpoint_bytes`, if the disk has been
/// mostly idle.
const PARTS: u64 = 4;

/// Time in seconds in which early checkpoints write `checkpoint_bytes` on average: 16 MiB a second for 64
/// MiB.
const PACE_SECONDS: u64 = 4;
