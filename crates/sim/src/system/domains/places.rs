//! The roles of machines in the two domains. The workload commands its processes by domain, and sets its
//! timers on the stage.

use quorate_node::{Channel, Command, EndpointId, Node};
use quorate_protocol::{DomainId, Peer};

use crate::{
    stage,
    system::ecast::process::{EcastCommand, Process},
};

pub(super) type DomainsStage = stage::Stage<DomainsTimer>;
pub(super) type DomainsWorld = quorate_world::World<Node<Process>>;

pub(crate) enum DomainsTimer {
    Enter,
    Seed,
    Speak,
}

/// Returns the domain that a machine routes.
pub(super) fn routed(machine: usize) -> usize {
    machine / ROUTERS
}

/// Returns the domain that a machine is a member of.
pub(super) fn joined(machine: usize) -> usize {
    1 - routed(machine)
}

pub(super) fn routers(world: &DomainsWorld, domain: usize) -> Vec<Peer> {
    let machines = (0..world.machines()).filter(|machine| routed(*machine) == domain);
    machines.filter_map(|at| Some(Peer { id: world.id(at)?, address: DomainsWorld::address(at) })).collect()
}

/// Commands the process of a machine in a domain.
pub(super) fn ask(world: &mut DomainsWorld, machine: usize, domain: usize, command: EcastCommand) {
    world.command(machine, Command::Typed(channel(domain), command));
}

pub(super) fn channel(domain: usize) -> Channel {
    Channel { domain: DomainId(domain as u128), endpoint: EndpointId::TABLES }
}

pub(super) const ROUTERS: usize = 3;
