//! Sets of blocks: the blocks at which some queries look.

use super::span::BlockSpan;

/// A set of blocks of a table.
pub(in crate::scan) struct BlockSet {
    blocks: Vec<bool>,
    count: usize,
}

impl BlockSet {
    /// Returns the blocks of these block spans, in a table of `blocks` blocks.
    pub(in crate::scan) fn of<'s>(
        blocks: usize,
        block_spans: impl Iterator<Item = &'s BlockSpan>,
    ) -> BlockSet {
        let mut steps = vec![0isize; blocks + 1];
        for block_span in block_spans {
            steps[block_span.first] += 1;
            steps[block_span.end] -= 1;
        }
        let mut looks = 0;
        let looked_at = steps[..blocks].iter().map(|step| {
            looks += step;
            looks > 0
        });
        let blocks: Vec<bool> = looked_at.collect();
        let count = blocks.iter().filter(|here| **here).count();
        BlockSet { blocks, count }
    }

    pub(in crate::scan) fn holds(&self, block: usize) -> bool {
        self.blocks.get(block).is_some_and(|here| *here)
    }

    pub(in crate::scan) fn count(&self) -> usize {
        self.count
    }

    /// Returns the first block of the set that is not before `from`.
    pub(in crate::scan) fn next(&self, from: usize) -> Option<usize> {
        let behind = self.blocks.get(from..)?;
        behind.iter().position(|here| *here).map(|distance| from + distance)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schema::KeyRange;

    proptest! {
        #[test]
        fn a_block_set_holds_the_blocks_of_its_spans(
            spans in prop::collection::vec((0usize..20, 0usize..20), 0..8), from in 0usize..25
        ) {
            let span = |&(first, more): &(usize, usize)| {
                BlockSpan { first, end: (first + more).min(20), range: KeyRange::ALL, query: 0 }
            };
            let spans: Vec<BlockSpan> = spans.iter().map(span).collect();
            let held: Vec<usize> =
                (0..20).filter(|block| spans.iter().any(|it| (it.first..it.end).contains(block))).collect();
            let cover = BlockSet::of(20, spans.iter());
            prop_assert_eq!(cover.count(), held.len());
            prop_assert_eq!((0..25).filter(|block| cover.holds(*block)).collect::<Vec<_>>(), held.clone());
            prop_assert_eq!(cover.next(from), held.into_iter().find(|block| *block >= from));
        }
    }
}
