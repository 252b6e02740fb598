//! Metrics of the messages that a node drops.

use quorate_node::Counters;

use crate::metrics::{Counter, Metrics};

/// Counters of messages that a node dropped. They follow the node's own [`Counters`].
#[derive(Clone, Debug)]
pub struct NodeMetrics {
    absent: Counter,
    foreign: Counter,
    late: Counter,
    malformed: Counter,
    seen: Counters,
}

impl NodeMetrics {
    /// Registers the counters.
    pub fn new(metrics: &Metrics) -> Self {
        NodeMetrics {
            absent: metrics.counter(
                "letters_absent",
                "Messages dropped because this process does not have their endpoint",
            ),
            foreign: metrics.counter(
                "letters_foreign",
                "Messages dropped because no endpoint of this process is in their domain",
            ),
            late: metrics.counter("letters_late", "Messages dropped because their session had ended"),
            malformed: metrics
                .counter("letters_malformed", "Messages that did not decode, and so ended their session"),
            seen: Counters::default(),
        }
    }

    /// Adds the increase of the node's counters since the last call.
    pub fn follow(&mut self, counters: Counters) {
        if counters == self.seen {
            return;
        }
        let seen = std::mem::replace(&mut self.seen, counters);
        let pairs = [
            (&self.absent, counters.absent, seen.absent),
            (&self.foreign, counters.foreign, seen.foreign),
            (&self.late, counters.late, seen.late),
            (&self.malformed, counters.malformed, seen.malformed),
        ];
        for (counter, now, before) in pairs {
            counter.inc_by(now - before);
        }
    }
}
