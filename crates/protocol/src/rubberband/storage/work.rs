//! The steps that a storage process queues for its engine, and the purpose of each task that the engine has.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use smallvec::SmallVec;

use super::outbox::RequestKey;
use crate::{
    ecast::Position,
    id::ProcessId,
    rubberband::{DataHeader, Range, TransferCursor, membership::Membership},
    time::Time,
};

/// Work for the engine, at its position.
pub(super) enum QueuedStep {
    Write(Box<Write>),
    Read {
        at: Position,
        client: ProcessId,
        token: u64,
        ranges: Vec<Range>,
        operation: Bytes,
        /// Time of the read's arrival.
        since: Time,
    },
    Create {
        at: Position,
        table: u32,
        definition: Bytes,
    },
    Drop {
        at: Position,
        table: u32,
    },
    Alter {
        at: Position,
        /// The number of the table that ends.
        table: u32,
        /// The number of the table that begins.
        altered: u32,
        definition: Bytes,
        columns: Bytes,
    },
    Pin {
        at: Position,
        /// The moving ranges.
        ranges: Vec<Range>,
    },
    Release {
        at: Position,
    },
    Forget {
        at: Position,
        session: u128,
        below: u64,
        kept: Vec<u64>,
    },
    /// Forgets writes under made-up ids up to this position.
    Expire {
        through: Position,
    },
    /// Drops ranges that other processes hold from now on.
    Clear {
        at: Position,
        ranges: Vec<Range>,
    },
    /// Begins a checkpoint of everything up to this position.
    Checkpoint {
        at: Position,
    },
    /// Loads a part of a checkpoint into the empty engine.
    Restore {
        outline: Bytes,
        records: Arc<BTreeMap<u64, Bytes>>,
    },
    /// Loads rows of a checkpoint that an earlier version wrote.
    RestoreRows {
        rows: Bytes,
    },
    /// Waits until the import for the change at this position is done. Later steps are executed after that.
    Await {
        at: Position,
    },
}

/// The purpose of a task in the running batch.
pub(super) enum Purpose {
    Write(Box<Write>),
    Read {
        at: Position,
        client: ProcessId,
        token: u64,
        ranges: Vec<Range>,
        operation: Bytes,
        since: Time,
        /// Whether the engine keeps the read's version, because the read did not fit an earlier batch.
        kept: bool,
    },
    /// A read that nobody waits for.
    Withdrawn {
        at: Position,
    },
    Page {
        asked: RequestKey,
        at: Position,
    },
    Export {
        to: ProcessId,
        at: Position,
        asked: Option<Bytes>,
    },
    Import,
    /// The next piece of a checkpoint.
    Checkpoint,
    Step(Position),
    Settle,
}

/// A read that did not fit its batch. The engine keeps its version.
pub(super) struct DeferredRead {
    pub(super) at: Position,
    pub(super) asked: RequestKey,
    pub(super) ranges: Vec<Range>,
    pub(super) operation: Bytes,
    pub(super) since: Time,
}

/// The engine's result of a write: one answer per range, or the reason of the failure.
pub(super) type Evaluated = Result<Vec<Bytes>, Bytes>;

/// A delivered write.
pub(super) struct Write {
    pub(super) at: Position,
    pub(super) client: ProcessId,
    pub(super) header: DataHeader,
    /// The parts of the write that this process evaluates.
    pub(super) held: Vec<Range>,
    /// The ring segment of each part in `held`.
    pub(super) segments: Vec<Range>,
    /// Parts held here in addition to `held`, in which an earlier attempt took effect.
    pub(super) remembered: Vec<Range>,
    pub(super) answers: Vec<Range>,
    /// The other replicas and the parts they hold, if verdicts are exchanged.
    pub(super) others: Vec<(ProcessId, Vec<Range>)>,
    pub(super) operation: Bytes,
}

impl Write {
    /// Returns the segments of the parts to evaluate, each once.
    pub(super) fn segments(&self) -> SmallVec<[Range; 2]> {
        let mut segments = SmallVec::from_slice(&self.segments);
        segments.sort_unstable();
        segments.dedup();
        segments
    }

    /// Returns the replicas in `others` that are still members. A process that has left will not ask for a
    /// decision.
    pub(super) fn members(&self, membership: &Membership) -> impl Iterator<Item = ProcessId> {
        let members = membership.config().map(|config| &config.members);
        let is_member = move |process: &ProcessId| members.is_some_and(|all| all.contains_key(process));
        self.others.iter().map(|(process, _)| *process).filter(is_member)
    }

    /// Returns the processes that may know more of a held write: its live replicas, the present replicas of
    /// its ranges, and keepers.
    pub(super) fn may_know(&self, membership: &Membership) -> Vec<ProcessId> {
        let Some(config) = membership.config() else { return Vec::new() };
        let concerned = self.others.iter().map(|(process, _)| *process);
        let keepers = config.keepers().map(|(keeper, _)| keeper);
        let concerned = concerned.chain(keepers);
        let mut all: Vec<ProcessId> = concerned.chain(config.replicas_of(&self.header.ranges)).collect();
        all.retain(|process| *process != membership.me && config.members.contains_key(process));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the parts held here, evaluated or remembered.
    pub(super) fn here(&self) -> impl Iterator<Item = Range> {
        self.held.iter().chain(&self.remembered).copied()
    }
}

/// A standby's request for rows.
pub(super) struct Fetch {
    pub(super) from: ProcessId,
    pub(super) change: Position,
    pub(super) ranges: Vec<Range>,
    pub(super) cursor: TransferCursor,
}
