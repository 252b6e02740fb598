//! The settings of a client of services. The host that runs the client chooses them.

use crate::time::Duration;

/// The settings of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// The time after which a call ends, with the fate that is known by then.
    pub wait: Duration,
    /// The time for which a replica may be silent before another one is asked. It grows while no replica
    /// answers.
    pub patience: Duration,
    /// The pause before the client asks again replicas of which none leads, or a replica that had no room.
    pub retry_after: Duration,
    /// The pause before the next replica is asked, if the leader that was named has just been silent for too
    /// long.
    pub ask_again_after: Duration,
    /// The most bytes of requests that are sent and not answered. Others wait.
    pub in_flight_bytes_max: usize,
    /// The most bytes of requests that the client keeps. Further calls are refused.
    pub kept_bytes_max: usize,
    /// The longest time without a message about a session to the leader, so that the session does not end.
    pub alive_every: Duration,
    /// The most reads under way for which the client tells the replicas of its reads.
    pub told_reads_max: usize,
    /// The number of later calls until which the user can ask for a call of unknown fate again, unless other
    /// requests need its memory. This is also the most calls with keys of unknown fate.
    pub open_max: u64,
}

impl Default for ClientSettings {
    fn default() -> Self {
        ClientSettings {
            wait: Duration::from_secs(10),
            patience: Duration::from_millis(500),
            retry_after: Duration::from_millis(20),
            ask_again_after: Duration::from_millis(80),
            in_flight_bytes_max: 16 << 20,
            kept_bytes_max: 64 << 20,
            alive_every: Duration::from_secs(60),
            told_reads_max: 4,
            open_max: 4096,
        }
    }
}
