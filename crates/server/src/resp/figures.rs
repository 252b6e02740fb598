//! Counts of the requests of a cell's clients.

use std::time::Duration;

use quorate_protocol::partial::Level;
use quorate_runtime::metrics::{Counter, Histogram, Metrics};

/// Counts of operations.
pub(super) struct Figures {
    /// Of partial quorums by level, and then reads and writes.
    done: Vec<(Level, [Tally; 2])>,
    /// Requests to maps of other strategies.
    asked: Tally,
    failed: Counter,
    malformed: Counter,
}

struct Tally {
    count: Counter,
    seconds: Histogram,
}

/// The bounds of the histograms.
const SECONDS: [f64; 12] = [50e-6, 100e-6, 200e-6, 400e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 0.2, 1.0, 3.0];

impl Tally {
    fn new(metrics: &Metrics, name: &str, what: &str) -> Tally {
        let seconds = format!("{name}_seconds");
        Tally {
            count: metrics.counter(name, what),
            seconds: metrics.histogram(&seconds, "From the request to its outcome", SECONDS),
        }
    }

    fn count(&self, took: Duration) {
        self.count.inc();
        self.seconds.observe(took.as_secs_f64());
    }
}

impl Figures {
    /// They are registered there.
    pub(super) fn new(metrics: &Metrics) -> Figures {
        let tally = |level: Level, kind: &str| {
            let what = format!("Operations of maps that ended: {kind}, {}", level.name());
            Tally::new(metrics, &format!("map_{kind}_{}", level.name()), &what)
        };
        let asked = "Requests to maps of other strategies than partial quorums that ended";
        Figures {
            done: Level::ALL.map(|level| (level, [tally(level, "reads"), tally(level, "writes")])).into(),
            asked: Tally::new(metrics, "map_requests", asked),
            failed: metrics
                .counter("map_failures", "Operations of maps that did not meet their level, or were refused"),
            malformed: metrics.counter("resp_malformed", "Clients cut off for bytes that are no request"),
        }
    }

    /// An operation of partial quorums has ended.
    pub(super) fn ended(&self, level: Level, reads: bool, took: Duration, is_done: bool) {
        let Some((_, [read, write])) = self.done.iter().find(|(it, _)| *it == level) else { return };
        let tally = if reads { read } else { write };
        tally.count(took);
        if !is_done {
            self.failed.inc();
        }
    }

    /// A request to a map of another strategy has ended.
    pub(super) fn answered(&self, took: Duration, is_done: bool) {
        self.asked.count(took);
        if !is_done {
            self.failed.inc();
        }
    }

    /// A client sent what is no request.
    pub(super) fn malformed(&self) {
        self.malformed.inc();
    }
}
