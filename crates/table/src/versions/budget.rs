//! The memory budget that the reads of one batch share.
//!
//! Each read has its own bound ([`Bounds::result_bytes_max`](crate::engine::Bounds::result_bytes_max)), but
//! many reads of one batch could each come close to it. So beyond its first [`FREE_BYTES`], a read takes
//! memory from the budget of its batch, a portion at a time. A read that finds the budget spent fails as
//! crowded ([`Failure::is_crowded`]). Alone in a batch it succeeds if it stays within its own bound.
//!
//! [`Failure::is_crowded`]: crate::failure::Failure::is_crowded

use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes that each read gathers outside the budget; most reads gather less.
const FREE_BYTES: u64 = 16 << 10;
/// The bytes that a read takes at a time, if the budget still has as many bytes.
const PORTION_BYTES: u64 = 64 << 10;

/// The bytes that are left for the reads of a batch.
#[derive(Debug)]
pub struct Budget {
    left: AtomicU64,
}

impl Budget {
    /// Creates a budget of `bytes` for all reads of a batch.
    pub(crate) fn new(bytes: u64) -> Budget {
        Budget { left: AtomicU64::new(bytes) }
    }

    fn take(&self, bytes: u64) -> bool {
        let take = |left: u64| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

/// The memory that one read may gather: its own bound, and its batch's budget.
#[derive(Clone, Copy, Debug)]
pub struct MemoryBounds<'a> {
    /// Maximum number of bytes that the read may gather.
    pub bytes_max: u64,
    /// The budget of the batch to which the read belongs.
    pub batch: &'a Budget,
}

/// The memory that a read has taken from the budget. Dropping a grant returns the memory to the budget,
/// unless the read has kept it for its answer.
pub(super) struct Grant<'a> {
    batch: &'a Budget,
    bytes: u64,
}

impl<'a> Grant<'a> {
    /// Creates an empty grant.
    pub(super) fn new(batch: &'a Budget) -> Grant<'a> {
        Grant { batch, bytes: 0 }
    }

    /// Returns the budget.
    pub(super) fn batch(&self) -> &'a Budget {
        self.batch
    }

    /// Whether the read may hold `bytes` bytes. Takes more from the budget if necessary.
    pub(super) fn covers(&mut self, bytes: u64) -> bool {
        let missing = bytes.saturating_sub(FREE_BYTES + self.bytes);
        if missing == 0 {
            return true;
        }
        let taken = [missing.max(PORTION_BYTES), missing].into_iter().find(|&bytes| self.batch.take(bytes));
        self.bytes += taken.unwrap_or(0);
        taken.is_some()
    }

    /// Returns the number of bytes that the read may gather now.
    pub(super) fn covered(&self) -> u64 {
        FREE_BYTES + self.bytes
    }

    /// Adds the memory of another grant of the same budget.
    pub(super) fn absorb(&mut self, mut other: Grant<'_>) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Keeps the memory of an answer until the batch ends.
    pub(super) fn keep(&mut self) {
        self.bytes = 0;
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        self.batch.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}
