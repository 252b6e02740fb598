//! The settings of a client of services. The host that runs the client chooses them.

use crate::time::Duration;

/// The settings of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// The time after which a call ends. The call's fate then depends on what the client knows by that time.
    pub wait: Duration,
    /// The time for which a replica may be silent before the client asks another replica. The time grows
    /// while no replica answers.
    pub patience: Duration,
    /// The pause before the client asks again, after no replica led, or after a replica had no room.
    pub retry_after: Duration,
    /// The pause before the client asks the next replica, if the named leader has just been silent for too
    /// long.
    pub ask_again_after: Duration,
    /// The maximum size of requests that are sent and not yet answered, in bytes. Further requests wait.
    pub in_flight_bytes_max: usize,
    /// The maximum size of requests that the client keeps, in bytes. Further calls are refused.
    pub kept_bytes_max: usize,
    /// The longest time between two messages to the leader that show the session to be in use, so that the
    /// session does not end.
    pub alive_every: Duration,
    /// The maximum number of reads under way for which the client still announces its reads to all replicas.
    pub announced_reads_max: usize,
    /// The number of later calls after which the user can no longer repeat a call of unknown fate. The client
    /// may forget the call earlier if other requests need its memory. The setting is also the maximum number
    /// of kept calls with keys and unknown fate.
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
            announced_reads_max: 4,
            open_max: 4096,
        }
    }
}
