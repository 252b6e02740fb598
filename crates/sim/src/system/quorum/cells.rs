//! The cells: their start, their state, and their entries at the end.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_protocol::{
    Peer, ProcessId,
    partial::{CellNumber, Entry, JoinOptions, Resident, Roster, Site, tokens_of},
};
use quorate_world::Violation;

use super::{
    MapsWorkload, QuorumStage, QuorumWorld,
    keys::{key_of, part_of},
    process::TamperedCell,
    settings::{LOOSE, MAPS, MapKind, compares, forgets},
    tamper::Tamper,
    world::cell,
};
use crate::{check::quorum::owners, endpoint::node_of, mutation::Mutation, process::AnyProcess};

/// A key of a map, and the entries of its owners.
type KeyCopies<'a> = (&'a MapKind, &'a String, Vec<(CellNumber, Entry)>);

impl MapsWorkload {
    /// Creates the process of a cell that starts on `machine`.
    pub(super) fn resident(
        &mut self,
        stage: &mut QuorumStage,
        world: &mut QuorumWorld,
        machine: usize,
        id: ProcessId,
    ) -> AnyProcess {
        self.forget(machine);
        if let Some(former) = self.lives.insert(machine, id) {
            self.check.forgets(former);
        }
        let place = JoinOptions {
            name: format!("cell-{machine}"),
            site: self.first_site(machine),
            tokens: tokens_of(machine as u64, TOKENS),
        };
        let me = Peer { id, address: QuorumWorld::address(machine) };
        let offset = self.operator.offset(world, machine);
        let settings = self.settings.cell(self.place(machine), stage.seed, stage.mutation);
        let fresh = || Resident::new(me, place, settings, offset, world.clock(machine));
        let resident = self.comes_back(machine).unwrap_or_else(fresh);
        // Cells that never compare their keys forget no deletion, and do not replace a lost copy.
        let acts =
            |mutation: &Mutation| *mutation != Mutation::TombstoneCollectedEarly || compares(stage.seed);
        let tamper = stage.mutation.filter(acts).map(Tamper::new);
        AnyProcess::Maps(Box::new(node_of(TamperedCell::new(resident, tamper))))
    }

    /// Returns the site at which the process on a machine joins.
    fn first_site(&self, machine: usize) -> Site {
        Site((self.place(machine) % 2) as u16)
    }

    /// Returns the index of a machine among the machines of cells and spares.
    pub(super) fn place(&self, machine: usize) -> usize {
        self.machines.iter().position(|it| *it == machine).expect("a cell's machine")
    }

    /// Whether all cells are well, all operations have ended, and the replicas are in their final state.
    pub(super) fn has_come_right(&mut self, stage: &mut QuorumStage, world: &mut QuorumWorld) -> bool {
        self.are_well(world)
            && self.request_log.asked >= self.settings.operations
            && self.request_log.is_quiet()
            && self.hints(world) == 0
            && self.operator.clocks_are_right(world)
            && self.horizons_pass(stage, world)
            && self.read_everything(stage, world)
            && (!compares(stage.seed)
                || self.roster.as_ref().is_some_and(|it| self.are_equal(it, world, stage.seed)))
    }

    /// Whether the horizons of all cells have passed the time at which all operations had ended. Returns true
    /// without a check in seeds in which the horizons cannot pass this time.
    fn horizons_pass(&mut self, stage: &QuorumStage, world: &QuorumWorld) -> bool {
        let from = *self.quiet_at.get_or_insert(world.now());
        let is_past = |machine: &usize| {
            let status = cell(world, *machine).map(|it| it.cell().status());
            status.is_some_and(|status| status.number.is_none() || status.horizon.time > from.0)
        };
        !forgets(stage.seed) || self.machines.iter().all(is_past)
    }

    /// Whether all cells live, have all their entries, and know each other and the maps.
    pub(super) fn are_well(&self, world: &QuorumWorld) -> bool {
        let Some(roster) = &self.roster else { return false };
        let layout = roster.layout();
        let knows = |machine: &usize| {
            let member = roster.members().any(|(process, _)| Some(process) == world.id(*machine));
            member && cell(world, *machine).is_some_and(|it| it.cell().layout() == layout)
        };
        MAPS.iter().all(|kind| roster.map(kind.name).is_some())
            && layout.maps().count() == MAPS.len()
            && layout.cells().all(|(_, it)| world.alive(it.peer.id) && !it.arriving)
            && self.machines.iter().all(knows)
    }

    /// Counts events inside cells.
    pub(super) fn count(&self, world: &mut QuorumWorld) {
        let states: Vec<_> = self.machines.iter().filter_map(|it| Some(cell(world, *it)?.status())).collect();
        for state in states {
            for (what, seen) in [
                ("hint delivered", state.hints.delivered),
                ("read repaired", state.repairs),
                ("entry taken", state.compared.taken),
                ("entry given", state.compared.given),
                ("compared in part", state.compared.broken),
                ("forgotten", state.forgotten),
                ("stamp refused", state.refused.skewed),
                ("another layout refused", state.refused.layout),
            ] {
                if seen > 0 {
                    world.count(what);
                }
            }
        }
        if self.has_taken_in(world) {
            world.count("tallies taken in");
        }
    }

    /// Whether a cell holds a counter with a tally that has taken in other tallies.
    fn has_taken_in(&self, world: &QuorumWorld) -> bool {
        let held = self.roster.iter().flat_map(|roster| self.held(roster, world, true));
        let mut entries = held.flat_map(|(.., held)| held);
        entries.any(|(_, entry)| entry.tallies().any(|(_, tally)| tally.sole))
    }

    /// Returns the number of hints that all cells keep.
    pub(super) fn hints(&self, world: &QuorumWorld) -> usize {
        let cells = self.machines.iter().filter_map(|machine| cell(world, *machine));
        cells.map(|cell| cell.status().hints.kept).sum()
    }

    /// Returns the machines of cells, by site.
    pub(super) fn by_site(&self) -> [Vec<usize>; 2] {
        let cells = self.roster.iter().flat_map(|roster| roster.layout().cells());
        let sites: BTreeMap<usize, Site> =
            cells.map(|(_, cell)| (cell.peer.id.node as usize, cell.site)).collect();
        let site = |machine: &usize| sites.get(machine).copied().unwrap_or(self.first_site(*machine));
        let (here, there) = self.machines.iter().copied().partition(|machine| site(machine) == Site(0));
        [here, there]
    }

    /// Whether the system loses nothing if the process on `machine` dies: all other cells live and have all
    /// their entries, and the operator is giving no place away.
    pub(super) fn can_do_without(&self, world: &QuorumWorld, machine: usize) -> bool {
        let Some(roster) = &self.roster else { return false };
        let mut others = roster.layout().cells().filter(|(_, it)| it.peer.id.node as usize != machine);
        roster.layout().is_serving()
            && !self.operator.is_replacing()
            && others.all(|(_, it)| world.alive(it.peer.id) && !it.arriving)
    }

    /// Checks that the owners of all keys hold what they must at the end.
    pub(super) fn converged(&self, roster: &Roster, world: &QuorumWorld, seed: u64) -> Result<(), Violation> {
        for (kind, name, held) in self.held(roster, world, keeps_ended(seed)) {
            let equal = compares(seed) || kind.name == LOOSE;
            self.check.held(name, equal, &held)?;
            self.counters.held(name, equal, &held, world.now().0 as i64)?;
        }
        Ok(())
    }

    /// Whether all owners of each key hold equal entries, and no deletions if the cells of this seed forget
    /// them.
    fn are_equal(&self, roster: &Roster, world: &QuorumWorld, seed: u64) -> bool {
        self.held(roster, world, keeps_ended(seed)).all(|(_, _, held)| {
            let has_ended = |entry: &Entry| entry.is_delete() || entry.base().expires.is_some();
            let deleted = |entry: &Entry| *entry != Entry::nothing() && has_ended(entry);
            held.iter().all(|(_, entry)| *entry == held[0].1 && !(forgets(seed) && deleted(entry)))
        })
    }

    /// Returns the entries of each key's owners, with or without the writes that have `ended`.
    fn held<'a>(
        &'a self,
        roster: &'a Roster,
        world: &'a QuorumWorld,
        ended: bool,
    ) -> impl Iterator<Item = KeyCopies<'a>> {
        let layout = roster.layout();
        let maps = MAPS.iter().filter_map(|kind| Some((kind, roster.map(kind.name)?)));
        let names = |kind: &MapKind| {
            let keys = self.check.keys(kind.name).chain(self.check.expiring(kind.name));
            keys.chain(self.counters.names(kind.name))
        };
        let keys = maps.flat_map(move |(kind, map)| names(kind).map(move |name| (kind, map, name)));
        keys.map(move |(kind, map, name)| {
            let key = Bytes::from(key_of(name).0);
            let held = owners(layout, map, &key).into_iter().map(|number| {
                let process = layout.cell(number).expect("every owner of a key is a cell").peer.id;
                let owner = cell(world, process.node as usize).filter(|_| world.alive(process));
                let entry = owner.and_then(|owner| owner.cell().replica().entry(map, &key));
                let entry = part_of(name, entry.unwrap_or_default());
                (number, if ended { entry } else { without_ended(&entry) })
            });
            (kind, name, held.collect())
        })
    }
}

/// Whether the owners of a key must also agree on writes that have ended. They need not if one cell never
/// compares: while that cell was out of the layout, some of the other cells may have forgotten such writes.
/// Once that cell is back, no cell may forget the remaining ended writes.
fn keeps_ended(seed: u64) -> bool {
    !compares(seed) || forgets(seed)
}

/// Returns an entry without the writes that a cell may forget: deletions, and values that expire, together
/// with the tallies that such values end.
fn without_ended(entry: &Entry) -> Entry {
    let base = entry.base();
    let ends = base.expires.unwrap_or(0);
    let mut left = match &base.value {
        Some(value) if base.expires.is_none() => Entry::whole(base.stamp, Some(value.clone()), None),
        _ => Entry::nothing(),
    };
    for (name, register) in entry.fields().filter(|(_, register)| register.value.is_some()) {
        left.merge(&Entry::of_fields(register.stamp, [(name.clone(), register.value.clone())]));
    }
    for (begun, tally) in entry.tallies().filter(|(begun, _)| begun.time >= ends) {
        left.merge(&Entry::of_tally(begun, tally));
    }
    left
}

/// Tokens per cell: few, so that owners differ by key.
const TOKENS: usize = 8;
