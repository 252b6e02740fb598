//! The shelf: records on disk that hold fragments of saved versions.
//!
//! A checkpoint names fragments of earlier records, and these are kept as long as the newest whole checkpoint names one of their
//! fragments. Where little of a stretch of the journal is named any more, its fragments are carried: the next checkpoint saves them
//! anew, and then the stretch can go. So a record is written again once it has lost half of its neighbourhood, and a journal
//! holds at most about twice what is named.

use std::collections::{BTreeMap, BTreeSet};

use crate::seam::Ticket;

/// Records of fragments, by their numbers.
#[derive(Debug)]
pub(super) struct Shelf {
    records: BTreeMap<u64, Shelved>,
    /// No record with a lower number is on this disk, whatever names the engine remembers.
    since: u64,
    next: u64,
    /// Bytes of all that was written to the journal so far.
    journal_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Shelved {
    ticket: Ticket,
    bytes: u64,
    fragments: u32,
    /// How many of its fragments the newest whole checkpoint names.
    named: u32,
    /// How many bytes of the journal were before it.
    at: u64,
}

impl Shelf {
    /// An empty one, of a disk on which nothing is; records are numbered from `next` on.
    pub(super) fn new(next: u64) -> Shelf {
        Shelf { records: BTreeMap::new(), since: next, next, journal_bytes: 0 }
    }

    /// The number of the next record.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The first number that may be on this disk.
    pub(super) fn since(&self) -> u64 {
        self.since
    }

    /// So many bytes went to the journal.
    pub(super) fn passed(&mut self, bytes: u64) {
        self.journal_bytes += bytes;
    }

    /// Puts a record up, and names all its fragments until a checkpoint is whole.
    pub(super) fn put(&mut self, number: u64, ticket: Ticket, bytes: u64, fragments: u32) {
        let at = self.journal_bytes;
        self.journal_bytes += bytes;
        self.records.insert(number, Shelved { ticket, bytes, fragments, named: fragments, at });
        self.next = self.next.max(number + 1);
    }

    /// It was found on the disk: it may have been there before this life.
    pub(super) fn found(&mut self, number: u64, ticket: Ticket, bytes: u64, fragments: u32) {
        self.since = self.since.min(number);
        self.put(number, ticket, bytes, fragments);
    }

    /// Whether a record of this number is there.
    pub(super) fn has(&self, number: u64) -> bool {
        self.records.contains_key(&number)
    }

    /// The records whose fragments are to be saved anew: those of stretches of so many bytes of which less than half is named. The
    /// last stretch is not full yet.
    pub(super) fn carried(&self, stretch_bytes: u64) -> BTreeSet<u64> {
        let stretch_bytes = stretch_bytes.max(1);
        let stretch = |shelved: &Shelved| shelved.at / stretch_bytes;
        let mut named: BTreeMap<u64, u64> = BTreeMap::new();
        for shelved in self.records.values() {
            let bytes = shelved.bytes * u64::from(shelved.named) / u64::from(shelved.fragments.max(1));
            *named.entry(stretch(shelved)).or_default() += bytes;
        }
        let last = self.journal_bytes / stretch_bytes;
        let thin = |shelved: &Shelved| {
            let stretch = stretch(shelved);
            stretch != last && named[&stretch] * 2 < stretch_bytes
        };
        self.records.iter().filter(|(_, shelved)| thin(shelved)).map(|(&number, _)| number).collect()
    }

    /// A checkpoint is whole that names so many fragments of these records. All others go; the tickets of those that stay.
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
    fn what_is_named_is_kept_and_thin_stretches_are_carried() {
        let mut shelf = Shelf::new(1);
        // Three stretches of 100 bytes, and the beginning of a fourth.
        for number in 1..=7 {
            shelf.put(number, Ticket(number * 10), 50, 5);
        }
        let named = |all: &[(u64, u32)]| all.iter().copied().collect::<BTreeMap<_, _>>();
        assert!(shelf.carried(100).is_empty(), "all of it is named");
        let kept = shelf.keep(&named(&[(1, 5), (2, 1), (3, 2), (5, 5), (7, 1)]));
        assert_eq!(kept, [10, 20, 30, 50, 70].map(Ticket));
        // Of the first stretch 60 bytes, of the second 20, of the third 50; the last is not full.
        assert_eq!(shelf.carried(100), BTreeSet::from([3]));
        assert_eq!((shelf.next(), shelf.has(4), shelf.has(5)), (8, false, true));
    }

    #[test]
    fn what_was_found_counts_as_on_this_disk() {
        let mut shelf = Shelf::new(1);
        assert_eq!((shelf.since(), shelf.next()), (1, 1));
        shelf.found(4, Ticket(2), 10, 1);
        assert_eq!((shelf.since(), shelf.next()), (1, 5));
        // The engine of a former life, whose disk was another.
        let shelf = Shelf::new(shelf.next());
        assert_eq!((shelf.since(), shelf.next()), (5, 5));
    }
}
