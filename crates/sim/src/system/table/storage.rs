//! Engines at work: the workload judges each task, lets the engine execute it, and compares the rows with
//! other replicas.

use std::time::Duration;

use quorate_protocol::{
    ProcessId,
    rubberband::{StorageCommand, StorageStatus, Task, TaskKind, TaskResult},
};
use quorate_roles::tables::{Command, Process, storage::execute};
use quorate_table::host::SingleThread;
use quorate_world::{Crash, Fault, Violation};

use super::{
    Settings, TableStage, TableWorkload, TableWorld,
    known::{ProcessFacts, known},
    replicas,
    workload::DOWN,
    world::{ask, role},
};

impl TableWorkload {
    /// Judges an engine's tasks, executes them, and compares the resulting rows with other replicas.
    pub(super) fn execute(
        &mut self,
        stage: &mut TableStage,
        world: &mut TableWorld,
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
        // A keeper executes the tasks up to its kept position as its former life.
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
                    self.holders.ended_voluntarily(me, &known)?;
                    self.keepers.remove(&me);
                }
                _ => {}
            }
        }
        let engine = self.engines.get_mut(&machine).expect("every storage process has an engine");
        let cost = Duration::from_micros(self.settings.task_micros * tasks.len() as u64);
        let mut results = match stage.mutation {
            Some(mutation) => {
                execute(engine.as_mut(), replicas::mutated(mutation, machine, tasks.clone()), &SingleThread)
            }
            None => execute(engine.as_mut(), tasks.clone(), &SingleThread),
        };
        for (task, result) in tasks.iter().zip(&mut results) {
            if let TaskResult::Failed(failure) = result {
                // Decoders ignore bytes behind the end of an answer.
                let mut padded = failure.to_vec();
                padded.resize(failure.len() + self.settings.padding(task.at), 0);
                *failure = padded.into();
            }
        }
        let Some(Process::Storage(storage)) = role(world, machine) else { return Ok(()) };
        keeps_within_bounds(&self.settings, &storage.status(), me)?;
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

/// Checks the memory for decisions: the settings bound all decisions except those that other processes may
/// still ask for, which are kept without their reasons.
fn keeps_within_bounds(settings: &Settings, status: &StorageStatus, me: ProcessId) -> Result<(), Violation> {
    let most = settings.settled_bytes_max as u64 + OWED_BYTES * status.owed;
    if status.settled_bytes > most {
        let what = format!(
            "storage process {me} keeps {} bytes of decisions, but its settings allow {most} at most",
            status.settled_bytes
        );
        return Err(Violation::new("bounded", what));
    }
    Ok(())
}

/// Maximum size of a decision without its reason, in bytes.
const OWED_BYTES: u64 = 1 << 10;
