//! Runs one seed from beginning to end, and sweeps over many seeds.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::{
        Once,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use quorate_world::{Fault, Violation};

use crate::{mutation::Mutation, scenario::Scenario};

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The seed of the run.
    pub seed: u64,
    /// The failure: a promise that a checker found broken, or an assertion of the code itself.
    pub failure: Option<String>,
    /// Number of times that each event occurred, by its name.
    pub counts: BTreeMap<String, u64>,
    /// Number of steps of the world.
    pub steps: u64,
    /// Duration of the run in virtual time.
    pub span: Duration,
    /// The hash of all events: equal for equal seeds.
    pub trace: u64,
}

/// Returns the failure of `run`: a broken promise, or an assertion of the code itself.
pub(crate) fn failure_of(run: impl FnOnce() -> Result<(), Violation>) -> Option<String> {
    keep_panics_quiet();
    SIMULATING.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(run));
    SIMULATING.set(false);
    match outcome {
        Ok(Ok(())) => None,
        Ok(Err(violation)) => Some(violation.to_string()),
        Err(_) => Some(format!(
            "an assertion of the simulated code failed: {}",
            PANIC.with_borrow(|message| message.clone())
        )),
    }
}

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

thread_local! {
    static SIMULATING: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Turns assertions of simulated code into failures of their run: keeps their text instead of printing it.
fn keep_panics_quiet() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if SIMULATING.get() {
                PANIC.set(info.to_string().replace('\n', " "));
            } else {
                before(info);
            }
        }));
    });
}
