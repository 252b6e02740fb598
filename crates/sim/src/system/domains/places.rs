//! The roles of machines in the two domains.

use quorate_node::{Channel, EndpointId, Node};
use quorate_protocol::{DomainId, Peer};

use crate::system::ecast::process::Process;

pub(super) type World = quorate_world::World<Node<Process>>;

/// Returns the domain that a machine routes.
pub(super) fn routed(machine: usize) -> usize {
    machine / ROUTERS
}

/// Returns the domain that a machine is a member of.
pub(super) fn joined(machine: usize) -> usize {
    1 - routed(machine)
}

pub(super) fn routers(world: &World, domain: usize) -> Vec<Peer> {
    let machines = (0..world.machines()).filter(|machine| routed(*machine) == domain);
    machines.filter_map(|at| Some(Peer { id: world.id(at)?, address: World::address(at) })).collect()
}

pub(super) fn channel(domain: usize) -> Channel {
    Channel { domain: DomainId(domain as u128), endpoint: EndpointId::TABLES }
}

pub(super) const ROUTERS: usize = 3;
