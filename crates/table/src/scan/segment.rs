//! Segments: parts of a table that several threads look at at once.
//!
//! Promise: what is answered does not depend on how many segments there are. The blocks are cut into neighbouring ranges
//! of about the same work. A pass over each gathers what every query wants there, and what the passes have gathered is
//! put together in the order of the blocks: rows and places follow each other up to the limit; groups, DISTINCT and the
//! first k of an order are merged as a gateway merges those of several ranges. All segments are of the version that the
//! search is given, so that a batch becomes visible to all of them at once.
//!
//! What depends on more than that is asked of all blocks in one pass: sums of floats, since they are rounded as they grow;
//! and a query that failed in some segment, since it might not have come that far, or might have failed on another row.
//! The segments share the bound on what a query gathers. Whoever stays within it in each of them would have done so in
//! one pass; who does not is asked anew like others that fail.

use std::{
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use crate::host::Host;

use super::{
    costs::Costs,
    group::Group,
    pass::{Pass, Search, Stretch},
    query::{Harvest, Way},
    results::Given,
};

impl<'a> Search<'_, 'a> {
    /// Gives the queries what they ask for; which rows they were given, if that is remembered.
    pub(super) fn run(&self, harvests: &mut [Harvest<'a>], host: &dyn Host) -> Vec<Given> {
        let blocks = self.columns.blocks.len();
        let work = Work { blocks, groups: self.groups, stretches: self.stretches, costs: self.costs };
        let cuttable = self.queries.iter().any(|query| !query.in_order && !matches!(query.way, Way::Nowhere));
        match if cuttable { work.segments(host) } else { 1 } {
            1 => Pass::new(self, harvests, |_| true).run(0..blocks, host),
            segments => {
                let (mut given, in_one) = self.run_in(&work.cut(segments), harvests, host);
                if in_one.contains(&true) {
                    given.extend(Pass::new(self, harvests, |query| in_one[query]).run(0..blocks, host));
                }
                given
            }
        }
    }

    /// Gives them what segments have for them; which of them must be asked in one pass instead.
    fn run_in(
        &self,
        segments: &[Range<usize>],
        harvests: &mut [Harvest<'a>],
        host: &dyn Host,
    ) -> (Vec<Given>, Vec<bool>) {
        let reached = Reached::new(self.queries.len());
        let gathered: Vec<Mutex<(Vec<Harvest<'a>>, Vec<Given>)>> =
            segments.iter().map(|_| Mutex::default()).collect();
        host.each(segments.len(), &|number| {
            let parts = self.queries.iter().map(|query| query.part(segments.len()));
            let mut here: Vec<Harvest<'a>> = parts.collect();
            let given = Pass::new(self, &mut here, |query| !self.queries[query].in_order)
                .in_segment(number, &reached)
                .run(segments[number].clone(), host);
            *gathered[number].lock().unwrap_or_else(PoisonError::into_inner) = (here, given);
        });
        let (mut given, mut in_one) = (Vec::new(), Vec::new());
        in_one.extend(self.queries.iter().map(|query| query.in_order));
        for here in gathered {
            let (here, more) = here.into_inner().unwrap_or_else(PoisonError::into_inner);
            for ((harvest, here), in_one) in harvests.iter_mut().zip(here).zip(&mut in_one) {
                *in_one = *in_one || !harvest.absorb(here);
            }
            given.extend(more);
        }
        for ((harvest, query), _) in
            harvests.iter_mut().zip(self.queries).zip(&in_one).filter(|(_, one)| **one)
        {
            *harvest = query.harvest();
            harvest.given_from = given.len();
        }
        (given, in_one)
    }
}

/// In which segments queries have come to their end: what lies in later ones is nothing to them, since their answer is
/// there already or they are asked anew.
pub(super) struct Reached {
    /// The first of the segments, of each query.
    first: Vec<AtomicUsize>,
    /// How many times one was noted.
    notes: AtomicUsize,
}

impl Reached {
    fn new(queries: usize) -> Reached {
        let first = (0..queries).map(|_| AtomicUsize::new(usize::MAX)).collect();
        Reached { first, notes: AtomicUsize::new(0) }
    }

    /// Notes that a query takes no more in a segment.
    pub(super) fn note(&self, query: usize, segment: usize) {
        self.first[query].fetch_min(segment, Relaxed);
        self.notes.fetch_add(1, Relaxed);
    }

    /// The queries that have come to their end in an earlier segment, and how many notes there are; nothing if there are
    /// only so many. What is noted meanwhile may be seen later.
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

/// What is to be done, counted in looks of one query at one block by itself.
struct Work<'w> {
    blocks: usize,
    groups: &'w [Group],
    stretches: &'w [Stretch],
    costs: &'w Costs,
}

impl Work<'_> {
    /// At all blocks.
    fn all_looks(&self) -> usize {
        let alone: usize = self.stretches.iter().map(|stretch| stretch.end - stretch.first).sum();
        let together: usize = self.groups.iter().map(|group| group.cover.count()).sum();
        alone + together * self.costs.group as usize
    }

    /// At each block.
    fn looks(&self) -> impl Iterator<Item = usize> {
        let mut steps = vec![0isize; self.blocks + 1];
        for stretch in self.stretches {
            steps[stretch.first] += 1;
            steps[stretch.end] -= 1;
        }
        let mut alone = 0;
        steps.into_iter().take(self.blocks).enumerate().map(move |(block, step)| {
            alone += step;
            let together = self.groups.iter().filter(|group| group.cover.holds(block)).count();
            alone as usize + together * self.costs.group as usize
        })
    }

    /// How many segments it is worth; at least 1.
    fn segments(&self, host: &dyn Host) -> usize {
        match host.threads().min(self.blocks) {
            most if most < 2 => 1,
            most => (self.all_looks() / host.looks_min().max(1)).clamp(1, most),
        }
    }

    /// Cuts the blocks into so many segments of about the same work, or fewer; none is empty.
    fn cut(&self, segments: usize) -> Vec<Range<usize>> {
        let work = self.all_looks();
        let (mut cuts, mut start, mut done) = (Vec::with_capacity(segments), 0, 0);
        for (block, looks) in self.looks().enumerate() {
            done += looks;
            if done * segments >= work * (cuts.len() + 1) && cuts.len() + 1 < segments {
                cuts.push(start..block + 1);
                start = block + 1;
            }
        }
        if start < self.blocks {
            cuts.push(start..self.blocks);
        }
        cuts
    }
}

#[cfg(test)]
mod tests {
    use crate::schema::KeyRange;

    use super::*;

    #[test]
    fn segments_share_the_work() {
        let cut = |blocks: usize, stretches: &[(usize, usize)], segments: usize| {
            let stretch =
                |&(first, end): &(usize, usize)| Stretch { first, end, range: KeyRange::ALL, query: 0 };
            let stretches: Vec<Stretch> = stretches.iter().map(stretch).collect();
            let work = Work { blocks, groups: &[], stretches: &stretches, costs: &Costs::default() };
            assert_eq!(work.all_looks(), work.looks().sum());
            let cuts = work.cut(segments);
            assert!(cuts.len() <= segments && cuts.iter().all(|cut| !cut.is_empty()));
            assert!(cuts.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!((cuts[0].start, cuts[cuts.len() - 1].end), (0, blocks));
            cuts
        };
        let even = [(0, 100); 7];
        assert_eq!(cut(100, &even, 4), [0..25, 25..50, 50..75, 75..100]);
        let front: Vec<(usize, usize)> = (0..90).map(|_| (0, 1)).chain([(0, 10)]).collect();
        assert_eq!(cut(10, &front, 2), [0..1, 1..10]);
        for segments in 1..9 {
            cut(100, &even, segments);
            cut(10, &front, segments);
            // Nobody asks for anything in the first blocks, nor in the last.
            cut(10, &[(4, 5)], segments);
        }
    }
}
