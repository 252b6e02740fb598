//! The checker's record of a key whose values expire.

use std::collections::BTreeMap;

/// The values that were written under a key whose values expire, each with the start of its write.
#[derive(Debug)]
pub(super) struct Expiring {
    pub(super) map: &'static str,
    pub(super) written: BTreeMap<u64, i64>,
}
