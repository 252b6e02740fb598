//! Early ends: the queries that take no more rows, by the segment in which they have ended.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The segments in which queries have ended. Rows of later segments do not matter to such a query: its answer
/// is complete, or it runs again in one pass.
pub(super) struct EarlyEnds {
    /// The first segment in which each query has ended; `usize::MAX` if in none.
    first: Vec<AtomicUsize>,
    /// The number of notes so far.
    notes: AtomicUsize,
}

impl EarlyEnds {
    pub(super) fn new(queries: usize) -> EarlyEnds {
        let first = (0..queries).map(|_| AtomicUsize::new(usize::MAX)).collect();
        EarlyEnds { first, notes: AtomicUsize::new(0) }
    }

    /// Notes that a query takes no more rows in a segment.
    pub(super) fn note(&self, query: usize, segment: usize) {
        self.first[query].fetch_min(segment, Relaxed);
        self.notes.fetch_add(1, Relaxed);
    }

    /// Returns the present number of notes, and the queries that have ended in an earlier segment; `None` if
    /// the number of notes is still `notes`. A concurrent note may be seen later.
    pub(super) fn before(
        &self,
        segment: usize,
        notes: usize,
    ) -> Option<(usize, impl Iterator<Item = usize> + '_)> {
        let now = self.notes.load(Relaxed);
        let earlier = self.first.iter().enumerate().filter(move |(_, first)| first.load(Relaxed) < segment);
        (now != notes).then(|| (now, earlier.map(|(query, _)| query)))
    }
}
