//! Keyed rows, counters and bulk loads: what statements of several rows and ranges must show.
//!
//! An *entry* is four rows under one primary key each, inserted by one statement that gives them back: all are there or none,
//! once. A *count* adds one to two counters, which the statement makes if need be, and gives back what they are then: no
//! value of a counter is given twice, and in the end it stands between what was acknowledged and what was asked for. A
//! *load* is rows of the log that are put aside in two parts and published at once.

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::Time;
use quorate_table::value::{Row, Value};

use super::{Bank, Fate};
use quorate_world::Violation;

/// What is known of entries and counters.
#[derive(Default)]
pub(super) struct Book {
    /// Entries: asked for, acknowledged, refused for certain.
    entries: BTreeMap<i64, Fate>,
    /// How often each counter was asked to count, refused for certain, and acknowledged to have counted.
    counts: BTreeMap<i64, Counts>,
    /// Values that counters were said to have.
    told: BTreeSet<(i64, i64)>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    asked: i64,
    refused: i64,
    acknowledged: i64,
}

/// Rows of an entry, and of each part of a load.
pub(super) const ENTRY_ROWS: i64 = 4;
/// Parts of a load.
pub(super) const LOAD_PARTS: i64 = 2;

/// The keys of an entry's rows.
pub(super) fn entry_rows(entry: i64) -> impl Iterator<Item = i64> {
    (0..ENTRY_ROWS).map(move |row| entry * ENTRY_ROWS + row)
}

/// The rows of a part of a load: of the log, where its own rows are positive.
pub(super) fn load_rows(load: i64, part: i64) -> impl Iterator<Item = i64> {
    (0..ENTRY_ROWS).map(move |row| -((load * LOAD_PARTS + part) * ENTRY_ROWS + row) - 1)
}

/// All rows of a load.
pub(super) fn all_load_rows(load: i64) -> impl Iterator<Item = i64> {
    (0..LOAD_PARTS).flat_map(move |part| load_rows(load, part))
}

impl Book {
    pub(super) fn ask_entry(&mut self, entry: i64) {
        self.entries.insert(entry, Fate::Unknown);
    }

    pub(super) fn settle_entry(&mut self, entry: i64, fate: Fate) {
        self.entries.insert(entry, fate);
    }

    pub(super) fn ask_count(&mut self, counters: [i64; 2]) {
        counters.iter().for_each(|counter| self.counts.entry(*counter).or_default().asked += 1);
    }

    pub(super) fn refuse_count(&mut self, counters: [i64; 2]) {
        counters.iter().for_each(|counter| self.counts.entry(*counter).or_default().refused += 1);
    }
}

impl Bank {
    /// When the row of this key in a table of keyed rows was lost, if it was.
    fn row_lost_at(&self, schema: usize, key: i64) -> Option<Time> {
        self.lost_at(self.schemas[schema].partition.key_of(&Value::Int8(key)))
    }

    /// What becomes of the rows of a load.
    pub(super) fn settle_load(&mut self, load: i64, fate: Fate) {
        self.logged.extend(all_load_rows(load).map(|row| (row, fate)));
    }

    /// An entry was acknowledged, and gave its rows back.
    pub(super) fn entered(&mut self, entry: i64, rows: &[Row], asked: Time) -> Result<(), Violation> {
        let mut ids: Vec<Option<i64>> = rows.iter().map(|row| row[0].as_integer()).collect();
        ids.sort_unstable();
        let lost = entry_rows(entry).any(|row| self.row_lost_at(ENTRIES_AT, row).is_some());
        if !lost && !ids.iter().copied().eq(entry_rows(entry).map(Some)) {
            return Err(Violation::new("returning", format!("entry {entry} gave {ids:?} back")));
        }
        self.book.settle_entry(entry, Fate::Acknowledged(asked));
        Ok(())
    }

    /// Two counters were acknowledged to have counted, and gave their values back.
    pub(super) fn counted(&mut self, counters: [i64; 2], rows: &[Row]) -> Result<(), Violation> {
        for counter in counters {
            self.book.counts.entry(counter).or_default().acknowledged += 1;
            if self.row_lost_at(COUNTERS_AT, counter).is_some() {
                continue;
            }
            let mut values =
                rows.iter().filter(|row| row[0].as_integer() == Some(counter)).map(|row| row[1].as_integer());
            let (Some(Some(value)), None) = (values.next(), values.next()) else {
                return Err(Violation::new("returning", format!("counter {counter} gave back {rows:?}")));
            };
            if !self.book.told.insert((counter, value)) {
                let what = format!("counter {counter} was said twice to have counted to {value}");
                return Err(Violation::new("once", what));
            }
        }
        Ok(())
    }

    /// Judges what the tables of entries and counters hold in the end.
    pub(super) fn judge_book(&self, entries: &[Row], counters: &[Row]) -> Result<(), Violation> {
        let mut there = BTreeSet::new();
        for id in entries.iter().filter_map(|row| row[0].as_integer()) {
            if !there.insert(id) {
                return Err(Violation::new("once", format!("row {id} of an entry is there twice")));
            }
            if !self.book.entries.contains_key(&id.div_euclid(ENTRY_ROWS)) {
                return Err(Violation::new("valid", format!("nobody entered {id}")));
            }
        }
        for (&entry, fate) in &self.book.entries {
            let kept: Vec<i64> =
                entry_rows(entry).filter(|row| self.row_lost_at(ENTRIES_AT, *row).is_none()).collect();
            let found = kept.iter().filter(|row| there.contains(row)).count();
            let whole = !self.torn || matches!(fate, Fate::Acknowledged(_));
            if whole && found != 0 && found != kept.len() {
                let what = format!("of entry {entry} {found} rows are there, of {}", kept.len());
                return Err(Violation::new("as a whole", what));
            }
            match fate {
                Fate::Acknowledged(_) if found < kept.len() => {
                    return Err(Violation::new(
                        "durable",
                        format!("entry {entry} was acknowledged, and is gone"),
                    ));
                }
                Fate::Refused if found > 0 => {
                    return Err(Violation::new(
                        "durable",
                        format!("entry {entry} was refused, and is there"),
                    ));
                }
                _ => {}
            }
        }
        for row in counters {
            let (Some(counter), Some(value)) = (row[0].as_integer(), row[1].as_integer()) else { continue };
            let Counts { asked, refused, .. } = self.book.counts.get(&counter).copied().unwrap_or_default();
            if value > asked - refused {
                let what = format!(
                    "counter {counter} stands at {value}, and was asked {asked} times, {refused} in vain"
                );
                return Err(Violation::new("once", what));
            }
        }
        for (&counter, counts) in &self.book.counts {
            let value = counters.iter().find(|row| row[0].as_integer() == Some(counter));
            let value = value.and_then(|row| row[1].as_integer()).unwrap_or(0);
            if value < counts.acknowledged && self.row_lost_at(COUNTERS_AT, counter).is_none() {
                let what =
                    format!("counter {counter} stands at {value}, and counted {} times", counts.acknowledged);
                return Err(Violation::new("durable", what));
            }
        }
        Ok(())
    }
}

/// Where their schemas are.
pub(super) const ENTRIES_AT: usize = 2;
pub(super) const COUNTERS_AT: usize = 3;
