//! The ring, which decides the cells that own a key.
//!
//! Each cell has tokens on a circle of 64 bits. The walk that finds a key's owners goes up from the key's own
//! token. It takes a cell when it meets the cell for the first time, while the cell's site still lacks copies
//! (Dynamo §4.2; Cassandra's `NetworkTopologyStrategy`, without racks).

use smallvec::SmallVec;

use super::{
    id::CellNumber,
    layout::{Copies, Layout},
    owner::{Owner, Owners},
    token::{Arc, Token},
};

/// The owners of every key of maps that have the same [`Copies`].
#[derive(Clone, Debug)]
pub struct Ring {
    /// The last token of each arc, ascending, and the owners of the keys in the arc. An arc includes its last
    /// token. The first arc begins behind the last token of the last arc, so it wraps around.
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
        super::{
            id::{MapId, Site},
            layout::{LayoutOrder, tests::layout},
        },
        *,
    };

    /// Finds the owners as the definition says: visits all tokens in order from the key's token, and keeps
    /// each cell when it is met for the first time.
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
    fn owners_equal_those_of_a_naive_walk() {
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
    fn shared_arcs_equal_the_arcs_of_common_owners() {
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
}
