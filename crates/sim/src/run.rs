//! One seed from beginning to end, and sweeps over many.

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

/// What a run showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// What broke: a promise, by a checker, or an assertion of the code itself.
    pub failure: Option<String>,
    /// What occurred how often.
    pub counts: BTreeMap<String, u64>,
    /// How many things happened.
    pub steps: u64,
    /// How long it took in the virtual world.
    pub span: Duration,
    /// The hash of everything that happened: equal for equal seeds.
    pub trace: u64,
}

/// What broke while this ran: a promise, or an assertion of the code itself.
pub(crate) fn failure_of(run: impl FnOnce() -> Result<(), Violation>) -> Option<String> {
    keep_panics_quiet();
    SIMULATING.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(run));
    SIMULATING.set(false);
    match outcome {
        Ok(Ok(())) => None,
        Ok(Err(violation)) => Some(violation.to_string()),
        Err(_) => Some(format!("assertion: {}", PANIC.with_borrow(|message| message.clone()))),
    }
}

/// Runs one seed.
pub fn run(scenario: &Scenario, seed: u64, mutation: Option<Mutation>) -> Report {
    scenario.system.simulate(scenario, seed, mutation)
}

/// What a sweep over many seeds showed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sweep {
    /// How many seeds ran.
    pub seeds: u64,
    /// The runs that failed, by seed.
    pub failures: Vec<Report>,
    /// What occurred: how often, and in how many runs.
    pub counts: BTreeMap<String, (u64, u64)>,
    /// How many things happened.
    pub steps: u64,
    /// Virtual time, all runs together.
    pub span: Duration,
}

impl Sweep {
    /// What the scenario expects and no run had, and the effects of faults that had none.
    pub fn missing(&self, scenario: &Scenario) -> Vec<String> {
        let never = |what: &str| !self.counts.contains_key(what);
        let expected = scenario.expect.iter().filter(|what| never(what)).cloned();
        let struck = Fault::all().filter(|kind| !never(kind.name()));
        expected.chain(struck.map(Fault::effect).filter(|what| never(what)).map(str::to_owned)).collect()
    }
}

/// Runs the seeds of a range, several at a time, and stops early after `failures_max` failures. `progress` is told of
/// each run when it ends.
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

/// Assertions of simulated code become failures of their run; their text is kept instead of printed.
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
