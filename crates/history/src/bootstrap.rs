//! How sure a proportion is: confidence intervals by bootstrap over keys.
//!
//! Operations on one key depend on each other and keys hardly do, so it is keys that are drawn, with replacement, as many as there are.

/// What a key adds to the proportion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyShare {
    /// Its operations.
    pub operations: u64,
    /// Those that are inconsistent.
    pub inconsistent: u64,
}

/// The interval in which the middle 95 % of the proportions of `resamples` drawn sets of keys lie. `draw(n)` returns a random
/// number below `n`. `None` with fewer than two keys, which say nothing about how keys differ.
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
