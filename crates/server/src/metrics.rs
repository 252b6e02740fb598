//! What a gateway counts.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
};

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn increment(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// How many so far.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of the SQL door.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Connections begun.
    pub connections_opened: Counter,
    /// Connections ended.
    pub connections_closed: Counter,
    /// Statements executed.
    pub statements: Counter,
    /// Statements that ended in an error.
    pub errors: Counter,
    /// Rows sent.
    pub rows: Counter,
    /// Bytes sent.
    pub bytes: Counter,
    /// Connections ended because what came was no message.
    pub garbage: Counter,
}

impl Metrics {
    /// The counters in Prometheus' text format.
    pub fn prometheus(&self) -> String {
        let counters = [
            ("quorate_sql_connections_opened_total", "Connections begun.", &self.connections_opened),
            ("quorate_sql_connections_closed_total", "Connections ended.", &self.connections_closed),
            ("quorate_sql_statements_total", "Statements executed.", &self.statements),
            ("quorate_sql_errors_total", "Statements that ended in an error.", &self.errors),
            ("quorate_sql_rows_sent_total", "Rows sent to clients.", &self.rows),
            ("quorate_sql_bytes_sent_total", "Bytes sent to clients.", &self.bytes),
            ("quorate_sql_garbage_total", "Connections ended by garbage.", &self.garbage),
        ];
        let mut text = String::new();
        for (name, help, counter) in counters {
            let value = counter.value();
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}")
                .expect("a string takes all");
        }
        text
    }
}
