//! Covers: the blocks at which some queries look.

use super::pass::Stretch;

/// Blocks of a table.
pub(super) struct Cover {
    blocks: Vec<bool>,
    count: usize,
}

impl Cover {
    /// The blocks of these stretches, of so many in all.
    pub(super) fn of<'s>(blocks: usize, stretches: impl Iterator<Item = &'s Stretch>) -> Cover {
        let mut steps = vec![0isize; blocks + 1];
        for stretch in stretches {
            steps[stretch.first] += 1;
            steps[stretch.end] -= 1;
        }
        let mut looks = 0;
        let looked_at = steps[..blocks].iter().map(|step| {
            looks += step;
            looks > 0
        });
        let blocks: Vec<bool> = looked_at.collect();
        let count = blocks.iter().filter(|here| **here).count();
        Cover { blocks, count }
    }

    pub(super) fn holds(&self, block: usize) -> bool {
        self.blocks.get(block).is_some_and(|here| *here)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The first of these blocks from one on.
    pub(super) fn next(&self, from: usize) -> Option<usize> {
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
        fn a_cover_holds_what_a_stretch_does(
            stretches in prop::collection::vec((0usize..20, 0usize..20), 0..8), from in 0usize..25
        ) {
            let stretch = |&(first, more): &(usize, usize)| {
                Stretch { first, end: (first + more).min(20), range: KeyRange::ALL, query: 0 }
            };
            let stretches: Vec<Stretch> = stretches.iter().map(stretch).collect();
            let held: Vec<usize> =
                (0..20).filter(|block| stretches.iter().any(|one| (one.first..one.end).contains(block))).collect();
            let cover = Cover::of(20, stretches.iter());
            prop_assert_eq!(cover.count(), held.len());
            prop_assert_eq!((0..25).filter(|block| cover.holds(*block)).collect::<Vec<_>>(), held.clone());
            prop_assert_eq!(cover.next(from), held.into_iter().find(|block| *block >= from));
        }
    }
}
