//! A [`Measurement`] holds the answers of all clients together, and the processors that each process used.

use serde_json::{Map, Value, json};

use super::report::Calls;

pub(super) const ECHO: &str = "echo writes";
pub(super) const STORE: &str = "store writes";
pub(super) const READS: &str = "reads";
pub(super) const WRITE_ALONE: &str = "write alone";
pub(super) const READ_ALONE: &str = "read alone";
pub(super) const HTTP: &str = "writes over HTTP";
pub(super) const ORIGINAL: &str = "original writes";
pub(super) const ORIGINAL_ALONE: &str = "original write alone";
pub(super) const ONE_AT_A_TIME: &str = "one-at-a-time writes";

/// One measurement: the answers of all clients together, and the processors that each process used.
pub(super) struct Measurement {
    pub(super) name: &'static str,
    pub(super) calls: Calls,
    pub(super) cores: Vec<(String, f64)>,
}

impl Measurement {
    pub(super) fn rate(&self) -> f64 {
        self.calls.measured as f64 / self.calls.seconds
    }

    /// Combines several measurements of one name: the sums of the answers, the median of the medians, the
    /// worst tail.
    pub(super) fn of_turns(turns: Vec<Measurement>) -> Measurement {
        let (name, count) = (turns[0].name, turns.len() as f64);
        let calls: Vec<Calls> = turns.iter().map(|turn| turn.calls.clone()).collect();
        let calls = Calls { seconds: calls.iter().map(|one| one.seconds).sum(), ..together_of(&calls) };
        let mut cores = turns[0].cores.clone();
        for (place, (_, mean)) in cores.iter_mut().enumerate() {
            *mean = turns.iter().map(|turn| turn.cores[place].1).sum::<f64>() / count;
        }
        Measurement { name, calls, cores }
    }

    /// Returns the processor time of all processes per call, in microseconds.
    pub(super) fn processor_us(&self) -> f64 {
        self.cores.iter().map(|(_, cores)| cores).sum::<f64>() * 1e6 / self.rate()
    }

    pub(super) fn json(&self) -> Value {
        let cores: Map<String, Value> =
            self.cores.iter().map(|(name, cores)| (name.clone(), json!(cores))).collect();
        json!({
            "per_second": self.rate().round(), "p50_us": self.calls.p50_us, "p99_us": self.calls.p99_us,
            "cpu_cores": cores,
        })
    }

    pub(super) fn print(&self) {
        let Calls { p50_us, p99_us, .. } = self.calls;
        let cores: Vec<String> =
            self.cores.iter().map(|(name, cores)| format!("{name} {cores:.2}")).collect();
        println!(
            "  {}: {:.0}/s, p50 {p50_us:.1} µs, p99 {p99_us:.1} µs; cores: {}",
            self.name,
            self.rate(),
            cores.join(", ")
        );
    }
}

/// Combines the answers of all clients.
pub(super) fn together_of(calls: &[Calls]) -> Calls {
    let most = |of: fn(&Calls) -> f64| calls.iter().map(of).fold(0.0, f64::max);
    Calls {
        measured: calls.iter().map(|one| one.measured).sum(),
        seconds: most(|one| one.seconds),
        p50_us: median(calls.iter().map(|one| one.p50_us).collect()),
        p99_us: most(|one| one.p99_us),
        answered: calls.iter().map(|one| one.answered).sum(),
    }
}

pub(super) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
