//! The budget of bytes that the reads of one batch may gather together.
//!
//! A read is bounded by itself ([`Bounds::result_bytes_max`](crate::engine::Bounds::result_bytes_max)), and many that come
//! together could each come near that. So beyond its first [`FREE_BYTES`] a read takes what it gathers from the budget of
//! its batch, a portion at a time. A read that finds the budget spent fails as crowded ([`Failure::is_crowded`]): alone
//! in a batch it is answered, if it keeps within its own bound.
//!
//! [`Failure::is_crowded`]: crate::failure::Failure::is_crowded

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that each read gathers without taking them from the budget: most reads gather less.
const FREE_BYTES: u64 = 16 << 10;
/// Bytes that a read takes at once, if there are as many.
const PORTION_BYTES: u64 = 64 << 10;

/// Bytes that are left for the reads of a batch.
#[derive(Debug)]
pub struct Budget {
    left: AtomicU64,
}

impl Budget {
    /// So many bytes for all.
    pub(crate) fn new(bytes: u64) -> Budget {
        Budget { left: AtomicU64::new(bytes) }
    }

    fn take(&self, bytes: u64) -> bool {
        let take = |left: u64| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

/// What one read may gather: by itself, and of its batch's budget.
#[derive(Clone, Copy, Debug)]
pub struct Allowance<'a> {
    /// The bytes that may be gathered for it.
    pub bytes_max: u64,
    /// Bytes left for its batch.
    pub batch: &'a Budget,
}

/// What a read has taken of the budget. It is given back when the read is given up, and kept when it is answered.
pub(super) struct Grant<'a> {
    batch: &'a Budget,
    bytes: u64,
}

impl<'a> Grant<'a> {
    /// Nothing yet.
    pub(super) fn new(batch: &'a Budget) -> Grant<'a> {
        Grant { batch, bytes: 0 }
    }

    /// The budget.
    pub(super) fn batch(&self) -> &'a Budget {
        self.batch
    }

    /// Whether a read may have gathered so many bytes: takes more of the budget if it must.
    pub(super) fn covers(&mut self, bytes: u64) -> bool {
        let missing = bytes.saturating_sub(FREE_BYTES + self.bytes);
        if missing == 0 {
            return true;
        }
        let taken = [missing.max(PORTION_BYTES), missing].into_iter().find(|&bytes| self.batch.take(bytes));
        self.bytes += taken.unwrap_or(0);
        taken.is_some()
    }

    /// The bytes that are covered.
    pub(super) fn covered(&self) -> u64 {
        FREE_BYTES + self.bytes
    }

    /// Takes over what another has taken of the same budget.
    pub(super) fn absorb(&mut self, mut other: Grant<'_>) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// The answer is kept until the batch is done.
    pub(super) fn keep(&mut self) {
        self.bytes = 0;
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        self.batch.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}
