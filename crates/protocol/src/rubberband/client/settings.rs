//! The settings of a client of tables. The host that runs the client chooses them.

use crate::{admission::Terms, rubberband::made_up, time::Duration};

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Interval of signs of life.
    pub alive_every: Duration,
    /// Time before the client tries a read again, or asks the ranges for a missing answer.
    pub retry_after: Duration,
    /// Time without news of a read before the client asks the expected processes whether they still execute
    /// it; also the time for their reply before the client tries elsewhere.
    pub patience: Duration,
    /// Time that a write or a control message may wait for its place in the order before the client gives it
    /// up as by [`ClientCommand::Cancel`](super::ClientCommand::Cancel); `None` for no limit. An ordered
    /// request has no limit.
    pub write_wait: Option<Duration>,
    /// Time without news of any attempt before the client gives up a read.
    pub read_wait: Duration,
    /// Time that a serving storage process may be without a link before reads that need it fail at once. The
    /// time must be longer than supers take to remove a dead process: a process that still serves after such
    /// a time is alive, but out of reach from here.
    pub unreached_after: Duration,
    /// Time for which a user can ask, by the write's id, for the outcome of a write that may have been
    /// applied.
    pub retention: Duration,
    /// Minimum number of the client's latest writes under made-up ids that are remembered; older ids expire.
    pub made_up_max: usize,
    /// The terms with which the client assumes the domain was founded; `None` if it accepts any.
    pub terms: Option<Terms>,
    /// Number of the client's writes between two messages that let the ranges forget.
    pub forget_every: u64,
    /// Minimum number of the client's writes that the ranges remember.
    pub remembered_min: u64,
    /// Number of the client's later writes after which the client gives up a write of unknown outcome, even
    /// before `retention`. Until then the ranges remember all these writes.
    pub remembered_max: u64,
}

impl Default for ClientSettings {
    fn default() -> Self {
        ClientSettings {
            alive_every: Duration::from_millis(50),
            retry_after: Duration::from_millis(30),
            patience: Duration::from_secs(2),
            write_wait: None,
            read_wait: Duration::from_secs(10),
            unreached_after: Duration::from_secs(5),
            retention: Duration::from_secs(600),
            made_up_max: made_up::SENT_MAX,
            terms: None,
            forget_every: 16_384,
            remembered_min: 65_536,
            remembered_max: 1 << 20,
        }
    }
}
