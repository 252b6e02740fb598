//! The ring: which cells own a key.
//!
//! Each cell has tokens on a circle of 64 bits. The walk that finds a key's owners goes up from the key's own
//! token. It takes a cell when it meets the cell for the first time, while the cell's site still lacks copies
//! (Dynamo §4.2; Cassandra's `NetworkTopologyStrategy`, without racks).

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    layout::{CellNumber, Copies, Layout, MapId},
    tree::Arc,
};

/// A group of cells that are near each other. Its number has no meaning here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Site(pub u16);

/// A place on the circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Token(pub u64);

impl Token {
    /// Returns the place of a key of a map. Maps differ, so that keys of the same name are not hot at the
    /// same cells in every map.
    pub fn of(map: MapId, key: &[u8]) -> Token {
        Token(xxh3_64_with_seed(key, u64::from(map.0)))
    }
}

/// A cell that keeps a copy of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The cell.
    pub cell: CellNumber,
    /// The cell's site.
    pub site: Site,
}

/// The owners of a key, each once, in the order in which the walk met them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners(SmallVec<[Owner; 6]>);

impl Owners {
    /// The most owners of a key.
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

    /// Returns the share with this owner.
    pub fn with(self, index: usize) -> Share {
        Share(self.0 | 1 << index)
    }

    /// Returns the share without this owner.
    pub fn without(self, index: usize) -> Share {
        Share(self.0 & !(1 << index))
    }

    /// Returns the owners that are in both shares.
    pub fn and(self, other: Share) -> Share {
        Share(self.0 & other.0)
    }

    /// Returns the owners that are in either share.
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

/// The owners of every key of maps that have the same [`Copies`].
#[derive(Clone, Debug)]
pub struct Ring {
    /// The last token of each arc, ascending, and the owners of the keys in the arc. An arc includes its last
    /// token. The first arc begins behind the token of the last one, so it wraps around.
    arcs: Vec<(Token, Owners)>,
}

impl Ring {
    /// Returns the ring of a layout's cells. The layout must have enough cells at each site.
    pub fn new(layout: &Layout, copies: &Copies) -> Ring {
        let mut places: Vec<(Token, Owner)> = Vec::new();
        for (cell, member) in layout.cells() {
            let owner = Owner { cell, site: member.site };
            places.extend(member.tokens.iter().map(|token| (*token, owner)));
        }
        places.sort_unstable_by_key(|(token, owner)| (*token, owner.cell));
        let mut arcs: Vec<(Token, Owners)> = Vec::new();
        for first in 0..places.len() {
            let walk = places[first..].iter().chain(&places[..first]).map(|(_, owner)| *owner);
            let owners = walk_up(walk, copies);
            // Neighbouring arcs that have the same owners become one arc.
            match arcs.last_mut() {
                Some((end, last)) if *last == owners => *end = places[first].0,
                _ => arcs.push((places[first].0, owners)),
            }
        }
        Ring { arcs }
    }

    /// Returns the owners of every arc, in the order of the ring.
    pub fn all_owners(&self) -> impl Iterator<Item = &Owners> {
        self.arcs.iter().map(|(_, owners)| owners)
    }

    /// Returns the arcs whose keys both cells own, in order.
    pub(super) fn shared(&self, one: CellNumber, other: CellNumber) -> Vec<Arc> {
        let mut shared: Vec<Arc> = Vec::new();
        let ends = self.arcs.iter().map(|(end, owners)| (*end, owners));
        // The first arc's owners also own the keys behind the last token.
        let wrapped = self.arcs.first().map(|(_, owners)| (Token(u64::MAX), owners));
        let mut first = Some(Token(0));
        for (last, owners) in ends.chain(wrapped) {
            let Some(from) = first.filter(|from| *from <= last) else { continue };
            first = last.0.checked_add(1).map(Token);
            if owners.index(one).is_none() || owners.index(other).is_none() {
                continue;
            }
            match shared.last_mut().filter(|arc| arc.last.0.checked_add(1) == Some(from.0)) {
                Some(arc) => arc.last = last,
                None => shared.push(Arc { first: from, last }),
            }
        }
        shared
    }

    /// Returns the owners of the keys at this token.
    pub fn owners(&self, token: Token) -> &Owners {
        let at = self.arcs.partition_point(|(end, _)| *end < token);
        &self.arcs[if at == self.arcs.len() { 0 } else { at }].1
    }
}

fn walk_up(walk: impl Iterator<Item = Owner>, copies: &Copies) -> Owners {
    let mut taken: SmallVec<[Owner; 6]> = SmallVec::new();
    for owner in walk {
        let at_site = taken.iter().filter(|it| it.site == owner.site).count();
        let lacking = at_site < copies.at(owner.site);
        if lacking && !taken.iter().any(|it| it.cell == owner.cell) {
            taken.push(owner);
            if taken.len() == copies.total() {
                break;
            }
        }
    }
    assert_eq!(taken.len(), copies.total(), "the layout has enough cells for the copies of its maps");
    Owners::new(taken)
}

#[cfg(test)]
mod tests {
    use super::{
        super::layout::{LayoutOrder, tests::layout},
        *,
    };

    /// The walk by its definition: visits all tokens in order from the key's token, and keeps first meetings
    /// only.
    fn naive(layout: &Layout, copies: &Copies, token: Token) -> Vec<CellNumber> {
        let mut places = Vec::new();
        for (cell, member) in layout.cells() {
            for place in &member.tokens {
                places.push((place.0.wrapping_sub(token.0), cell, member.site));
            }
        }
        places.sort_unstable();
        let mut taken: Vec<(CellNumber, Site)> = Vec::new();
        for (_, cell, site) in places {
            let at_site = taken.iter().filter(|(_, it)| *it == site).count();
            if at_site < copies.at(site) && taken.iter().all(|(it, _)| *it != cell) {
                taken.push((cell, site));
            }
        }
        taken.into_iter().map(|(cell, _)| cell).collect()
    }

    #[test]
    fn owners_are_those_of_the_naive_walk() {
        let mut layout = layout(&[(0, 16), (0, 16), (0, 16), (0, 16), (1, 16), (1, 16), (2, 16)]);
        for per_site in [&[(0u16, 3u8)][..], &[(0, 1)], &[(0, 2), (1, 2)], &[(0, 3), (1, 1), (2, 1)]] {
            let copies = Copies::new(per_site.iter().map(|(site, count)| (Site(*site), *count))).unwrap();
            let ring = Ring::new(&layout, &copies);
            let ends: Vec<u64> = ring.arcs.iter().map(|(end, _)| end.0).collect();
            let near = ends.iter().flat_map(|end| [end.wrapping_sub(1), *end, end.wrapping_add(1)]);
            for token in
                near.chain((0..500).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).chain([0, u64::MAX])
            {
                let owners: Vec<_> = ring.owners(Token(token)).iter().map(|owner| owner.cell).collect();
                assert_eq!(owners, naive(&layout, &copies, Token(token)), "token {token}");
            }
        }
        // The ring depends on the orders alone: the same orders give the same ring.
        let refused = layout.apply(&LayoutOrder::DropMap(MapId(9)));
        assert!(refused.is_err());
    }

    #[test]
    fn shared_arcs_are_those_of_common_owners() {
        let layout = layout(&[(0, 8), (0, 8), (0, 8), (1, 8), (1, 8)]);
        for per_site in [&[(0u16, 3u8)][..], &[(0, 2), (1, 1)], &[(0, 1)]] {
            let copies = Copies::new(per_site.iter().map(|(site, count)| (Site(*site), *count))).unwrap();
            let ring = Ring::new(&layout, &copies);
            let ends = ring.arcs.iter().flat_map(|(end, _)| [end.0, end.0.wrapping_add(1)]);
            for token in ends.chain([0, 1, u64::MAX]).map(Token) {
                let owners = ring.owners(token);
                for (one, other) in (1..=5).flat_map(|one| (1..=5).map(move |other| (one, other))) {
                    let (one, other) = (CellNumber(one), CellNumber(other));
                    let both = owners.index(one).is_some() && owners.index(other).is_some();
                    let arcs = ring.shared(one, other);
                    assert_eq!(arcs.iter().filter(|arc| arc.has(token)).count(), usize::from(both));
                }
            }
        }
    }

    #[test]
    fn many_tokens_spread_keys() {
        let layout = layout(&[(0, 64); 5]);
        let copies = Copies::new([(Site(0), 3)]).unwrap();
        let ring = Ring::new(&layout, &copies);
        let mut count = [0; 5];
        for n in 0..10_000u32 {
            for owner in ring.owners(Token::of(MapId(1), &n.to_le_bytes())).iter() {
                count[owner.cell.0 as usize - 1] += 1;
            }
        }
        assert!(count.iter().all(|count| (4_000..8_000).contains(count)), "{count:?}");
    }

    #[test]
    fn tokens_of_keys_are_pinned() {
        assert_eq!(Token::of(MapId(1), b"key").0, Token::of(MapId(1), b"key").0);
        assert_ne!(Token::of(MapId(1), b"key"), Token::of(MapId(2), b"key"));
    }

    #[test]
    fn a_share_counts_nobody_twice() {
        let share = Share::NONE.with(3).with(3).with(5);
        assert_eq!(share.count(), 2);
        assert_eq!(share.iter().collect::<Vec<_>>(), [3, 5]);
        assert_eq!(share.minus(Share::NONE.with(3)), Share::NONE.with(5));
    }
}
