//! Zipf's law: few values are frequent, and most are rare.

use rand::RngExt;
use rand_pcg::Pcg64;

/// Draws indexes; each index is less likely than the next smaller one.
pub(super) struct Zipf(Vec<f64>);

impl Zipf {
    /// Draws from `count` indexes. The weight of the index `n` is `(n + 1).powf(-exponent)`.
    pub(super) fn new(count: usize, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=count).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Zipf(sums.collect())
    }

    /// Draws an index below `count`.
    pub(super) fn draw(&self, random: &mut Pcg64) -> usize {
        let point = random.random::<f64>() * self.0.last().expect("not empty");
        self.0.partition_point(|sum| *sum < point).min(self.0.len() - 1)
    }
}
