//! Knowledge of holders of rows, apart from the holders.

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::{
    ProcessId,
    rubberband::{Config, Keeps, StorageState},
};
use quorate_tables::Process;
use quorate_world::Violation;

use super::{Town, World, citizen::role, twin::TableTwin};
use crate::check::{
    RoutingCheck,
    holders::{Keys, Standings},
};

/// Knowledge of holders, apart from the holders.
macro_rules! known {
    ($town:expr) => {
        Known { twin: &$town.order.twin, check: &$town.order.check, keepers: &$town.keepers }
    };
}

pub(super) use known;

/// The order's view of processes.
pub(super) struct Known<'a> {
    pub(super) twin: &'a TableTwin,
    pub(super) check: &'a RoutingCheck,
    pub(super) keepers: &'a BTreeMap<ProcessId, Keeps>,
}

impl Known<'_> {
    /// Up to where a keeper, or one that is about to be one, has all rows.
    fn through(&self, process: ProcessId) -> Option<u64> {
        self.keepers.get(&process).map(|keeps| keeps.through.0).or_else(|| self.twin.behind(process))
    }
}

impl Standings for Known<'_> {
    fn is_member(&self, process: ProcessId) -> bool {
        // What is ordered for the ranges of a keeper does not come to it.
        self.twin.has_member(process) && self.through(process).is_none()
    }

    fn delivered(&self, process: ProcessId) -> u64 {
        self.through(process).unwrap_or_else(|| self.check.delivered_last(process))
    }
}

impl Town {
    pub(super) fn known(&self) -> Known<'_> {
        known!(self)
    }

    /// Whether the cluster could go on without the process on `machine`: every range would keep a complete replica.
    pub(super) fn survives_without(&self, world: &World, machine: usize) -> bool {
        if self.supers.contains(&machine) {
            return true;
        }
        let Some(me) = world.id(machine) else { return false };
        // One that is down, and whose disk has rotted, holds nothing any more, though nobody knows yet.
        let holds = |keys| {
            let holders = self.holders.holders(keys, &self.known()).into_iter();
            holders.filter(|id| world.remains(*id)).collect::<Vec<_>>()
        };
        if self.holders.ranges().any(|keys| holds(keys) == [me]) {
            return false;
        }
        let newest = newest_config(world).unwrap_or(&self.config);
        let complete = |id: &ProcessId| {
            *id != me
                && world.alive(*id)
                && world.remains(*id)
                && newest.storage.get(id) == Some(&StorageState::Active)
        };
        !self.storage.contains(&machine)
            || newest
                .segments()
                .iter()
                .filter(|segment| segment.replicas.contains(&me))
                .all(|segment| segment.replicas.iter().any(complete))
    }

    /// Notes who has become complete by what was ordered.
    pub(super) fn hold(&mut self, world: &World) {
        let at = self.order.twin.controls();
        if std::mem::replace(&mut self.held_at, at) != at {
            for process in self.present.values().filter(|it| self.order.check.has_departed(**it)) {
                self.removed.entry(*process).or_insert(world.now());
            }
            for (keys, complete) in self.order.twin.complete() {
                for holder in complete.into_iter().filter(|&holder| world.alive(holder)) {
                    self.holders.holds(keys, holder);
                }
            }
        }
    }

    /// The process on `machine` was killed.
    pub(super) fn killed(&mut self, world: &mut World, machine: usize, migrating: bool) {
        let Some(&id) = self.present.get(&machine) else { return };
        self.remains.remove(&machine);
        world.count("storage killed");
        if migrating {
            world.count("storage killed during a migration");
        }
        // What is on its disk comes back.
        if !self.has_disks() {
            self.died(world, id);
        }
    }

    /// These ranges will be as whole as they are now: their last holder is out, or an operator gave it up.
    pub(super) fn bereft(
        &mut self,
        world: &mut World,
        concerns: impl Fn(Keys, &BTreeSet<ProcessId>) -> bool,
    ) -> Result<(), Violation> {
        let known = known!(self);
        for keys in self.holders.bereft(concerns, &self.removed, &known)? {
            world.count("range lost as its last holder was removed");
            self.bank.lose(keys, world.now());
        }
        Ok(())
    }

    /// A storage process was killed.
    pub(super) fn died(&mut self, world: &mut World, id: ProcessId) {
        let known = known!(self);
        for keys in self.holders.crashed(id, world.now(), &known) {
            world.count("range lost");
            self.lost_with(id, &format!("{keys:x?}"));
            self.bank.lose(keys, world.now());
        }
    }
}

/// The newest configuration that any process knows.
pub(super) fn newest_config(world: &World) -> Option<&Config> {
    let roles = (0..world.machines()).filter_map(|machine| role(world, machine));
    let configs = roles.filter_map(|role| match role {
        Process::Router(router) => Some(&*router.config().tables),
        Process::Storage(storage) => storage.config(),
        Process::Super(superior) => superior.config(),
        Process::Client(client) => client.config(),
    });
    configs.max_by_key(|config| config.version)
}
