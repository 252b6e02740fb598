//! How a run ends: when all is well, why it is not, and what is judged then.

use std::time::Duration;

use quorate_protocol::rubberband::{Role, StorageState};
use quorate_tables::Node;

use super::{
    Town, changes,
    citizen::{Citizen, node},
    newest_config,
};
use quorate_world::{Violation, World};

use crate::run::Stage;

impl Stage<Citizen> for Town {
    fn heal(&mut self, world: &mut World<Citizen>) {
        self.nemesis = None;
        self.healed = true;
        for machine in 0..world.machines() {
            world.restart_after(machine, Duration::ZERO);
        }
    }

    fn settled(&mut self, world: &mut World<Citizen>) -> bool {
        let routers = self.routers.members.len() == self.settings.routers
            && self.routers.members.iter().all(|&id| match node(world, id.node as usize) {
                Some(Node::Router(router)) => world.alive(id) && router.position().0 == self.order.end(),
                _ => false,
            });
        let config = &self.config;
        let ring = config.ring.len() == self.settings.storage
            && config
                .ring
                .values()
                .all(|&id| world.alive(id) && config.storage.get(&id) == Some(&StorageState::Active));
        let members = (self.storage.iter().chain(&self.supers).chain(&self.gateways))
            .all(|&machine| world.id(machine).is_some_and(|id| config.members.contains_key(&id)));
        let judged = self.order.check.finish(|id| world.alive(id)).is_ok();
        if !(routers && ring && members && judged && self.bank.is_idle(world)) {
            return false;
        }
        // With everything well, one last look at all rows, and everything at rest.
        self.bank.ask_last(world) && self.is_at_rest(world)
    }

    fn unsettled(&self, world: &World<Citizen>) -> Result<&'static str, Violation> {
        if let Some(lost) = self.routers.lost(world, &changes(world)) {
            return Ok(lost);
        }
        let config = newest_config(world).unwrap_or(&self.config);
        let processes: Vec<String> = (0..world.machines())
            .map(|machine| match node(world, machine) {
                Some(Node::Router(router)) => format!(
                    "router {machine}: at {}, {}, leader {:?}",
                    router.position(),
                    router.log().status().role,
                    router.log().leader()
                ),
                Some(Node::Storage(storage)) => format!("storage {machine}: {:?}", storage.status()),
                Some(Node::Super(superior)) => format!(
                    "super {machine}: version {:?}, suspects {:?}",
                    superior.config().map(|config| config.version),
                    superior.suspected().collect::<Vec<_>>()
                ),
                Some(Node::Client(client)) => format!(
                    "gateway {machine}: {} outstanding, {:?} in the order, delivered {}",
                    client.outstanding(),
                    client.member().outstanding(),
                    client.member().delivered()
                ),
                None => format!("machine {machine}: down"),
            })
            .collect();
        let what = format!(
            "{}; the order ends at {}; routers {:?}; ring {:?}; states {:?}; {}",
            self.bank.waits(),
            self.order.end(),
            self.routers.members,
            config.ring,
            config.storage,
            processes.join("; ")
        );
        Err(Violation::new("liveness", what))
    }

    fn judge_stopped(&mut self) -> Result<(), Violation> {
        self.bank.judge_histories()
    }

    fn judge(&mut self, world: &mut World<Citizen>) -> Result<(), Violation> {
        self.order.check.finish(|id| world.alive(id))?;
        for _ in 0..self.replicas.compared.min(1_000_000) {
            world.count("replicas compared");
        }
        self.bank.judge()
    }
}

impl Town {
    /// Whether every replica has executed all that was ordered for it.
    fn is_at_rest(&self, world: &World<Citizen>) -> bool {
        let executed = |machine: &usize| match node(world, *machine) {
            Some(Node::Storage(storage)) => {
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
