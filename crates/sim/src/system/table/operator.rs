//! An operator with tables, and the accidents that call for one.
//!
//! In some runs all that hold a range die at once, for good: its rows are lost, and the operator says so
//! once it has seen that the last of them is unreachable and will not return. It declares nobody lost while somebody lives
//! who holds all rows, unless that one offers them to the others. Sometimes it has a standby take the place of a process that is well,
//! and sometimes it has one with a disk stop for a moment, which ends whether it has said so by then or not.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use quorate_protocol::{
    ProcessId, Time,
    rubberband::{Range, StorageState, SuperCommand},
};
use quorate_tables::{Command, Process};

use super::{
    Stage, Timer, Town, World,
    citizen::{ask, role},
    newest_config,
};
use quorate_world::{Chance, Crash};

use crate::{check::holders::Keys, stage::command_id};

/// The operator.
pub(super) struct Operator {
    /// When all that hold a range are doomed.
    accident_at: Option<Time>,
    /// The range of which all holders die next, at a write whose verdicts are under way, or at this instant.
    doomed: Option<(Keys, Time)>,
    /// Processes that are unreachable, and since when the operator has known.
    unreachable: BTreeMap<ProcessId, Time>,
    /// Processes that the operator declared lost.
    declared: BTreeSet<ProcessId>,
    chance: Chance,
}

impl Operator {
    /// Whether the operator declared this process lost.
    pub(super) fn declared(&self, process: ProcessId) -> bool {
        self.declared.contains(&process)
    }

    /// With probability `losses` the run has an accident while its faults last.
    pub(super) fn new(seed: u64, losses: f64, safety: Duration) -> Self {
        let mut chance = Chance::new(seed, "operator");
        let accident_at =
            chance.happens(losses).then(|| Time::ZERO + chance.between(safety / 4, safety.mul_f64(0.9)));
        Operator {
            accident_at,
            doomed: None,
            unreachable: BTreeMap::new(),
            declared: BTreeSet::new(),
            chance,
        }
    }
}

impl Town {
    /// The operator looks after the storage processes.
    pub(super) fn operate(&mut self, stage: &mut Stage, world: &mut World) {
        if self.operator.accident_at.is_some_and(|at| at <= world.now())
            && !stage.is_healed()
            && self.doom(world)
        {
            self.operator.accident_at = None;
        }
        if self.operator.doomed.is_some_and(|(_, at)| at <= world.now()) {
            self.bereave(stage, world);
        }
        self.pause(stage, world);
        let Some(config) = newest_config(world).cloned() else { return };
        let supers: Vec<usize> = (self.supers.iter().copied())
            .filter(
                |&machine| matches!(role(world, machine), Some(Process::Super(it)) if it.config().is_some()),
            )
            .collect();
        let Some(asked) = self.operator.chance.pick(&supers) else { return };
        let awaited = |id: &ProcessId| config.is_waited_for(*id);
        self.operator.unreachable.retain(|id, _| awaited(id));
        let mut dead: Vec<ProcessId> = config.storage.keys().copied().filter(awaited).collect();
        dead.retain(|&id| !world.alive(id));
        for id in dead {
            let since = *self.operator.unreachable.entry(id).or_insert(world.now());
            // A keeper holds what the holder of its place would.
            let holder =
                config.keeps(id).and_then(|keeps| config.ring.get(&keeps.place).copied()).unwrap_or(id);
            let mut segments = config.segments().iter().filter(|segment| segment.replicas.contains(&holder));
            let over = segments.all(|segment| {
                let keys = (segment.range.low, segment.range.high);
                config.complete(segment).next().is_some()
                    || self.holders.holders(keys, &self.known()).iter().all(|it| config.keeps(*it).is_some())
            });
            if over && since + BELIEF < world.now() {
                world.count("operator: declared lost");
                self.operator.declared.insert(id);
                let command = SuperCommand::DeclareLost { id: command_id(world), process: id };
                world.command(asked, ask(Command::Super(command)));
                // Again after a while, should it not come about.
                self.operator.unreachable.insert(id, world.now());
            }
        }
        let ring: Vec<ProcessId> = config.ring.values().copied().collect();
        if !stage.is_healed()
            && self.operator.chance.happens(0.02)
            && let Some(old) = self.operator.chance.pick(&ring)
            && config.storage.get(&old) == Some(&StorageState::Active)
            && world.alive(old)
        {
            world.count("operator: replaced who was well");
            let command = SuperCommand::Replace { id: command_id(world), process: old };
            world.command(asked, ask(Command::Super(command)));
        }
    }

    /// Has a storage process stop for a moment.
    pub(super) fn pause(&mut self, stage: &mut Stage, world: &mut World) {
        if !self.has_disks() || stage.is_healed() || !self.operator.chance.happens(PAUSES) {
            return;
        }
        let mut running: Vec<ProcessId> =
            self.storage.iter().filter_map(|&machine| world.id(machine)).collect();
        running.retain(|id| world.alive(*id));
        let Some(process) = self.operator.chance.pick(&running) else { return };
        world.count("operator: had a process stop for a moment");
        let command = Command::Pause { id: command_id(world) };
        world.command(process.node as usize, ask(command));
        let soon = self.operator.chance.between(Duration::ZERO, PAUSE_MAX);
        stage.after(world, soon, Timer::Stop(process));
    }

    /// A process that was asked to stop does, and is started again.
    pub(super) fn stop(&mut self, world: &mut World, process: ProcessId) {
        let machine = process.node as usize;
        if world.id(machine) == Some(process) && world.alive(process) {
            world.crash(machine, Crash::Killed);
            let down = self.operator.chance.between(Duration::ZERO, DOWN_MAX);
            world.restart_after(machine, down);
        }
    }

    /// Dooms all that hold some range: what they say does not reach somebody else any more. Tells whether it came to that.
    fn doom(&mut self, world: &mut World) -> bool {
        let ranges: Vec<_> = self.holders.ranges().collect();
        let Some(keys) = self.operator.chance.pick(&ranges) else { return false };
        let holders = self.holders.holders(keys, &self.known());
        if holders.is_empty() || holders.len() > usize::from(self.settings.replicas) {
            return false;
        }
        let mut others: Vec<usize> = self.storage.clone();
        others.retain(|&machine| !holders.iter().any(|holder| holder.node as usize == machine));
        if let Some(deaf) = self.operator.chance.pick(&others) {
            for holder in holders {
                world.clog(holder.node as usize, deaf, 2 * DOOMED_MAX);
            }
        }
        self.operator.doomed = Some((keys, world.now() + DOOMED_MAX));
        true
    }

    /// A write is evaluated whose verdicts are to be exchanged: those that are doomed tell theirs, and die.
    pub(super) fn exchanged(&self, stage: &mut Stage, world: &mut World, ranges: &[Range]) {
        let concerns = |(low, high): Keys| ranges.iter().any(|range| range.low <= high && low <= range.high);
        if self.operator.doomed.is_some_and(|(keys, _)| concerns(keys)) {
            stage.after(world, TOLD, Timer::Bereave);
        }
    }

    /// All that hold the doomed range die at once.
    pub(super) fn bereave(&mut self, stage: &Stage, world: &mut World) {
        let Some((keys, _)) = self.operator.doomed.take().filter(|_| !stage.is_healed()) else { return };
        world.count("accident: all that hold a range die");
        for id in self.holders.holders(keys, &self.known()) {
            let machine = id.node as usize;
            world.crash(machine, Crash::Killed);
            self.died(world, id);
            let down = self.operator.chance.between(Duration::ZERO, DOWN_MAX);
            world.restart_after(machine, down);
        }
    }
}

/// How long the doomed wait for a write whose verdicts are exchanged.
const DOOMED_MAX: Duration = Duration::from_millis(400);
/// By when a verdict has arrived where nothing holds it back.
const TOLD: Duration = Duration::from_millis(2);
/// How long an operator waits until it believes that a process will not return.
const BELIEF: Duration = Duration::from_millis(1_500);
const DOWN_MAX: Duration = Duration::from_millis(500);
/// How often, of the times that the operator looks, a process is to stop for a moment; and how long it takes at most.
const PAUSES: f64 = 0.05;
const PAUSE_MAX: Duration = Duration::from_millis(150);
