//! The interface of every engine. Tests compare the fast engine with the plain engine (`plain.rs`), its twin.
//!
//! Source: 002 §3.2 (batches of operations that see exactly the writes before them) and §6.6 (partial live
//! migration). An engine is a deterministic function of the calls made on it. Replicas that run the same
//! operations for a range hold the same rows of it, under the same row numbers, and give the same answers. An
//! engine never waits, reads a clock or draws a random number.

use crate::{
    explain::Explanation,
    fingerprint::Fingerprint,
    host::{Host, SingleThread},
    operation::{LoadId, Operation, Select},
    schema::{KeyRange, Schema, TableId},
    value::Row,
};
use serde::{Deserialize, Serialize};

pub use crate::{
    failure::Failure,
    group::Group,
    position::{Cursor, Epoch, RowId},
    saved::{Records, SaveTarget, SavedPart},
};

/// An operation at its position.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The position in the total order. A read sees the writes up to and including it.
    pub epoch: Epoch,
    /// The ring ranges that this replica must answer for. The operation neither sees nor changes rows outside
    /// these ranges.
    pub ranges: Vec<KeyRange>,
    /// The operation to run.
    pub operation: Operation,
    /// Whether the engine evaluates the operation, holds its effect back and waits for [`Engine::settle`]
    /// (rule S15).
    pub held: bool,
}

/// The result of a job at one replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// A write was applied: one result per range of the job, in their order. (Replicas hold overlapping sets
    /// of ranges, and the gateway counts each range's result once.)
    Written(Vec<Written>),
    /// Rows of a read.
    Rows(Vec<Row>),
    /// Partial groups of a read, to be merged.
    Groups(Vec<Group>),
    /// The operation failed and changed nothing.
    Failed(Failure),
    /// The way in which the rows of a read were found, instead of the rows.
    Explanation(Explanation),
    /// Some rows of a backup.
    Backup {
        /// The version of the rows.
        at: Epoch,
        /// The index of the backup's read that the rows belong to.
        read: u32,
        /// The rows, in the order of the read.
        rows: Vec<Row>,
    },
    /// A transaction was applied. For each range of the job, the results of its statements, in order. A
    /// statement whose result the client has received already has an empty result here.
    Transaction(Vec<Vec<Written>>),
    /// A trial's statement can be executed. This is the statement's answer ([`Answer::Written`],
    /// [`Answer::Rows`] or [`Answer::Groups`]), with the fingerprints of its result.
    Tried {
        /// The fingerprints, by range of the job.
        received: Vec<(KeyRange, Fingerprint)>,
        /// The answer of the statement.
        answer: Box<Answer>,
    },
    /// A trial's statement failed.
    TrialFailed {
        /// The ranges of the job in which it failed.
        ranges: Vec<KeyRange>,
        /// The reason why the statement failed.
        failure: Failure,
    },
}

impl Answer {
    /// Returns the number of rows or groups that a read returned.
    pub(crate) fn rows(&self) -> u64 {
        match self {
            Answer::Rows(rows) => rows.len() as u64,
            Answer::Groups(groups) => groups.len() as u64,
            Answer::Backup { rows, .. } => rows.len() as u64,
            Answer::Tried { answer, .. } => answer.rows(),
            Answer::Written(_)
            | Answer::Failed(_)
            | Answer::Explanation(_)
            | Answer::Transaction(_)
            | Answer::TrialFailed { .. } => 0,
        }
    }
}

/// The result of a write in one range.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// The number of rows inserted, changed or deleted.
    pub rows: u64,
    /// The output of RETURNING, one row for each row that was inserted, changed or deleted.
    pub returning: Vec<Row>,
}

/// The data of a storage process: all its tables. The same calls give the same answers on every replica.
pub trait Engine: Send {
    /// Runs `jobs` in order, exactly as if one after another, and stops after the first held job. Returns one
    /// answer per job that ran. A held job gets the answer that it would have if it were published; the
    /// caller must settle the job before the next call. For each range, the epochs of writes must ascend, and
    /// each epoch must belong to one operation, because the engine numbers rows by epoch. A read whose epoch
    /// precedes the last write is answered from the version pinned at exactly that epoch. The read fails
    /// (72000) if no version is pinned there.
    fn apply(&mut self, jobs: &[Job]) -> Vec<Answer> {
        self.apply_keeping(jobs, &mut |_, _| false, &SingleThread)
    }

    /// Runs `jobs` as [`Engine::apply`] does. After each read, passes the job's index and the answer to
    /// `keep`. If `keep` returns true, the engine pins the version that the read saw, as by [`Engine::pin`]
    /// at the job's epoch for a reader. A read that the host withdraws meanwhile may fail (57014). A panic of
    /// the search for a read's rows makes this read fail ([`Failure::is_panic`]), and the engine answers the
    /// other jobs. A panic in a write reaches the caller.
    fn apply_keeping(
        &mut self,
        jobs: &[Job],
        keep: &mut dyn FnMut(usize, &Answer) -> bool,
        host: &dyn Host,
    ) -> Vec<Answer>;

    /// Publishes or drops the held job.
    fn settle(&mut self, epoch: Epoch, publish: bool);

    /// Pins the present version, so that it stays readable. Each pin needs its own release. The caller must
    /// not pin while a job is held.
    fn pin(&mut self, epoch: Epoch, holder: Holder);

    /// Releases a pinned version.
    fn release(&mut self, epoch: Epoch, holder: Holder);

    /// Reads a page of a long read of plain rows (no order, DISTINCT or limit) at a pinned epoch, so that a
    /// result of any size can stream. Returns at most `rows` matching rows from `cursor` on (`None` at
    /// first). Fails (72000) if the engine has broken the pin because readers kept too much
    /// ([`Bounds::pinned_bytes_max`]).
    fn page(
        &mut self,
        epoch: Epoch,
        ranges: &[KeyRange],
        select: &Select,
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Page, Failure>;

    /// Exports a chunk of the rows (and staged rows) of `ranges` at a pinned epoch. `cursor` is `None` at
    /// first, and each chunk returns the next cursor. Any replica of the ranges can continue from another
    /// replica's cursor.
    fn export(
        &mut self,
        epoch: Epoch,
        ranges: &[KeyRange],
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Chunk, Failure>;

    /// Imports a chunk of an export. Rows that are already here stay. A chunk that no engine exported is
    /// refused.
    fn import(&mut self, chunk: Chunk) -> Result<(), Failure>;

    /// Saves the next part of the version at a pinned epoch, without the data that an earlier save wrote
    /// (`saved`).
    fn save(
        &mut self,
        epoch: Epoch,
        saving: &SaveTarget,
        cursor: Option<Cursor>,
    ) -> Result<SavedPart, Failure>;

    /// Restores the next piece of an outline, whose fragments are in these records. The engine must have been
    /// empty before the first piece.
    fn restore(&mut self, outline: &[u8], records: &Records) -> Result<(), Failure>;

    /// Drops all rows of these ranges, after they moved elsewhere.
    fn forget(&mut self, ranges: &[KeyRange]);

    /// Drops the staged rows of a session's loads, because no client can publish them after its end.
    fn end_session(&mut self, session: u128);

    /// Hashes the definitions and the rows (and staged rows) in `ranges`, at a pinned epoch or the present.
    /// Replicas with the same contents return the same hash, whatever their history.
    fn digest(&mut self, epoch: Option<Epoch>, ranges: &[KeyRange]) -> Result<u64, Failure>;

    /// Counts the present rows of a table at one ring key. Stops counting at `most`.
    fn rows_at(&self, table: TableId, key: u64, most: usize) -> usize;

    /// Returns the rows and bytes that each table holds.
    fn usage(&self) -> Vec<Usage>;

    /// Returns the memory that pinned versions keep.
    fn pinned(&self) -> Pinned;
}

/// The holder of a pinned version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A client in the middle of a long result, which may pause for ever.
    Reader,
    /// A move of ranges, whose pin is never broken.
    Migration,
}

/// The memory bounds of an engine. Replicas may have different bounds, because they concern only reads, and
/// one replica of each range answers a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum size of the data that is kept for readers only, in bytes. The engine checks this bound between
    /// calls, so one batch may exceed the bound while it runs.
    pub pinned_bytes_max: u64,
    /// Maximum number of bytes that one read may gather before it is answered: rows with an order or
    /// DISTINCT, groups, and rows that are not read in pages. Beyond this bound the read fails (53200).
    pub result_bytes_max: u64,
    /// Maximum number of bytes that all reads of one call may gather together, in addition to the first 16
    /// KiB of each; at least `result_bytes_max`. A read that finds these bytes used up fails as crowded
    /// ([`Failure::is_crowded`]), and the caller can run it again alone. So crowded reads are answered one
    /// after another, each by a pass of its own.
    ///
    /// One call has the neighbouring reads and writes of a batch. Some tasks are no jobs: the end of a
    /// session, a pin, an export or an import of a move, a page of a long answer. Such a task separates two
    /// calls, and the reads behind it have the full bound again.
    pub batch_bytes_max: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { pinned_bytes_max: 208 << 20, result_bytes_max: 160 << 20, batch_bytes_max: 160 << 20 }
    }
}

/// The memory that pinned versions keep in addition to the present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// The number of readers that hold a version.
    pub readers: u64,
    /// The memory that is kept for readers only, in bytes.
    pub reader_bytes: u64,
    /// The memory that a migration needs, in bytes.
    pub migration_bytes: u64,
    /// The number of readers whose pin was broken since the engine started.
    pub broken: u64,
}

/// Part of a long read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// Output rows.
    pub rows: Vec<Row>,
    /// The position of the next page; `None` after the last one.
    pub next: Option<Cursor>,
}

/// Part of an export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chunk {
    /// Every table's definition; only in the first chunk.
    pub definitions: Vec<(TableId, Schema)>,
    /// Rows in the order of the engine.
    pub rows: Vec<Exported>,
    /// The position of the next chunk; `None` after the last one.
    pub next: Option<Cursor>,
}

/// A row on its way to another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exported {
    /// The table that the row belongs to.
    pub table: TableId,
    /// The load that has staged the row; `None` for a visible row.
    pub load: Option<LoadId>,
    /// The number of the row, which stays the same after the move.
    pub id: RowId,
    /// The values of the row, in schema order.
    pub row: Row,
}

/// The memory of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The table whose memory is counted.
    pub table: TableId,
    /// The number of present rows.
    pub rows: u64,
    /// The memory of all versions and indexes, in bytes.
    pub bytes: u64,
}
