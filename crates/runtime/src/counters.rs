//! The counters and gauges of a reactor.

use std::time::Duration;

use crate::metrics::{Counter, Gauge, Histogram, Metrics};

/// Handles to a reactor's counters and gauges; cheap to clone.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Frames received on links.
    pub frames_received: Counter,
    /// Frames queued for writing on links.
    pub frames_sent: Counter,
    /// Bytes read from links.
    pub bytes_received: Counter,
    /// Bytes written to links.
    pub bytes_sent: Counter,
    /// Messages that arrived on links or as casts.
    pub messages_received: Counter,
    /// Messages sent, counted once per destination that has a link.
    pub messages_sent: Counter,
    /// Messages dropped because their destination had no link.
    pub messages_unlinked: Counter,
    /// Commands of users that the loop has taken.
    pub commands: Counter,
    /// Connections or links ended because their bytes could not be decoded.
    pub garbage: Counter,
    /// Hellos that this process refused, or that peers refused.
    pub refused: Counter,
    /// Connections turned away because too many were open.
    pub crowded: Counter,
    /// Links broken because the peer did not read its queued messages.
    pub overrun: Counter,
    /// Links broken because a message of this process was too long to be sent.
    pub oversized: Counter,
    /// Datagrams passed to the system.
    pub datagrams_sent: Counter,
    /// Bytes of datagrams passed to the system.
    pub datagram_bytes_sent: Counter,
    /// Datagrams that the system refused to send.
    pub datagrams_unsent: Counter,
    /// Datagrams that arrived.
    pub datagrams_received: Counter,
    /// Bytes of datagrams that arrived.
    pub datagram_bytes_received: Counter,
    /// Datagrams dropped because no present link permits their token, or because they could not be decoded.
    pub datagrams_refused: Counter,
    /// Multicast datagrams dropped because their sender has no link to this process. They are meant for other
    /// processes that listen at the same address.
    pub datagrams_unwanted: Counter,
    /// Attempts to connect to a peer.
    pub dials: Counter,
    /// Links that were made since the start.
    pub linked: Counter,
    /// Links that are up now.
    pub links: Gauge,
    /// Turns of the loop.
    pub turns: Counter,
    /// Time that the loop was awake, in nanoseconds.
    pub busy_nanoseconds: Counter,
    /// Number of inputs per turn.
    pub batch: Histogram,
    /// Syncs of a segment of the journal.
    pub disk_syncs: Counter,
    /// Bytes of the journal made durable.
    pub disk_bytes: Counter,
    /// Time for which the disk thread was writing and syncing, in nanoseconds.
    pub disk_busy_nanoseconds: Counter,
    /// Time of each sync, in seconds.
    pub disk_sync_seconds: Histogram,
    /// Time of all syncs together, in nanoseconds.
    pub disk_sync_nanoseconds: Counter,
    /// Time of the longest sync, in nanoseconds.
    pub disk_sync_nanoseconds_max: Gauge,
    /// Bytes of the journal that a restart would read.
    pub disk_restart_bytes: Gauge,
    /// Bytes that the directory occupies on disk, at the last measurement.
    pub disk_used_bytes: Gauge,
    /// The time of the last complete checkpoint, in seconds of Unix time; 0 if there is none.
    pub disk_checkpoint_seconds: Gauge,
}

impl Counters {
    /// Counts a sync of a segment that took this long.
    pub(crate) fn synced(&self, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.disk_syncs.inc();
        self.disk_sync_seconds.observe(took.as_secs_f64());
        self.disk_sync_nanoseconds.inc_by(nanoseconds);
        // Only the disk thread sets this gauge, so no update is lost between the read and the write.
        let longest = self.disk_sync_nanoseconds_max.get();
        self.disk_sync_nanoseconds_max.set(longest.max(i64::try_from(nanoseconds).unwrap_or(i64::MAX)));
    }

    /// Registers all counters and gauges.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let counter = |name, help| metrics.counter(name, help);
        Counters {
            frames_received: counter("frames_received", "Frames that arrived on links"),
            frames_sent: counter("frames_sent", "Frames queued for writing on links"),
            bytes_received: counter("bytes_received", "Bytes read from links"),
            bytes_sent: counter("bytes_sent", "Bytes written to links"),
            messages_received: counter("messages_received", "Messages that arrived"),
            messages_sent: counter("messages_sent", "Messages sent, per destination"),
            messages_unlinked: counter(
                "messages_unlinked",
                "Messages dropped because no link to their destination stood",
            ),
            commands: counter("commands", "Commands that the protocol thread received"),
            garbage: counter("garbage", "Connections ended because their bytes did not decode"),
            refused: counter("hellos_refused", "Greetings refused by this process or by its peer"),
            crowded: counter("connections_crowded", "Connections turned away at the limit of connections"),
            overrun: counter("links_overrun", "Links broken because the peer did not read"),
            oversized: counter(
                "messages_oversized",
                "Links broken because a message was too long to be sent",
            ),
            datagrams_sent: counter("datagrams_sent", "Datagrams handed to the system"),
            datagram_bytes_sent: counter("datagram_bytes_sent", "Bytes of datagrams handed to the system"),
            datagrams_unsent: counter("datagrams_unsent", "Datagrams that the system did not take"),
            datagrams_received: counter("datagrams_received", "Datagrams that arrived"),
            datagram_bytes_received: counter("datagram_bytes_received", "Bytes of datagrams that arrived"),
            datagrams_refused: counter(
                "datagrams_refused",
                "Datagrams dropped because their sender had no link, or because they did not decode",
            ),
            datagrams_unwanted: counter(
                "datagrams_unwanted",
                "Multicast datagrams that arrived for other processes",
            ),
            dials: counter("dials", "Attempts to connect"),
            linked: counter("links_made", "Links that were established"),
            links: metrics.gauge("links", "Links that stand now"),
            turns: counter("turns", "Turns of the protocol thread's loop"),
            busy_nanoseconds: counter("busy_nanoseconds", "Time that the protocol thread was awake"),
            disk_syncs: counter("disk_syncs", "Syncs of a segment of the journal"),
            disk_bytes: counter("disk_bytes", "Bytes of the journal made durable"),
            disk_busy_nanoseconds: counter(
                "disk_busy_nanoseconds",
                "Time that the disk thread spent on writing and syncing",
            ),
            disk_sync_seconds: metrics.histogram(
                "disk_sync_seconds",
                "Time that a sync of a segment of the journal took",
                [0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0],
            ),
            disk_sync_nanoseconds: counter(
                "disk_sync_nanoseconds",
                "Time that all syncs of the journal together took",
            ),
            disk_sync_nanoseconds_max: metrics
                .gauge("disk_sync_nanoseconds_max", "Time that the longest sync of the journal took"),
            disk_restart_bytes: metrics
                .gauge("disk_restart_bytes", "Bytes of the journal that a restart would read"),
            disk_used_bytes: metrics
                .gauge("disk_used_bytes", "Bytes that the directory of the journal takes on disk"),
            disk_checkpoint_seconds: metrics.gauge(
                "disk_checkpoint_timestamp_seconds",
                "Unix time of the last whole checkpoint, 0 if there is none",
            ),
            batch: metrics.histogram(
                "batch",
                "Inputs per turn of the protocol thread",
                [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0],
            ),
        }
    }
}
