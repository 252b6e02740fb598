//! Engines at work: each task is judged, done, and what is held then compared with other replicas.

use std::time::Duration;

use quorate_protocol::rubberband::{StorageCommand, Task, TaskKind};
use quorate_table::host::Alone;
use quorate_tables::{Command, Process, storage::execute};
use quorate_world::{Crash, Fault, Violation};

use super::{
    Stage, Town, World,
    citizen::{ask, role},
    known::{Known, known},
    replicas,
};

impl Town {
    /// An engine's tasks: judged, done, and what is held then compared with other replicas.
    pub(super) fn execute(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        machine: usize,
        tasks: Vec<Task>,
    ) -> Result<(), Violation> {
        let Some(me) = world.id(machine) else { return Ok(()) };
        if self.doomed.remove(&machine) && self.survives_without(world, machine) {
            world.count(Fault::DieAtTask.effect());
            world.crash(machine, Crash::Killed);
            world.restart_after(machine, DOWN);
            self.killed(world, machine, false);
            self.kill_companion(world, machine, false);
            return Ok(());
        }
        if self.dies_of_a_read(world, machine, &tasks)? {
            return Ok(());
        }
        // The replica executes for its former life the tasks that were meant for that one.
        let for_former = |task: &&Task| self.keepers.get(&me).is_some_and(|keeps| task.at <= keeps.through);
        let former = self.keepers.get(&me).map_or(me, |keeps| keeps.former);
        let (twin, check) = (&self.order.twin, &self.order.check);
        let late = tasks.iter().filter(for_former);
        self.replicas.execute(former, late, twin, check)?;
        self.replicas.execute(me, tasks.iter().filter(|task| !for_former(task)), twin, check)?;
        for task in &tasks {
            match &task.kind {
                TaskKind::Write { ranges, held, .. } => {
                    if *held {
                        self.exchanged(stage, world, ranges);
                    }
                    ranges.iter().for_each(|range| self.holders.wrote((range.low, range.high), task.at.0));
                }
                TaskKind::Forget { .. } => {
                    let known = known!(self);
                    self.holders.gave_up(me, &known)?;
                    self.keepers.remove(&me);
                }
                _ => {}
            }
        }
        let engine = self.engines.get_mut(&machine).expect("every storage process has an engine");
        let cost = Duration::from_micros(self.settings.task_micros * tasks.len() as u64);
        let results = match stage.mutation {
            Some(mutation) => {
                execute(engine.as_mut(), replicas::mutated(mutation, machine, tasks.clone()), &Alone)
            }
            None => execute(engine.as_mut(), tasks.clone(), &Alone),
        };
        let Some(Process::Storage(storage)) = role(world, machine) else { return Ok(()) };
        if let Some(config) = storage.config() {
            let overruled = self.replicas.overruled;
            let (twin, check) = (&self.order.twin, &self.order.check);
            self.replicas.done(me, config, &tasks, twin, check, engine.as_mut())?;
            if self.replicas.overruled > overruled {
                world.count("published though the lost had voided it");
            }
        }
        self.working.insert(machine);
        world.command_after(machine, cost, ask(Command::Storage(StorageCommand::Executed(results))));
        Ok(())
    }
}

/// How long a process is down that died at a task.
pub(super) const DOWN: Duration = Duration::from_millis(20);
