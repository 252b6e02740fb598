//! A batch: its operations become queries, a plan says how to find their rows, and one pass finds them.

use crate::{host::Host, schema::Schema, versions::RowTask};

use super::{
    Columns,
    batch_results::BatchResults,
    pass::search::Search,
    query::{
        compile::Term,
        costs::Costs,
        group::arrange,
        scan_query::{QueryResult, ScanQuery, SearchPlan},
        shape::OutputShapes,
        span::{ActiveQuery, BlockSpan},
    },
};

impl Columns {
    /// Searches the table for all tasks. `corrected_later` says that later writes of the batch may correct
    /// the results.
    pub(super) fn search_batch<'a>(
        &self,
        schema: &Schema,
        tasks: &[RowTask<'a>],
        corrected_later: bool,
        costs: &Costs,
        host: &dyn Host,
    ) -> BatchResults<'a> {
        let mut shapes = OutputShapes::new(corrected_later);
        let query = |task: &RowTask<'a>| ScanQuery::new(self, schema, task, corrected_later, &mut shapes);
        let mut queries: Vec<ScanQuery<'_>> = tasks.iter().map(query).collect();
        let mut query_results: Vec<QueryResult<'_>> = queries.iter().map(ScanQuery::empty_result).collect();
        let (mut block_spans, asked) = self.block_spans(&mut queries, &query_results);
        let (groups, alone) = arrange(self, &queries, &asked, &block_spans, costs);
        for &query in &alone {
            let query = &mut queries[query as usize];
            query.way = SearchPlan::Single;
            self.arrange(&mut query.plan.terms);
        }
        for (number, group) in groups.iter().enumerate() {
            group.members().for_each(|query| queries[query as usize].way = SearchPlan::Group(number));
        }
        block_spans.retain(|block_span| matches!(queries[block_span.query as usize].way, SearchPlan::Single));
        // Spans with the same first block are sorted by the first keys of their arcs, so that the arcs of one
        // query stay in order.
        block_spans.sort_by_key(|block_span| (block_span.first, block_span.range.low));
        let search = Search::new(self, &queries, &shapes, &groups, &block_spans, costs);
        let received = search.run(&mut query_results, host);
        BatchResults::new(self, (queries, query_results), received, groups, alone, corrected_later)
    }

    /// Sorts terms by the part of the rows that pass them, smallest first, as estimated from the middle
    /// block.
    pub(super) fn arrange(&self, terms: &mut [Term]) {
        if let Some(block) = self.blocks.get(self.blocks.len() / 2)
            && terms.len() > 1
        {
            let part = |term: &Term| term.selectivity(&block.columns[term.column]);
            terms.sort_by(|a, b| part(a).total_cmp(&part(b)));
        }
    }

    /// Returns the block spans of blocks that queries look at, and the queries that some row may satisfy.
    fn block_spans(
        &self,
        queries: &mut [ScanQuery<'_>],
        query_results: &[QueryResult<'_>],
    ) -> (Vec<BlockSpan>, Vec<ActiveQuery>) {
        let arcs: usize = queries.iter().map(|query| query.ranges.len()).sum();
        // If there are many arcs, searching a dense copy of the blocks' last keys is faster than searching
        // the blocks.
        let lasts: Vec<u64> = match arcs > self.blocks.len() / 8 {
            true => self.blocks.iter().map(|block| block.last.key).collect(),
            false => Vec::new(),
        };
        let before = |holds: &dyn Fn(u64) -> bool| match lasts.is_empty() {
            true => self.blocks.partition_point(|block| holds(block.last.key)),
            false => lasts.partition_point(|last| holds(*last)),
        };
        let (mut block_spans, mut asking) = (Vec::with_capacity(arcs), Vec::with_capacity(queries.len()));
        for ((query, query_result), number) in queries.iter_mut().zip(query_results).zip(0..) {
            if query.ranges.is_empty() || query.plan.is_empty() || query_result.is_complete() {
                continue;
            }
            let (mut blocks, before_it) = (0usize, block_spans.len());
            for &range in &query.ranges {
                let first = if range.low == 0 { 0 } else { before(&|last| last < range.low) };
                let end = match range.high {
                    u64::MAX => self.blocks.len(),
                    high => (before(&|last| last <= high) + 1).min(self.blocks.len()),
                };
                if first < end {
                    block_spans.push(BlockSpan { first, end, range, query: number });
                    blocks += end - first;
                }
            }
            for block_span in &block_spans[before_it..] {
                query.expect(self, &self.blocks[block_span.first..block_span.end]);
            }
            asking.push(ActiveQuery { query: number, blocks, block_spans: before_it..block_spans.len() });
        }
        (block_spans, asking)
    }
}
