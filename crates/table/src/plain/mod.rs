//! The plain engine: row at a time, correct, and the twin of every faster one.
//!
//! Promise: the operations of a batch take effect exactly as if one after another, a statement wholly or not at all,
//! and replicas that were given the same operations for a range hold the same rows of it.
//!
//! A write is evaluated against the present version into an `Effect` (`write.rs`), which then either takes place or
//! does not: a failed statement has changed nothing, and a held one is an effect that waits. A version is a map from
//! table to shared blocks (`blocks.rs`), so that pinning one copies a pointer for each table.
//!
//! Uniqueness is judged at the end of the statement, as the SQL standard says; PostgreSQL judges row by row and refuses
//! some updates that end without duplicates (`SET k = k + 1`). Row by row, the outcome would depend on where rows lie.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    engine::{Answer, Chunk, Cursor, Engine, Epoch, Failure, Job, Page, Usage, Written},
    operation::{LoadId, Operation, Select},
    schema::{KeyRange, Schema, TableId},
};

mod blocks;
mod migrate;
mod read;
mod write;

use blocks::{Blocks, Place};
use write::Effect;

/// The plain engine.
#[derive(Default)]
pub struct PlainEngine {
    present: Version,
    /// The last write that took place.
    written: Epoch,
    held: Option<Held>,
    pins: BTreeMap<Epoch, Pin>,
}

/// All tables at one moment.
#[derive(Clone, Default)]
struct Version {
    tables: BTreeMap<TableId, Arc<Table>>,
}

#[derive(Clone)]
struct Table {
    schema: Schema,
    rows: Blocks,
    /// Rows of loads that are not published.
    staged: BTreeMap<LoadId, Blocks>,
}

/// A job that waits for its verdict.
struct Held {
    epoch: Epoch,
    effect: Option<Effect>,
}

struct Pin {
    version: Version,
    holders: usize,
}

impl Version {
    fn table(&self, table: TableId) -> Result<&Table, Failure> {
        self.tables
            .get(&table)
            .map(|table| &**table)
            .ok_or_else(|| Failure::new("42P01", format!("table {} does not exist", table.0)))
    }
}

impl Table {
    /// Where a row of this number belongs.
    fn place(&self, row: &[crate::value::Value], id: crate::engine::RowId) -> Place {
        Place { key: self.schema.partition.key(row), tie: self.schema.primary_key_hash(row), id }
    }
}

impl PlainEngine {
    /// The version a read at `epoch` sees: the present one, or the one pinned there.
    fn readable(&self, epoch: Epoch) -> Result<&Version, Failure> {
        if epoch >= self.written {
            return Ok(&self.present);
        }
        self.pinned(epoch)
    }

    fn pinned(&self, epoch: Epoch) -> Result<&Version, Failure> {
        let gone = || Failure::new("72000", format!("snapshot too old: epoch {} is not kept", epoch.0));
        self.pins.get(&epoch).map(|pin| &pin.version).ok_or_else(gone)
    }

    /// What a job answers, and what it does if it takes place.
    fn evaluate(&self, job: &Job) -> Result<(Answer, Option<Effect>), Failure> {
        if let Operation::Select(select) = &job.operation {
            let version = self.readable(job.epoch)?;
            return Ok((version.select(&job.ranges, select)?, None));
        }
        let (written, effect) = self.present.evaluate(job)?;
        Ok((Answer::Written(written), Some(effect)))
    }

    fn take_place(&mut self, epoch: Epoch, effect: Option<Effect>) {
        if let Some(effect) = effect {
            self.present.take_place(effect);
            self.written = self.written.max(epoch);
        }
    }
}

impl Engine for PlainEngine {
    fn apply(&mut self, jobs: &[Job]) -> Vec<Answer> {
        assert!(self.held.is_none(), "a held job is settled before the next call");
        let mut answers = Vec::with_capacity(jobs.len());
        for job in jobs {
            let (answer, effect) =
                self.evaluate(job).unwrap_or_else(|failure| (Answer::Failed(failure), None));
            answers.push(answer);
            if job.held {
                self.held = Some(Held { epoch: job.epoch, effect });
                break;
            }
            self.take_place(job.epoch, effect);
        }
        answers
    }

    fn settle(&mut self, epoch: Epoch, publish: bool) {
        let held = self.held.take().expect("a held job to settle");
        assert_eq!(held.epoch, epoch, "the held job is of another epoch");
        if publish {
            self.take_place(epoch, held.effect);
        }
    }

    fn pin(&mut self, epoch: Epoch) {
        assert!(self.held.is_none(), "no version is pinned while a job is held");
        let pin = self.pins.entry(epoch).or_insert_with(|| Pin { version: self.present.clone(), holders: 0 });
        pin.holders += 1;
    }

    fn release(&mut self, epoch: Epoch) {
        let pin = self.pins.get_mut(&epoch).expect("a pinned epoch");
        pin.holders -= 1;
        if pin.holders == 0 {
            self.pins.remove(&epoch);
        }
    }

    fn page(
        &self,
        epoch: Epoch,
        ranges: &[KeyRange],
        select: &Select,
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Page, Failure> {
        self.pinned(epoch)?.page(ranges, select, cursor, rows)
    }

    fn export(
        &self,
        epoch: Epoch,
        ranges: &[KeyRange],
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Chunk, Failure> {
        self.pinned(epoch)?.export(ranges, cursor, rows)
    }

    fn import(&mut self, chunk: Chunk) -> Result<(), Failure> {
        assert!(self.held.is_none(), "nothing is imported while a job is held");
        self.present.import(chunk)
    }

    fn forget(&mut self, ranges: &[KeyRange]) {
        assert!(self.held.is_none(), "nothing is forgotten while a job is held");
        self.present.forget(ranges);
    }

    fn digest(&self, epoch: Option<Epoch>, ranges: &[KeyRange]) -> Result<u64, Failure> {
        let version = epoch.map_or(Ok(&self.present), |epoch| self.pinned(epoch))?;
        Ok(version.digest(ranges))
    }

    fn usage(&self) -> Vec<Usage> {
        let mut usages: BTreeMap<TableId, Usage> = BTreeMap::new();
        let mut counted: BTreeMap<TableId, Vec<&Blocks>> = BTreeMap::new();
        let pinned = self.pins.values().map(|pin| &pin.version);
        for version in std::iter::once(&self.present).chain(pinned) {
            for (&id, table) in &version.tables {
                let usage =
                    usages.entry(id).or_insert(Usage { table: id, rows: table.rows.len() as u64, bytes: 0 });
                let counted = counted.entry(id).or_default();
                for blocks in std::iter::once(&table.rows).chain(table.staged.values()) {
                    usage.bytes += blocks.bytes_apart_from(counted) as u64;
                    counted.push(blocks);
                }
            }
        }
        usages.into_values().collect()
    }
}

/// One empty result for each range.
fn nothing_written(ranges: &[KeyRange]) -> Vec<Written> {
    vec![Written::default(); ranges.len()]
}
