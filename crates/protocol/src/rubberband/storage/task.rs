//! The tasks of the engine, which executes them in order, and the results, one for each task.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;

use crate::{ecast::Position, rubberband::Range};

/// A task for the engine. Tasks are executed in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The position for which the task is executed.
    pub at: Position,
    /// The kind of work.
    pub kind: TaskKind,
}

/// The kind of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskKind {
    /// A write to these ranges, with one result per range. A held write is evaluated, but neither published
    /// nor voided until [`TaskKind::Settle`]; it is the last task of its batch.
    Write {
        /// The ranges held here.
        ranges: Vec<Range>,
        /// The operation.
        operation: Bytes,
        /// Whether the write is held.
        held: bool,
    },
    /// Publishes or voids the held write.
    Settle {
        /// Whether to publish the held write; otherwise it is voided.
        publish: bool,
    },
    /// A read of these ranges.
    Read {
        /// The ranges.
        ranges: Vec<Range>,
        /// The operation.
        operation: Bytes,
    },
    /// The next rows of a read that is [`TaskResult::Long`], from the version kept at its position.
    Page {
        /// The ranges.
        ranges: Vec<Range>,
        /// The operation.
        operation: Bytes,
        /// The place from which to continue; `None` for the first page.
        cursor: Option<Bytes>,
        /// Maximum number of rows.
        rows: usize,
    },
    /// Creates a table.
    CreateTable {
        /// The table's number.
        table: u32,
        /// The table's definition.
        definition: Bytes,
    },
    /// Drops a table.
    DropTable {
        /// The table's number.
        table: u32,
    },
    /// Ends a table, and begins a table with its rows under another definition.
    AlterTable {
        /// The number of the table that ends.
        table: u32,
        /// The number of the table that begins.
        altered: u32,
        /// The definition of the table that begins.
        definition: Bytes,
        /// The sources of its columns.
        columns: Bytes,
    },
    /// Releases the version of a read that was [`TaskResult::Long`] or [`TaskResult::Crowded`].
    Finish,
    /// Keeps the present version readable under this position, for a move of ranges.
    Pin,
    /// Releases the version pinned at this position.
    Release,
    /// Reads the next rows of the version pinned at this position.
    Export {
        /// The ranges.
        ranges: Vec<Range>,
        /// The place from which to continue; `None` for the first rows.
        cursor: Option<Bytes>,
    },
    /// Saves more of the version pinned at this position: fragments that changed since they were last saved,
    /// and fragments in the records of `carried`.
    Save {
        /// The number of the resulting record.
        record: u64,
        /// The first record number on this disk. Fragments in earlier records are on another disk and must be
        /// saved again.
        since: u64,
        /// Records whose fragments are saved again.
        carried: Arc<BTreeSet<u64>>,
        /// The place from which to continue; `None` for the first part.
        cursor: Option<Bytes>,
    },
    /// Loads saved fragments into the empty engine.
    Restore {
        /// The next piece of the outline.
        outline: Bytes,
        /// The records of fragments, by number.
        records: Arc<BTreeMap<u64, Bytes>>,
    },
    /// Adds exported rows.
    Import {
        /// The rows of a [`TaskResult::Exported`].
        rows: Bytes,
    },
    /// Drops the staged rows of this session's loads.
    EndSession {
        /// The session.
        session: u128,
    },
    /// Drops all rows of these ranges.
    Forget {
        /// The ranges.
        ranges: Vec<Range>,
    },
}

/// The result of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskResult {
    /// Done, without a value.
    Done,
    /// A write's answers, one per range of the task.
    Written(Vec<Bytes>),
    /// The reason of a failed write, which changed nothing.
    Failed(Bytes),
    /// A read's answer, in one or more pieces.
    Read(Vec<Bytes>),
    /// The answer is too long to be held whole. The engine keeps the version until [`TaskKind::Finish`], and
    /// [`TaskKind::Page`] asks for its rows.
    Long,
    /// The answers of other reads in the batch used up the memory. The engine keeps the version until
    /// [`TaskKind::Finish`], and the read is executed again in a batch without other reads.
    Crowded,
    /// Some rows of a long answer.
    Page {
        /// The rows.
        rows: Bytes,
        /// The place from which to continue; `None` after the last rows.
        cursor: Option<Bytes>,
    },
    /// A saved part of a version, to be written to the journal.
    Saved {
        /// Fragments that were not on disk.
        fragments: Bytes,
        /// Number of fragments in `fragments`.
        count: u32,
        /// The next piece of the outline.
        outline: Bytes,
        /// The records that this piece of the outline names, each with the number of its named fragments.
        named: Vec<(u64, u32)>,
        /// The place from which to continue; `None` after the last part.
        cursor: Option<Bytes>,
    },
    /// Some rows of an export.
    Exported {
        /// The rows.
        rows: Bytes,
        /// The place from which to continue; `None` after the last rows.
        cursor: Option<Bytes>,
    },
}
