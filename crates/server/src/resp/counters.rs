//! Metrics of the requests of a cell's clients.

use std::time::Duration;

use quorate_protocol::partial::Level;
use quorate_runtime::metrics::{Counter, Histogram, Metrics};

/// Counters and durations of requests.
pub(super) struct RequestCounters {
    /// Operations on maps of partial quorums by level, with a pair of reads and writes each.
    operations: Vec<(Level, [CountAndDuration; 2])>,
    /// Requests to maps of strategies other than partial quorums.
    requests: CountAndDuration,
    failed: Counter,
    malformed: Counter,
}

struct CountAndDuration {
    count: Counter,
    seconds: Histogram,
}

/// Upper bounds of the histograms' buckets, in seconds.
const SECONDS: [f64; 12] = [50e-6, 100e-6, 200e-6, 400e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 0.2, 1.0, 3.0];

impl CountAndDuration {
    fn new(metrics: &Metrics, name: &str, what: &str) -> CountAndDuration {
        let seconds = format!("{name}_seconds");
        CountAndDuration {
            count: metrics.counter(name, what),
            seconds: metrics.histogram(&seconds, "Time from a request to its outcome", SECONDS),
        }
    }

    fn count(&self, took: Duration) {
        self.count.inc();
        self.seconds.observe(took.as_secs_f64());
    }
}

impl RequestCounters {
    /// Creates the counters and adds them to `metrics`.
    pub(super) fn new(metrics: &Metrics) -> RequestCounters {
        let tally = |level: Level, kind: &str| {
            let what = format!("Operations on maps that ended: {kind} at level {}", level.name());
            CountAndDuration::new(metrics, &format!("map_{kind}_{}", level.name()), &what)
        };
        let asked = "Requests that ended, to maps of strategies other than partial quorums";
        RequestCounters {
            operations: Level::ALL
                .map(|level| (level, [tally(level, "reads"), tally(level, "writes")]))
                .into(),
            requests: CountAndDuration::new(metrics, "map_requests", asked),
            failed: metrics
                .counter("map_failures", "Operations on maps that did not meet their level or were refused"),
            malformed: metrics
                .counter("resp_malformed", "Clients disconnected because they sent malformed requests"),
        }
    }

    /// Counts an operation on a map of partial quorums that has ended.
    pub(super) fn ended(&self, level: Level, reads: bool, took: Duration, is_done: bool) {
        let Some((_, [read, write])) = self.operations.iter().find(|(it, _)| *it == level) else { return };
        let tally = if reads { read } else { write };
        tally.count(took);
        if !is_done {
            self.failed.inc();
        }
    }

    /// Counts a request that has ended, to a map of a strategy other than partial quorums.
    pub(super) fn answered(&self, took: Duration, is_done: bool) {
        self.requests.count(took);
        if !is_done {
            self.failed.inc();
        }
    }

    /// Counts a client whose connection was cut because of malformed bytes.
    pub(super) fn malformed(&self) {
        self.malformed.inc();
    }
}
