//! Spans: the neighbouring blocks that queries look at.

use std::ops::Range;

use crate::schema::KeyRange;

/// A query that some row may satisfy.
pub(in crate::scan) struct ActiveQuery {
    pub(in crate::scan) query: u32,
    /// The number of blocks that the query looks at.
    pub(in crate::scan) blocks: usize,
    /// The query's block spans, as a range of the list of all block spans.
    pub(in crate::scan) block_spans: Range<usize>,
}

/// Neighbouring blocks in which a query looks at the rows of an arc.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::scan) struct BlockSpan {
    pub(in crate::scan) first: usize,
    pub(in crate::scan) end: usize,
    pub(in crate::scan) range: KeyRange,
    pub(in crate::scan) query: u32,
}
