//! The facts about holders of rows that the check of holders needs from outside.

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::{
    ProcessId,
    rubberband::{Config, KeptRows, StorageState},
};
use quorate_roles::tables::Process;
use quorate_world::Violation;

use super::{TableWorkload, TableWorld, twin::TableTwin, world::role};
use crate::check::{
    RoutingCheck,
    holders::{Keys, MemberFacts},
};

/// Builds [`ProcessFacts`] from the fields of the workload, so that the check of holders can be borrowed
/// mutably.
macro_rules! known {
    ($workload:expr) => {
        ProcessFacts {
            twin: &$workload.order.twin,
            check: &$workload.order.check,
            keepers: &$workload.keepers,
        }
    };
}

pub(super) use known;

/// The processes as the order shows them.
pub(super) struct ProcessFacts<'a> {
    pub(super) twin: &'a TableTwin,
    pub(super) check: &'a RoutingCheck,
    pub(super) keepers: &'a BTreeMap<ProcessId, KeptRows>,
}

impl ProcessFacts<'_> {
    /// Returns the position up to which a keeper, or a process about to become one, has all rows.
    fn through(&self, process: ProcessId) -> Option<u64> {
        self.keepers.get(&process).map(|keeps| keeps.through.0).or_else(|| self.twin.rows_through(process))
    }
}

impl MemberFacts for ProcessFacts<'_> {
    fn is_member(&self, process: ProcessId) -> bool {
        // Routers do not deliver messages for the kept ranges to a keeper.
        self.twin.has_member(process) && self.through(process).is_none()
    }

    fn delivered(&self, process: ProcessId) -> u64 {
        self.through(process).unwrap_or_else(|| self.check.delivered_last(process))
    }
}

impl TableWorkload {
    pub(super) fn known(&self) -> ProcessFacts<'_> {
        known!(self)
    }

    /// Whether the cluster could continue without the process on `machine`: every range would keep a complete
    /// replica.
    pub(super) fn survives_without(&self, world: &TableWorld, machine: usize) -> bool {
        if self.supers.contains(&machine) {
            return true;
        }
        let Some(me) = world.id(machine) else { return false };
        // A process that is down and whose disk is damaged holds no rows, although no process has noticed
        // the damage yet.
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

    /// Notes the processes that the latest ordered messages made complete.
    pub(super) fn hold(&mut self, world: &TableWorld) {
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

    /// Notes that the process on `machine` was killed.
    pub(super) fn killed(&mut self, world: &mut TableWorld, machine: usize, migrating: bool) {
        let Some(&id) = self.present.get(&machine) else { return };
        self.remains.remove(&machine);
        world.count("storage killed");
        if migrating {
            world.count("storage killed during a migration");
        }
        // A process with a disk comes back with its rows, so the check of holders counts only processes
        // without a disk as dead.
        if !self.has_disks() {
            self.died(world, id);
        }
    }

    /// Notes the ranges that are lost because their last holder is no longer a member, or because an
    /// operator declared it lost.
    pub(super) fn lost_ranges(
        &mut self,
        world: &mut TableWorld,
        concerns: impl Fn(Keys, &BTreeSet<ProcessId>) -> bool,
    ) -> Result<(), Violation> {
        let known = known!(self);
        for keys in self.holders.lost_ranges(concerns, &self.removed, &known)? {
            world.count("range lost as its last holder was removed");
            self.accounts.lose(keys, world.now());
        }
        Ok(())
    }

    /// Notes the ranges that are lost because a storage process was killed for good.
    pub(super) fn died(&mut self, world: &mut TableWorld, id: ProcessId) {
        let known = known!(self);
        for keys in self.holders.crashed(id, world.now(), &known) {
            world.count("range lost");
            self.lost_with(id, &format!("{keys:x?}"));
            self.accounts.lose(keys, world.now());
        }
    }
}

/// Returns the newest configuration that any process knows.
pub(super) fn newest_config(world: &TableWorld) -> Option<&Config> {
    let roles = (0..world.machines()).filter_map(|machine| role(world, machine));
    let configs = roles.filter_map(|role| match role {
        Process::Router(router) => Some(&*router.config().tables),
        Process::Storage(storage) => storage.config(),
        Process::Super(superior) => superior.config(),
        Process::Client(client) => client.config(),
    });
    configs.max_by_key(|config| config.version)
}
