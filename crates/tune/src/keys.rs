//! Choice of the next key: uniform, scrambled Zipfian or latest, as in YCSB (Cooper and others, 2010, §5.1;
//! 004 §II.D).

use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

/// How often each key is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// All keys equally often.
    Uniform,
    /// A few keys far more often than the others. The frequent keys are spread over all keys.
    Zipfian,
    /// The newest keys far more often than the others.
    Latest,
}

impl Distribution {
    /// All distributions.
    pub const ALL: [Distribution; 3] = [Distribution::Uniform, Distribution::Zipfian, Distribution::Latest];

    /// Returns the distribution with this name.
    pub fn named(name: &str) -> Option<Distribution> {
        Distribution::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Returns the name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipfian => "zipfian",
            Distribution::Latest => "latest",
        }
    }
}

/// Chooses keys from 0 up to their number.
#[derive(Clone, Debug)]
pub struct Keys {
    distribution: Distribution,
    /// Cumulative probability of each rank.
    ranks: Vec<f64>,
}

/// Skew constant of YCSB.
const SKEW: f64 = 0.99;

impl Keys {
    /// Creates a choice among `count` keys.
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

    /// Chooses one of the keys.
    pub fn choose(&self, random: &mut Pcg64Mcg) -> u64 {
        self.choose_of(self.ranks.len() as u64, random)
    }

    /// Chooses one of `count` keys. `count` may have grown since the start.
    pub fn choose_of(&self, count: u64, random: &mut Pcg64Mcg) -> u64 {
        if self.distribution == Distribution::Uniform {
            return random.random_range(0..count);
        }
        let drawn: f64 = random.random();
        let rank = (self.ranks.partition_point(|sum| *sum <= drawn) as u64).min(self.ranks.len() as u64 - 1);
        match self.distribution {
            // Two ranks may fall on one key, as in YCSB.
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
    fn key_choices_have_the_configured_skew() {
        // The first of a thousand ranks has 1/7.73 of all choices. 7.73 is the sum of the weights.
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
