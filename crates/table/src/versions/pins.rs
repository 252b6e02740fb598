//! Pins: versions that stay readable while the present changes.
//!
//! Promise: a read of a pinned version returns its data, whatever has happened since. As long as nobody reads
//! the version, it costs only the memory of the overwritten data.
//!
//! Source: undo buffers as in Neumann, Mühlbauer and Kemper, *Fast Serializable Multi-Version Concurrency
//! Control for Main-Memory Database Systems* §2.1; copy on write as in 002 §3.
//!
//! The present changes in place. While a version is pinned, each change logs the overwritten data in the
//! newest pin. A pin therefore equals the next newer version (another pin's, or the present) with its log
//! undone. The first read of a pin assembles its version, which from then on shares as much as possible with
//! the present; writes copy shared data.
//!
//! A table is kept whole, without a log, if it is dropped, if its staged rows change, or if its codes are
//! about to change. A table is also kept whole once a larger part of it has changed, so that logs stay
//! short relative to tables. The tables of a version that is saved in parts are kept whole from the first
//! part on. Keeping a table whole only keeps a pointer to it.
//!
//! The memory kept for readers is bounded, because a client may pause for ever in a long result. Beyond the
//! bound, the oldest reader's pin is *broken*: the data that only this pin kept is dropped, and the reader's
//! next page fails. A migration's pin is exempt, and its data does not count. The rows that a receiver still
//! lacks exist nowhere else in that version, and no client decides how long a move takes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::{Epoch, Failure, Holder, Pinned},
    schema::TableId,
};

use super::{Rows, Table, Version, write::Effect};

/// The pinned versions of an engine.
pub(super) struct Pins<R: Rows> {
    /// The pins, oldest version first.
    pins: Vec<Pin<R>>,
    /// The number of readers of each broken pin that have not released it yet.
    broken: BTreeMap<Epoch, u64>,
    /// The memory and the readers of the pins at the last count.
    taken: Pinned,
    /// The memory of a finished log, for the next one.
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
    /// The tables that changed between this version and the next newer one.
    tables: BTreeMap<TableId, PinnedTable<R>>,
}

impl<R: Rows> Pin<R> {
    fn holders(&mut self, holder: Holder) -> &mut u64 {
        match holder {
            Holder::Reader => &mut self.readers,
            Holder::Migration => &mut self.migrations,
        }
    }
}

/// A table of a pinned version: its base with the log undone.
struct PinnedTable<R: Rows> {
    base: Base<R>,
    log: Vec<R::Undo>,
    /// The number of log entries that have been counted, and their bytes.
    counted: (usize, u64),
    /// Memory at the last count, in bytes.
    bytes: u64,
}

enum Base<R> {
    /// The table of the next newer version.
    NextVersion,
    /// The whole table; `None` if the version has no such table.
    Whole(Option<Arc<Table<R>>>),
}

impl<R: Rows> PinnedTable<R> {
    fn new(base: Base<R>) -> PinnedTable<R> {
        PinnedTable { base, log: Vec::new(), counted: (0, 0), bytes: 0 }
    }

    /// Keeps the present table, unless an earlier state of it is kept already.
    fn keep(&mut self, table: Option<&Arc<Table<R>>>) {
        if matches!(self.base, Base::NextVersion) {
            self.base = Base::Whole(table.cloned());
        }
    }

    /// Counts the memory that the next newer version of the table does not share.
    fn count(&mut self, newer: Option<&Arc<Table<R>>>) {
        let (entries, bytes) = &mut self.counted;
        *bytes += self.log[*entries..].iter().map(R::undo_bytes).sum::<usize>() as u64;
        *entries = self.log.len();
        let own = match &self.base {
            Base::Whole(Some(table)) => table.bytes_unshared(newer.map(|newer| &**newer)),
            _ => 0,
        };
        self.bytes = *bytes + own as u64;
    }
}

impl<R: Rows> Pins<R> {
    /// Pins the present version for a holder.
    pub(super) fn pin(&mut self, epoch: Epoch, holder: Holder) {
        let there = self.pins.iter().position(|pin| pin.epoch == epoch);
        let position = there.unwrap_or_else(|| {
            self.pins.push(Pin { epoch, readers: 0, migrations: 0, tables: BTreeMap::new() });
            self.pins.len() - 1
        });
        *self.pins[position].holders(holder) += 1;
    }

    /// Releases a pin. A broken pin has no data left to release.
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
        let position = self.pins.iter().position(|pin| pin.epoch == epoch).expect("the epoch is pinned");
        let pin = &mut self.pins[position];
        assert!(*pin.holders(holder) > 0, "{epoch:?} is given back by a {holder:?} that does not hold it");
        *pin.holders(holder) -= 1;
        self.drop_unheld(position);
    }

    /// Drops a version that nobody holds. Its data moves to the next older pin, which needs it.
    fn drop_unheld(&mut self, position: usize) {
        let pin = &self.pins[position];
        if pin.readers + pin.migrations > 0 {
            return;
        }
        let gone = self.pins.remove(position);
        let Some(older) = position.checked_sub(1).map(|older| &mut self.pins[older]) else {
            let logs = gone.tables.into_values().map(|kept| kept.log);
            for mut log in logs.filter(|log| log.capacity() <= SPARE_ENTRIES_MAX) {
                if log.capacity() > self.spare.capacity() {
                    log.clear();
                    self.spare = log;
                }
            }
            return;
        };
        for (id, kept) in gone.tables {
            let before = older.tables.entry(id).or_insert_with(|| PinnedTable::new(Base::NextVersion));
            if matches!(before.base, Base::NextVersion) {
                before.base = kept.base;
                before.log.extend(kept.log);
            }
        }
    }

    /// Counts the memory of pins. Breaks pins that only readers hold, oldest first, until the memory kept for
    /// readers is at most `most` bytes.
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
        // The tables whose next newer version is a pinned one, and not the present one. The map is mostly
        // empty, and every write looks into it.
        let mut newer: BTreeMap<TableId, Option<Arc<Table<R>>>> = BTreeMap::new();
        for (&id, kept) in pins.iter_mut().rev().flat_map(|pin| &mut pin.tables) {
            kept.count(newer.get(&id).map_or_else(|| present.tables.get(&id), Option::as_ref));
            if let Base::Whole(own) = &kept.base {
                newer.insert(id, own.clone());
            }
        }
        (taken.readers, taken.reader_bytes, taken.migration_bytes) = (0, 0, 0);
        // A migration needs the data of its pin and of newer pins, up to the first that keeps the table
        // whole.
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
                if matches!(kept.base, Base::Whole(_)) {
                    whole.insert(*id);
                }
            }
        }
    }

    /// Returns the memory and the readers of the pins at the last count.
    pub(super) fn taken(&self) -> Pinned {
        self.taken
    }

    /// Returns the newest pin's entry for a table, and creates the entry if necessary.
    fn newest(&mut self, table: TableId) -> Option<&mut PinnedTable<R>> {
        let Pins { pins, spare, .. } = self;
        let log = || PinnedTable { log: std::mem::take(spare), ..PinnedTable::new(Base::NextVersion) };
        Some(pins.last_mut()?.tables.entry(table).or_insert_with(log))
    }

    /// Returns the log for the data that an effect will overwrite; `None` if no pin needs a log. Call it
    /// before the effect is applied.
    pub(super) fn log(&mut self, present: &Version<R>, effect: &Effect<R>) -> Option<&mut Vec<R::Undo>> {
        let table = present.tables.get(&effect.table());
        let kept = self.newest(effect.table())?;
        let short = effect.changes().zip(table).is_some_and(|(changes, table)| {
            kept.log.len() + changes <= LOG_MIN.max(table.rows.len() / ROWS_PER_ENTRY)
        });
        if !short {
            kept.keep(table);
        }
        matches!(kept.base, Base::NextVersion).then_some(&mut kept.log)
    }

    /// Keeps a table whole before a change that no log covers.
    pub(super) fn keep(&mut self, present: &Version<R>, id: TableId) {
        if let Some(kept) = self.newest(id) {
            kept.keep(present.tables.get(&id));
        }
    }

    /// Keeps the tables of a pinned version whole, from now on. A save in parts needs this between its parts.
    /// Its cursor counts blocks and runs, and blocks that were saved use the codes of dictionaries that were
    /// saved. A version that is assembled from a later present has the same rows, but other blocks, longer
    /// dictionaries and wider bounds. Fails if the version is not pinned.
    pub(super) fn keep_version(&mut self, epoch: Epoch, version: &Version<R>) -> Result<(), Failure> {
        let first = self.position(epoch)?;
        for (&id, table) in &version.tables {
            let tables = &mut self.pins[first].tables;
            let kept = tables.entry(id).or_insert_with(|| PinnedTable::new(Base::NextVersion));
            kept.keep(Some(table));
        }
        Ok(())
    }

    /// Returns a table of a pinned version; `None` if that version has no such table. Fails if the version is
    /// not pinned.
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
            if let Base::Whole(own) = &kept.base {
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
        self.pins[first].tables.insert(id, PinnedTable::new(Base::Whole(Some(table.clone()))));
        Ok(Some(table))
    }

    /// Returns a pinned version. Fails if the version is not pinned.
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
            false => {
                Failure::new("72000", format!("snapshot too old: epoch {} is no longer stored", epoch.0))
            }
        };
        self.pins.iter().position(|pin| pin.epoch == epoch).ok_or_else(gone)
    }

    /// Returns the memory of pins by table, in bytes, without parts already in `counted`.
    pub(super) fn bytes_uncounted(&self, counted: &mut BTreeSet<usize>) -> BTreeMap<TableId, usize> {
        let mut bytes: BTreeMap<TableId, usize> = BTreeMap::new();
        for (&id, kept) in self.pins.iter().flat_map(|pin| &pin.tables) {
            let own = match &kept.base {
                Base::Whole(Some(table)) => table.bytes_uncounted(counted),
                _ => 0,
            };
            *bytes.entry(id).or_default() += own + kept.log.iter().map(R::undo_bytes).sum::<usize>();
        }
        bytes
    }
}

/// Returns the failure of a reader whose pin was broken.
fn too_slow() -> Failure {
    let what = "snapshot too old: too much was overwritten while the rest of this result waited to be read";
    let detail = "A storage process keeps at most pinned_bytes_max of overwritten rows for all clients that read long \
                  results. Run the query again and read its result without a pause, or select fewer rows at a time.";
    Failure::new("72000", what).with_detail(detail)
}

/// Maximum number of entries of a log whose memory is kept for the next log.
const SPARE_ENTRIES_MAX: usize = 4096;
/// A log has at most `LOG_MIN` entries, or one for every `ROWS_PER_ENTRY` rows of its table if that is more.
/// Undoing the longest log of a million rows then takes about as long as a pass.
const LOG_MIN: usize = 1024;
const ROWS_PER_ENTRY: usize = 32;
