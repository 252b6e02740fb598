//! The settings of a storage process. The host that runs the process chooses them.

use super::{
    replies::{REMEMBERED_BYTES_MAX, Replies},
    verdicts::{VerdictLimits, Verdicts},
};
use crate::{admission::Terms, time::Duration};

/// Settings of a storage process.
#[derive(Clone, Debug)]
pub struct StorageSettings {
    /// Interval of signs of life.
    pub alive_every: Duration,
    /// Maximum number of tasks in a batch.
    pub batch_max: usize,
    /// Time to wait for a verdict, or for a chunk of rows, before asking again.
    pub ask_after: Duration,
    /// Maximum number of bytes of one answer that are sent and not yet consumed by its client.
    pub reply_window: u64,
    /// Maximum number of bytes of all answers that their clients have not taken. Answers that exceed this
    /// number are refused.
    pub held_bytes_max: u64,
    /// Time for which an answer is kept while its client takes nothing of it.
    pub held_max: Duration,
    /// The terms with which the process assumes the domain was founded; `None` if it accepts any.
    pub terms: Option<Terms>,
    /// Maximum size of the answers to writes that each range remembers, in bytes. All replicas must use the
    /// same value.
    pub remembered_bytes_max: usize,
    /// Maximum size of the reasons of failed writes that each range remembers, in bytes.
    pub remembered_failure_bytes_max: usize,
    /// Maximum size in bytes of one message with a range's memory, and of one record of decisions. A single
    /// answer that is longer is sent alone.
    pub section_bytes_max: usize,
    /// Number of decisions, on writes that span ranges, that are kept for processes that ask late. A
    /// decision for which a member may still ask is kept in addition.
    pub settled_max: usize,
    /// Maximum size of the kept decisions in bytes. Above this size, the reasons of failures are dropped
    /// first, then decisions for which nobody can ask.
    pub settled_bytes_max: usize,
    /// Maximum size in bytes of the reason of a failed write that spans ranges. A longer reason is neither
    /// kept nor sent.
    pub failure_bytes_max: usize,
    /// Bytes of deliveries in the journal after which a checkpoint begins. After a long checkpoint, more
    /// bytes are needed; if the last checkpoint is long ago, a quarter suffices. `None` for a process without
    /// a disk: nothing is written, and a process that ends is gone for good.
    pub checkpoint_bytes: Option<u64>,
}

impl StorageSettings {
    pub(super) fn verdicts(&self) -> Verdicts {
        Verdicts::new(VerdictLimits {
            settled_max: self.settled_max,
            settled_bytes_max: self.settled_bytes_max,
            failure_bytes_max: self.failure_bytes_max,
        })
    }

    pub(super) fn replies(&self) -> Replies {
        Replies::new(self.remembered_bytes_max, self.remembered_failure_bytes_max)
    }
}

impl Default for StorageSettings {
    fn default() -> Self {
        StorageSettings {
            alive_every: Duration::from_millis(50),
            batch_max: 16_384,
            ask_after: Duration::from_millis(200),
            reply_window: 512 << 10,
            held_bytes_max: 128 << 20,
            held_max: Duration::from_secs(300),
            terms: None,
            remembered_bytes_max: REMEMBERED_BYTES_MAX,
            remembered_failure_bytes_max: 4 << 20,
            section_bytes_max: 1 << 20,
            settled_max: 65_536,
            settled_bytes_max: 16 << 20,
            failure_bytes_max: 2 << 10,
            checkpoint_bytes: None,
        }
    }
}
