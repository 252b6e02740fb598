//! Levels: the sets of replicas that satisfy the level of an operation (004 §II.C).

use super::{
    id::Site,
    owner::{Owners, Share},
};
use crate::{quorum::majority, strength::Level};

impl Level {
    /// Whether the replicas in `share` suffice for this level, if the coordinator is at `site`.
    pub fn is_met(self, owners: &Owners, share: Share, site: Site) -> bool {
        let enough = |site: Site| {
            let of_site = owners.of_site(site);
            !of_site.is_empty() && share.and(of_site).count() >= majority(of_site.count())
        };
        match self {
            Level::One => share.count() >= 1,
            Level::Two => share.count() >= 2,
            Level::Quorum => share.count() >= majority(owners.count()),
            Level::All => share.count() == owners.count(),
            Level::LocalQuorum => enough(site),
            Level::EachQuorum => owners.iter().all(|owner| enough(owner.site)),
        }
    }

    /// Returns a smallest subset of `candidates` that meets the level for a coordinator at `site`. Keeps
    /// candidates that come early in `preferred` (indexes of owners, best first). Returns `None` if all
    /// candidates together do not meet the level.
    pub fn choose(
        self,
        owners: &Owners,
        candidates: Share,
        preferred: &[usize],
        site: Site,
    ) -> Option<Share> {
        if !self.is_met(owners, candidates, site) {
            return None;
        }
        let mut chosen = candidates;
        for index in preferred.iter().rev() {
            let without = chosen.without(*index);
            if self.is_met(owners, without, site) {
                chosen = without;
            }
        }
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{id::CellNumber, owner::Owner},
        *,
    };

    /// Makes owners at these sites, one each.
    fn owners(sites: &[u16]) -> Owners {
        let owner =
            |(index, site): (usize, &u16)| Owner { cell: CellNumber(index as u32), site: Site(*site) };
        Owners::new(sites.iter().enumerate().map(owner).collect())
    }

    fn share(bits: u64) -> Share {
        (0..64).filter(|index| bits >> index & 1 == 1).fold(Share::NONE, Share::with)
    }

    #[test]
    fn levels_by_count() {
        let three = owners(&[0, 0, 0]);
        let met = |level: Level, bits| level.is_met(&three, share(bits), Site(0));
        assert!(!met(Level::One, 0) && met(Level::One, 0b100));
        assert!(!met(Level::Two, 0b100) && met(Level::Two, 0b101));
        assert!(!met(Level::Quorum, 0b010) && met(Level::Quorum, 0b110));
        assert!(!met(Level::All, 0b110) && met(Level::All, 0b111));
        // A key that has one replica is never read or written at level two.
        assert!(!Level::Two.is_met(&owners(&[0]), share(1), Site(0)));
    }

    #[test]
    fn levels_by_site() {
        let sites = owners(&[0, 0, 0, 1, 1, 1]);
        assert!(Level::LocalQuorum.is_met(&sites, share(0b000_011), Site(0)));
        assert!(!Level::LocalQuorum.is_met(&sites, share(0b000_011), Site(1)));
        assert!(!Level::EachQuorum.is_met(&sites, share(0b001_111), Site(0)));
        assert!(Level::EachQuorum.is_met(&sites, share(0b011_011), Site(0)));
        // A site without replicas has no local quorum.
        assert!(!Level::LocalQuorum.is_met(&sites, share(0b111_111), Site(2)));
    }

    /// Tries all sets: quorum levels meet each other, and a local quorum meets each quorum of each site.
    #[test]
    fn quorums_meet() {
        for sites in [&[0, 0, 0][..], &[0, 0], &[0, 0, 1], &[0, 0, 1, 1], &[0, 0, 0, 1, 1], &[0, 1, 2]] {
            let owners = owners(sites);
            let sets = || (0..1u64 << sites.len()).map(share);
            for a in Level::ALL.into_iter().filter(|level| level.is_quorum()) {
                for b in Level::ALL.into_iter().filter(|level| level.is_quorum()) {
                    for x in sets().filter(|set| a.is_met(&owners, *set, Site(0))) {
                        let mut others = sets().filter(|set| b.is_met(&owners, *set, Site(0)));
                        assert!(others.all(|y| !x.and(y).is_empty()), "{a:?} {b:?} {sites:?}");
                    }
                }
            }
            for x in sets().filter(|set| Level::EachQuorum.is_met(&owners, *set, Site(0))) {
                let mut others = sets().filter(|set| Level::LocalQuorum.is_met(&owners, *set, Site(0)));
                assert!(others.all(|y| !x.and(y).is_empty()));
            }
        }
    }

    #[test]
    fn the_fewest_and_the_preferred_are_chosen() {
        let sites = owners(&[0, 0, 0, 1, 1, 1]);
        let all = share(0b111_111);
        let preferred = [4, 3, 5, 0, 1, 2];
        let choose = |level: Level, candidates| level.choose(&sites, candidates, &preferred, Site(1));
        assert_eq!(choose(Level::One, all), Some(share(0b010_000)));
        assert_eq!(choose(Level::LocalQuorum, all), Some(share(0b011_000)));
        assert_eq!(choose(Level::Quorum, all), Some(share(0b111_001)));
        assert_eq!(choose(Level::EachQuorum, all), Some(share(0b011_011)));
        assert_eq!(choose(Level::LocalQuorum, share(0b100_111)), None);
        for bits in 0..1 << 6 {
            for level in Level::ALL {
                let Some(chosen) = choose(level, share(bits)) else {
                    assert!(!level.is_met(&sites, share(bits), Site(1)));
                    continue;
                };
                assert!(level.is_met(&sites, chosen, Site(1)));
                assert_eq!(chosen.and(share(bits)), chosen);
                let spare = |index| level.is_met(&sites, chosen.without(index), Site(1));
                assert!(chosen.iter().all(|index| !spare(index)), "{level:?} of {bits:b}: {chosen:?}");
            }
        }
    }
}
