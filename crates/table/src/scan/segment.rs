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
    sync::{Mutex, PoisonError},
};

use crate::host::Host;

use super::{
    costs::Costs,
    group::Group,
    pass::{Pass, Search, Stretch},
    query::{Harvest, Way},
};

impl<'a> Search<'_, 'a> {
    /// Gives the queries what they ask for.
    pub(super) fn run(&self, harvests: &mut [Harvest<'a>], host: &dyn Host) {
        let blocks = self.columns.blocks.len();
        let work = Work { blocks, groups: self.groups, stretches: self.stretches, costs: self.costs };
        let cuttable = self.queries.iter().any(|query| !query.in_order && !matches!(query.way, Way::Nowhere));
        match if cuttable { work.segments(host) } else { 1 } {
            1 => Pass::new(self, harvests, |_| true).run(0..blocks, host),
            segments => {
                let in_one = self.run_in(&work.cut(segments), harvests, host);
                if in_one.contains(&true) {
                    Pass::new(self, harvests, |query| in_one[query]).run(0..blocks, host);
                }
            }
        }
    }

    /// Gives them what segments have for them; which of them must be asked in one pass instead.
    fn run_in(&self, segments: &[Range<usize>], harvests: &mut [Harvest<'a>], host: &dyn Host) -> Vec<bool> {
        let gathered: Vec<Mutex<Vec<Harvest<'a>>>> = segments.iter().map(|_| Mutex::default()).collect();
        host.each(segments.len(), &|number| {
            let anew = self.queries.iter().map(|query| query.harvest(segments.len()));
            let mut here: Vec<Harvest<'a>> = anew.collect();
            Pass::new(self, &mut here, |query| !self.queries[query].in_order)
                .run(segments[number].clone(), host);
            *gathered[number].lock().unwrap_or_else(PoisonError::into_inner) = here;
        });
        let mut in_one: Vec<bool> = self.queries.iter().map(|query| query.in_order).collect();
        for here in gathered {
            let here = here.into_inner().unwrap_or_else(PoisonError::into_inner);
            for ((harvest, here), in_one) in harvests.iter_mut().zip(here).zip(&mut in_one) {
                *in_one = *in_one || !harvest.absorb(here);
            }
        }
        for ((harvest, query), _) in
            harvests.iter_mut().zip(self.queries).zip(&in_one).filter(|(_, one)| **one)
        {
            *harvest = query.harvest(1);
        }
        in_one
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
    /// At each block.
    fn looks(&self) -> impl Iterator<Item = usize> {
        let mut steps = vec![0isize; self.blocks + 1];
        for stretch in self.stretches {
            steps[stretch.first] += 1;
            steps[stretch.end] -= 1;
        }
        let mut looks = (self.groups.len() as f64 * self.costs.group) as isize;
        steps.into_iter().take(self.blocks).map(move |step| {
            looks += step;
            looks as usize
        })
    }

    /// How many segments it is worth; at least 1.
    fn segments(&self, host: &dyn Host) -> usize {
        match host.threads().min(self.blocks) {
            most if most < 2 => 1,
            most => (self.looks().sum::<usize>() / host.looks_min().max(1)).clamp(1, most),
        }
    }

    /// Cuts the blocks into so many segments of about the same work, or fewer; none is empty.
    fn cut(&self, segments: usize) -> Vec<Range<usize>> {
        let work: usize = self.looks().sum();
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
