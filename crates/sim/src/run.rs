//! Runs one seed from beginning to end, and sweeps over many seeds.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use quorate_world::Fault;

use crate::{mutation::Mutation, scenario::Scenario};

pub use crate::report::Report;

/// Runs one seed.
pub fn run(scenario: &Scenario, seed: u64, mutation: Option<Mutation>) -> Report {
    scenario.system.simulate(scenario, seed, mutation)
}

/// The result of a sweep over many seeds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sweep {
    /// Number of seeds that ran.
    pub seeds: u64,
    /// The reports of the failed runs, in order of their seeds.
    pub failures: Vec<Report>,
    /// For each event: the number of its occurrences, and the number of runs with it.
    pub counts: BTreeMap<String, (u64, u64)>,
    /// Number of steps of the world, over all runs.
    pub steps: u64,
    /// Virtual time of all runs together.
    pub span: Duration,
}

impl Sweep {
    /// Returns the events that the scenario expects and that no run had, and the effects that faults never
    /// had.
    pub fn missing(&self, scenario: &Scenario) -> Vec<String> {
        let never = |what: &str| !self.counts.contains_key(what);
        let expected = scenario.expect.iter().filter(|what| never(what)).cloned();
        let struck = Fault::all().filter(|kind| !never(kind.name()));
        expected.chain(struck.map(Fault::effect).filter(|what| never(what)).map(str::to_owned)).collect()
    }
}

/// Runs the seeds of a range, `jobs` at a time, and stops early after `failures_max` failures. Calls
/// `progress` with each report when its run ends.
pub fn sweep(
    scenario: &Scenario,
    seeds: Range<u64>,
    mutation: Option<Mutation>,
    jobs: usize,
    failures_max: usize,
    mut progress: impl FnMut(&Report),
) -> Sweep {
    let next = AtomicU64::new(seeds.start);
    let end = AtomicU64::new(seeds.end);
    let (done, reports) = mpsc::channel();
    let mut sweep = Sweep::default();
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (done, next, end) = (done.clone(), &next, &end);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end.load(Ordering::Relaxed)
                        || done.send(run(scenario, seed, mutation)).is_err()
                    {
                        break;
                    }
                }
            });
        }
        drop(done);
        for report in reports {
            progress(&report);
            sweep.seeds += 1;
            sweep.steps += report.steps;
            sweep.span += report.span;
            for (what, count) in &report.counts {
                let entry = sweep.counts.entry(what.clone()).or_default();
                entry.0 += count;
                entry.1 += 1;
            }
            if report.failure.is_some() {
                sweep.failures.push(report);
                if sweep.failures.len() >= failures_max {
                    end.store(0, Ordering::Relaxed);
                }
            }
        }
    });
    sweep.failures.sort_by_key(|report| report.seed);
    sweep
}
