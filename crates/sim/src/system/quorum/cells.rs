//! The cells: how they start, how they are, and what they hold in the end.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_protocol::{
    Peer, ProcessId,
    partial::{Place, Resident, Roster, Site, tokens_of},
};
use quorate_world::Violation;

use super::{
    Process, Readers, Role, Stage, World,
    settings::{LOOSE, MAPS},
    tamper::Tamper,
};
use crate::check::quorum::owners;

/// The cell on a machine, while one runs there.
pub(super) fn cell(world: &World, machine: usize) -> Option<&Resident> {
    match &world.process(machine)?.role {
        Role::Cell(resident) => Some(resident),
        Role::Router(_) => None,
    }
}

impl Readers {
    /// The process of a cell that starts on `machine`.
    pub(super) fn resident(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        machine: usize,
        id: ProcessId,
    ) -> Process {
        if let Some(former) = self.lives.insert(machine, id) {
            self.check.forgets(former);
        }
        let place = Place {
            name: format!("cell-{machine}"),
            site: self.first_site(machine),
            tokens: tokens_of(machine as u64, TOKENS),
        };
        let me = Peer { id, address: World::address(machine) };
        let offset = self.operator.offset(world, machine);
        let settings = self.settings.cell(stage.seed, stage.mutation);
        let resident = Resident::new(me, place, settings, offset, world.clock(machine));
        Process::cell(resident, stage.mutation.map(Tamper::new))
    }

    /// The site at which the process on a machine joins.
    fn first_site(&self, machine: usize) -> Site {
        let at = self.machines.iter().position(|it| *it == machine).expect("a cell's machine");
        Site((at % 2) as u16)
    }

    /// Whether all cells live, have what they should have, and know each other and the maps.
    pub(super) fn are_well(&self, world: &World) -> bool {
        let Some(roster) = &self.roster else { return false };
        let layout = roster.layout();
        let knows = |machine: &usize| {
            let member = roster.members().any(|(process, _)| Some(process) == world.id(*machine));
            member && cell(world, *machine).is_some_and(|it| it.cell().layout() == layout)
        };
        layout.maps().count() == MAPS.len()
            && layout.cells().all(|(_, it)| world.alive(it.peer.id) && !it.arriving)
            && self.machines.iter().all(knows)
    }

    /// Counts what was seen inside cells.
    pub(super) fn count(&self, world: &mut World) {
        let states: Vec<_> = self.machines.iter().filter_map(|it| Some(cell(world, *it)?.status())).collect();
        for state in states {
            for (what, seen) in [
                ("hint delivered", state.hints.delivered),
                ("read repaired", state.repairs),
                ("stamp refused", state.refused.skewed),
                ("another layout refused", state.refused.layout),
            ] {
                if seen > 0 {
                    world.count(what);
                }
            }
        }
    }

    /// How many hints are kept anywhere.
    pub(super) fn hints(&self, world: &World) -> usize {
        let cells = self.machines.iter().filter_map(|machine| cell(world, *machine));
        cells.map(|cell| cell.status().hints.kept).sum()
    }

    /// The machines of cells by their sites.
    pub(super) fn by_site(&self) -> [Vec<usize>; 2] {
        let cells = self.roster.iter().flat_map(|roster| roster.layout().cells());
        let sites: BTreeMap<usize, Site> =
            cells.map(|(_, cell)| (cell.peer.id.node as usize, cell.site)).collect();
        let site = |machine: &usize| sites.get(machine).copied().unwrap_or(self.first_site(*machine));
        let (here, there) = self.machines.iter().copied().partition(|machine| site(machine) == Site(0));
        [here, there]
    }

    /// Whether nothing is lost if the process on `machine` dies: all other cells live and have what they should have, and
    /// no place is being given away.
    pub(super) fn can_do_without(&self, world: &World, machine: usize) -> bool {
        let Some(roster) = &self.roster else { return false };
        let mut others = roster.layout().cells().filter(|(_, it)| it.peer.id.node as usize != machine);
        roster.layout().is_serving()
            && !self.operator.is_replacing()
            && others.all(|(_, it)| world.alive(it.peer.id) && !it.arriving)
    }

    /// Whether the owners of all keys hold what they should in the end.
    pub(super) fn converged(&self, roster: &Roster, world: &World) -> Result<(), Violation> {
        let layout = roster.layout();
        for (kind, map) in MAPS.iter().filter_map(|kind| Some((kind, roster.map(kind.name)?))) {
            for name in self.check.keys(kind.name) {
                let key = Bytes::from(name.clone());
                let held = owners(layout, map, &key).into_iter().map(|number| {
                    let process = layout.cell(number).expect("an owner is a cell").peer.id;
                    let owner = cell(world, process.node as usize).filter(|_| world.alive(process));
                    let entry = owner.and_then(|owner| owner.cell().replica().entry(map, &key).cloned());
                    (number, entry.unwrap_or_default())
                });
                self.check.held(name, kind.name == LOOSE, &held.collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }
}

/// Few, so that owners differ by key.
const TOKENS: usize = 8;
