//! Prefetching for a pass: it loads the memory of the next blocks before the pass reaches them.
//!
//! The columns of a block lie apart, two pages each, so the processor cannot predict the next access. A
//! query that belongs to no group *goes alone*. If few queries go alone, each prefetches its own columns.
//! If many do, the columns that several of them read are prefetched whole, because most of their values
//! will be read. Prefetches are hints and never change results.

use std::sync::Arc;

use crate::scan::{
    block::Block,
    code::hint,
    query::{compile::Term, group::QueryGroup, span::BlockSpan},
};

/// Maximum number of queries outside of groups for which columns are prefetched query by query, and maximum
/// number of terms of each such query.
const FEW: usize = 4;
const TERMS_ASKED: usize = 3;
/// A column is prefetched whole if the sum of its looks reaches `LOOKS_MIN`. The first term of a query reads
/// all values of a block that may hold a match; the other terms read the values of some rows.
const LOOKS_MIN: u32 = 4;
const FIRST_LOOKS: u32 = 3;
const OTHER_LOOKS: u32 = 1;
/// Minimum number of blocks of a block span whose looks are counted.
const BLOCKS_MIN: usize = 3;

/// The columns that are read in every block by the queries under way.
pub(super) struct PassPrefetch {
    /// The looks at each column, weighted.
    looks: Vec<u32>,
    /// The columns that are prefetched whole.
    columns: Vec<usize>,
    /// The number of open block spans of queries that belong to no group.
    alone: usize,
}

impl PassPrefetch {
    pub(super) fn of(width: usize) -> PassPrefetch {
        PassPrefetch { looks: vec![0; width], columns: Vec::new(), alone: 0 }
    }

    pub(super) fn begin(&mut self, block_span: &BlockSpan, terms: &[Term]) {
        self.alone += 1;
        self.count(block_span, terms, u32::wrapping_add);
    }

    pub(super) fn end(&mut self, block_span: &BlockSpan, terms: &[Term]) {
        self.alone -= 1;
        self.count(block_span, terms, u32::wrapping_sub);
    }

    fn count(&mut self, block_span: &BlockSpan, terms: &[Term], change: fn(u32, u32) -> u32) {
        if block_span.end - block_span.first < BLOCKS_MIN {
            return;
        }
        for (position, term) in terms.iter().enumerate() {
            let looks = &mut self.looks[term.column];
            let before = *looks >= LOOKS_MIN;
            *looks = change(*looks, if position == 0 { FIRST_LOOKS } else { OTHER_LOOKS });
            match (before, *looks >= LOOKS_MIN) {
                (false, true) => self.columns.push(term.column),
                (true, false) => self.columns.retain(|column| *column != term.column),
                _ => {}
            }
        }
    }

    /// Whether queries outside of groups are so few that each of them prefetches its own columns.
    pub(super) fn prefetches_singly(&self) -> bool {
        self.alone <= FEW
    }

    /// Prefetches the columns that queries and groups will read in the blocks behind `here`. Each dependent
    /// access on the way to a column happens one block earlier than the next access.
    pub(super) fn prefetch(&self, blocks: &[Arc<Block>], here: usize, groups: &[QueryGroup]) {
        if self.columns.is_empty() && groups.is_empty() {
            return;
        }
        let columns = |distance: usize| {
            let groups = groups.iter().filter(move |group| group.cover.holds(here + distance));
            let more = groups.flat_map(QueryGroup::columns).filter(|column| self.looks[*column] < LOOKS_MIN);
            self.columns.iter().copied().chain(more)
        };
        if let Some(block) = blocks.get(here + 4) {
            hint::prefetch(&**block);
        }
        if let Some(block) = blocks.get(here + 3) {
            columns(3).for_each(|column| hint::prefetch(&block.columns[column]));
        }
        if let Some(block) = blocks.get(here + 2) {
            columns(2).for_each(|column| block.columns[column].prefetch());
        }
        if let Some(block) = blocks.get(here + 1) {
            columns(1).for_each(|column| block.columns[column].prefetch_all());
        }
    }
}

/// Prefetches the columns that one query will read in the blocks behind the first, in the same steps.
pub(super) fn prefetch_span(blocks: &[Arc<Block>], terms: &[Term]) {
    let terms = &terms[..terms.len().min(TERMS_ASKED)];
    if let Some(block) = blocks.get(4) {
        hint::prefetch(&**block);
        hint::prefetch(&block.columns);
    }
    if let Some(block) = blocks.get(3) {
        hint::prefetch(&*block.places);
        terms.iter().for_each(|term| hint::prefetch(&block.columns[term.column]));
    }
    if let Some(block) = blocks.get(2) {
        terms.iter().for_each(|term| block.columns[term.column].prefetch());
    }
    if let (Some(block), Some(term)) = (blocks.get(1), terms.first()) {
        block.columns[term.column].prefetch_values(term.low);
    }
}
