//! Events of processes, and the checks on them.

use std::time::Duration;

use quorate_protocol::{
    ProcessId,
    ecast::RouterEvent,
    rubberband::{ClientEvent, Config, Handover, StorageEvent, StorageState, SuperCommand, SuperEvent},
};
use quorate_roles::tables::{Command, Event, Process};
use quorate_world::Violation;

use super::{
    TableStage, TableWorkload, TableWorld,
    known::{ProcessFacts, known},
    table_process::{TableEvent, member},
    twin::TAKEN_UP,
    world::{ask, roads_begun, role},
};
use crate::{check, endpoint::told, mutation::Mutation, process::AnyEvent, stage::command_id};

impl TableWorkload {
    /// Handles an event of the node on a machine.
    pub(super) fn on_node_event(
        &mut self,
        stage: &mut TableStage,
        world: &mut TableWorld,
        machine: usize,
        event: AnyEvent,
    ) -> Result<(), Violation> {
        let AnyEvent::Table(event) = event else { return Ok(()) };
        match told(machine, event)? {
            Some(TableEvent::Process(event)) => self.on_event(stage, world, machine, event)?,
            // The submission counts even if the process died in this step, because the message has left.
            Some(TableEvent::Submitted { me, content }) => self.order.check.submitted(me, content),
            None => {}
        }
        Ok(())
    }

    /// Handles an event that a process reported to its user.
    pub(super) fn on_event(
        &mut self,
        stage: &mut TableStage,
        world: &mut TableWorld,
        machine: usize,
        event: Event,
    ) -> Result<(), Violation> {
        match event {
            Event::Router(event) => {
                self.compare(stage, world, machine)?;
                match event {
                    RouterEvent::Leader(leader) => stage.routers.told_leader(world, leader),
                    RouterEvent::Removed => self.again(world, machine)?,
                    RouterEvent::Corrupt(why) => {
                        return Err(Violation::new(
                            "snapshot",
                            format!(
                                "the router on machine {machine} received a snapshot that it cannot read: \
                                 {why}"
                            ),
                        ));
                    }
                    RouterEvent::Routers(_) | RouterEvent::Config(..) | RouterEvent::Ended { .. } => {}
                    RouterEvent::Reformed(_) => {
                        panic!("no scenario of tables begins a generation, but a router reports {event:?}")
                    }
                }
            }
            Event::Storage(StorageEvent::Execute(tasks)) => self.execute(stage, world, machine, tasks)?,
            // The engine has executed the batch already; only the report of its host is missing.
            Event::Storage(StorageEvent::Withdraw { .. }) => world.count("read withdrawn at the engine"),
            Event::Super(SuperEvent::Suspected(process)) => {
                check::suspicion(world, machine, process)?;
                world.count(if world.alive(process) { "false suspicion" } else { "true suspicion" });
            }
            Event::Super(SuperEvent::Removing { process, .. }) => {
                world.count(if world.alive(process) { "false removal" } else { "true removal" });
            }
            Event::Super(SuperEvent::Replacing { .. }) => world.count("replacement ordered"),
            Event::Super(SuperEvent::Config(_) | SuperEvent::Ended { .. })
            | Event::Storage(StorageEvent::Left { .. } | StorageEvent::Paused { .. }) => {}
            Event::NotAdmitted(_) => world.count("not admitted"),
            Event::Client(ClientEvent::Config(config)) => {
                self.killer_queries.configured(machine, world.now());
                self.told_config(stage, world, &config);
            }
            Event::Storage(StorageEvent::Out(remains)) => self.out(world, machine, remains)?,
            Event::Storage(StorageEvent::Wedged)
            | Event::Super(SuperEvent::Wedged)
            | Event::Client(ClientEvent::Wedged) => self.again(world, machine)?,
            Event::Client(event) => self.accounts.on_event(world, machine, event)?,
            Event::Status { .. } | Event::Groups { .. } | Event::Operated { .. } => {}
            Event::Unserved(command) => {
                return Err(Violation::new(
                    "roles",
                    format!(
                        "the process on machine {machine} does not have the role for the command \
                         {command:?}"
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Checks a process after it has handled its inputs, and updates the counters of the run.
    pub(super) fn look_at(
        &mut self,
        stage: &mut TableStage,
        world: &mut TableWorld,
        machine: usize,
    ) -> Result<(), Violation> {
        self.lost_on_disk()?;
        let begun = roads_begun(world, machine);
        if self.relayed.insert(machine, begun).is_some_and(|before| before < begun) {
            world.count("relayed link begun");
        }
        let Some(process) = role(world, machine) else { return Ok(()) };
        if let Some(member) = member(process) {
            let (again, starved) = (("submitted again", member.resends()), member.starved());
            let delivered = member.delivered().0;
            if matches!(process, Process::Storage(_)) {
                self.working.remove(&machine);
            }
            self.note(world, machine, again, starved);
            if delivered > 0
                && let Some(me) = world.id(machine)
            {
                self.order.check.delivered_through(me, delivered)?;
            }
        } else if let Process::Router(router) = process {
            let again = ("delivered again", router.resends());
            self.resend_counters.note(world, machine, again, false);
            self.compare(stage, world, machine)?;
        }
        Ok(())
    }

    /// Checks the messages that a router has learned against the order.
    pub(super) fn compare(
        &mut self,
        stage: &mut TableStage,
        world: &mut TableWorld,
        machine: usize,
    ) -> Result<(), Violation> {
        let Some(Process::Router(router)) = role(world, machine) else { return Ok(()) };
        let (told_at, routers) = (router.log().applied().0, router.log().members().to_vec());
        for what in self.order.compare(world.life(machine), router)? {
            world.count(what);
        }
        for what in self.order.twin.occurred() {
            world.count(what);
            if what == TAKEN_UP {
                self.accounts.tear();
            }
        }
        stage.routers.told_members(world, told_at, &routers, false)?;
        self.hold(world);
        let undeclared = |process: &&ProcessId| !self.operator.declared(**process);
        if let Some(process) = self.order.twin.declared().iter().find(undeclared) {
            let what = format!("process {process} is declared lost, although no operator declared this");
            return Err(Violation::new("S14", what));
        }
        let forsaken: Vec<u64> = self.order.twin.forsaken().iter().map(|(key, _)| *key).collect();
        for key in forsaken.into_iter().skip(self.forsaken) {
            self.forsaken += 1;
            self.lost_ranges(world, |(low, high), _| low <= key && key <= high)?;
        }
        Ok(())
    }

    pub(super) fn told_config(&mut self, stage: &TableStage, world: &mut TableWorld, config: &Config) {
        if config.version <= self.config.version {
            return;
        }
        for (process, state) in &config.storage {
            let before = self.config.storage.get(process);
            match state {
                StorageState::Receiving { .. } if before != Some(state) => world.count("migration begun"),
                StorageState::Active if matches!(before, Some(StorageState::Receiving { .. })) => {
                    world.count("storage replaced");
                }
                StorageState::Unreachable if before != Some(state) => world.count("storage unreachable"),
                _ => {}
            }
        }
        self.lose(stage, world, config);
        for (process, before) in &self.config.storage {
            if !config.storage.contains_key(process) {
                world.count("storage suspected");
                if matches!(before, StorageState::Receiving { .. }) {
                    world.count("migration interrupted");
                }
            }
        }
        self.config = config.clone();
    }

    /// For a mutation: supers declare the processes lost that have just become unreachable. They declare
    /// all of them, or only the first, as if the others still counted as complete.
    fn lose(&self, stage: &TableStage, world: &mut TableWorld, config: &Config) {
        let unreachable = |config: &Config, process: &ProcessId| {
            config.storage.get(process) == Some(&StorageState::Unreachable)
        };
        let mut newly: Vec<ProcessId> = config.storage.keys().copied().collect();
        newly.retain(|process| unreachable(config, process) && !unreachable(&self.config, process));
        match stage.mutation {
            Some(Mutation::LossUndeclared) => {}
            Some(Mutation::SuspectsOneByOne) if newly.len() > 1 => newly.truncate(1),
            _ => return,
        }
        for (&machine, &process) in self.supers.iter().flat_map(|it| newly.iter().map(move |lost| (it, lost)))
        {
            let id = command_id(world);
            world.command(machine, ask(Command::Super(SuperCommand::DeclareLost { id, process })));
        }
    }

    /// Ends a process that is no longer a member.
    pub(super) fn again(&mut self, world: &mut TableWorld, machine: usize) -> Result<(), Violation> {
        world.count("process wedged");
        world.wipe_at_end(machine);
        world.stop_after(machine, Duration::from_millis(1));
        let Some(me) = world.id(machine) else { return Ok(()) };
        self.lost_ranges(world, |_, holders| holders.contains(&me))?;
        let known = known!(self);
        self.holders.ended_voluntarily(me, &known)
    }

    /// Ends a process that is no longer a member, and lets it come back with its rows.
    pub(super) fn out(
        &mut self,
        world: &mut TableWorld,
        machine: usize,
        remains: Box<Handover>,
    ) -> Result<(), Violation> {
        let Some(me) = world.id(machine) else { return Ok(()) };
        world.count("process wedged");
        world.wipe_at_end(machine);
        world.stop_after(machine, Duration::from_millis(1));
        self.keepers.insert(me, remains.keeps());
        self.working.remove(&machine);
        self.remains.insert(machine, remains);
        self.lost_ranges(world, |_, holders| holders.contains(&me))
    }
}
