//! Fingerprints: short digests by which two results are compared.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// A digest of a result. It does not depend on the order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The number of rows of the result.
    pub rows: u64,
    /// The sum of the keyed hashes of all rows.
    pub sum: u128,
}

impl Fingerprint {
    /// Returns the fingerprint of these items under a key. A person who does not know the key cannot choose
    /// items whose fingerprints collide.
    pub(crate) fn of<'a, T: Serialize + 'a>(key: u128, items: impl Iterator<Item = &'a T>) -> Fingerprint {
        let mut fingerprint = Fingerprint::default();
        for item in items {
            let bytes = postcard::to_stdvec(item).expect("our own types always serialise");
            let mut hasher = Xxh3::with_seed(key as u64);
            hasher.update(&key.to_le_bytes());
            hasher.update(&bytes);
            fingerprint.rows += 1;
            fingerprint.sum = fingerprint.sum.wrapping_add(hasher.digest128());
        }
        fingerprint
    }
}
