//! The fragment index: the journal's records of fragments of saved versions.
//!
//! A checkpoint names fragments of earlier records. Such a record is kept as long as the newest whole
//! checkpoint names one of its fragments. If little of a stretch of the journal is still named, its
//! fragments are *carried*: the next checkpoint saves them again, and then the stretch can be collected. So
//! a record is written again once half of the stretch around it is unused, and a journal holds at most
//! about twice the named bytes.

use std::collections::{BTreeMap, BTreeSet};

use crate::seam::Ticket;

/// The records of fragments on disk, by number.
#[derive(Debug)]
pub(super) struct FragmentIndex {
    records: BTreeMap<u64, FragmentRecord>,
    /// First record number that may be on this disk. The engine may remember fragments of earlier records,
    /// which lie on another disk.
    since: u64,
    next: u64,
    /// Bytes written to this process's journal so far.
    journal_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct FragmentRecord {
    ticket: Ticket,
    bytes: u64,
    fragments: u32,
    /// Number of the record's fragments that the newest whole checkpoint names.
    named: u32,
    /// Bytes of the journal before the record.
    at: u64,
}

impl FragmentIndex {
    /// Creates an empty index for an empty disk. Records are numbered from `next` on.
    pub(super) fn new(next: u64) -> FragmentIndex {
        FragmentIndex { records: BTreeMap::new(), since: next, next, journal_bytes: 0 }
    }

    /// Returns the number of the next record.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the first record number that may be on this disk.
    pub(super) fn since(&self) -> u64 {
        self.since
    }

    /// Notes that records other than fragments, of this many bytes, went to the journal.
    pub(super) fn passed(&mut self, bytes: u64) {
        self.journal_bytes += bytes;
    }

    /// Adds a record. All its fragments count as named until the next checkpoint is whole.
    pub(super) fn put(&mut self, number: u64, ticket: Ticket, bytes: u64, fragments: u32) {
        let at = self.journal_bytes;
        self.journal_bytes += bytes;
        self.records.insert(number, FragmentRecord { ticket, bytes, fragments, named: fragments, at });
        self.next = self.next.max(number + 1);
    }

    /// Adds a record that was found on disk at startup.
    pub(super) fn found(&mut self, number: u64, ticket: Ticket, bytes: u64, fragments: u32) {
        self.since = self.since.min(number);
        self.put(number, ticket, bytes, fragments);
    }

    /// Whether a record of this number is on disk.
    pub(super) fn has(&self, number: u64) -> bool {
        self.records.contains_key(&number)
    }

    /// Returns the records whose fragments the next checkpoint saves again. They lie in stretches of
    /// `stretch_bytes` of which less than half is named. The last stretch of the journal is not full yet, so
    /// its records are not returned.
    pub(super) fn carried(&self, stretch_bytes: u64) -> BTreeSet<u64> {
        let stretch_bytes = stretch_bytes.max(1);
        let stretch = |shelved: &FragmentRecord| shelved.at / stretch_bytes;
        let mut named: BTreeMap<u64, u64> = BTreeMap::new();
        for shelved in self.records.values() {
            let bytes = shelved.bytes * u64::from(shelved.named) / u64::from(shelved.fragments.max(1));
            *named.entry(stretch(shelved)).or_default() += bytes;
        }
        let last = self.journal_bytes / stretch_bytes;
        let thin = |shelved: &FragmentRecord| {
            let stretch = stretch(shelved);
            stretch != last && named[&stretch] * 2 < stretch_bytes
        };
        self.records.iter().filter(|(_, shelved)| thin(shelved)).map(|(&number, _)| number).collect()
    }

    /// Keeps the records of a checkpoint that is whole; `named` gives the number of named fragments of each.
    /// Drops all other records, and returns the tickets of the records that stay.
    pub(super) fn keep(&mut self, named: &BTreeMap<u64, u32>) -> Vec<Ticket> {
        assert!(named.keys().all(|number| self.has(*number)), "a checkpoint names what is on disk");
        self.records.retain(|number, shelved| {
            shelved.named = named.get(number).copied().unwrap_or(0);
            shelved.named > 0
        });
        let mut kept: Vec<Ticket> = self.records.values().map(|shelved| shelved.ticket).collect();
        kept.sort_unstable();
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_fragments_are_kept_and_thin_stretches_are_copied() {
        let mut fragment_index = FragmentIndex::new(1);
        // The records fill three stretches of 100 bytes, and the beginning of a fourth stretch.
        for number in 1..=7 {
            fragment_index.put(number, Ticket(number * 10), 50, 5);
        }
        let named = |all: &[(u64, u32)]| all.iter().copied().collect::<BTreeMap<_, _>>();
        assert!(fragment_index.carried(100).is_empty(), "all of it is named");
        let kept = fragment_index.keep(&named(&[(1, 5), (2, 1), (3, 2), (5, 5), (7, 1)]));
        assert_eq!(kept, [10, 20, 30, 50, 70].map(Ticket));
        // 60 bytes of the first stretch are named, 20 of the second, 50 of the third; the last stretch is not
        // full.
        assert_eq!(fragment_index.carried(100), BTreeSet::from([3]));
        assert_eq!((fragment_index.next(), fragment_index.has(4), fragment_index.has(5)), (8, false, true));
    }

    #[test]
    fn found_fragments_count_as_on_this_disk() {
        let mut fragment_index = FragmentIndex::new(1);
        assert_eq!((fragment_index.since(), fragment_index.next()), (1, 1));
        fragment_index.found(4, Ticket(2), 10, 1);
        assert_eq!((fragment_index.since(), fragment_index.next()), (1, 5));
        // The former life's engine continues on a new disk.
        let fragment_index = FragmentIndex::new(fragment_index.next());
        assert_eq!((fragment_index.since(), fragment_index.next()), (5, 5));
    }
}
