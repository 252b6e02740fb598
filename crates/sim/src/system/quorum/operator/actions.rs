//! The operator acts: it changes the maps and the cells, cuts sites from each other, and sets clocks.

use std::{sync::Arc, time::Duration};

use quorate_protocol::{
    ProcessId, Time,
    ecast::RouterCommand,
    partial::{self, Change, Roster, resident::Command},
};

use super::{AHEAD, BEHIND, Operator};
use crate::{
    mutation::Mutation,
    process::AnyCommand,
    stage::command_id,
    system::quorum::{
        settings::MAPS,
        workload::MapsWorkload,
        world::{QuorumStage, QuorumTimer, QuorumWorld, ask, cell},
    },
};

/// Sets the timers of a run.
pub(in super::super) fn begin(stage: &mut QuorumStage, world: &mut QuorumWorld) {
    stage.after(world, Duration::from_millis(300), QuorumTimer::Ask);
    stage.after(world, LOOK, QuorumTimer::Operate);
    stage.after(world, CLOCKS, QuorumTimer::Clocks);
}

/// Interval at which the operator looks at the system and acts.
const LOOK: Duration = Duration::from_millis(50);
/// Interval at which a machine sets its clock.
const CLOCKS: Duration = Duration::from_millis(200);

impl MapsWorkload {
    /// Lets the operator look at the whole system and act.
    pub(in super::super) fn operate(&mut self, stage: &mut QuorumStage, world: &mut QuorumWorld) {
        let serving = self.roster.as_ref().is_some_and(|roster| roster.layout().is_serving());
        let cells = self.settings.cells;
        for (at, machine) in self.machines.clone().into_iter().enumerate() {
            let Some(resident) = cell(world, machine) else { continue };
            let leader = resident.member().leader();
            // A spare joins once there are maps.
            if leader.is_none_or(|leader| !world.alive(leader)) && (at < cells || serving) {
                world.command(machine, ask(Command::Seeds(stage.routers.living(world))));
            }
        }
        if self.settings.disk.is_some() {
            // A router that joins may know only former routers: all routers that it knows may have come back
            // as new processes.
            let seeds = stage.routers.living(world);
            for &machine in &stage.routers.machines {
                if world.process(machine).is_some_and(|process| process.router().is_some()) {
                    world.command(machine, AnyCommand::to_router(RouterCommand::Seeds(seeds.clone())));
                }
            }
        }
        if !serving || self.lacks_maps() {
            self.make_maps(stage, world);
        }
        if !stage.is_healed() && serving {
            self.give_a_place_away(world);
            self.cut_sites(world);
        }
        if serving && !self.lacks_maps() {
            self.create_or_drop(stage, world);
        }
        stage.after(world, LOOK, QuorumTimer::Operate);
    }

    fn lacks_maps(&self) -> bool {
        self.roster.as_ref().is_none_or(|roster| MAPS.iter().any(|kind| roster.map(kind.name).is_none()))
    }

    /// Creates the next map, once all cells are there.
    fn make_maps(&mut self, stage: &mut QuorumStage, world: &mut QuorumWorld) {
        let Some(roster) = &self.roster else { return };
        let enough = roster.layout().cells().count() == self.settings.cells;
        let missing = MAPS.iter().find(|kind| roster.map(kind.name).is_none());
        let machine = self.machines[stage.chance.index(self.settings.cells)];
        if let Some(kind) = missing.filter(|_| enough && world.process(machine).is_some()) {
            let change = Change::CreateMap { name: kind.name.to_owned(), map: kind.map() };
            let id = command_id(world);
            world.command(machine, ask(Command::Change { id, change: Box::new(change) }));
        }
    }

    /// With some probability, gives the place of a cell, which may be alive, to a spare.
    fn give_a_place_away(&mut self, world: &mut QuorumWorld) {
        let Some(roster) = self.roster.clone() else { return };
        let wants = self.operator.chance.happens(REPLACEMENT);
        let pick = self.operator.chance.index(self.settings.cells);
        let asked = self.machines[self.operator.chance.index(self.machines.len())];
        let Some((_, old)) = roster.layout().cells().nth(pick) else { return };
        let is_spare =
            |process: &ProcessId| roster.layout().number(*process).is_none() && world.alive(*process);
        let new = roster.members().map(|(process, _)| process).find(is_spare);
        let machine = old.peer.id.node as usize;
        let (Some(new), true) = (new, wants && self.can_do_without(world, machine)) else { return };
        if world.process(asked).is_none() {
            return;
        }
        let id = command_id(world);
        self.operator.replacing = Some((id, old.peer.id));
        let change = Change::Replace { old: old.peer.id, new };
        world.command(asked, ask(Command::Change { id, change: Box::new(change) }));
    }

    /// With some probability, cuts the sites from each other for a while, in one direction or both.
    fn cut_sites(&mut self, world: &mut QuorumWorld) {
        if !self.operator.chance.happens(CUT) {
            return;
        }
        let span = self.operator.chance.between(Duration::from_millis(50), CUT_MAX);
        let [here, there] = self.by_site();
        let (one, other) = if self.operator.chance.happens(0.5) { (here, there) } else { (there, here) };
        let both = self.operator.chance.happens(0.3);
        world.blame("withheld by a cut of sites");
        world.count(if both { "sites cut" } else { "sites cut one way" });
        for (from, to) in one.iter().flat_map(|from| other.iter().map(move |to| (*from, *to))) {
            world.cut(from, to, span);
            if both {
                world.cut(to, from, span);
            }
        }
    }

    /// Sets the machines' clocks; with some probability, lets one clock jump.
    pub(in super::super) fn set_clocks(&mut self, stage: &mut QuorumStage, world: &mut QuorumWorld) {
        let Operator { chance, jump, calm_from, .. } = &mut self.operator;
        if stage.is_healed() {
            *jump = None;
        } else if chance.happens(JUMP) && *calm_from <= world.now() {
            // Only one clock jumps at a time. A machine that slept may not have corrected its clock yet.
            let awake = |(at, ..): (usize, i64, Time)| world.slept_until(at) + CLOCKS * 2 < world.now();
            if jump.is_none_or(awake) {
                let machine = self.machines[chance.index(self.machines.len())];
                let by = if chance.happens(0.7) { AHEAD } else { BEHIND };
                let until = world.now() + chance.between(CLOCKS, JUMP_MAX);
                world.count(if by > 0 { "clock jumped ahead" } else { "clock jumped back" });
                *jump = Some((machine, by, until));
                *calm_from = until + Duration::from_nanos(AHEAD as u64) + CLOCKS * 4;
            }
        }
        for machine in self.machines.clone() {
            if world.process(machine).is_some() {
                let offset = self.operator.offset(world, machine);
                world.command(machine, ask(partial::Command::Adjust(offset).into()));
            }
        }
        stage.after(world, CLOCKS, QuorumTimer::Clocks);
    }

    /// Notes the layout that a cell learned.
    pub(in super::super) fn learn(
        &mut self,
        stage: &QuorumStage,
        world: &mut QuorumWorld,
        machine: usize,
        roster: Arc<Roster>,
    ) {
        let layout = roster.layout();
        let me = world.id(machine).and_then(|id| layout.number(id));
        let arriving = me.and_then(|me| layout.cell(me)).is_some_and(|cell| cell.arriving);
        if let (Some(me), true) = (me, arriving && stage.mutation == Some(Mutation::ArrivesEmpty)) {
            let change = Change::Complete(me);
            world.command(machine, ask(Command::Change { id: command_id(world), change: Box::new(change) }));
        }
        let before = self.roster.as_ref().map(|roster| roster.layout().version());
        if before.is_some_and(|before| before >= layout.version()) {
            // Members that are no cells change the roster, and not the layout.
            if before == Some(layout.version()) {
                self.roster = Some(roster);
            }
            return;
        }
        let arrived = |before: &Roster| {
            let arrives = before.layout().cells().filter(|(_, cell)| cell.arriving);
            arrives.filter(|(number, _)| layout.cell(*number).is_some_and(|cell| !cell.arriving)).count()
        };
        for _ in 0..self.roster.as_deref().map_or(0, arrived) {
            world.count("arrived");
        }
        if let Some((_, old)) = self.operator.replacing
            && layout.number(old).is_none()
        {
            // The process that asked may have died before it got the outcome.
            world.count("replaced by a spare");
            self.operator.replacing = None;
        }
        self.roster = Some(roster);
    }
}

/// Probability that the operator gives a place away, each time that it looks at the system.
const REPLACEMENT: f64 = 0.02;
/// Probability that sites are cut from each other, each time that the operator looks at the system.
const CUT: f64 = 0.02;
/// Longest time for which sites are cut from each other.
const CUT_MAX: Duration = Duration::from_millis(1_200);
/// Probability that a clock jumps when clocks are set.
const JUMP: f64 = 0.05;
/// Longest time until a clock that jumped is set right.
const JUMP_MAX: Duration = Duration::from_millis(800);
