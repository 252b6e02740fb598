//! Pins: versions that stay readable while the present goes on.
//!
//! Promise: a pinned version is read as it was, whatever has happened since; and as long as nobody reads it, it costs
//! what has been overwritten and no more.
//! Source: undo buffers as in Neumann, Mühlbauer and Kemper, *Fast Serializable Multi-Version Concurrency Control for
//! Main-Memory Database Systems* §2.1; copy on write as in 002 §3.
//!
//! The present changes in place. While a version is pinned, each change leaves in the newest pin what it overwrote: a
//! pin is the next newer version (another pin's, or the present) with its log taken back. The first read of it puts the
//! version together, which from then on shares all it can with the present; writes copy what they share.
//!
//! What a log is no good for is kept whole at once: a table that is dropped, whose staged rows change or whose codes are
//! about to be given anew, and one of which a larger part has changed, so that logs stay short beside the tables. To
//! keep a table whole is to keep a pointer to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::{Epoch, Failure},
    schema::TableId,
};

use super::{Rows, Table, Version, write::Effect};

/// Pinned versions, in the order in which they were the present.
pub(super) struct Pins<R: Rows>(Vec<Pin<R>>);

impl<R: Rows> Default for Pins<R> {
    fn default() -> Pins<R> {
        Pins(Vec::new())
    }
}

struct Pin<R: Rows> {
    epoch: Epoch,
    holders: usize,
    /// Tables that have changed before the next newer version.
    tables: BTreeMap<TableId, Kept<R>>,
}

/// A table as it was: its base with the log taken back.
struct Kept<R: Rows> {
    base: Base<R>,
    log: Vec<R::Undo>,
}

enum Base<R> {
    /// As the next newer version has it.
    Newer,
    /// Whole; nothing if there was no such table.
    Own(Option<Arc<Table<R>>>),
}

impl<R: Rows> Kept<R> {
    fn new(base: Base<R>) -> Kept<R> {
        Kept { base, log: Vec::new() }
    }

    /// Keeps the present table, if no earlier one is kept.
    fn keep(&mut self, table: Option<&Arc<Table<R>>>) {
        if matches!(self.base, Base::Newer) {
            self.base = Base::Own(table.cloned());
        }
    }
}

impl<R: Rows> Pins<R> {
    /// Pins the present.
    pub(super) fn pin(&mut self, epoch: Epoch) {
        match self.0.iter_mut().find(|pin| pin.epoch == epoch) {
            Some(pin) => pin.holders += 1,
            None => self.0.push(Pin { epoch, holders: 1, tables: BTreeMap::new() }),
        }
    }

    /// Gives a pin back. The next older one then leans on what this one leant on.
    pub(super) fn release(&mut self, epoch: Epoch) {
        let position = self.0.iter().position(|pin| pin.epoch == epoch).expect("a pinned epoch");
        let pin = &mut self.0[position];
        pin.holders -= 1;
        if pin.holders > 0 {
            return;
        }
        let gone = self.0.remove(position);
        let Some(older) = position.checked_sub(1).map(|older| &mut self.0[older]) else { return };
        for (id, kept) in gone.tables {
            let before = older.tables.entry(id).or_insert_with(|| Kept::new(Base::Newer));
            if matches!(before.base, Base::Newer) {
                before.base = kept.base;
                before.log.extend(kept.log);
            }
        }
    }

    /// The newest pin's part of a table.
    fn newest(&mut self, table: TableId) -> Option<&mut Kept<R>> {
        Some(self.0.last_mut()?.tables.entry(table).or_insert_with(|| Kept::new(Base::Newer)))
    }

    /// Before an effect takes place: where to log what it overwrites, unless nobody needs it.
    pub(super) fn log(&mut self, present: &Version<R>, effect: &Effect) -> Option<&mut Vec<R::Undo>> {
        let table = present.tables.get(&effect.table());
        let kept = self.newest(effect.table())?;
        let short = effect.changes().zip(table).is_some_and(|(changes, table)| {
            kept.log.len() + changes <= LOG_MIN.max(table.rows.len() / LOG_PART)
        });
        if !short {
            kept.keep(table);
        }
        matches!(kept.base, Base::Newer).then_some(&mut kept.log)
    }

    /// Before a table changes in a way that no log tells.
    pub(super) fn keep(&mut self, present: &Version<R>, id: TableId) {
        if let Some(kept) = self.newest(id) {
            kept.keep(present.tables.get(&id));
        }
    }

    /// A table of a pinned version.
    pub(super) fn table(
        &mut self,
        epoch: Epoch,
        id: TableId,
        present: &Version<R>,
    ) -> Result<Option<Arc<Table<R>>>, Failure> {
        let first = self.position(epoch)?;
        let mut base = present.tables.get(&id);
        let mut logs = Vec::new();
        for kept in self.0[first..].iter().filter_map(|pin| pin.tables.get(&id)) {
            logs.push(&kept.log);
            if let Base::Own(own) = &kept.base {
                base = own.as_ref();
                break;
            }
        }
        logs.retain(|log| !log.is_empty());
        if logs.is_empty() {
            return Ok(base.cloned());
        }
        let mut table = Table::clone(base.expect("a log is that of a table"));
        logs.into_iter().rev().for_each(|log| table.rows.undo(log));
        let table = Arc::new(table);
        self.0[first].tables.insert(id, Kept::new(Base::Own(Some(table.clone()))));
        Ok(Some(table))
    }

    /// A pinned version.
    pub(super) fn version(&mut self, epoch: Epoch, present: &Version<R>) -> Result<Version<R>, Failure> {
        let first = self.position(epoch)?;
        let kept = self.0[first..].iter().flat_map(|pin| pin.tables.keys());
        let ids: BTreeSet<TableId> = kept.chain(present.tables.keys()).copied().collect();
        let mut version = Version::default();
        for id in ids {
            if let Some(table) = self.table(epoch, id, present)? {
                version.tables.insert(id, table);
            }
        }
        Ok(version)
    }

    fn position(&self, epoch: Epoch) -> Result<usize, Failure> {
        let gone = || Failure::new("72000", format!("snapshot too old: epoch {} is not kept", epoch.0));
        self.0.iter().position(|pin| pin.epoch == epoch).ok_or_else(gone)
    }

    /// The bytes that pins take beside what is counted already, by table.
    pub(super) fn bytes_beside(&self, counted: &mut BTreeSet<usize>) -> BTreeMap<TableId, usize> {
        let mut bytes: BTreeMap<TableId, usize> = BTreeMap::new();
        for (&id, kept) in self.0.iter().flat_map(|pin| &pin.tables) {
            let own = match &kept.base {
                Base::Own(Some(table)) => table.bytes_beside(counted),
                _ => 0,
            };
            *bytes.entry(id).or_default() += own + kept.log.iter().map(R::undo_bytes).sum::<usize>();
        }
        bytes
    }
}

/// A log has at most so many entries, or one for so many rows of its table. Taking back the longest log of a million
/// rows then takes about as long as a pass.
const LOG_MIN: usize = 1024;
const LOG_PART: usize = 32;
