//! The stage: everything that simulated systems have in common.
//!
//! A simulated system is a [`Workload`]: which processes run, what is asked of them, and the checkers that watch. The
//! stage owns the rest: machines, routers, faults, timers, healing, and the time that everything may take to come right.
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
//! 1. [`Workload::new`] adds machines ([`Stage::add_routers`], [`Stage::add_machines`]) and sets its first timers
//!    ([`Stage::after`]). Machines start one a millisecond; [`Workload::start`] makes the process of each life.
//! 2. *Safety.* Faults strike. [`Workload::act`] is called for its own timers and commands processes; what a process
//!    tells its user comes to [`Workload::event`]; [`Workload::stepped`] is the moment to look inside a process. Each may
//!    return a [`Violation`], which ends the run.
//! 3. *Liveness.* All that was broken is mended, and all machines run. The stage asks [`Workload::settled`] until it holds
//!    and nothing is [owed](Workload::owed). If that takes longer than the scenario allows, the run has failed, with
//!    [`Workload::report`] as its explanation, unless a majority of the routers was lost.
//! 4. [`Workload::judge`] has the last word.
//!
//! # How to write one
//!
//! One file in `system/`, named in the list of [`system`](crate::system), and nothing else: the token ring
//! (`system/token.rs`) is a whole one in less than a hundred lines. A process of a system is any
//! [`Protocol`]; a new one is mostly an adapter around the protocol under test. Chance comes from
//! [`Stage::chance`], or from a [`Chance`] of the system's own, so that one more draw here changes nothing there. Count
//! what occurs with [`World::count`], and have the scenario `expect` it: a run in which nothing occurred tested nothing.
//! Checkers stand in [`check`](crate::check), a file each, and share no code with what they check.

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

/// A simulated system: its work, and how it is judged.
pub trait Workload: Sized {
    /// Its name in scenario files.
    const NAME: &'static str;
    /// The scenarios that come with it: name, and text.
    const SCENARIOS: &'static [(&'static str, &'static str)];
    /// When the first fault strikes.
    const CALM: Duration = Duration::from_millis(300);
    /// When an operator first thinks of taking out a router that is well, and how likely he does it, each second.
    const REMOVALS: (Duration, f64) = (Duration::from_millis(700), 0.3);

    /// What a scenario file says in `[system.<name>]`.
    type Settings: DeserializeOwned;
    /// The process on each machine.
    type Process: Protocol<Message: Wire>;
    /// Its own timers.
    type Timer;

    /// Adds machines and sets the first timers.
    fn new(stage: &mut StageOf<Self>, world: &mut WorldOf<Self>, settings: Self::Settings) -> Self;

    /// Whether the process `id` can go on from these records, which are all that was durable on `machine`.
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

    /// Recovers a router's log from these records, to see whether that can be done.
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

    /// One of its own timers fired.
    fn act(
        &mut self,
        stage: &mut StageOf<Self>,
        world: &mut WorldOf<Self>,
        timer: Self::Timer,
    ) -> Result<(), Violation>;

    /// The process on `machine` told its user something.
    fn event(
        &mut self,
        stage: &mut StageOf<Self>,
        world: &mut WorldOf<Self>,
        machine: usize,
        event: <Self::Process as Protocol>::Event,
    ) -> Result<(), Violation>;

    /// Whether everything has come right. Asked again and again once the faults are over.
    fn settled(&mut self, stage: &mut StageOf<Self>, world: &mut WorldOf<Self>) -> bool;

    /// The state of everything, for a person who wonders why nothing comes right.
    fn report(&self, stage: &StageOf<Self>, world: &WorldOf<Self>) -> String;

    /// A promise that is still owed: it must hold once everything has come right, and may not yet.
    fn owed(&self, _: &StageOf<Self>, _: &WorldOf<Self>) -> Result<(), Violation> {
        Ok(())
    }

    /// Judges what can be judged only at the end.
    fn judge(&mut self, _: &StageOf<Self>, _: &mut WorldOf<Self>) -> Result<(), Violation> {
        Ok(())
    }

    /// Judges what can be judged of a run that was lost for good.
    fn judge_lost(&mut self) -> Result<(), Violation> {
        Ok(())
    }

    /// A majority of the routers is `lost`, and the domain has stopped. `None`: an operator has it go on nevertheless.
    fn lost(&self, _: &StageOf<Self>, _: &WorldOf<Self>, lost: &'static str) -> Option<&'static str> {
        Some(lost)
    }

    /// A process finished a batch: the moment for checkers that look inside.
    fn stepped(
        &mut self,
        _: &mut StageOf<Self>,
        _: &mut WorldOf<Self>,
        _machine: usize,
    ) -> Result<(), Violation> {
        Ok(())
    }

    /// The machines that faults strike, in groups of which each is struck equally often.
    fn targets(&self, stage: &StageOf<Self>, world: &WorldOf<Self>) -> Vec<Vec<usize>> {
        let others = (0..world.machines()).filter(|it| !stage.routers.machines.contains(it)).collect();
        let [routers, leader] = stage.routers.targets();
        [routers, leader, others].into_iter().filter(|group: &Vec<usize>| !group.is_empty()).collect()
    }

    /// Whether the process on `machine`, which is no router, may be killed: whether the system could go on.
    fn may_crash(&self, _: &StageOf<Self>, _: &WorldOf<Self>, _machine: usize) -> bool {
        true
    }

    /// A fault struck these machines.
    fn struck(&mut self, _: &mut StageOf<Self>, _: &mut WorldOf<Self>, _fault: Fault, _hit: Vec<usize>) {}

    /// The log of a router that counts.
    fn log<'a>(&self, _: &'a Self::Process) -> Option<&'a Paxos> {
        None
    }

    /// How a router is asked to take out another.
    fn removal(_id: CommandId, _router: ProcessId) -> Option<<Self::Process as Protocol>::Command> {
        None
    }

    /// The process on `machine` has adopted another policy.
    fn adopted(&mut self, _: &mut WorldOf<Self>, _machine: usize) {}

    /// The process on `machine` met one that shows `theirs`, and may not be linked with it.
    fn stranger(&mut self, _: &mut WorldOf<Self>, _machine: usize, _theirs: &[u8]) {}
}

/// The stage of a workload.
pub type StageOf<W> = Stage<<W as Workload>::Timer>;
/// The world of a workload.
pub type WorldOf<W> = World<<W as Workload>::Process>;

/// A workload's view of the stage.
pub struct Stage<T> {
    /// The routers, as the world at large sees them. Empty for systems without.
    pub routers: RouterSet,
    /// Chance of the workload.
    pub chance: Chance,
    /// The run's seed, for streams of chance of the system's own.
    pub seed: u64,
    /// The rule that is broken in this run.
    pub mutation: Option<Mutation>,
    safety: Duration,
    nemesis: Option<Nemesis>,
    alarms: BTreeMap<u64, Alarm<T>>,
    alarms_set: u64,
}

/// Why a timer was set.
enum Alarm<T> {
    /// A fault is due.
    Strike,
    /// An operator may take out a router.
    Remove,
    /// The workload knows.
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
            nemesis: Some(Nemesis::new(seed, scenario.faults.clone())),
            alarms: BTreeMap::new(),
            alarms_set: 0,
        }
    }

    /// Adds machines, which start one a millisecond.
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

    /// Adds the machines of routers: as many as are wanted, and some more that ask to be admitted.
    pub fn add_routers<P>(&mut self, world: &mut World<P>, wanted: usize, spares: usize)
    where
        P: Protocol<Message: Wire>,
    {
        self.routers = RouterSet::new(self.add_machines(world, wanted + spares), wanted);
    }

    /// Has [`Workload::act`] called after `delay`.
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

    /// How long faults last.
    pub fn safety(&self) -> Duration {
        self.safety
    }

    /// Whether the faults are over.
    pub fn is_healed(&self) -> bool {
        self.nemesis.is_none()
    }
}

/// A name for an operator's command: operators ask one thing at a time.
pub fn command_id<P: Protocol>(world: &World<P>) -> CommandId
where
    P::Message: Wire,
{
    CommandId(world.now().0)
}

/// The members that changes under way would make.
pub fn changes<W: Workload>(workload: &W, world: &World<W::Process>) -> Vec<Vec<Peer>> {
    let processes = (0..world.machines()).filter_map(|machine| world.process(machine));
    open_changes(processes.filter_map(|process| workload.log(process)))
}
