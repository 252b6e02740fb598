//! Random draws that replay. Each consumer draws from its own stream, made from the run's seed and the
//! consumer's name. So an additional draw in one place does not change the draws in another.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A stream of random bits.
///
/// The methods that shape the bits are our own, because `rand` may change its algorithms between versions. A
/// seed found today must replay for as long as the project lives.
#[derive(Clone, Debug)]
pub struct Chance(Pcg64);

impl Chance {
    /// Makes the stream called `name` of the run with this `seed`.
    pub fn new(seed: u64, name: &str) -> Self {
        Chance(Pcg64::seed_from_u64(xxh3_64_with_seed(name.as_bytes(), seed)))
    }

    /// Returns 64 uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns 128 uniform bits.
    pub fn bits_128(&mut self) -> u128 {
        (u128::from(self.bits()) << 64) | u128::from(self.bits())
    }

    /// Returns a uniform number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "the bound of a random number is above zero");
        // One multiplication has a bias of 2⁻⁶⁴·bound, which is far below the resolution of any simulation.
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a uniform index into a sequence of this length.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns a uniform choice among several values, or `None` if there are none.
    pub fn pick<T: Copy>(&mut self, several: &[T]) -> Option<T> {
        (!several.is_empty()).then(|| several[self.index(several.len())])
    }

    /// Returns a uniform number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns true with this probability.
    pub fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }

    /// Returns a uniform duration between `least` and `most`.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least + most.saturating_sub(least).mul_f64(self.unit())
    }

    /// Draws a duration from this distribution.
    pub fn span(&mut self, distribution: Delay) -> Duration {
        match distribution {
            Delay::Constant { micros } => Duration::from_nanos((micros * 1e3) as u64),
            Delay::Exponential { least_micros, mean_micros } => {
                let extra = -(1.0 - self.unit()).ln() * (mean_micros - least_micros).max(0.0);
                Duration::from_nanos(((least_micros + extra) * 1e3) as u64)
            }
            Delay::Pareto { least_micros, shape } => {
                let micros = least_micros / (1.0 - self.unit()).powf(1.0 / shape);
                // Distributions with a shape of at most one have no mean, and a delay of hours would be a
                // cut, so the tail is bounded.
                Duration::from_nanos((micros.min(SPAN_MICROS_MAX) * 1e3) as u64)
            }
        }
    }
}

/// A distribution of durations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Delay {
    /// The same duration at every draw.
    Constant {
        /// The duration, in microseconds.
        micros: f64,
    },
    /// An exponential distribution, shifted by the minimum.
    Exponential {
        /// The minimum, in microseconds.
        least_micros: f64,
        /// The mean, in microseconds.
        mean_micros: f64,
    },
    /// A Pareto distribution, which has a heavy tail.
    Pareto {
        /// The minimum, in microseconds.
        least_micros: f64,
        /// The tail's exponent. A smaller exponent makes the tail heavier.
        shape: f64,
    },
}

impl Delay {
    /// Returns the distribution with all durations multiplied by `factor`.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        match self {
            Delay::Constant { micros } => Delay::Constant { micros: micros * factor },
            Delay::Exponential { least_micros, mean_micros } => {
                Delay::Exponential { least_micros: least_micros * factor, mean_micros: mean_micros * factor }
            }
            Delay::Pareto { least_micros, shape } => {
                Delay::Pareto { least_micros: least_micros * factor, shape }
            }
        }
    }
}

const SPAN_MICROS_MAX: f64 = 5e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_replay() {
        let draw = |seed, name| Chance::new(seed, name).bits_128();
        assert_eq!(draw(1, "network"), draw(1, "network"));
        assert_ne!(draw(1, "network"), draw(1, "crash"));
        assert_ne!(draw(1, "network"), draw(2, "network"));
    }

    #[test]
    fn spans_have_their_means() {
        let mut chance = Chance::new(7, "spans");
        let mut mean =
            |delay| (0..100_000).map(|_| chance.span(delay).as_secs_f64() * 1e6).sum::<f64>() / 100_000.0;
        assert_eq!(mean(Delay::Constant { micros: 40.0 }), 40.0);
        let exponential = mean(Delay::Exponential { least_micros: 20.0, mean_micros: 100.0 });
        assert!((exponential - 100.0).abs() < 2.0, "{exponential}");
        // The mean of a Pareto distribution is least · shape / (shape − 1).
        let pareto = mean(Delay::Pareto { least_micros: 50.0, shape: 3.0 });
        assert!((pareto - 75.0).abs() < 2.0, "{pareto}");
    }
}
