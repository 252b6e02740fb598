//! What every engine offers. The plain engine is the twin that the fast one is tested against.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    operation::Operation,
    schema::{KeyRange, TableId},
    value::Row,
};

/// The position in the total order that a version of the data stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// A write was applied: how many rows, and what RETURNING asked for.
    Written {
        /// Rows inserted, changed or deleted.
        rows: u64,
        /// RETURNING, a row each.
        returning: Vec<Row>,
    },
    /// Rows of a read.
    Rows(Vec<Row>),
    /// Partial groups of a read, to be merged.
    Groups(Vec<Group>),
    /// The operation failed and changed nothing.
    Failed(Failure),
}

/// One group's partial state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Values of the grouping expressions.
    pub keys: Row,
    /// One partial state per aggregate (see `aggregate.rs`).
    pub states: Vec<crate::aggregate::State>,
}

/// Why an operation failed: deterministic, so every replica that holds the row says the same.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Failure {
    /// The five characters of the SQLSTATE.
    pub sqlstate: String,
    /// What was wrong, with which value.
    pub message: String,
    /// More, if there is any.
    pub detail: Option<String>,
}

/// A storage process's data, all tables of it. Deterministic: same calls, same answers, on every replica.
pub trait Engine: Send {
    /// Runs `jobs` in order, exactly as if one after another, and stops behind the first held one. Returns one answer
    /// per job run; a held job's answer is what it would be, and it must be settled before the next call.
    fn apply(&mut self, jobs: &[Job]) -> Vec<Answer>;

    /// Publishes or voids the held job.
    fn settle(&mut self, epoch: Epoch, publish: bool);

    /// Keeps the present version readable until released.
    fn pin(&mut self, epoch: Epoch);

    /// Gives a pinned version back.
    fn release(&mut self, epoch: Epoch);

    /// Streams the rows (and staged rows) of `ranges` as of a pinned epoch; `cursor` starts at `None`, and each chunk
    /// tells where to go on.
    fn export(&self, epoch: Epoch, ranges: &[KeyRange], cursor: Option<Cursor>, rows: usize) -> Chunk;

    /// Takes in a chunk of an export.
    fn import(&mut self, chunk: Chunk);

    /// Drops every row of these ranges (they moved elsewhere).
    fn forget(&mut self, ranges: &[KeyRange]);

    /// Rows and bytes held, by table.
    fn usage(&self) -> Vec<Usage>;
}

/// Where an export stands; opaque.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor(pub Vec<u64>);

/// Part of an export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chunk {
    /// Definitions and rows as operations that rebuild them (`CreateTable`, `Insert`, `Stage`).
    pub operations: Vec<Operation>,
    /// Where to go on; `None` when this was the last.
    pub next: Option<Cursor>,
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
