//! Keyed rows, counters and bulk loads: the rules for statements of several rows and ranges.
//!
//! An *entry* is four rows, each under its own primary key. One statement inserts and returns them: all are
//! there once, or none. A *count* adds one to two counters, which the statement creates if needed, and
//! returns the new values. No value of a counter is returned twice, and at the end the counter is between the
//! acknowledged and the requested number. A *load* is rows of the log that are staged in two parts and
//! published at once.

use std::collections::BTreeSet;

use quorate_protocol::Time;
use quorate_table::value::{Row, Value};
use quorate_world::Violation;

use super::{
    AccountWorkload,
    request_log::{COUNTERS_AT, Counts, ENTRIES_AT, ENTRY_ROWS, RowOutcome, all_load_rows, entry_rows},
};

impl AccountWorkload {
    /// Returns the time at which the row of this key in a table of keyed rows was lost, if it was.
    fn row_lost_at(&self, schema: usize, key: i64) -> Option<Time> {
        self.lost_at(self.schemas[schema].partition.key_of(&Value::Int8(key)))
    }

    /// Notes the outcome of a load's rows.
    pub(super) fn settle_load(&mut self, load: i64, fate: RowOutcome) {
        self.logged.extend(all_load_rows(load).map(|row| (row, fate)));
    }

    /// Checks the acknowledgement of an entry, which returned its rows.
    pub(super) fn entered(&mut self, entry: i64, rows: &[Row], asked: Time) -> Result<(), Violation> {
        let mut ids: Vec<Option<i64>> = rows.iter().map(|row| row[0].as_integer()).collect();
        ids.sort_unstable();
        let lost = entry_rows(entry).any(|row| self.row_lost_at(ENTRIES_AT, row).is_some());
        if !lost && !ids.iter().copied().eq(entry_rows(entry).map(Some)) {
            return Err(Violation::new(
                "returning",
                format!("the insert of entry {entry} returned other rows than the inserted ones: {ids:?}"),
            ));
        }
        self.request_log.settle_entry(entry, RowOutcome::Acknowledged(asked));
        Ok(())
    }

    /// Checks the acknowledgement of a count, which returned the values of two counters.
    pub(super) fn counted(&mut self, counters: [i64; 2], rows: &[Row]) -> Result<(), Violation> {
        for counter in counters {
            self.request_log.counts.entry(counter).or_default().acknowledged += 1;
            if self.row_lost_at(COUNTERS_AT, counter).is_some() {
                continue;
            }
            let mut values =
                rows.iter().filter(|row| row[0].as_integer() == Some(counter)).map(|row| row[1].as_integer());
            let (Some(Some(value)), None) = (values.next(), values.next()) else {
                return Err(Violation::new(
                    "returning",
                    format!(
                        "the update of counter {counter} must return one value of this counter, but returned {rows:?}"
                    ),
                ));
            };
            if !self.request_log.told.insert((counter, value)) {
                let what = format!("two updates of counter {counter} returned the same value, {value}");
                return Err(Violation::new("once", what));
            }
        }
        Ok(())
    }

    /// Judges the rows of the tables of entries and counters at the end.
    pub(super) fn judge_book(&self, entries: &[Row], counters: &[Row]) -> Result<(), Violation> {
        let mut there = BTreeSet::new();
        for id in entries.iter().filter_map(|row| row[0].as_integer()) {
            if !there.insert(id) {
                return Err(Violation::new("once", format!("the table of entries has row {id} twice")));
            }
            if !self.request_log.entries.contains_key(&id.div_euclid(ENTRY_ROWS)) {
                return Err(Violation::new(
                    "valid",
                    format!("the table of entries has row {id}, which no client inserted"),
                ));
            }
        }
        for (&entry, fate) in &self.request_log.entries {
            let kept: Vec<i64> =
                entry_rows(entry).filter(|row| self.row_lost_at(ENTRIES_AT, *row).is_none()).collect();
            let found = kept.iter().filter(|row| there.contains(row)).count();
            let whole = !self.may_be_partial || matches!(fate, RowOutcome::Acknowledged(_));
            if whole && found != 0 && found != kept.len() {
                let what = format!(
                    "entry {entry} is in the table only in part: {found} of its {} rows are there",
                    kept.len()
                );
                return Err(Violation::new("as a whole", what));
            }
            match fate {
                RowOutcome::Acknowledged(_) if found < kept.len() => {
                    return Err(Violation::new(
                        "durable",
                        format!("entry {entry} was acknowledged, but the table lacks rows of this entry"),
                    ));
                }
                RowOutcome::Refused if found > 0 => {
                    return Err(Violation::new(
                        "durable",
                        format!("entry {entry} was refused, but the table has rows of this entry"),
                    ));
                }
                _ => {}
            }
        }
        for row in counters {
            let (Some(counter), Some(value)) = (row[0].as_integer(), row[1].as_integer()) else { continue };
            let Counts { asked, refused, .. } =
                self.request_log.counts.get(&counter).copied().unwrap_or_default();
            if value > asked - refused {
                let what = format!(
                    "counter {counter} has the value {value}, more than its {asked} updates, of which {refused} were refused, can explain"
                );
                return Err(Violation::new("once", what));
            }
        }
        for (&counter, counts) in &self.request_log.counts {
            let value = counters.iter().find(|row| row[0].as_integer() == Some(counter));
            let value = value.and_then(|row| row[1].as_integer()).unwrap_or(0);
            if value < counts.acknowledged && self.row_lost_at(COUNTERS_AT, counter).is_none() {
                let what = format!(
                    "counter {counter} has the value {value}, but {} updates of this counter were acknowledged",
                    counts.acknowledged
                );
                return Err(Violation::new("durable", what));
            }
        }
        Ok(())
    }
}
