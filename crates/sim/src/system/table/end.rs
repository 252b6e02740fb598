//! The end of a run of a whole cluster: the conditions of success, and the explanation of a failure.

use quorate_protocol::{ProcessId, Role, rubberband::StorageState};
use quorate_roles::tables::Process;

use super::{TableStage, TableWorkload, TableWorld, known::newest_config, world::role};
use crate::stage::Workload;

impl TableWorkload {
    /// Whether all processes have joined, and everything is at rest.
    pub(super) fn is_settled(&mut self, stage: &TableStage, world: &mut TableWorld) -> bool {
        let at_end = |id: &ProcessId| match role(world, id.node as usize) {
            Some(Process::Router(router)) => router.position().0 == self.order.end(),
            _ => false,
        };
        let config = &self.config;
        let active = |id| world.alive(id) && config.storage.get(&id) == Some(&StorageState::Active);
        let ring = config.ring.len() == self.settings.storage && config.ring.values().copied().all(active);
        let members = (self.storage.iter().chain(&self.supers).chain(&self.gateways))
            .all(|&machine| world.id(machine).is_some_and(|id| config.members.contains_key(&id)));
        let well = stage.routers.members.iter().all(at_end)
            && ring
            && members
            && self.owed(stage, world).is_ok()
            && self.accounts.is_idle(world);
        // All processes are well; one last read of all rows follows, and everything must be at rest.
        well && self.accounts.ask_last(world) && self.is_at_rest(world)
    }

    /// Returns the state of all processes.
    pub(super) fn describe(&self, world: &TableWorld) -> String {
        let config = newest_config(world).unwrap_or(&self.config);
        let processes: Vec<String> = (0..world.machines())
            .map(|machine| match role(world, machine) {
                Some(Process::Router(router)) => {
                    format!("router {machine}: position {}, {:?}", router.position(), router.log().status())
                }
                Some(Process::Storage(storage)) => format!("storage {machine}: {:?}", storage.status()),
                Some(Process::Super(superior)) => format!(
                    "super {machine}: configuration version {:?}, suspected processes {:?}",
                    superior.config().map(|config| config.version),
                    superior.suspected().collect::<Vec<_>>()
                ),
                Some(Process::Client(client)) => format!(
                    "gateway {machine}: {} requests without an answer, {:?} messages without an outcome, \
                     delivered up to position {}",
                    client.outstanding(),
                    client.member().outstanding(),
                    client.member().delivered()
                ),
                None => format!("machine {machine} is down"),
            })
            .collect();
        format!(
            "{}; the order ends at position {}; the ring is {:?}; the states of the storage processes are \
             {:?}; {}",
            self.accounts.waits(),
            self.order.end(),
            config.ring,
            config.storage,
            processes.join("; ")
        )
    }

    /// Whether every replica has executed all its ordered messages.
    fn is_at_rest(&self, world: &TableWorld) -> bool {
        let executed = |machine: &usize| match role(world, *machine) {
            Some(Process::Storage(storage)) => {
                let status = storage.status();
                status.queued == 0 && status.executed == status.delivered && !status.importing
            }
            _ => true,
        };
        self.working.is_empty()
            && self.storage.iter().all(executed)
            && self.config.role(Role::Storage).count() >= self.settings.storage
    }
}
