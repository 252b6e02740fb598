//! Confidence intervals of a proportion, by bootstrap over keys.
//!
//! Operations on one key depend on each other, whereas operations on different keys hardly do. Each resample
//! therefore draws keys, with replacement, as many as the history has.

/// The contribution of one key to the proportion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyShare {
    /// Number of operations on the key.
    pub operations: u64,
    /// Number of inconsistent operations on the key.
    pub inconsistent: u64,
}

/// Returns the interval that holds the middle 95 % of the proportions of `resamples` resamples. `draw(n)`
/// returns a random number below `n`. Returns `None` for fewer than two keys, which do not show how keys
/// differ, and for zero resamples.
pub fn confidence(
    keys: &[KeyShare],
    resamples: usize,
    mut draw: impl FnMut(usize) -> usize,
) -> Option<(f64, f64)> {
    if keys.len() < 2 || resamples == 0 {
        return None;
    }
    let mut proportions: Vec<f64> = (0..resamples)
        .map(|_| {
            let (mut operations, mut inconsistent) = (0, 0);
            for _ in 0..keys.len() {
                let key = keys[draw(keys.len())];
                operations += key.operations;
                inconsistent += key.inconsistent;
            }
            if operations == 0 { 0.0 } else { inconsistent as f64 / operations as f64 }
        })
        .collect();
    proportions.sort_by(f64::total_cmp);
    let at = |per_mille: usize| proportions[(proportions.len() - 1) * per_mille / 1000];
    Some((at(25), at(975)))
}
