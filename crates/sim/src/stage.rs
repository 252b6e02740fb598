//! The stage: the parts that all simulated systems share.
//!
//! A simulated system is a [`Workload`]: its processes, the commands to them, and the checkers that watch.
//! The stage owns the rest: machines, routers, faults, timers, healing, and the bound on the time of
//! recovery.
//!
//! ```text
//! Scenario ──► Stage: machines · routers · nemesis · timers · healing · convergence
//!                │ start, act, event, settled, report        ▲
//!                ▼                                           │ World: what happens next
//!             Workload: commands, statements, checkers ──────┘
//! ```
//!
//! # How a run goes
//!
//! 1. [`Workload::new`] adds machines ([`Stage::add_routers`], [`Stage::add_machines`]) and sets its first
//!    timers ([`Stage::after`]). Machines start one a millisecond; [`Workload::start`] makes the process of
//!    each life.
//! 2. *Safety.* Faults strike. The stage calls [`Workload::act`] for the workload's own timers; there the
//!    workload commands processes. Events of processes come to [`Workload::event`]. [`Workload::stepped`] is
//!    the moment to look inside a process. Each may return a [`Violation`], which ends the run.
//! 3. *Liveness.* The stage mends all faults, and all machines run. It calls [`Workload::settled`] until this
//!    function returns true and nothing is [owed](Workload::owed). If that takes longer than the scenario
//!    allows, the run has failed, with [`Workload::report`] as its explanation, unless a majority of the
//!    routers was lost.
//! 4. [`Workload::judge`] judges the end of the run.
//!
//! # How to write one
//!
//! A system is one file in `system/`, named in the list of [`system`](crate::system). The token ring
//! (`system/token.rs`) is a complete example of 100 lines. A process of a system is any [`Protocol`]; a new
//! one is mostly an adapter around the protocol under test. Chance comes from [`Stage::chance`], or from a
//! [`Chance`] of the system's own, so that one more draw from one of these two sources changes no draw from
//! the other source. Count events with [`World::count`], and let the scenario `expect` them: a run without
//! events tests nothing. Each checker has its own file in [`check`](crate::check), and shares no code with
//! the checked protocol.
//!
//! A system can consist of other systems: [`everything`](crate::system::everything) gives each of its parts a
//! stage of its own.

mod play;
mod routers;

pub(crate) use play::simulate;
pub use routers::{RouterSet, log_goes_on, open_changes};

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use quorate_protocol::{
    CommandId, Peer, ProcessId, Protocol, Ticket, Time,
    paxos::{Corrupt, Paxos},
    wire::Wire,
};
use quorate_world::{Chance, Fault, Nemesis, Violation, World};
use serde::de::DeserializeOwned;

use crate::{mutation::Mutation, scenario::Scenario};

/// A simulated system: its work, and the judgement of it.
pub trait Workload: Sized {
    /// The workload's name in scenario files.
    const NAME: &'static str;
    /// The scenarios that come with the system: name and text.
    const SCENARIOS: &'static [(&'static str, &'static str)];
    /// Time before the first fault.
    const CALM: Duration = Duration::from_millis(300);
    /// Time until an operator first considers removing a healthy router, and the probability of a removal
    /// each second.
    const REMOVALS: (Duration, f64) = (Duration::from_millis(700), 0.3);

    /// The settings in `[system.<name>]` of a scenario file.
    type Settings: DeserializeOwned;
    /// The type of the process on each machine.
    type Process: Protocol<Message: Wire>;
    /// The workload's own timers.
    type Timer;

    /// Adds machines and sets the first timers.
    fn new(stage: &mut StageOf<Self>, world: &mut WorldOf<Self>, settings: Self::Settings) -> Self;

    /// Whether the process `id` can continue from these records, which are all that was durable on `machine`.
    fn goes_on(
        &mut self,
        _: &mut StageOf<Self>,
        world: &mut WorldOf<Self>,
        machine: usize,
        id: ProcessId,
        records: &[(Ticket, Bytes)],
    ) -> bool {
        let me = Peer { id, address: WorldOf::<Self>::address(machine) };
        let records = records.iter().map(|(_, record)| record.clone()).collect();
        let recovery = self.log_recovery(me, records, world.clock(machine));
        log_goes_on(world, machine, recovery)
    }

    /// Tries to recover a router's log from these records, and returns the damage if that fails.
    fn log_recovery(&self, _: Peer, _records: Vec<Bytes>, _now: Time) -> Result<(), Corrupt> {
        Ok(())
    }

    /// Makes the process for a new life of `machine`.
    fn start(
        &mut self,
        stage: &mut StageOf<Self>,
        world: &mut WorldOf<Self>,
        machine: usize,
        id: ProcessId,
    ) -> Self::Process;

    /// Handles one of the workload's own timers.
    fn act(
        &mut self,
        stage: &mut StageOf<Self>,
        world: &mut WorldOf<Self>,
        timer: Self::Timer,
    ) -> Result<(), Violation>;

    /// Handles an event that the process on `machine` reported to its user.
    fn event(
        &mut self,
        stage: &mut StageOf<Self>,
        world: &mut WorldOf<Self>,
        machine: usize,
        event: <Self::Process as Protocol>::Event,
    ) -> Result<(), Violation>;

    /// Whether the system has recovered completely. The stage asks repeatedly once the faults are over.
    fn settled(&mut self, stage: &mut StageOf<Self>, world: &mut WorldOf<Self>) -> bool;

    /// Returns the state of everything, for display: it explains why the system does not recover.
    fn report(&self, stage: &StageOf<Self>, world: &WorldOf<Self>) -> String;

    /// Checks promises that must hold after recovery but may not hold yet.
    fn owed(&self, _: &StageOf<Self>, _: &WorldOf<Self>) -> Result<(), Violation> {
        Ok(())
    }

    /// Judges the promises that can be judged only at the end.
    fn judge(&mut self, _: &StageOf<Self>, _: &mut WorldOf<Self>) -> Result<(), Violation> {
        Ok(())
    }

    /// Judges the promises that hold even for a run whose routers were lost for good.
    fn judge_lost(&mut self) -> Result<(), Violation> {
        Ok(())
    }

    /// Returns the reason for which the domain has stopped, after the loss `lost` of a majority of the
    /// routers. `None` if an operator lets the domain continue nevertheless.
    fn lost(&self, _: &StageOf<Self>, _: &WorldOf<Self>, lost: &'static str) -> Option<&'static str> {
        Some(lost)
    }

    /// Called after a process finished a batch: the moment for checkers that look inside.
    fn stepped(
        &mut self,
        _: &mut StageOf<Self>,
        _: &mut WorldOf<Self>,
        _machine: usize,
    ) -> Result<(), Violation> {
        Ok(())
    }

    /// Returns the machines that faults strike, in groups that are struck equally often.
    fn targets(&self, stage: &StageOf<Self>, world: &WorldOf<Self>) -> Vec<Vec<usize>> {
        let others = (0..world.machines()).filter(|it| !stage.routers.machines.contains(it)).collect();
        let [routers, leader] = stage.routers.targets();
        [routers, leader, others].into_iter().filter(|group: &Vec<usize>| !group.is_empty()).collect()
    }

    /// Whether the process on `machine`, which is no router, may be killed without stopping the system for
    /// good.
    fn may_crash(&self, _: &StageOf<Self>, _: &WorldOf<Self>, _machine: usize) -> bool {
        true
    }

    /// Called after a fault struck these machines.
    fn struck(&mut self, _: &mut StageOf<Self>, _: &mut WorldOf<Self>, _fault: Fault, _hit: Vec<usize>) {}

    /// Returns the log of a router that takes part in the domain.
    fn log<'a>(&self, _: &'a Self::Process) -> Option<&'a Paxos> {
        None
    }

    /// Returns the command that makes a router remove another router.
    fn removal(_id: CommandId, _router: ProcessId) -> Option<<Self::Process as Protocol>::Command> {
        None
    }

    /// Handles the end of a timer that was set on the stage of a part (`part_of`).
    fn part_act(
        &mut self,
        _: &mut StageOf<Self>,
        _: &mut WorldOf<Self>,
        token: u64,
    ) -> Result<(), Violation> {
        unreachable!("this system has no parts, and timer {token} ended")
    }

    /// Called when the process on `machine` has adopted a new policy.
    fn adopted(&mut self, _: &mut WorldOf<Self>, _machine: usize) {}

    /// Called when the process on `machine` met a process that shows the pass `theirs`, and may not link with
    /// that process.
    fn policy_mismatch(&mut self, _: &mut WorldOf<Self>, _machine: usize, _theirs: &[u8]) {}
}

/// The stage of a workload.
pub type StageOf<W> = Stage<<W as Workload>::Timer>;
/// The world of a workload.
pub type WorldOf<W> = World<<W as Workload>::Process>;

/// A workload's view of the stage.
pub struct Stage<T> {
    /// The routers as seen from outside; empty for systems without routers.
    pub routers: RouterSet,
    /// The random generator of the workload.
    pub chance: Chance,
    /// The run's seed, from which the system derives its own streams of random numbers.
    pub seed: u64,
    /// The rule that is broken in this run.
    pub mutation: Option<Mutation>,
    safety: Duration,
    /// Whether the faults are over.
    healed: bool,
    /// The faults to come; none once they are over, and none on the stage of a part.
    nemesis: Option<Nemesis>,
    alarms: BTreeMap<u64, Alarm<T>>,
    alarms_set: u64,
}

/// The purpose of a timer.
enum Alarm<T> {
    /// A fault is due.
    Strike,
    /// An operator may remove a router.
    Remove,
    /// A timer of the workload's own.
    Own(T),
}

impl<T> Stage<T> {
    fn new(scenario: &Scenario, seed: u64, mutation: Option<Mutation>) -> Self {
        Stage {
            routers: RouterSet::default(),
            chance: Chance::new(seed, "workload"),
            seed,
            mutation,
            safety: scenario.safety(),
            healed: false,
            nemesis: Some(Nemesis::new(seed, scenario.faults.clone())),
            alarms: BTreeMap::new(),
            alarms_set: 0,
        }
    }

    /// Returns the stage of a part of this system, with a random generator and timers of its own. `number`,
    /// above 0, is the number of the part; the tokens of the part's timers begin with it ([`part_of`]).
    pub(crate) fn part<U>(&self, name: &str, number: u64) -> Stage<U> {
        Stage {
            routers: RouterSet::default(),
            chance: Chance::new(self.seed, name),
            seed: self.seed,
            mutation: self.mutation,
            safety: self.safety,
            healed: self.healed,
            nemesis: None,
            alarms: BTreeMap::new(),
            alarms_set: number << PART_SHIFT,
        }
    }

    /// With some probability, lets an operator remove a healthy router, unless the faults are over.
    pub(crate) fn remove_router<W: Workload<Timer = T>>(&mut self, world: &mut WorldOf<W>) {
        if !self.healed
            && let Some((asked, router)) = self.routers.operate(world, &mut self.chance, W::REMOVALS.1)
            && let Some(command) = W::removal(command_id(world), router)
        {
            world.command(asked, command);
        }
    }

    /// Tells a part's stage whether the faults are over.
    pub(crate) fn share<U>(&self, part: &mut Stage<U>) {
        part.healed = self.healed;
    }

    /// Removes and returns the workload's own timer with this token.
    pub(crate) fn ended(&mut self, token: u64) -> T {
        match self.alarms.remove(&token) {
            Some(Alarm::Own(timer)) => timer,
            _ => unreachable!("each timer of a part is set once, by the part"),
        }
    }

    /// Adds machines. They start one a millisecond.
    pub fn add_machines<P>(&mut self, world: &mut World<P>, count: usize) -> Vec<usize>
    where
        P: Protocol<Message: Wire>,
    {
        let add = |_| {
            let machine = world.machine();
            world.restart_after(machine, Duration::from_millis(machine as u64));
            machine
        };
        (0..count).map(add).collect()
    }

    /// Adds the machines of routers: `wanted` of them, and `spares` more that ask to join. Adds none if none
    /// are wanted, because another workload has the routers.
    pub fn add_routers<P>(&mut self, world: &mut World<P>, wanted: usize, spares: usize)
    where
        P: Protocol<Message: Wire>,
    {
        if wanted > 0 {
            self.routers = RouterSet::new(self.add_machines(world, wanted + spares), wanted);
        }
    }

    /// Sets a timer: [`Workload::act`] is called after `delay`.
    pub fn after<P>(&mut self, world: &mut World<P>, delay: Duration, timer: T)
    where
        P: Protocol<Message: Wire>,
    {
        self.set(world, delay, Alarm::Own(timer));
    }

    fn set<P>(&mut self, world: &mut World<P>, delay: Duration, alarm: Alarm<T>)
    where
        P: Protocol<Message: Wire>,
    {
        self.alarms_set += 1;
        self.alarms.insert(self.alarms_set, alarm);
        world.timer(delay, self.alarms_set);
    }

    /// Returns the duration of the faults.
    pub fn safety(&self) -> Duration {
        self.safety
    }

    /// Whether the faults are over.
    pub fn is_healed(&self) -> bool {
        self.healed
    }
}

/// Interval at which an operator considers removing a router.
pub(crate) const REMOVAL: Duration = Duration::from_secs(1);

/// Returns the number of the part that set the timer with this token; 0 if no part did.
pub(crate) fn part_of(token: u64) -> u64 {
    token >> PART_SHIFT
}

/// The place of a part's number in the tokens of its timers.
const PART_SHIFT: u32 = 48;

/// Returns an id for an operator's command. The time serves as id, because an operator gives one command at a
/// time.
pub fn command_id<P: Protocol>(world: &World<P>) -> CommandId
where
    P::Message: Wire,
{
    CommandId(world.now().0)
}

/// Returns the sets of members to which unfinished changes of the members would lead.
pub fn changes<W: Workload>(workload: &W, world: &World<W::Process>) -> Vec<Vec<Peer>> {
    let processes = (0..world.machines()).filter_map(|machine| world.process(machine));
    open_changes(processes.filter_map(|process| workload.log(process)))
}
