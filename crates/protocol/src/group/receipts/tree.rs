//! The tree of a large view: members are placed by rank, and a bounded number of members is directly below
//! each member.

use std::ops::Range;

/// A member's place in the tree of its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// The member's rank. The member with rank 0 is the root.
    pub(crate) rank: usize,
    /// Number of members of the view.
    pub(crate) members: usize,
    /// Maximum number of members directly below one member.
    pub(crate) width: usize,
}

impl Tree {
    /// Whether the view is too large for receipts to all other members at the end of each turn.
    pub(crate) fn is_large(self) -> bool {
        self.members > self.width
    }

    /// Returns the rank of the member directly above this one; `None` for the root.
    pub(crate) fn above(self) -> Option<usize> {
        Some(self.rank.checked_sub(1)? / self.width)
    }

    /// Returns the ranks of the members directly below this one.
    pub(crate) fn below(self) -> Range<usize> {
        let first = (self.rank * self.width + 1).min(self.members);
        first..(first + self.width).min(self.members)
    }

    /// Returns the ranks of the member's branch: its own, and all below it.
    pub(crate) fn branch(self) -> impl Iterator<Item = usize> {
        let mut floor = self.rank..self.rank + 1;
        std::iter::from_fn(move || {
            if floor.is_empty() {
                return None;
            }
            let here = floor.clone();
            let down = |rank: usize| (rank * self.width + 1).min(self.members);
            floor = down(floor.start)..down(floor.end);
            Some(here)
        })
        .flatten()
    }

    /// Returns the place of the member with this rank.
    pub(crate) fn of(self, rank: usize) -> Tree {
        Tree { rank, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_tree_contains_every_member_once() {
        for (members, width) in [(1, 1), (2, 1), (9, 2), (9, 8), (65, 8), (73, 8), (74, 8), (100, 3)] {
            let root = Tree { rank: 0, members, width };
            assert_eq!(root.above(), None);
            let all: Vec<usize> = root.branch().collect();
            assert!(all.iter().copied().eq(0..members), "{members} of width {width}: {all:?}");
            for rank in 0..members {
                let here = root.of(rank);
                assert!(here.below().len() <= width);
                assert!(here.below().all(|below| root.of(below).above() == Some(rank)));
                let branches = here.below().flat_map(|below| root.of(below).branch());
                let parts: BTreeSet<usize> = branches.chain([rank]).collect();
                assert_eq!(
                    here.branch().collect::<BTreeSet<_>>(),
                    parts,
                    "{rank} of {members}, width {width}"
                );
            }
        }
    }

    #[test]
    fn sixty_five_members_are_two_floors_from_the_root() {
        let mut last = Tree { rank: 64, members: 65, width: 8 };
        let mut floors = 0;
        while let Some(above) = last.above() {
            (last, floors) = (last.of(above), floors + 1);
        }
        assert_eq!(floors, 2);
    }
}
