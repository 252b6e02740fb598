//! The owners of a key, and sets of them.

use smallvec::SmallVec;

use super::id::{CellNumber, Site};

/// A cell that keeps a copy of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The cell.
    pub cell: CellNumber,
    /// The cell's site.
    pub site: Site,
}

/// The owners of a key, each once, in the order in which the walk along the ring finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners(SmallVec<[Owner; 6]>);

impl Owners {
    /// Maximum number of owners of a key.
    pub const MAX: usize = 16;

    pub(super) fn new(owners: SmallVec<[Owner; 6]>) -> Owners {
        assert!(owners.len() <= Owners::MAX, "{} owners", owners.len());
        let repeated =
            |(index, owner): (usize, &Owner)| owners[..index].iter().any(|it| it.cell == owner.cell);
        assert!(!owners.iter().enumerate().any(repeated), "a cell owns a key at most once: {owners:?}");
        Owners(owners)
    }

    /// Returns the number of owners.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns all owners, in order.
    pub fn iter(&self) -> impl Iterator<Item = Owner> + '_ {
        self.0.iter().copied()
    }

    /// Returns the cell at an index.
    pub fn cell(&self, index: usize) -> CellNumber {
        self.0[index].cell
    }

    /// Returns the index of a cell, if the cell is an owner.
    pub fn index(&self, cell: CellNumber) -> Option<usize> {
        self.0.iter().position(|owner| owner.cell == cell)
    }

    /// Returns all owners, as a share.
    pub fn all(&self) -> Share {
        self.share(|_| true)
    }

    /// Returns the owners at a site.
    pub fn of_site(&self, site: Site) -> Share {
        self.share(|owner| owner.site == site)
    }

    /// Returns the owners for which `which` holds.
    pub fn share(&self, which: impl Fn(Owner) -> bool) -> Share {
        let chosen = self.0.iter().enumerate().filter(|(_, owner)| which(**owner));
        chosen.fold(Share::NONE, |share, (index, _)| share.with(index))
    }
}

/// A set of a key's owners, by their indexes. An owner that is added twice counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Share(u64);

impl Share {
    /// No owner.
    pub const NONE: Share = Share(0);

    /// Returns this set of owners with one more owner.
    pub fn with(self, index: usize) -> Share {
        Share(self.0 | 1 << index)
    }

    /// Returns this set of owners without one owner.
    pub fn without(self, index: usize) -> Share {
        Share(self.0 & !(1 << index))
    }

    /// Returns the owners that are in both sets.
    pub fn and(self, other: Share) -> Share {
        Share(self.0 & other.0)
    }

    /// Returns the owners that are in at least one of the two sets.
    pub fn or(self, other: Share) -> Share {
        Share(self.0 | other.0)
    }

    /// Returns the owners that are not in `other`.
    pub fn minus(self, other: Share) -> Share {
        Share(self.0 & !other.0)
    }

    /// Whether the share has this owner.
    pub fn has(self, index: usize) -> bool {
        self.0 >> index & 1 == 1
    }

    /// Returns the number of owners in the share.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the share has no owner.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the indexes of the owners, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |index| self.has(*index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_counts_each_owner_once() {
        let share = Share::NONE.with(3).with(3).with(5);
        assert_eq!(share.count(), 2);
        assert_eq!(share.iter().collect::<Vec<_>>(), [3, 5]);
        assert_eq!(share.minus(Share::NONE.with(3)), Share::NONE.with(5));
    }
}
