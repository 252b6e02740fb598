//! The log of the entries and the counts that the users requested, each with its outcome.

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::Time;

/// The known facts about entries and counters.
#[derive(Default)]
pub(super) struct RequestLog {
    /// The entries, each with its outcome.
    pub(super) entries: BTreeMap<i64, RowOutcome>,
    /// The numbers of requested, refused and acknowledged counts of each counter.
    pub(super) counts: BTreeMap<i64, Counts>,
    /// The counters' values that statements returned.
    pub(super) told: BTreeSet<(i64, i64)>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) asked: i64,
    pub(super) refused: i64,
    pub(super) acknowledged: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowOutcome {
    Unknown,
    /// Acknowledged; with the time of the request.
    Acknowledged(Time),
    Refused,
}

/// Number of rows of an entry, and of each part of a load.
pub(super) const ENTRY_ROWS: i64 = 4;
/// Number of parts of a load.
pub(super) const LOAD_PARTS: i64 = 2;

/// Returns the keys of an entry's rows.
pub(super) fn entry_rows(entry: i64) -> impl Iterator<Item = i64> {
    (0..ENTRY_ROWS).map(move |row| entry * ENTRY_ROWS + row)
}

/// Returns the log rows of a part of a load. They are negative, because the log's own rows are positive.
pub(super) fn load_rows(load: i64, part: i64) -> impl Iterator<Item = i64> {
    (0..ENTRY_ROWS).map(move |row| -((load * LOAD_PARTS + part) * ENTRY_ROWS + row) - 1)
}

/// Returns all rows of a load.
pub(super) fn all_load_rows(load: i64) -> impl Iterator<Item = i64> {
    (0..LOAD_PARTS).flat_map(move |part| load_rows(load, part))
}

impl RequestLog {
    pub(super) fn ask_entry(&mut self, entry: i64) {
        self.entries.insert(entry, RowOutcome::Unknown);
    }

    pub(super) fn settle_entry(&mut self, entry: i64, fate: RowOutcome) {
        self.entries.insert(entry, fate);
    }

    pub(super) fn ask_count(&mut self, counters: [i64; 2]) {
        counters.iter().for_each(|counter| self.counts.entry(*counter).or_default().asked += 1);
    }

    pub(super) fn refuse_count(&mut self, counters: [i64; 2]) {
        counters.iter().for_each(|counter| self.counts.entry(*counter).or_default().refused += 1);
    }
}

/// The indexes of the tables' schemas.
pub(super) const ENTRIES_AT: usize = 2;
pub(super) const COUNTERS_AT: usize = 3;
