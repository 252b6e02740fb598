//! What every engine offers. The plain engine (`plain.rs`) is the twin that the fast one is tested against.
//!
//! Source: 002 §3.2 (batches of operations that see exactly the writes before them) and §6.6 (partial live migration).
//! An engine is a deterministic function of the calls made on it: replicas that were given the same operations for a
//! range hold the same rows of it, under the same row numbers, and give the same answers. Nothing in it waits, reads a
//! clock or draws a number.

use crate::{
    explain::Explained,
    host::{Alone, Host},
    operation::{LoadId, Operation, Select},
    schema::{KeyRange, Schema, TableId},
    value::Row,
};
use serde::{Deserialize, Serialize};

pub use crate::{
    failure::Failure,
    saved::{Records, Saved, Saving},
};

/// The position in the total order that a version of the data stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// An operation at its position.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Where in the total order; for reads, the writes below and at it are visible.
    pub epoch: Epoch,
    /// The ring ranges this replica is to answer for. A row outside is neither seen nor changed.
    pub ranges: Vec<KeyRange>,
    /// What to do.
    pub operation: Operation,
    /// Evaluate, keep the result back, and wait for [`Engine::settle`] (rule S15).
    pub held: bool,
}

/// The result of a job at one replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// A write was applied: one result per range of the job, in their order. (Replicas hold overlapping sets of ranges,
    /// and the gateway takes each range's result once.)
    Written(Vec<Written>),
    /// Rows of a read.
    Rows(Vec<Row>),
    /// Partial groups of a read, to be merged.
    Groups(Vec<Group>),
    /// The operation failed and changed nothing.
    Failed(Failure),
    /// How the rows of a read were found, instead of them.
    Explained(Explained),
    /// Some rows of a backup.
    Backup {
        /// Of which version.
        at: Epoch,
        /// Of which of its reads.
        read: u32,
        /// The rows.
        rows: Vec<Row>,
    },
}

impl Answer {
    /// How many rows or groups a read gave.
    pub(crate) fn rows(&self) -> u64 {
        match self {
            Answer::Rows(rows) => rows.len() as u64,
            Answer::Groups(groups) => groups.len() as u64,
            Answer::Backup { rows, .. } => rows.len() as u64,
            Answer::Written(_) | Answer::Failed(_) | Answer::Explained(_) => 0,
        }
    }
}

/// What a write did in one range.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// Rows inserted, changed or deleted.
    pub rows: u64,
    /// RETURNING, a row each.
    pub returning: Vec<Row>,
}

/// One group's partial state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Values of the grouping expressions.
    pub keys: Row,
    /// One partial state per aggregate (see `aggregate.rs`).
    pub states: Vec<crate::aggregate::State>,
}

/// A storage process's data, all tables of it. Deterministic: same calls, same answers, on every replica.
pub trait Engine: Send {
    /// Runs `jobs` in order, exactly as if one after another, and stops behind the first held one. Returns one answer
    /// per job run; a held job's answer is what it would be, and it must be settled before the next call. For
    /// each range the epochs of writes ascend, each of them one operation's: rows are numbered by them. A read whose
    /// epoch lies before the last write is answered from the version pinned at that very epoch, and fails (72000) if
    /// there is none.
    fn apply(&mut self, jobs: &[Job]) -> Vec<Answer> {
        self.apply_keeping(jobs, &mut |_, _| false, &Alone)
    }

    /// The same, and asks `keep` of every read (which of the jobs, and its answer) whether the version that it saw is
    /// to be kept, as if by [`Engine::pin`] at the job's epoch for a reader. A read that was withdrawn meanwhile may
    /// fail (57014) instead of being answered. A panic while rows are looked at for a read is that read's failure
    /// ([`Failure::is_panic`]); the other jobs are answered. A panic in a write goes on to the caller.
    fn apply_keeping(
        &mut self,
        jobs: &[Job],
        keep: &mut dyn FnMut(usize, &Answer) -> bool,
        host: &dyn Host,
    ) -> Vec<Answer>;

    /// Publishes or voids the held job.
    fn settle(&mut self, epoch: Epoch, publish: bool);

    /// Keeps the present version readable until released; as often as it was pinned. Not while a job is held.
    fn pin(&mut self, epoch: Epoch, holder: Holder);

    /// Gives a pinned version back.
    fn release(&mut self, epoch: Epoch, holder: Holder);

    /// Part of a long read of plain rows (no order, no DISTINCT, no limit) as of a pinned epoch, so that a result of
    /// any size streams: at most `rows` matching rows from where `cursor` stands (`None` at first). Fails (72000) if
    /// the version was taken from its readers because they kept too much ([`Bounds::pinned_bytes_max`]).
    fn page(
        &mut self,
        epoch: Epoch,
        ranges: &[KeyRange],
        select: &Select,
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Page, Failure>;

    /// Streams the rows (and staged rows) of `ranges` as of a pinned epoch; `cursor` starts at `None`, and each chunk
    /// tells where to go on. Any replica of the ranges can go on from another's cursor.
    fn export(
        &mut self,
        epoch: Epoch,
        ranges: &[KeyRange],
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Chunk, Failure>;

    /// Takes in a chunk of an export. Rows that are already here stay as they are; what no engine exported is refused.
    fn import(&mut self, chunk: Chunk) -> Result<(), Failure>;

    /// Saves more of the version at a pinned epoch: what has changed since it was saved before (`saved`).
    fn save(&mut self, epoch: Epoch, saving: &Saving, cursor: Option<Cursor>) -> Result<Saved, Failure>;

    /// Takes in the next piece of an outline, whose fragments are in these records. For an engine that held nothing before the
    /// first.
    fn restore(&mut self, outline: &[u8], records: &Records) -> Result<(), Failure>;

    /// Drops every row of these ranges (they moved elsewhere).
    fn forget(&mut self, ranges: &[KeyRange]);

    /// Drops what loads of this session have put aside: nobody is left who could publish it.
    fn end_session(&mut self, session: u128);

    /// A hash of the definitions and of the rows (and staged rows) in `ranges`, as of a pinned epoch or the present:
    /// equal on replicas that hold the same, whatever way they came to it.
    fn digest(&mut self, epoch: Option<Epoch>, ranges: &[KeyRange]) -> Result<u64, Failure>;

    /// Rows and bytes held, by table.
    fn usage(&self) -> Vec<Usage>;

    /// What pinned versions keep.
    fn pinned(&self) -> Pinned;
}

/// For whom a version is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A client in the middle of a long result, which may pause for ever.
    Reader,
    /// A move of ranges, which nothing may break.
    Migration,
}

/// What an engine takes at most. Replicas need not have the same bounds: they concern reads only, which one replica of
/// each range answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes that are kept for readers only. Looked at between calls, so that one batch may exceed it for as long as it
    /// takes.
    pub pinned_bytes_max: u64,
    /// Bytes that are gathered for one read before it is answered: rows with an order or DISTINCT, groups, and rows
    /// that are asked for at once. Beyond them it fails (53200).
    pub result_bytes_max: u64,
    /// Bytes that are gathered for all reads of one call together, beside the first 16 KiB of each; at least
    /// `result_bytes_max`. One that finds them spent fails as crowded ([`Failure::is_crowded`]), and can be asked alone.
    pub batch_bytes_max: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { pinned_bytes_max: 256 << 20, result_bytes_max: 256 << 20, batch_bytes_max: 256 << 20 }
    }
}

/// What pinned versions keep beside the present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Readers that hold a version.
    pub readers: u64,
    /// Bytes that are kept for them only.
    pub reader_bytes: u64,
    /// Bytes that a migration needs.
    pub migration_bytes: u64,
    /// Readers whose version was taken from them since the engine began.
    pub broken: u64,
}

/// A row's number: where it was inserted. The same on every replica, kept by updates and migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowId {
    /// The position of the operation that brought it.
    pub epoch: Epoch,
    /// Which of that operation's rows.
    pub line: u32,
}

/// Where an export or a long read stands; opaque.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor(pub Vec<u64>);

/// Part of a long read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// Output rows.
    pub rows: Vec<Row>,
    /// Where to go on; `None` when this was the last.
    pub next: Option<Cursor>,
}

/// Part of an export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chunk {
    /// Every table's definition; only in the first chunk.
    pub definitions: Vec<(TableId, Schema)>,
    /// Rows in the order of the engine.
    pub rows: Vec<Exported>,
    /// Where to go on; `None` when this was the last.
    pub next: Option<Cursor>,
}

/// A row on its way to another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exported {
    /// Its table.
    pub table: TableId,
    /// The load it is staged for; `None` for a visible row.
    pub load: Option<LoadId>,
    /// Its number.
    pub id: RowId,
    /// Its values.
    pub row: Row,
}

/// What a table takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Which table.
    pub table: TableId,
    /// Live rows.
    pub rows: u64,
    /// Bytes, all versions and indexes included.
    pub bytes: u64,
}
