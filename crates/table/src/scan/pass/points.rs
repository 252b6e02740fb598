//! Points: single keys of the ring, thousands of which are looked up one after another.
//!
//! A look-up mostly waits for memory: the block, its keys, the columns of the row, the texts of their codes.
//! Each address is known only after the preceding access. So several points are walked ahead together, one
//! step for all of them before the next, and each step prefetches the next address. When the pass reaches a
//! point, its memory is in the cache. Points come in the order of the ring, mostly several to a block.
//! Prefetches are hints and never change results.
//!
//! Source: Chen, Ailamaki, Gibbons, Mowry, *Improving Hash Join Performance through Prefetching* (2004) §4,
//! group prefetching.

use crate::scan::{
    block::Block,
    code::hint,
    query::{scan_query::QueryResult, span::BlockSpan},
};

use super::search::Search;

/// The number of points that are walked together: their memory fits the first-level cache.
pub(super) const POINTS_MAX: usize = 16;

impl Search<'_, '_> {
    /// Prefetches the rows of the points among these block spans, of which there are at most `POINTS_MAX`.
    #[inline(never)] // Keeps the loop that calls this function small.
    pub(super) fn prefetch_points(&self, block_spans: &[BlockSpan], query_results: &[QueryResult<'_>]) {
        let points = || block_spans.iter().filter(|block_span| block_span.range.is_point());
        if points().nth(1).is_none() {
            return;
        }
        let block = |point: &BlockSpan| -> &Block { &self.columns.blocks[point.first] };
        let query = |point: &BlockSpan| &self.queries[point.query as usize];
        let received =
            |point: &BlockSpan| query(point).shape.map_or(&[][..], |shape| self.shapes.columns(shape));
        let read = |point: &BlockSpan| query(point).used.iter().chain(received(point)).copied();
        for point in points() {
            hint::prefetch(query(point));
            hint::prefetch(&query_results[point.query as usize]);
            block(point).prefetch();
        }
        for point in points() {
            block(point).prefetch_outlines(read(point));
        }
        for point in points() {
            let block = block(point);
            read(point).for_each(|column| hint::prefetch(&block.columns[column].numbers));
            block.prefetch_key(block.guess(point.range.low));
        }
        for point in points() {
            let (block, key) = (block(point), point.range.low);
            block.prefetch_key(block.refined(block.guess(key), key));
        }
        let mut rows = [None; POINTS_MAX];
        for (point, row) in points().zip(&mut rows) {
            let block = block(point);
            *row = Some(block.slice(&point.range).start).filter(|row| *row < block.len());
            let found = row.iter().flat_map(|row| read(point).map(|column| (column, *row)));
            found.for_each(|(column, row)| block.columns[column].numbers.prefetch(row));
        }
        // The filter reads these values now. Values of the output are prefetched when rows are made of them.
        for deep in [false, true] {
            for (point, row) in points().zip(&rows).filter_map(|(point, row)| Some((point, (*row)?))) {
                for &column in &query(point).used {
                    let number = block(point).columns[column].numbers.number(row);
                    self.columns.dictionaries[column].iter().for_each(|one| one.prefetch(number, deep));
                }
            }
        }
    }
}
