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
//!
//! What readers keep is bounded: whoever reads a long result may pause for ever, and what is overwritten meanwhile must
//! not pile up for ever. Beyond the bound the oldest reader's pin is *broken*: what only it kept goes, and its next page
//! fails. A migration's pin is exempt, and what it keeps counts against nobody: rows that a receiver still lacks exist
//! nowhere else in that version, and the move ends in a time that no client decides.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::{Epoch, Failure, Holder, Pinned},
    schema::TableId,
};

use super::{Rows, Table, Version, write::Effect};

/// Pinned versions.
pub(super) struct Pins<R: Rows> {
    /// In the order in which they were the present.
    pins: Vec<Pin<R>>,
    /// How many readers have yet to give back a version that was taken from them.
    broken: BTreeMap<Epoch, u64>,
    /// As of the last count.
    taken: Pinned,
    /// The memory of a log that is over, for the next one.
    spare: Vec<R::Undo>,
}

impl<R: Rows> Default for Pins<R> {
    fn default() -> Pins<R> {
        Pins { pins: Vec::new(), broken: BTreeMap::new(), taken: Pinned::default(), spare: Vec::new() }
    }
}

struct Pin<R: Rows> {
    epoch: Epoch,
    readers: u64,
    migrations: u64,
    /// Tables that have changed before the next newer version.
    tables: BTreeMap<TableId, Kept<R>>,
}

impl<R: Rows> Pin<R> {
    fn holders(&mut self, holder: Holder) -> &mut u64 {
        match holder {
            Holder::Reader => &mut self.readers,
            Holder::Migration => &mut self.migrations,
        }
    }
}

/// A table as it was: its base with the log taken back.
struct Kept<R: Rows> {
    base: Base<R>,
    log: Vec<R::Undo>,
    /// How many entries of the log have been counted, and their bytes.
    counted: (usize, u64),
    /// What it took at the last count.
    bytes: u64,
}

enum Base<R> {
    /// As the next newer version has it.
    Newer,
    /// Whole; nothing if there was no such table.
    Own(Option<Arc<Table<R>>>),
}

impl<R: Rows> Kept<R> {
    fn new(base: Base<R>) -> Kept<R> {
        Kept { base, log: Vec::new(), counted: (0, 0), bytes: 0 }
    }

    /// Keeps the present table, if no earlier one is kept.
    fn keep(&mut self, table: Option<&Arc<Table<R>>>) {
        if matches!(self.base, Base::Newer) {
            self.base = Base::Own(table.cloned());
        }
    }

    /// Counts what it takes beside the next newer version of the table.
    fn count(&mut self, newer: Option<&Arc<Table<R>>>) {
        let (entries, bytes) = &mut self.counted;
        *bytes += self.log[*entries..].iter().map(R::undo_bytes).sum::<usize>() as u64;
        *entries = self.log.len();
        let own = match &self.base {
            Base::Own(Some(table)) => table.bytes_apart(newer.map(|newer| &**newer)),
            _ => 0,
        };
        self.bytes = *bytes + own as u64;
    }
}

impl<R: Rows> Pins<R> {
    /// Pins the present.
    pub(super) fn pin(&mut self, epoch: Epoch, holder: Holder) {
        let there = self.pins.iter().position(|pin| pin.epoch == epoch);
        let position = there.unwrap_or_else(|| {
            self.pins.push(Pin { epoch, readers: 0, migrations: 0, tables: BTreeMap::new() });
            self.pins.len() - 1
        });
        *self.pins[position].holders(holder) += 1;
    }

    /// Gives a pin back; one that was broken is gone already.
    pub(super) fn release(&mut self, epoch: Epoch, holder: Holder) {
        if holder == Holder::Reader
            && let Some(readers) = self.broken.get_mut(&epoch)
        {
            *readers -= 1;
            if *readers == 0 {
                self.broken.remove(&epoch);
            }
            return;
        }
        let position = self.pins.iter().position(|pin| pin.epoch == epoch).expect("a pinned epoch");
        let pin = &mut self.pins[position];
        assert!(*pin.holders(holder) > 0, "{epoch:?} is given back by a {holder:?} that does not hold it");
        *pin.holders(holder) -= 1;
        self.drop_unheld(position);
    }

    /// Drops a version that nobody holds. The next older one then leans on what this one leant on.
    fn drop_unheld(&mut self, position: usize) {
        let pin = &self.pins[position];
        if pin.readers + pin.migrations > 0 {
            return;
        }
        let gone = self.pins.remove(position);
        let Some(older) = position.checked_sub(1).map(|older| &mut self.pins[older]) else {
            let logs = gone.tables.into_values().map(|kept| kept.log);
            for mut log in logs.filter(|log| log.capacity() <= SPARE_MAX) {
                if log.capacity() > self.spare.capacity() {
                    log.clear();
                    self.spare = log;
                }
            }
            return;
        };
        for (id, kept) in gone.tables {
            let before = older.tables.entry(id).or_insert_with(|| Kept::new(Base::Newer));
            if matches!(before.base, Base::Newer) {
                before.base = kept.base;
                before.log.extend(kept.log);
            }
        }
    }

    /// Counts what pins take, and breaks those that readers alone hold, the oldest first, until what is kept for readers
    /// only is at most `most` bytes.
    pub(super) fn account(&mut self, present: &Version<R>, most: u64) {
        self.count(present);
        while self.taken.reader_bytes > most
            && let Some(oldest) = self.pins.iter().position(|pin| pin.readers > 0 && pin.migrations == 0)
        {
            let Pin { epoch, readers, .. } = &mut self.pins[oldest];
            self.taken.broken += *readers;
            *self.broken.entry(*epoch).or_default() += std::mem::take(readers);
            self.drop_unheld(oldest);
            self.count(present);
        }
    }

    fn count(&mut self, present: &Version<R>) {
        let Pins { pins, taken, .. } = self;
        // Where the next newer version is not the present; mostly nowhere, and this is asked for behind every write.
        let mut newer: BTreeMap<TableId, Option<Arc<Table<R>>>> = BTreeMap::new();
        for (&id, kept) in pins.iter_mut().rev().flat_map(|pin| &mut pin.tables) {
            kept.count(newer.get(&id).map_or_else(|| present.tables.get(&id), Option::as_ref));
            if let Base::Own(own) = &kept.base {
                newer.insert(id, own.clone());
            }
        }
        (taken.readers, taken.reader_bytes, taken.migration_bytes) = (0, 0, 0);
        // A migration leans on what its pin and newer ones keep, up to the first that keeps the table whole.
        let (mut moving, mut whole) = (false, BTreeSet::new());
        for pin in pins.iter() {
            taken.readers += pin.readers;
            if pin.migrations > 0 {
                moving = true;
                whole.clear();
            }
            for (id, kept) in &pin.tables {
                match moving && !whole.contains(id) {
                    true => taken.migration_bytes += kept.bytes,
                    false => taken.reader_bytes += kept.bytes,
                }
                if matches!(kept.base, Base::Own(_)) {
                    whole.insert(*id);
                }
            }
        }
    }

    /// What pins took when they were last counted.
    pub(super) fn taken(&self) -> Pinned {
        self.taken
    }

    /// The newest pin's part of a table.
    fn newest(&mut self, table: TableId) -> Option<&mut Kept<R>> {
        let Pins { pins, spare, .. } = self;
        let log = || Kept { log: std::mem::take(spare), ..Kept::new(Base::Newer) };
        Some(pins.last_mut()?.tables.entry(table).or_insert_with(log))
    }

    /// Before an effect takes place: where to log what it overwrites, unless nobody needs it.
    pub(super) fn log(&mut self, present: &Version<R>, effect: &Effect<R>) -> Option<&mut Vec<R::Undo>> {
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
        for kept in self.pins[first..].iter().filter_map(|pin| pin.tables.get(&id)) {
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
        self.pins[first].tables.insert(id, Kept::new(Base::Own(Some(table.clone()))));
        Ok(Some(table))
    }

    /// A pinned version.
    pub(super) fn version(&mut self, epoch: Epoch, present: &Version<R>) -> Result<Version<R>, Failure> {
        let first = self.position(epoch)?;
        let kept = self.pins[first..].iter().flat_map(|pin| pin.tables.keys());
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
        let gone = || match self.broken.contains_key(&epoch) {
            true => too_slow(),
            false => Failure::new("72000", format!("snapshot too old: epoch {} is not kept", epoch.0)),
        };
        self.pins.iter().position(|pin| pin.epoch == epoch).ok_or_else(gone)
    }

    /// The bytes that pins take beside what is counted already, by table.
    pub(super) fn bytes_beside(&self, counted: &mut BTreeSet<usize>) -> BTreeMap<TableId, usize> {
        let mut bytes: BTreeMap<TableId, usize> = BTreeMap::new();
        for (&id, kept) in self.pins.iter().flat_map(|pin| &pin.tables) {
            let own = match &kept.base {
                Base::Own(Some(table)) => table.bytes_beside(counted),
                _ => 0,
            };
            *bytes.entry(id).or_default() += own + kept.log.iter().map(R::undo_bytes).sum::<usize>();
        }
        bytes
    }
}

/// What a reader is told whose version was taken from it.
fn too_slow() -> Failure {
    let what = "snapshot too old: too much was overwritten while the rest of this result waited to be read";
    let detail = "A storage process keeps pinned_bytes_max of overwritten rows for all clients in the middle of long \
                  results. Run the query again and read on without pausing, or read less at a time.";
    Failure::new("72000", what).with_detail(detail)
}

/// The memory for so many entries is kept where no log needs it.
const SPARE_MAX: usize = 4096;
/// A log has at most so many entries, or one for so many rows of its table. Taking back the longest log of a million
/// rows then takes about as long as a pass.
const LOG_MIN: usize = 1024;
const LOG_PART: usize = 32;
