//! Asking ahead: memory of the blocks behind the one at hand, which is there when the pass is.
//!
//! The columns of a block lie apart, two pages each, so that the processor does not see by itself which comes next. Where
//! few queries go alone, each has the blocks that it comes to asked for. Where many do, the columns that several of them
//! look at are asked for as a whole: most of their values will be read. All of it is hints: what is found does not depend on
//! them.

use std::sync::Arc;

use super::{block::Block, compile::Term, group::Group, kernel, pass::Stretch};

/// So many queries that go alone, and so many terms of each, are asked for one by one.
const FEW: usize = 4;
const TERMS_ASKED: usize = 3;
/// A column is asked for as a whole if the looks at it come to this: a query's first term looks at all values of blocks
/// that may hold what it wants, the others at those of some rows.
const WORTH: u32 = 4;
const FIRST_LOOKS: u32 = 3;
const OTHER_LOOKS: u32 = 1;
/// A stretch of fewer blocks is not counted.
const BLOCKS_MIN: usize = 3;

/// What is read of every block, as far as queries have begun and not ended.
pub(super) struct Ahead {
    /// At each column.
    looks: Vec<u32>,
    /// The columns that are asked for as a whole.
    columns: Vec<usize>,
    /// The queries that go alone, each with its terms.
    alone: usize,
}

impl Ahead {
    pub(super) fn of(width: usize) -> Ahead {
        Ahead { looks: vec![0; width], columns: Vec::new(), alone: 0 }
    }

    pub(super) fn begin(&mut self, stretch: &Stretch, terms: &[Term]) {
        self.alone += 1;
        self.count(stretch, terms, u32::wrapping_add);
    }

    pub(super) fn end(&mut self, stretch: &Stretch, terms: &[Term]) {
        self.alone -= 1;
        self.count(stretch, terms, u32::wrapping_sub);
    }

    fn count(&mut self, stretch: &Stretch, terms: &[Term], change: fn(u32, u32) -> u32) {
        if stretch.end - stretch.first < BLOCKS_MIN {
            return;
        }
        for (position, term) in terms.iter().enumerate() {
            let looks = &mut self.looks[term.column];
            let before = *looks >= WORTH;
            *looks = change(*looks, if position == 0 { FIRST_LOOKS } else { OTHER_LOOKS });
            match (before, *looks >= WORTH) {
                (false, true) => self.columns.push(term.column),
                (true, false) => self.columns.retain(|column| *column != term.column),
                _ => {}
            }
        }
    }

    /// Whether each query that goes alone is to ask for its own.
    pub(super) fn is_few(&self) -> bool {
        self.alone <= FEW
    }

    /// Asks for what the blocks behind one will be looked at in, by groups as well, each step of the way there a block
    /// earlier.
    pub(super) fn ask(&self, blocks: &[Arc<Block>], here: usize, groups: &[Group]) {
        if self.columns.is_empty() && groups.is_empty() {
            return;
        }
        let columns = |distance: usize| {
            let groups = groups.iter().filter(move |group| group.cover.holds(here + distance));
            let more = groups.flat_map(Group::columns).filter(|column| self.looks[*column] < WORTH);
            self.columns.iter().copied().chain(more)
        };
        if let Some(block) = blocks.get(here + 4) {
            kernel::prefetch(&**block);
        }
        if let Some(block) = blocks.get(here + 3) {
            columns(3).for_each(|column| kernel::prefetch(&block.columns[column]));
        }
        if let Some(block) = blocks.get(here + 2) {
            columns(2).for_each(|column| block.columns[column].prefetch());
        }
        if let Some(block) = blocks.get(here + 1) {
            columns(1).for_each(|column| block.columns[column].prefetch_all());
        }
    }
}

/// Asks for what one query will look at in the blocks behind the first, in the same way.
pub(super) fn ask(blocks: &[Arc<Block>], terms: &[Term]) {
    let terms = &terms[..terms.len().min(TERMS_ASKED)];
    if let Some(block) = blocks.get(4) {
        kernel::prefetch(&**block);
        kernel::prefetch(&block.columns);
    }
    if let Some(block) = blocks.get(3) {
        kernel::prefetch(&*block.places);
        terms.iter().for_each(|term| kernel::prefetch(&block.columns[term.column]));
    }
    if let Some(block) = blocks.get(2) {
        terms.iter().for_each(|term| block.columns[term.column].prefetch());
    }
    if let (Some(block), Some(term)) = (blocks.get(1), terms.first()) {
        block.columns[term.column].prefetch_values(term.low);
    }
}
