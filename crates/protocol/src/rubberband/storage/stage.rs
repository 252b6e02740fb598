//! The stages of a checkpoint in progress. [`checkpoint`](super::checkpoint) moves the checkpoint from stage
//! to stage.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;

use super::replies::{Cursor, Pinned};
use crate::{ecast::Position, seam::Ticket};

/// A checkpoint in progress.
pub(super) struct Checkpoint {
    /// Last position whose effects the checkpoint contains.
    pub(super) at: Position,
    /// Ticket of the checkpoint's first record.
    pub(super) began: Ticket,
    pub(super) stage: CheckpointStage,
    /// The memory of writes that the ranges had at position `at`.
    pub(super) pinned: Pinned,
    /// Bytes written so far.
    pub(super) bytes: u64,
    /// Numbers of the records whose fragments are saved again.
    pub(super) carried: Arc<BTreeSet<u64>>,
    /// For each record, the number of its fragments that the checkpoint has named so far.
    pub(super) named: BTreeMap<u64, u32>,
    /// The placement change that is complete once the checkpoint is whole.
    pub(super) completes: Option<Position>,
}

pub(super) enum CheckpointStage {
    /// The checkpoint's step waits in the queue.
    Due,
    /// The engine can save the next piece, from this place on.
    Rows(Option<Bytes>),
    /// The engine is reading the next piece.
    Reading,
    /// A piece is written. The next piece follows once this piece is durable.
    Written(Ticket, NextPiece),
}

pub(super) enum NextPiece {
    Rows(Bytes),
    Replies(Option<Cursor>),
    End,
    /// The checkpoint is whole.
    Over,
}
