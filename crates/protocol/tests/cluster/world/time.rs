//! How time passes: what arrives, what is due, what the engines have done.

use quorate_protocol::{
    Duration, ProcessId, Time,
    rubberband::{Message, StorageCommand, TaskKind, TaskResult},
    wire::Wire,
};

use super::{Happening, Process, Role, World};
use crate::cluster::{
    engine::{Engine, Row, decode},
    names::{name, range_names, reborn},
};

impl World {
    fn next_instant(&self) -> Option<Time> {
        let paused = |id: &ProcessId| self.processes.get(id).is_some_and(|process| process.paused);
        let moving = self.links.moving().filter(|((_, to), _)| !paused(to));
        let arriving = moving.filter_map(|(_, queue)| queue.front().map(|(due, _)| *due));
        let deadlines = self.processes.values().filter(|it| !it.wedged).filter_map(Process::deadline);
        let awake = self.processes.values().filter(|it| !it.paused);
        let work = awake.filter_map(|it| it.tasks.as_ref().map(|(due, _)| *due));
        let work = work.filter(|_| self.work.is_some());
        arriving.chain(deadlines).chain(work).min()
    }

    /// Lets time pass.
    pub(crate) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        self.drain();
        while let Some(next) = self.next_instant().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.step();
        }
        self.now = end;
    }

    /// Does everything that is due.
    fn step(&mut self) {
        let ways: Vec<_> = self.links.moving().map(|(way, _)| way).collect();
        for (from, to) in ways {
            if self.processes.get(&to).is_some_and(|process| process.paused) {
                continue;
            }
            while let Some((_, mut bytes)) = self.links.next_if(from, to, |(due, _)| *due <= self.now) {
                let message = Message::decode(&mut bytes).expect("our own bytes decode");
                assert!(bytes.is_empty(), "bytes left over");
                self.happen(to, Happening::Receive(from, message));
            }
        }
        for id in self.processes.keys().copied().collect::<Vec<_>>() {
            let due = self.processes.get(&id).filter(|it| !it.wedged).and_then(Process::deadline);
            if due.is_some_and(|due| due <= self.now) {
                self.happen(id, Happening::Deadline);
            }
            self.work(id);
        }
        self.drain();
    }

    fn drain(&mut self) {
        if std::mem::take(&mut self.relink_due) {
            self.relink();
        }
        while let Some(id) = self.processes.iter().find(|(_, it)| it.undrained).map(|(id, _)| *id) {
            self.happen(id, Happening::Drained);
            if let Some(process) = self.processes.get_mut(&id) {
                process.undrained = false;
            }
        }
        self.bury();
    }

    /// Who was told that it is out stops.
    fn bury(&mut self) {
        let out: Vec<_> = self.processes.iter().filter(|(_, it)| it.wedged).map(|(id, _)| *id).collect();
        for id in out {
            let process = self.crash(id);
            if let Some(Process { role: Role::Storage(_, engine), remains: Some(remains), .. }) = process {
                self.again(reborn(id), remains, engine);
            } else if self.rebirth {
                self.start(reborn(id));
            }
        }
    }

    /// Runs the engine's batch if it is due.
    fn work(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if self.work.is_none()
            || process.paused
            || process.tasks.as_ref().is_none_or(|(due, _)| *due > self.now)
        {
            return;
        }
        let (_, tasks) = process.tasks.take().expect("just seen");
        if Engine::dies(&tasks) {
            self.say(&format!("{} dies of a read", name(id)));
            self.crash(id);
            return;
        }
        let Role::Storage(_, engine) = &mut process.role else { panic!("only storage works") };
        let results = engine.run_all(&tasks);
        for (task, result) in tasks.iter().zip(&results) {
            let what = match &task.kind {
                TaskKind::Write { ranges, operation, held } => {
                    let how = if *held { "holds" } else { "writes" };
                    format!("{how} {} in {}", String::from_utf8_lossy(operation), range_names(ranges))
                }
                TaskKind::Settle { publish: true } => "publishes".to_owned(),
                TaskKind::Settle { publish: false } => "voids".to_owned(),
                TaskKind::Read { ranges, .. } if *result == TaskResult::Crowded => {
                    format!("has no room for a read of {}", range_names(ranges))
                }
                TaskKind::Read { ranges, .. } => format!("reads {}", range_names(ranges)),
                TaskKind::Page { ranges, .. } => format!("reads on in {}", range_names(ranges)),
                TaskKind::CreateTable { table, .. } => format!("creates table {table}"),
                TaskKind::DropTable { table } => format!("drops table {table}"),
                TaskKind::Pin => "pins".to_owned(),
                TaskKind::Finish | TaskKind::Release => "releases".to_owned(),
                TaskKind::Save { .. } | TaskKind::Restore { .. } => panic!("no process has a disk here"),
                TaskKind::Export { ranges, cursor } => {
                    let from = cursor.as_ref().map_or(0, |cursor| decode::<usize>(cursor));
                    format!("exports {} from {from}", range_names(ranges))
                }
                TaskKind::Import { rows } => format!("imports {} rows", decode::<Vec<Row>>(rows).len()),
                TaskKind::EndSession { session } => format!("ends session {session}"),
                TaskKind::Forget { ranges } => format!("forgets {}", range_names(ranges)),
            };
            self.say(&format!("{} @{} {what}", name(id), task.at));
        }
        self.command_storage(id, StorageCommand::Executed(results));
    }
}
