//! One seed from beginning to end, and sweeps over many.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    sync::Once,
    time::Duration,
};

use quorate_protocol::{Protocol, wire::Wire};

use crate::{
    mutation::Mutation,
    scenario::{Scenario, System},
    system,
    world::{Environment, Violation, World},
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
    /// Why nothing has come right; `None`: it could not (a majority was lost, say).
    fn unsettled(&self, world: &World<P>) -> Option<Violation>;
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
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| phases(&mut world, &mut stage, scenario)));
    let failure = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(violation)) => Some(violation.to_string()),
        Err(_) => Some(format!("assertion: {}", PANIC.with_borrow(|message| message.clone()))),
    };
    Report {
        seed,
        failure,
        counts: world.counts().iter().map(|(&what, &count)| (what.to_owned(), count)).collect(),
        steps: world.steps(),
        span: Duration::from_nanos(world.now().0),
        trace: world.trace(),
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
            return match stage.unsettled(world) {
                Some(violation) => Err(violation),
                None => {
                    world.count("could not come right");
                    Ok(())
                }
            };
        }
        let next = world.now() + GLANCE;
        world.run(stage, next, |_, _| false)?;
    }
    world.count("came right");
    stage.judge(world)
}

/// Runs one seed.
pub fn run(scenario: &Scenario, seed: u64, mutation: Option<Mutation>) -> Report {
    keep_panics_quiet();
    SIMULATING.set(true);
    let report = match &scenario.system {
        System::Paxos(settings) => system::paxos::simulate(scenario, settings, seed, mutation),
    };
    SIMULATING.set(false);
    report
}

thread_local! {
    static SIMULATING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
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
