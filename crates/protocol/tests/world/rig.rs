//! A world that a test moves by hand, its environment, and the steps that the scripts of all protocols share.

use std::{
    fmt::Write as _,
    ops::{Deref, DerefMut},
};

use quorate_protocol::{Duration, ProcessId, Protocol, Time, wire::Wire};
use quorate_world::{Environment, Violation, World};

use super::{Chance, script};

/// The processes of one protocol, and the environment, which keeps what the users of the processes know.
pub(crate) struct Rig<P: Protocol, E> {
    pub(crate) world: World<P>,
    pub(crate) environment: E,
}

impl<P: Protocol, E> Deref for Rig<P, E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.environment
    }
}

impl<P: Protocol, E> DerefMut for Rig<P, E> {
    fn deref_mut(&mut self) -> &mut E {
        &mut self.environment
    }
}

impl<P: Protocol, E: Environment<P>> Rig<P, E>
where
    P::Message: Wire,
{
    pub(crate) fn of(environment: E, mut chance: Chance) -> Self {
        Rig { world: World::by_hand(move || chance.next()), environment }
    }

    pub(crate) fn random(&mut self) -> u64 {
        self.world.draw()
    }

    pub(crate) fn now(&self) -> Time {
        self.world.now()
    }

    pub(crate) fn everybody(&self) -> Vec<ProcessId> {
        self.world.everybody()
    }

    /// Returns a living process.
    pub(crate) fn process(&self, id: ProcessId) -> &P {
        self.world.process_of(id).expect("it lives")
    }

    pub(crate) fn begin(&mut self, id: ProcessId, address: &str) {
        self.go(|world, environment| world.begin(environment, id, address));
    }

    pub(crate) fn command(&mut self, id: ProcessId, command: P::Command) {
        self.go(|world, environment| world.ask(environment, id, command));
    }

    pub(crate) fn drain(&mut self, id: ProcessId) {
        self.go(|world, environment| world.drain(environment, id));
    }

    pub(crate) fn crash(&mut self, id: ProcessId) {
        self.go(|world, environment| world.end(environment, id));
    }

    pub(crate) fn cut(&mut self, one: ProcessId, other: ProcessId) {
        self.go(|world, environment| world.part(environment, one, other));
    }

    /// Cuts a process off from all others.
    pub(crate) fn isolate(&mut self, id: ProcessId) {
        for other in self.everybody().into_iter().filter(|other| *other != id) {
            self.cut(id, other);
        }
    }

    pub(crate) fn unlink(&mut self, one: ProcessId, other: ProcessId) {
        self.go(|world, environment| world.unlink(environment, one, other));
    }

    pub(crate) fn relink(&mut self) {
        self.go(World::relink);
    }

    pub(crate) fn heal(&mut self) {
        self.go(World::mend);
    }

    /// Pauses or resumes a process. Its links stay.
    pub(crate) fn pause(&mut self, id: ProcessId, paused: bool) {
        let machine = self.world.place(id).expect("it lives");
        match paused {
            true => self.world.pause(machine, Duration::MAX),
            false => self.world.resume(machine),
        }
    }

    /// Delivers the oldest message of one link. Returns whether there was one.
    pub(crate) fn deliver(&mut self, from: ProcessId, to: ProcessId) -> bool {
        self.take(from, to).is_some()
    }

    /// Delivers the oldest message of one link, and returns it.
    pub(crate) fn take(&mut self, from: ProcessId, to: ProcessId) -> Option<P::Message> {
        self.go(|world, environment| world.deliver(environment, from, to))
    }

    pub(crate) fn settle(&mut self) {
        self.go(World::settle);
    }

    pub(crate) fn run(&mut self, span: Duration) {
        self.go(|world, environment| world.settle_for(environment, span));
    }

    fn wake(&mut self) {
        self.go(World::wake);
    }

    /// Advances time slightly past the next deadline, and wakes the processes whose deadline has passed.
    pub(crate) fn wake_next(&mut self) {
        let Some(next) = self.world.next_deadline() else { return };
        let late = Duration::from_micros(self.random() % 3000);
        self.world.pass_until(self.now().max(next) + late);
        self.wake();
    }

    /// Returns the links.
    pub(crate) fn links(&mut self) -> Vec<(ProcessId, ProcessId)> {
        self.world.links()
    }

    /// Takes a step of the world.
    pub(crate) fn go<T>(&mut self, step: impl FnOnce(&mut World<P>, &mut E) -> Result<T, Violation>) -> T {
        step(&mut self.world, &mut self.environment).unwrap_or_else(|violation| panic!("{violation}"))
    }

    /// Takes a step that all scripts know. Returns whether it knew the step.
    pub(crate) fn perform(&mut self, step: &[&str], process: fn(&str) -> ProcessId) -> bool {
        match *step {
            ["crash", id] => self.crash(process(id)),
            ["cut", one, other] => self.cut(process(one), process(other)),
            ["unlink" | "break", one, other] => self.unlink(process(one), process(other)),
            ["relink"] => self.relink(),
            ["heal"] => self.heal(),
            ["isolate", id] => self.isolate(process(id)),
            ["lose", "casts", from, to] => self.world.lose_casts(process(from), process(to)),
            ["hold", "casts", from, to] => self.world.hold_casts(process(from), process(to)),
            ["double", "casts", from, to] => self.world.double_casts(process(from), process(to)),
            ["hold", from, to] => self.world.hold(process(from), process(to)),
            ["release"] => self.world.release(),
            ["pause", id] => self.pause(process(id), true),
            ["resume", id] => self.pause(process(id), false),
            ["settle"] => self.settle(),
            ["run", span] => self.run(millis(span)),
            _ => return false,
        }
        true
    }
}

/// The events since the last step, one line each, with their time in milliseconds.
#[derive(Default)]
pub(crate) struct Trace(String);

impl Trace {
    pub(crate) fn say(&mut self, now: Time, line: &str) {
        writeln!(self.0, "{:>5} {line}", now.0 / 1_000_000).expect("strings take everything");
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn lines(&self) -> std::str::Lines<'_> {
        self.0.lines()
    }
}

/// An environment that records the events.
pub(crate) trait Traced {
    fn trace(&mut self) -> &mut Trace;
}

impl<P: Protocol, E: Environment<P> + Traced> Rig<P, E>
where
    P::Message: Wire,
{
    pub(crate) fn say(&mut self, line: &str) {
        self.environment.trace().say(self.world.now(), line);
    }

    /// Takes a step that `own` knows, or otherwise a step that all scripts know. `own` returns whether it
    /// knew the step.
    fn step(&mut self, words: &[&str], process: fn(&str) -> ProcessId, own: fn(&mut Self, &[&str]) -> bool) {
        if let ["quietly", loud @ ..] = words {
            self.step(loud, process, own);
            self.environment.trace().clear();
        } else {
            let known = own(self, words) || self.perform(words, process);
            assert!(known, "what is `{}`?", words.join(" "));
        }
    }
}

/// Plays a script in `rig`, and returns the rig.
pub(crate) fn play<P: Protocol, E: Environment<P> + Traced>(
    mut rig: Rig<P, E>,
    folder: &str,
    name: &str,
    process: fn(&str) -> ProcessId,
    own: fn(&mut Rig<P, E>, &[&str]) -> bool,
) -> Rig<P, E>
where
    P::Message: Wire,
{
    script::check(folder, name, |step| {
        rig.environment.trace().clear();
        let words: Vec<_> = step.split_whitespace().collect();
        rig.step(&words, process, own);
        rig.environment.trace().0.clone()
    });
    rig
}

/// Parses a script's time span.
pub(crate) fn millis(span: &str) -> Duration {
    Duration::from_millis(span.strip_suffix("ms").expect("ms").parse().expect("a number"))
}
