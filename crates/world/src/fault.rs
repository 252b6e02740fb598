//! Faults and their rates. The seed draws the kinds of faults of a run, and the nemesis strikes at random
//! instants.

use std::time::Duration;

use quorate_protocol::{Protocol, wire::Wire};
use serde::{Deserialize, Serialize};

use crate::{
    random::Chance,
    world::{Crash, World},
};

/// The faults that a scenario allows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultSettings {
    /// Mean time between faults, in milliseconds. With 0 there are no faults.
    pub interval_ms: f64,
    /// Longest duration of cuts, clogs and isolations, in milliseconds.
    pub span_ms_max: f64,
    /// Longest duration of pauses, in milliseconds. If it exceeds the failure detector's patience, some
    /// pauses are mistaken for crashes.
    pub pause_ms_max: f64,
    /// Longest time that a machine stays down, in milliseconds.
    pub down_ms_max: f64,
    /// Longest duration of long pauses, in milliseconds. It exceeds the time in which a process is replaced
    /// and its rows are moved.
    pub long_pause_ms_max: f64,
    /// Probability with which each kind of fault is among the faults of a run.
    pub presence: f64,
    /// Kinds of faults that this scenario has in addition to the kinds that every system has.
    pub extra: Vec<Fault>,
}

impl Default for FaultSettings {
    fn default() -> Self {
        FaultSettings {
            interval_ms: 150.0,
            span_ms_max: 1_500.0,
            pause_ms_max: 2_500.0,
            down_ms_max: 800.0,
            long_pause_ms_max: 8_000.0,
            presence: 0.5,
            extra: Vec::new(),
        }
    }
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// A process is killed, and its machine resets the links.
    Kill,
    /// A process ends, and its machine answers nothing.
    Vanish,
    /// A process stands still for a while.
    Pause,
    /// Two machines cannot talk with each other.
    Cut,
    /// The messages of one machine do not reach another machine. Messages in the other direction arrive.
    CutOneWay,
    /// A machine is cut off from all others.
    Isolate,
    /// Messages in one direction are delayed for a while.
    Clog,
    /// A session breaks.
    BreakLink,
    /// A machine stalls while its messages are under way, and later continues as if nothing had happened.
    Stall,
    /// A machine and a whole group cannot talk with each other, for example a super and all storage
    /// processes, or a gateway and the routers.
    GroupCut,
    /// The messages between a machine and a whole group are lost in one direction.
    GroupCutOneWay,
    /// All members of a group that may be killed are killed at once, for example all supers.
    KillGroup,
    /// A process stands still for longer than its replacement takes.
    LongPause,
    /// A process dies while its engine executes a task.
    DieAtTask,
    /// All machines lose power at once, and restart.
    PowerCut,
    /// Syncs take long for a while.
    SlowDisk,
    /// A sync fails.
    FailSync,
    /// A process ends, and a byte on its disk rots.
    Rot,
    /// A process ends, and an older copy of its disk is put back.
    OlderCopy,
    /// A query arrives. Every process that reads a certain row for this query is killed.
    DieAtRead,
}

impl Fault {
    /// Kinds that every system has.
    const BASIC: [Fault; 9] = [
        Fault::Kill,
        Fault::Vanish,
        Fault::Pause,
        Fault::Cut,
        Fault::CutOneWay,
        Fault::Isolate,
        Fault::Clog,
        Fault::BreakLink,
        Fault::Stall,
    ];

    const EXTRA: [Fault; 11] = [
        Fault::GroupCut,
        Fault::GroupCutOneWay,
        Fault::KillGroup,
        Fault::LongPause,
        Fault::DieAtTask,
        Fault::PowerCut,
        Fault::SlowDisk,
        Fault::FailSync,
        Fault::Rot,
        Fault::OlderCopy,
        Fault::DieAtRead,
    ];

    /// Returns all kinds of faults.
    pub fn all() -> impl Iterator<Item = Fault> {
        Fault::BASIC.into_iter().chain(Fault::EXTRA)
    }

    /// Returns the name under which the fault is counted, and the name under which its effects are counted:
    /// killed processes, delayed frames, or delayed inputs.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Fault::Kill => ("fault: kill", "killed by a kill"),
            Fault::Vanish => ("fault: vanish", "killed by a vanishing"),
            Fault::Pause => ("fault: pause", "delayed by a pause"),
            Fault::Cut => ("fault: cut", "withheld by a cut"),
            Fault::CutOneWay => ("fault: one-way cut", "withheld by a one-way cut"),
            Fault::Isolate => ("fault: isolate", "withheld by an isolation"),
            Fault::Clog => ("fault: clog", "withheld by a clog"),
            Fault::BreakLink => ("fault: break link", "broken by a break"),
            Fault::Stall => ("fault: stall", "withheld by a stall"),
            Fault::GroupCut => ("fault: group cut", "withheld by a group cut"),
            Fault::GroupCutOneWay => ("fault: one-way group cut", "withheld by a one-way group cut"),
            Fault::KillGroup => ("fault: kill group", "killed by a kill of a group"),
            Fault::LongPause => ("fault: long pause", "delayed by a long pause"),
            Fault::DieAtTask => ("fault: die at task", "killed at a task"),
            Fault::PowerCut => ("fault: power cut", "killed by a power cut"),
            Fault::SlowDisk => ("fault: slow disk", "fault: slow disk"),
            Fault::FailSync => ("fault: failed sync", "killed by a failed sync"),
            Fault::Rot => ("fault: rot", "rot found"),
            Fault::OlderCopy => ("fault: older copy put back", "older copy refused"),
            Fault::DieAtRead => ("fault: die at read", "killed at a read"),
        }
    }

    /// Returns the name under which the fault is counted.
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// Returns the name under which the fault's effects are counted. A fault without effects has tested
    /// nothing.
    pub fn effect(self) -> &'static str {
        self.names().1
    }
}

/// The source of a run's faults.
#[derive(Clone, Debug)]
pub struct Nemesis {
    settings: FaultSettings,
    kinds: Vec<Fault>,
    interval: Duration,
    chance: Chance,
}

impl Nemesis {
    /// Draws the kinds and the density of this run's faults from the seed.
    pub fn new(seed: u64, settings: FaultSettings) -> Self {
        let mut chance = Chance::new(seed, "crash");
        let mut kinds: Vec<Fault> =
            Fault::BASIC.into_iter().filter(|_| chance.happens(settings.presence)).collect();
        // The density of faults is between a third of the scenario's density and three times that density.
        let scale = 3f64.powf(2.0 * chance.unit() - 1.0);
        let interval = Duration::from_nanos((settings.interval_ms * scale * 1e6) as u64);
        // Extra kinds are drawn from a separate stream, so that runs without extra kinds stay unchanged.
        let mut apart = Chance::new(seed, "extra faults");
        kinds.extend(settings.extra.iter().filter(|_| apart.happens(settings.presence)));
        Nemesis { settings, kinds, interval, chance }
    }

    /// Draws the time until the next strike; `None` if there are no faults.
    pub fn pause(&mut self) -> Option<Duration> {
        if self.interval.is_zero() || self.kinds.is_empty() {
            return None;
        }
        let factor = -(1.0 - self.chance.unit()).ln();
        Some(self.interval.mul_f64(factor.min(8.0)))
    }

    /// Strikes one machine of `groups`, with the same probability for each group. Machines outside all groups
    /// are spared, and only machines that `may_crash` allows are killed. Returns the fault and the machines
    /// that it hit. If the fault is a death at a task or at a read, the caller must carry it out, because
    /// only the caller knows when the task or the read happens.
    pub fn strike<P: Protocol>(
        &mut self,
        world: &mut World<P>,
        groups: &[Vec<usize>],
        may_crash: impl Fn(&World<P>, usize) -> bool,
    ) -> Option<(Fault, Vec<usize>)>
    where
        P::Message: Wire,
    {
        if self.kinds.is_empty() || groups.is_empty() {
            return None;
        }
        let kind = self.kinds[self.chance.index(self.kinds.len())];
        let group = &groups[self.chance.index(groups.len())];
        if group.is_empty() {
            return None;
        }
        let victim = group[self.chance.index(group.len())];
        let all: Vec<usize> = groups.iter().flatten().copied().filter(|&other| other != victim).collect();
        let other = (!all.is_empty()).then(|| all[self.chance.index(all.len())]);
        let span = self.span(self.settings.span_ms_max);
        let mut hit = vec![victim];
        world.blame(kind.effect());
        match kind {
            Fault::Kill | Fault::Vanish => {
                if world.process(victim).is_none() || !may_crash(world, victim) {
                    return None;
                }
                let crash = if kind == Fault::Kill { Crash::Killed } else { Crash::Vanished };
                self.kill(world, victim, crash);
            }
            Fault::KillGroup => {
                hit = group.clone();
                hit.retain(|&machine| {
                    let may = world.process(machine).is_some() && may_crash(world, machine);
                    if may {
                        self.kill(world, machine, Crash::Killed);
                    }
                    may
                });
                if hit.is_empty() {
                    return None;
                }
            }
            Fault::DieAtTask | Fault::DieAtRead => {
                world.process(victim)?;
            }
            Fault::PowerCut => {
                hit = (0..world.machines()).filter(|&machine| world.process(machine).is_some()).collect();
                for &machine in &hit {
                    self.kill(world, machine, Crash::Vanished);
                }
            }
            Fault::SlowDisk => {
                if !world.slow_disk(victim, span) {
                    return None;
                }
            }
            Fault::FailSync => {
                if !world.fail_sync(victim) {
                    return None;
                }
            }
            Fault::Rot => {
                if world.process(victim).is_none() || !may_crash(world, victim) {
                    return None;
                }
                world.crash(victim, Crash::Killed);
                let down = self.span(self.settings.down_ms_max);
                world.restart_after(victim, down);
                world.rot(victim);
            }
            Fault::OlderCopy => {
                if !world.is_copy_known_as_older(victim) || !may_crash(world, victim) {
                    // No older copy can be put back now. The copies that are taken here may serve the next
                    // strike.
                    world.copy_disks();
                    return None;
                }
                world.crash(victim, Crash::Killed);
                let down = self.span(self.settings.down_ms_max);
                world.restart_after(victim, down);
                world.put_back(victim);
            }
            Fault::Pause => {
                let span = self.span(self.settings.pause_ms_max);
                world.pause(victim, span);
            }
            Fault::LongPause => {
                let longest = Duration::from_nanos((self.settings.long_pause_ms_max * 1e6) as u64);
                let span = self.chance.between(longest / 4, longest);
                world.pause(victim, span);
            }
            Fault::Cut => {
                world.cut(victim, other?, span);
                world.cut(other?, victim, span);
            }
            Fault::CutOneWay => world.cut(victim, other?, span),
            Fault::GroupCut | Fault::GroupCutOneWay => {
                let others = &groups[self.chance.index(groups.len())];
                let (to, from) = match kind {
                    Fault::GroupCut => (true, true),
                    _ if self.chance.happens(0.5) => (true, false),
                    _ => (false, true),
                };
                for &machine in others.iter().filter(|&&machine| machine != victim) {
                    if to {
                        world.cut(victim, machine, span);
                    }
                    if from {
                        world.cut(machine, victim, span);
                    }
                }
            }
            Fault::Isolate => {
                for machine in (0..world.machines()).filter(|&machine| machine != victim) {
                    world.cut(victim, machine, span);
                    world.cut(machine, victim, span);
                }
            }
            Fault::Clog => world.clog(victim, other?, span),
            Fault::Stall => {
                // Stalls are mostly longer than the patience of failure detectors, because a shorter stall
                // would only be a slow link.
                let span =
                    Duration::from_nanos((self.settings.pause_ms_max * self.chance.unit() * 1e6) as u64);
                let lead = self.chance.between(Duration::ZERO, STALL_LEAD_MAX);
                world.stall(victim, lead, span);
            }
            Fault::BreakLink => {
                if !world.break_link(victim, other?) {
                    return None;
                }
                world.count(kind.effect());
            }
        }
        world.count(kind.name());
        Some((kind, hit))
    }

    fn kill<P: Protocol>(&mut self, world: &mut World<P>, victim: usize, crash: Crash)
    where
        P::Message: Wire,
    {
        world.crash(victim, crash);
        world.count(world.blamed());
        let down = self.span(self.settings.down_ms_max);
        world.restart_after(victim, down);
    }

    /// Draws a duration that is mostly short, and at most `ms_max` milliseconds.
    fn span(&mut self, ms_max: f64) -> Duration {
        let share = self.chance.unit().powi(3);
        Duration::from_nanos((ms_max * share * 1e6) as u64)
    }
}

/// Longest time that a stalling process continues while its messages are already delayed.
const STALL_LEAD_MAX: Duration = Duration::from_millis(60);
