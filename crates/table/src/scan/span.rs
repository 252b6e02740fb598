//! Spans: the neighbouring blocks that queries look at.

use std::ops::Range;

use crate::schema::KeyRange;

/// A query that some row may satisfy.
pub(super) struct ActiveQuery {
    pub(super) query: u32,
    /// The number of blocks that the query looks at.
    pub(super) blocks: usize,
    /// The query's block spans, as a range of the list of all block spans.
    pub(super) block_spans: Range<usize>,
}

/// Neighbouring blocks in which a query looks at the rows of an arc.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BlockSpan {
    pub(super) first: usize,
    pub(super) end: usize,
    pub(super) range: KeyRange,
    pub(super) query: u32,
}
