//! The operator acts: it gives up, replaces and stops processes, and accidents kill all holders of a range.

use std::time::Duration;

use quorate_protocol::{
    ProcessId,
    rubberband::{Range, StorageState, SuperCommand},
};
use quorate_roles::tables::{Command, Process};
use quorate_world::Crash;

use crate::{
    check::holders::Keys,
    stage::command_id,
    system::table::{
        known::newest_config,
        workload::TableWorkload,
        world::{TableStage, TableTimer, TableWorld, ask, role},
    },
};

impl TableWorkload {
    /// Looks after the storage processes.
    pub(in super::super) fn operate(&mut self, stage: &mut TableStage, world: &mut TableWorld) {
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
            // A keeper keeps rows of a place on the ring, so the ranges of the present holder of that place
            // are looked at.
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
                // The operator tries again later, in case the declaration has no effect.
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

    /// Makes a storage process stop as before a restart.
    pub(in super::super) fn pause(&mut self, stage: &mut TableStage, world: &mut TableWorld) {
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
        stage.after(world, soon, TableTimer::Stop(process));
    }

    /// Stops a process that was asked to stop, and starts it again.
    pub(in super::super) fn stop(&mut self, world: &mut TableWorld, process: ProcessId) {
        let machine = process.node as usize;
        if world.id(machine) == Some(process) && world.alive(process) {
            world.crash(machine, Crash::Killed);
            let down = self.operator.chance.between(Duration::ZERO, DOWN_MAX);
            world.restart_after(machine, down);
        }
    }

    /// Chooses a range whose holders will die. Delays their messages to one other storage process. Returns
    /// whether it found such a range.
    fn doom(&mut self, world: &mut TableWorld) -> bool {
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

    /// Handles the evaluation of a write with verdicts. If the write touches the doomed range, the holders
    /// of that range die once their verdicts have had time to arrive.
    pub(in super::super) fn exchanged(
        &self,
        stage: &mut TableStage,
        world: &mut TableWorld,
        ranges: &[Range],
    ) {
        let concerns = |(low, high): Keys| ranges.iter().any(|range| range.low <= high && low <= range.high);
        if self.operator.doomed.is_some_and(|(keys, _)| concerns(keys)) {
            stage.after(world, TOLD, TableTimer::Bereave);
        }
    }

    /// Kills all holders of the doomed range at once.
    pub(in super::super) fn bereave(&mut self, stage: &TableStage, world: &mut TableWorld) {
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

/// Longest wait of doomed processes for a write with verdicts.
const DOOMED_MAX: Duration = Duration::from_millis(400);
/// Time in which a verdict arrives if nothing holds it back.
const TOLD: Duration = Duration::from_millis(2);
/// Time after which an operator believes that a process will not return.
const BELIEF: Duration = Duration::from_millis(1_500);
const DOWN_MAX: Duration = Duration::from_millis(500);
/// Probability that the operator stops a process for a moment, each time that it looks at the system.
const PAUSES: f64 = 0.05;
/// Longest stop of a process for a moment.
const PAUSE_MAX: Duration = Duration::from_millis(150);
