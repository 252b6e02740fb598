//! Segments: parts of a table that several threads look at in parallel.
//!
//! Promise: the answer does not depend on the number of segments. The blocks are cut into neighbouring ranges
//! of about equal work. A pass over each range gathers the rows that every query wants there, and the
//! gathered parts are joined in the order of the blocks. Rows and places are appended up to the limit.
//! Groups, DISTINCT and the first k of an order are merged as a gateway merges the answers of several ranges.
//! All segments belong to the version of the search, so that all of them see a batch at once.
//!
//! Two kinds of query need one pass over all blocks. A sum of floats needs it because rounding depends on
//! the order. A query that failed on a row of some segment needs it because one pass might not have reached
//! that row, or might have failed on another row. The segments share the memory limit of a query. A query
//! that stays within its share in each segment would stay within the limit in one pass. A query that
//! exceeds its share fails in that segment, and so runs again in one pass.

use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
};

use crate::{
    host::Host,
    scan::query::{
        costs::Costs,
        group::QueryGroup,
        received::ReceivedRows,
        scan_query::{QueryResult, SearchPlan},
        span::BlockSpan,
    },
};

use super::{early_ends::EarlyEnds, search::Search, walk::Pass};

impl<'a> Search<'_, 'a> {
    /// Gives the queries the rows that they want. Returns which rows they received, if later writes may
    /// correct the results.
    pub(in crate::scan) fn run(
        &self,
        query_results: &mut [QueryResult<'a>],
        host: &dyn Host,
    ) -> Vec<ReceivedRows> {
        let blocks = self.columns.blocks.len();
        let work = PassWork { blocks, groups: self.groups, block_spans: self.block_spans, costs: self.costs };
        let cuttable = self
            .queries
            .iter()
            .any(|query| !query.needs_one_pass && !matches!(query.way, SearchPlan::Nothing));
        match if cuttable { work.segments(host) } else { 1 } {
            1 => Pass::new(self, query_results, |_| true).run(0..blocks, host),
            segments => {
                let (mut received, rerun) = self.run_in(&work.cut(segments), query_results, host);
                if rerun.contains(&true) {
                    received
                        .extend(Pass::new(self, query_results, |query| rerun[query]).run(0..blocks, host));
                }
                received
            }
        }
    }

    /// Runs the passes over the segments and joins their results. Returns, for each query, whether it must
    /// run in one pass instead.
    fn run_in(
        &self,
        segments: &[Range<usize>],
        query_results: &mut [QueryResult<'a>],
        host: &dyn Host,
    ) -> (Vec<ReceivedRows>, Vec<bool>) {
        let reached = EarlyEnds::new(self.queries.len());
        let gathered: Vec<Mutex<(Vec<QueryResult<'a>>, Vec<ReceivedRows>)>> =
            segments.iter().map(|_| Mutex::default()).collect();
        host.each(segments.len(), &|number| {
            let parts = self.queries.iter().map(|query| query.part(segments.len()));
            let mut here: Vec<QueryResult<'a>> = parts.collect();
            let received = Pass::new(self, &mut here, |query| !self.queries[query].needs_one_pass)
                .in_segment(number, &reached)
                .run(segments[number].clone(), host);
            *gathered[number].lock().unwrap_or_else(PoisonError::into_inner) = (here, received);
        });
        let (mut received, mut rerun) = (Vec::new(), Vec::new());
        rerun.extend(self.queries.iter().map(|query| query.needs_one_pass));
        for here in gathered {
            let (here, more) = here.into_inner().unwrap_or_else(PoisonError::into_inner);
            for ((query_result, here), rerun) in query_results.iter_mut().zip(here).zip(&mut rerun) {
                *rerun = *rerun || !query_result.absorb(here);
            }
            received.extend(more);
        }
        for ((query_result, query), _) in
            query_results.iter_mut().zip(self.queries).zip(&rerun).filter(|(_, one)| **one)
        {
            *query_result = query.empty_result();
            query_result.received_from = received.len();
        }
        (received, rerun)
    }
}

/// The work of a search, in looks of one query at one block.
struct PassWork<'w> {
    blocks: usize,
    groups: &'w [QueryGroup],
    block_spans: &'w [BlockSpan],
    costs: &'w Costs,
}

impl PassWork<'_> {
    /// Returns the looks at all blocks.
    fn all_looks(&self) -> usize {
        let alone: usize = self.block_spans.iter().map(|block_span| block_span.end - block_span.first).sum();
        let together: usize = self.groups.iter().map(|group| group.cover.count()).sum();
        alone + together * self.costs.group as usize
    }

    /// Returns the looks at each block.
    fn looks(&self) -> impl Iterator<Item = usize> {
        let mut steps = vec![0isize; self.blocks + 1];
        for block_span in self.block_spans {
            steps[block_span.first] += 1;
            steps[block_span.end] -= 1;
        }
        let mut alone = 0;
        steps.into_iter().take(self.blocks).enumerate().map(move |(block, step)| {
            alone += step;
            let together = self.groups.iter().filter(|group| group.cover.holds(block)).count();
            alone as usize + together * self.costs.group as usize
        })
    }

    /// Returns the number of segments that is worth its cost, at least 1.
    fn segments(&self, host: &dyn Host) -> usize {
        match host.threads().min(self.blocks) {
            most if most < 2 => 1,
            most => (self.all_looks() / host.looks_min().max(1)).clamp(1, most),
        }
    }

    /// Cuts the blocks into at most `segments` non-empty segments of about equal work.
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
    fn segments_divide_the_work_of_a_pass() {
        let cut = |blocks: usize, block_spans: &[(usize, usize)], segments: usize| {
            let block_span =
                |&(first, end): &(usize, usize)| BlockSpan { first, end, range: KeyRange::ALL, query: 0 };
            let block_spans: Vec<BlockSpan> = block_spans.iter().map(block_span).collect();
            let work = PassWork { blocks, groups: &[], block_spans: &block_spans, costs: &Costs::default() };
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
            // No query looks at the first blocks, nor at the last ones.
            cut(10, &[(4, 5)], segments);
        }
    }
}
