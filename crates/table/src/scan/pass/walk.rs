//! The pass: one walk over the blocks for all reads that wait.
//!
//! All queries look at a block before the pass goes to the next block. Each [`QueryGroup`] hashes all rows of
//! the block and tests its members on the few rows that may interest them. A query that goes alone first
//! checks whether the block can hold a match. Then it finds the codes that pass its most selective term, and
//! tests these rows on the other terms. The rows that queries want are gathered while the block is in the
//! cache (`results.rs`).
//!
//! Blocks and their rows come in the order of places, so every read receives its rows in that order under any
//! plan. A read takes no more rows once it has reached its limit or has been withdrawn. The pass asks the
//! host for withdrawals before each block, and ends when no query takes more rows.
//!
//! A pass covers a range of neighbouring blocks; `segment.rs` decides how many passes a search takes.

use std::ops::Range;

use crate::{
    host::Host,
    scan::{
        block::{BLOCK_ROWS, Block},
        query::{
            group::QueryGroup,
            received::ReceivedRows,
            scan_query::{QueryResult, SearchPlan, scratch},
            shape::OutputShapes,
            span::BlockSpan,
        },
    },
    schema::KeyRange,
    value::Row,
    versions::Spot,
};

use super::{
    early_ends::EarlyEnds,
    find::find,
    points,
    prefetch::{self, PassPrefetch},
    search::{QueryHeader, Search},
};

/// A pass under way.
pub(super) struct Pass<'p, 'a> {
    search: &'p Search<'p, 'a>,
    query_results: &'p mut [QueryResult<'a>],
    asked: Vec<QueryHeader>,
    shapes: OutputShapes,
    scratch: Row,
    /// Pairs of a query and a row of the present block that it wants.
    wanted: Vec<(u32, u32)>,
    /// The query and row of the present block whose whole filter was evaluated last, and whether the row
    /// satisfied it.
    judged: Option<(u32, u32, bool)>,
    /// The number of withdrawals that the pass has handled.
    withdrawn: usize,
    /// The segment's index, the early ends that passes over other segments have noted, and the number of
    /// those notes that this pass has read.
    segment: Option<(usize, &'p EarlyEnds, usize)>,
    /// The number of members of each group that take more rows, and, in `grouped`, their sum.
    live: Vec<usize>,
    grouped: usize,
}

impl<'p, 'a> Pass<'p, 'a> {
    /// Creates a pass for the queries that `takes_part` admits.
    pub(super) fn new(
        search: &'p Search<'p, 'a>,
        query_results: &'p mut [QueryResult<'a>],
        takes_part: impl Fn(usize) -> bool,
    ) -> Pass<'p, 'a> {
        let mut asked = search.asked.clone();
        let mut live = vec![0; search.groups.len()];
        for (number, (asked, query)) in asked.iter_mut().zip(search.queries).enumerate() {
            asked.over = !takes_part(number);
            if let (SearchPlan::Group(group), false) = (query.way, asked.over) {
                live[group] += 1;
            }
        }
        let (scratch, shapes) = (scratch(&search.columns.schema), search.shapes.alike());
        let (grouped, wanted) = (live.iter().sum(), Vec::new());
        let (judged, withdrawn, segment) = (None, 0, None);
        Pass {
            search,
            query_results,
            asked,
            shapes,
            scratch,
            wanted,
            judged,
            withdrawn,
            segment,
            live,
            grouped,
        }
    }

    /// Makes the pass a pass over one of several segments, which are searched in parallel.
    pub(super) fn in_segment(self, number: usize, reached: &'p EarlyEnds) -> Pass<'p, 'a> {
        Pass { segment: Some((number, reached, 0)), ..self }
    }

    /// Looks at these blocks. Returns the rows that queries received, if later writes may correct the
    /// results.
    pub(super) fn run(mut self, blocks: Range<usize>, host: &dyn Host) -> Vec<ReceivedRows> {
        let Search { columns, queries, groups, block_spans, costs, .. } = *self.search;
        let touches =
            |block_span: &&BlockSpan| block_span.first < blocks.end && block_span.end > blocks.start;
        let mut coming =
            block_spans.iter().enumerate().filter(|(_, block_span)| touches(block_span)).peekable();
        let mut ahead = PassPrefetch::of(columns.width());
        let mut announced = 0;
        let mut active: Vec<BlockSpan> = Vec::new();
        let (mut hashes, mut rows) = match groups.is_empty() {
            true => (Vec::new(), Vec::new()),
            false => (vec![0; BLOCK_ROWS], vec![0; BLOCK_ROWS + 16]),
        };
        let mut matches = Vec::new();
        // The next block that some group of queries has to look at. If it lies before `number`, it is out of
        // date, and is computed again.
        let mut together = blocks.start;
        let mut number = blocks.start;
        while number < blocks.end {
            while let Some((position, block_span)) =
                coming.next_if(|(_, block_span)| block_span.first <= number)
            {
                if position >= announced {
                    announced = block_spans.len().min(position + points::POINTS_MAX);
                    self.search.prefetch_points(&block_spans[position..announced], self.query_results);
                }
                ahead.begin(block_span, &queries[block_span.query as usize].plan.terms);
                active.push(*block_span);
            }
            self.withdraw(host);
            self.end_reached();
            let block = &*columns.blocks[number];
            ahead.prefetch(&columns.blocks, number, groups);
            for (at, group) in groups.iter().enumerate() {
                if self.live[at] > 0 && group.cover.holds(number) {
                    self.join(block, group, &mut hashes[..block.len()], &mut rows);
                }
            }
            for block_span in &active {
                if !self.asked[block_span.query as usize].over {
                    matches.clear();
                    let terms = &queries[block_span.query as usize].plan.terms;
                    if ahead.prefetches_singly() {
                        prefetch::prefetch_span(&columns.blocks[number..block_span.end], terms);
                    }
                    let looks = find(block, terms, block.slice(&block_span.range), costs, &mut matches);
                    self.query_results[block_span.query as usize].visited += u64::from(looks);
                    if let Some(shape) = self.asked[block_span.query as usize].shape {
                        matches.iter().for_each(|&row| self.shapes.prefetch(shape as usize, block, row));
                    }
                    self.wanted.extend(matches.iter().map(|&row| (block_span.query, row)));
                }
            }
            self.take(number);
            active.retain(|block_span| {
                let goes_on = block_span.end > number + 1 && !self.asked[block_span.query as usize].over;
                if !goes_on {
                    ahead.end(block_span, &queries[block_span.query as usize].plan.terms);
                }
                goes_on
            });
            number += 1;
            if active.is_empty() {
                if together < number {
                    let live = groups.iter().zip(&self.live).filter(|(_, live)| **live > 0);
                    let next = live.filter_map(|(group, _)| group.cover.next(number)).min();
                    together = next.unwrap_or(blocks.end);
                }
                let alone = coming.peek().map_or(blocks.end, |(_, next)| next.first.max(number));
                number = together.min(alone);
            }
        }
        self.shapes.give_out(columns, queries, self.query_results)
    }

    /// Drops the queries that the host has withdrawn.
    fn withdraw(&mut self, host: &dyn Host) {
        for job in host.withdrawn(self.withdrawn) {
            self.withdrawn += 1;
            if let Some(query) = self.search.queries.iter().position(|query| query.job == Some(job)) {
                self.query_results[query].withdraw(&self.search.queries[query]);
                self.end(query);
            }
        }
    }

    /// Ends the queries that have ended in an earlier segment.
    fn end_reached(&mut self) {
        if let Some((number, reached, notes)) = self.segment
            && let Some((now, over)) = reached.before(number, notes)
        {
            self.segment = Some((number, reached, now));
            over.for_each(|query| self.end(query));
        }
    }

    /// Marks a query that takes no more rows.
    fn end(&mut self, query: usize) {
        let over = std::mem::replace(&mut self.asked[query].over, true);
        if let (SearchPlan::Group(group), false) = (self.search.queries[query].way, over) {
            self.live[group] -= 1;
            self.grouped -= 1;
        }
    }

    /// Finds the rows of a block that the queries of a group want.
    fn join(&mut self, block: &Block, group: &QueryGroup, hashes: &mut [u32], rows: &mut [u32]) {
        let Search { queries, ref asked, ref checks, .. } = *self.search;
        for &row in group.probe(block, hashes, rows) {
            let index = row as usize;
            group.candidates(hashes[index], block, index, |query| {
                let asked = &asked[query as usize];
                if asked.over {
                    return;
                }
                let checks = &checks[asked.first as usize..(asked.first + asked.count) as usize];
                let passes = checks.iter().all(|check| {
                    let value = block.columns[check.column as usize].value(index);
                    match check.term {
                        None => value.is_some_and(|number| check.low <= number && number <= check.high),
                        Some(term) => queries[query as usize].plan.terms[term as usize].admits(value),
                    }
                });
                if passes
                    && (asked.all_rows || KeyRange::cover(&queries[query as usize].ranges, block.key(index)))
                {
                    asked.shape.iter().for_each(|&shape| self.shapes.prefetch(shape as usize, block, row));
                    self.wanted.push((query, row));
                }
            });
        }
    }

    /// Gives the rows of a block to the queries that want them.
    fn take(&mut self, here: usize) {
        let Search { columns, queries, .. } = *self.search;
        let block = &*columns.blocks[here];
        let mut wanted = std::mem::take(&mut self.wanted);
        for (number, row) in wanted.drain(..) {
            let asked = self.asked[number as usize];
            if asked.over {
                continue;
            }
            let query = || &queries[number as usize];
            let over = match asked.shape {
                Some(shape) if !asked.filter_left || self.satisfies(number, block, row) => {
                    let query_result = &mut self.query_results[number as usize];
                    self.shapes.note(shape as usize, number, row);
                    query_result.left -= 1;
                    query_result.left == 0
                }
                Some(_) => self.query_results[number as usize].is_complete(),
                None => {
                    let query_result = &mut self.query_results[number as usize];
                    query_result.give(query(), columns, Spot { block: here as u32, row }, &mut self.scratch);
                    query_result.is_complete()
                }
            };
            if over {
                self.end(number as usize);
                if let Some((segment, reached, _)) = self.segment {
                    reached.note(number as usize, segment);
                }
            }
        }
        self.wanted = wanted;
        self.judged = None;
        self.shapes.gather(columns, here, queries, self.query_results);
    }

    /// Whether a row that passes the terms satisfies the whole filter. Rows of one key mostly lie side by
    /// side and agree in all columns of the filter, so the last result is reused for them.
    #[inline(never)] // Keeps the loop that calls this function small.
    fn satisfies(&mut self, query: u32, block: &Block, row: u32) -> bool {
        let Search { columns, queries, .. } = *self.search;
        let asking = &queries[query as usize];
        if let Some((before, like, satisfies)) = self.judged
            && before == query
            && block.are_alike(&asking.used, like, row)
        {
            return satisfies;
        }
        let query_result = &mut self.query_results[query as usize];
        let satisfies = query_result.wants(asking, columns, (block, row as usize), &mut self.scratch);
        self.judged = Some((query, row, satisfies));
        satisfies
    }
}
