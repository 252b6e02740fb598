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

use quorate_protocol::{Protocol, wire::Wire};

use quorate_world::{Environment, Fault, Violation, World};

use crate::{
    mutation::Mutation,
    scenario::{Scenario, System},
    system,
};

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

/// An environment that can end its faults and say whether all is well.
pub(crate) trait Stage<P: Protocol>: Environment<P> {
    /// The faults have ended: stop making trouble, bring up what is down.
    fn heal(&mut self, world: &mut World<P>);
    /// Whether everything has come right.
    fn settled(&mut self, world: &mut World<P>) -> bool;
    /// Why not everything has come right: what was lost for good, so that it could not, or which promise is broken.
    fn unsettled(&self, world: &World<P>) -> Result<&'static str, Violation>;
    /// Judges what can be judged of a run that was lost for good.
    fn judge_stopped(&mut self) -> Result<(), Violation> {
        Ok(())
    }
    /// Judges what can be judged only at the end.
    fn judge(&mut self, world: &mut World<P>) -> Result<(), Violation>;
}

/// Runs both phases and tells what they showed.
pub(crate) fn two_phases<P, S>(mut world: World<P>, mut stage: S, scenario: &Scenario, seed: u64) -> Report
where
    P: Protocol,
    P::Message: Wire,
    S: Stage<P>,
{
    let failure = failure_of(|| phases(&mut world, &mut stage, scenario));
    Report {
        seed,
        failure,
        counts: world.counts().iter().map(|(&what, &count)| (what.to_owned(), count)).collect(),
        steps: world.steps(),
        span: Duration::from_nanos(world.now().0),
        trace: world.trace(),
    }
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

fn phases<P, S>(world: &mut World<P>, stage: &mut S, scenario: &Scenario) -> Result<(), Violation>
where
    P: Protocol,
    P::Message: Wire,
    S: Stage<P>,
{
    let end = world.now() + scenario.safety();
    world.run(stage, end, |_, _| false)?;
    world.heal();
    stage.heal(world);
    let end = world.now() + scenario.liveness();
    while !stage.settled(world) {
        if world.now() >= end {
            let lost = stage.unsettled(world)?;
            world.count(lost);
            return stage.judge_stopped();
        }
        let next = world.now() + GLANCE;
        world.run(stage, next, |_, _| false)?;
    }
    world.count("came right");
    stage.judge(world)
}

/// Runs one seed.
pub fn run(scenario: &Scenario, seed: u64, mutation: Option<Mutation>) -> Report {
    match &scenario.system {
        System::Ecast(settings) => system::ecast::simulate(scenario, settings, seed, mutation),
        System::Table(settings) => system::table::simulate(scenario, settings, seed, mutation),
        System::Paxos(settings) => system::paxos::simulate(scenario, settings, seed, mutation),
    }
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

/// How often the second phase looks whether all is well.
const GLANCE: Duration = Duration::from_millis(20);
