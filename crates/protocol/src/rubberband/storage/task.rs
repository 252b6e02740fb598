//! What the engine is asked to do, and what it answers: tasks in order, a result for each.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;

use crate::{ecast::Position, rubberband::Range};

/// Work for the engine, to be done in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The position it stands for.
    pub at: Position,
    /// What.
    pub kind: TaskKind,
}

/// What the engine is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskKind {
    /// A write to these ranges; one result per range. A held one is evaluated and neither published nor voided until
    /// [`TaskKind::Settle`]; it is the last of its batch.
    Write {
        /// The ranges held here.
        ranges: Vec<Range>,
        /// The operation.
        operation: Bytes,
        /// Whether to hold it.
        held: bool,
    },
    /// Publishes or voids the held write.
    Settle {
        /// Which of the two.
        publish: bool,
    },
    /// A read of these ranges.
    Read {
        /// What to read.
        ranges: Vec<Range>,
        /// The operation.
        operation: Bytes,
    },
    /// The next rows of a read that is [`TaskResult::Long`], of the version kept at its position.
    Page {
        /// Of which ranges.
        ranges: Vec<Range>,
        /// The operation.
        operation: Bytes,
        /// Where to go on; `None` at first.
        cursor: Option<Bytes>,
        /// How many rows.
        rows: usize,
    },
    /// A table begins to exist.
    CreateTable {
        /// Its number.
        table: u32,
        /// Its definition.
        definition: Bytes,
    },
    /// A table ceases to exist.
    DropTable {
        /// Its number.
        table: u32,
    },
    /// A read that is [`TaskResult::Long`] or [`TaskResult::Crowded`] needs its version no more.
    Finish,
    /// Keeps the present version readable as of this position, for a move of ranges.
    Pin,
    /// Gives the version back.
    Release,
    /// Reads the next rows of the version pinned at this position.
    Export {
        /// Of which ranges.
        ranges: Vec<Range>,
        /// Where to go on.
        cursor: Option<Bytes>,
    },
    /// Saves more of the version pinned at this position: what has changed since it was saved before, and what lies in some
    /// records.
    Save {
        /// The number of the record that comes of it.
        record: u64,
        /// Records with lower numbers are not on this disk.
        since: u64,
        /// Records whose fragments are saved anew.
        carried: Arc<BTreeSet<u64>>,
        /// Where to go on.
        cursor: Option<Bytes>,
    },
    /// Takes in what was saved, to begin with.
    Restore {
        /// The next piece of the outline.
        outline: Bytes,
        /// Records, by number.
        records: Arc<BTreeMap<u64, Bytes>>,
    },
    /// Takes rows in.
    Import {
        /// What an export read.
        rows: Bytes,
    },
    /// Drops what loads of this session have put aside.
    EndSession {
        /// Whose.
        session: u128,
    },
    /// Drops all rows of these ranges.
    Forget {
        /// Which.
        ranges: Vec<Range>,
    },
}

/// What came of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskResult {
    /// Done, nothing to tell.
    Done,
    /// A write's answer, one per range of the task.
    Written(Vec<Bytes>),
    /// A write failed and changed nothing.
    Failed(Bytes),
    /// A read's answer in pieces; at least one.
    Read(Vec<Bytes>),
    /// The answer is too long to be held whole: the version it is of is kept, until [`TaskKind::Finish`], and its rows
    /// are to be asked for by [`TaskKind::Page`].
    Long,
    /// Other reads of the batch gathered so much that there was no room for this one. The version it is of is kept, until
    /// [`TaskKind::Finish`], and it is to be asked again in a batch without other reads.
    Crowded,
    /// Some rows of a long answer.
    Page {
        /// The rows.
        rows: Bytes,
        /// Where to go on; `None` at the end.
        cursor: Option<Bytes>,
    },
    /// A fragment of a version is to be written down.
    Saved {
        /// Fragments that were not on disk.
        fragments: Bytes,
        /// How many.
        count: u32,
        /// The next piece of the outline.
        outline: Bytes,
        /// How many fragments of which record it names.
        named: Vec<(u64, u32)>,
        /// Where to go on; `None` at the end.
        cursor: Option<Bytes>,
    },
    /// An export.
    Exported {
        /// The rows.
        rows: Bytes,
        /// Where to go on; `None` at the end.
        cursor: Option<Bytes>,
    },
}
