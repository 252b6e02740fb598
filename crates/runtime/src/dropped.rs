//! What nodes drop, as metrics.

use quorate_node::Figures;

use crate::metrics::{Counter, Metrics};

/// Counters of the letters that a node dropped, which follow its [`Figures`].
#[derive(Clone, Debug)]
pub struct Dropped {
    absent: Counter,
    foreign: Counter,
    late: Counter,
    malformed: Counter,
    seen: Figures,
}

impl Dropped {
    /// Registers them.
    pub fn new(metrics: &Metrics) -> Self {
        Dropped {
            absent: metrics.counter("letters_absent", "Messages for an endpoint that is not here"),
            foreign: metrics.counter("letters_foreign", "Messages of a domain that no endpoint here is in"),
            late: metrics.counter("letters_late", "Messages of a session that had ended"),
            malformed: metrics
                .counter("letters_malformed", "Messages that could not be read, and ended their session"),
            seen: Figures::default(),
        }
    }

    /// Counts what is new in the figures of the node.
    pub fn follow(&mut self, figures: Figures) {
        if figures == self.seen {
            return;
        }
        let seen = std::mem::replace(&mut self.seen, figures);
        let pairs = [
            (&self.absent, figures.absent, seen.absent),
            (&self.foreign, figures.foreign, seen.foreign),
            (&self.late, figures.late, seen.late),
            (&self.malformed, figures.malformed, seen.malformed),
        ];
        for (counter, now, before) in pairs {
            counter.inc_by(now - before);
        }
    }
}
