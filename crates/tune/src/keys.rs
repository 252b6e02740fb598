//! Which key is next: uniform, scrambled Zipfian, or latest, as YCSB has them (Cooper and others, 2010, §5.1; 004 §II.D).

use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

/// How often keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// All equally often.
    Uniform,
    /// A few far more often than the others, spread over all keys.
    Zipfian,
    /// The keys that were inserted last far more often than the others.
    Latest,
}

impl Distribution {
    /// All of them.
    pub const ALL: [Distribution; 3] = [Distribution::Uniform, Distribution::Zipfian, Distribution::Latest];

    /// That of this name.
    pub fn named(name: &str) -> Option<Distribution> {
        Distribution::ALL.into_iter().find(|it| it.name() == name)
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipfian => "zipfian",
            Distribution::Latest => "latest",
        }
    }
}

/// Chooses among the keys 0, 1, … below their number.
#[derive(Clone, Debug)]
pub struct Keys {
    distribution: Distribution,
    /// The probability of each rank and all before it.
    ranks: Vec<f64>,
}

/// YCSB's constant.
const SKEW: f64 = 0.99;

impl Keys {
    /// Keys of which none has been chosen yet.
    pub fn new(distribution: Distribution, count: u64) -> Keys {
        let weight = |rank: u64| (rank as f64).powf(-SKEW);
        let total: f64 = (1..=count).map(weight).sum();
        let mut sum = 0.0;
        let ranks = (1..=count).map(|rank| {
            sum += weight(rank) / total;
            sum
        });
        Keys { distribution, ranks: ranks.collect() }
    }

    /// One of the keys.
    pub fn choose(&self, random: &mut Pcg64Mcg) -> u64 {
        self.choose_of(self.ranks.len() as u64, random)
    }

    /// One of `count` keys, of which there may be more than at first.
    pub fn choose_of(&self, count: u64, random: &mut Pcg64Mcg) -> u64 {
        if self.distribution == Distribution::Uniform {
            return random.random_range(0..count);
        }
        let drawn: f64 = random.random();
        let rank = (self.ranks.partition_point(|sum| *sum <= drawn) as u64).min(self.ranks.len() as u64 - 1);
        match self.distribution {
            // Two ranks may meet in one key, as in YCSB.
            Distribution::Zipfian => xxh3_64(&rank.to_le_bytes()) % count,
            _ => count - 1 - rank,
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    fn counts(distribution: Distribution) -> Vec<u64> {
        let keys = Keys::new(distribution, 1_000);
        let mut random = Pcg64Mcg::seed_from_u64(7);
        let mut counts = vec![0; 1_000];
        (0..200_000).for_each(|_| counts[keys.choose(&mut random) as usize] += 1);
        counts
    }

    #[test]
    fn keys_are_as_skewed_as_they_should_be() {
        // The first of a thousand ranks has 1/7.73 of all: the sum of their weights.
        let first = 200_000 / 8..200_000 / 7;
        let latest = counts(Distribution::Latest);
        assert!(first.contains(&latest[999]), "{}", latest[999]);
        assert!(latest[999] > latest[998] && latest[998] > latest[990]);
        let zipfian = counts(Distribution::Zipfian);
        let most = zipfian.iter().max().copied().unwrap_or(0);
        assert!(most >= first.start, "{most}");
        let place = zipfian.iter().position(|count| *count == most);
        assert_eq!(place, Some((xxh3_64(&0u64.to_le_bytes()) % 1_000) as usize));
        let uniform = counts(Distribution::Uniform);
        assert!(uniform.iter().all(|count| (100..320).contains(count)));
    }
}
