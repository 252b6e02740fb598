//! The metrics of a process, in Prometheus's format.
//!
//! Each process has one [`Metrics`]. Every part registers its counters when it starts and keeps handles to
//! them; an update is a relaxed atomic add. [`Metrics::render`] writes the text that `/metrics` serves.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prometheus_client::registry::{Metric, Registry};
pub use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

/// The registry of one process; clones share it.
#[derive(Clone)]
pub struct Metrics(Arc<Mutex<Registry>>);

impl Metrics {
    /// Makes an empty registry. Every name gets the prefix `quorate_`, and every sample gets these labels
    /// (`node`, `role`, …).
    pub fn new(labels: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        let labels = labels.into_iter().map(|(name, value)| (name.into(), value.into()));
        Metrics(Arc::new(Mutex::new(Registry::with_prefix_and_labels("quorate", labels))))
    }

    /// Registers a metric and returns it. The registry adds the prefix `quorate_` to names and `_total` to
    /// counters.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.lock().register(name, help, metric.clone());
        metric
    }

    /// Registers a counter.
    pub fn counter(&self, name: &str, help: &str) -> Counter {
        self.register(name, help, Counter::default())
    }

    /// Registers a gauge.
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.register(name, help, Gauge::default())
    }

    /// Registers a histogram with these upper bounds of its buckets.
    pub fn histogram(&self, name: &str, help: &str, bounds: impl IntoIterator<Item = f64>) -> Histogram {
        self.register(name, help, Histogram::new(bounds))
    }

    /// The media type of [`Metrics::render`].
    pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// Returns the present values in the OpenMetrics text format, which Prometheus reads.
    pub fn render(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.lock())
            .expect("writing into a string does not fail");
        text
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        // The registry is consistent at every step of registering and encoding, so a poisoned lock does no
        // harm, even if a caller's metric panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new([])
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[cfg(test)]
mod tests {
    use super::Metrics;

    #[test]
    fn metrics_render_their_counts() {
        let metrics = Metrics::new([("node", "3".to_owned())]);
        metrics.counter("frames_sent", "Frames sent").inc_by(7);
        metrics.gauge("links", "Links that stand").set(2);
        metrics.histogram("batch", "Inputs per turn", [1.0, 8.0]).observe(5.0);
        let text = metrics.render();
        for line in [
            "quorate_frames_sent_total{node=\"3\"} 7",
            "quorate_links{node=\"3\"} 2",
            "quorate_batch_bucket{node=\"3\",le=\"8.0\"} 1",
        ] {
            assert!(text.lines().any(|present| present == line), "{line} not in:\n{text}");
        }
    }
}
