//! Finds hot keys: keys whose reads are most likely to be stale, because the keys are read and written often.
//!
//! **Promise.** About the fraction `p` of all operations is called hot. These are the operations for which
//! the strong level improves consistency most. A key with `r` reads and `w` writes a second has stale reads
//! in proportion to `r·w`, because a read is stale if it falls into the short time after a write. Making the
//! key strong costs `r + w` strong operations. So keys are ranked by `r·w / (r + w)`. All reads and writes of
//! a hot key are strong. Their quorums meet, so no read of it is stale while it is hot.
//!
//! **How.** Two count-min sketches (Cormode and Muthukrishnan, 2005) count reads and writes. They are halved
//! every 65,536 operations, so that they follow a changing load. A key is hot if its score is above a
//! threshold. Each operation moves the threshold a little, until the fraction `p` of the operations is above
//! it. The clients of a program share these atomic counters, which may be slightly off.
//!
//! **Differs** from 004, which decides each operation by chance. With Zipfian keys (constant 0.99, 1,000
//! keys) the 25 hottest keys get half of the operations and nearly all stale reads.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Counts of the operations on keys. They take 512 KiB.
#[derive(Debug)]
pub struct Heat {
    reads: Sketch,
    writes: Sketch,
    seen: AtomicU64,
    /// Lowest score of a hot key, as the bits of a float.
    threshold: AtomicU64,
}

/// A count-min sketch.
#[derive(Debug)]
struct Sketch(Box<[AtomicU32]>);

const ROWS: u64 = 4;
const ROW: usize = 1 << 14;
/// Number of operations after which all counts are halved.
const HALVE_AFTER: u64 = 1 << 16;
/// Speed of the threshold: an operation moves the threshold by this fraction of its value.
const STEP: f64 = 0.02;
const LEAST_SCORE: f64 = 1e-3;
const LARGEST_SCORE: f64 = 1e9;

impl Default for Heat {
    fn default() -> Self {
        let sketch = || Sketch((0..ROWS as usize * ROW).map(|_| AtomicU32::new(0)).collect());
        Heat {
            reads: sketch(),
            writes: sketch(),
            seen: AtomicU64::new(0),
            threshold: AtomicU64::new(1f64.to_bits()),
        }
    }
}

impl Heat {
    /// Counts an operation. Returns whether its key is among the hottest keys that together get the fraction
    /// `p` of all operations.
    pub fn is_among_hottest(&self, key: &[u8], is_write: bool, p: f64) -> bool {
        let reads = self.reads.count(key, !is_write);
        let writes = self.writes.count(key, is_write);
        if (self.seen.fetch_add(1, Relaxed) + 1).is_multiple_of(HALVE_AFTER) {
            self.reads.halve();
            self.writes.halve();
        }
        if p <= 0.0 || p >= 1.0 {
            return p >= 1.0;
        }
        // Each count is increased by one, so that a key that was only read ranks above a key that was never
        // seen.
        let (reads, writes) = (f64::from(reads) + 1.0, f64::from(writes) + 1.0);
        let score = reads * writes / (reads + writes);
        let threshold = f64::from_bits(self.threshold.load(Relaxed));
        let is_hot = score >= threshold;
        let moved = threshold * (STEP * if is_hot { 1.0 - p } else { -p }).exp();
        self.threshold.store(moved.clamp(LEAST_SCORE, LARGEST_SCORE).to_bits(), Relaxed);
        is_hot
    }
}

impl Sketch {
    /// Returns the count of a key, after increasing it by one if `counts`.
    fn count(&self, key: &[u8], counts: bool) -> u32 {
        let places = (0..ROWS).map(|row| {
            let place = row as usize * ROW + xxh3_64_with_seed(key, row) as usize % ROW;
            let before =
                if counts { self.0[place].fetch_add(1, Relaxed) } else { self.0[place].load(Relaxed) };
            before + u32::from(counts)
        });
        places.min().unwrap_or(0)
    }

    fn halve(&self) {
        for count in &self.0 {
            count.store(count.load(Relaxed) / 2, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_pcg::Pcg64Mcg;

    use super::*;
    use crate::keys::{Distribution, Keys};

    /// Returns the fraction of hot operations, and the fraction of operations on the hottest key that were
    /// hot.
    fn hot(p: f64, distribution: Distribution) -> (f64, f64) {
        let (heat, mut random) = (Heat::default(), Pcg64Mcg::seed_from_u64(3));
        let keys = Keys::new(distribution, 1_000);
        let (mut hot, mut hottest, mut of_hottest) = (0, 0, 0);
        for at in 0..200_000 {
            let key = keys.choose(&mut random);
            let is_hot = heat.is_among_hottest(&key.to_le_bytes(), random.random::<f64>() < 0.2, p);
            if at >= 20_000 {
                hot += u32::from(is_hot);
                of_hottest += u32::from(key == 999);
                hottest += u32::from(key == 999 && is_hot);
            }
        }
        (f64::from(hot) / 180_000.0, f64::from(hottest) / f64::from(of_hottest))
    }

    #[test]
    fn the_wanted_part_is_hot_and_the_hottest_key_always() {
        for p in [0.2, 0.5, 0.8] {
            let (part, hottest) = hot(p, Distribution::Latest);
            assert!((part - p).abs() < 0.03, "{part} of all instead of {p}");
            assert!(hottest > 0.99, "{hottest} of the hottest key's at {p}");
        }
        let (part, _) = hot(0.3, Distribution::Uniform);
        assert!((part - 0.3).abs() < 0.03, "{part}");
        assert_eq!((hot(0.0, Distribution::Zipfian).0, hot(1.0, Distribution::Zipfian).0), (0.0, 1.0));
    }
}
