//! The endpoint of a process of a domain, as production runs it: a role on a relay, in a node.

use bytes::Bytes;
use quorate_node::{Channel, Command, EndpointId, Event, NewEndpoint, Node, records_of};
use quorate_protocol::{
    DomainId, Protocol, Ticket,
    relay::{self, Relay, Relayed},
    wire::Wire,
};
use quorate_world::Violation;

/// The process of a role.
pub(crate) type RoleNode<P> = Node<Relay<P>>;

/// The domain of all processes, those of services included.
pub(crate) const DOMAIN: DomainId = DomainId(0xc1);

/// The channel of all roles of a domain, because the domain's routers order messages for all roles.
const HERE: Channel = Channel { domain: DOMAIN, endpoint: EndpointId::TABLES };

/// Makes the process of a role.
pub(crate) fn node_of<P: Relayed<Message: Wire>>(role: P) -> RoleNode<P> {
    Node::with(NewEndpoint::typed(HERE, Relay::new(role, relay::Settings::default())).vital())
}

/// Returns the endpoint of a process.
pub(crate) fn relay_of<P: Relayed<Message: Wire>>(node: &RoleNode<P>) -> Option<&Relay<P>> {
    node.typed(HERE)
}

/// Returns the role of a process.
pub(crate) fn role_of<P: Relayed<Message: Wire>>(node: &RoleNode<P>) -> Option<&P> {
    Some(relay_of(node)?.inner())
}

/// Wraps a command to a role for its process.
pub(crate) fn ask<P: Relayed<Message: Wire>>(command: P::Command) -> Command<Relay<P>> {
    Command::Typed(HERE, command)
}

/// Returns the event of the endpoint, if the event is not about the node. A node keeps its endpoint for its
/// whole life.
pub(crate) fn told<P: Protocol>(machine: usize, event: Event<P>) -> Result<Option<P::Event>, Violation> {
    match event {
        Event::Typed(_, event) => Ok(Some(event)),
        Event::PolicyMismatch { .. } => Ok(None),
        _ => Err(Violation::new("endpoints", format!("machine {machine} changed its endpoints"))),
    }
}

/// Returns the records of a role among those of its process.
pub(crate) fn records_of_role(records: Vec<(Ticket, Bytes)>) -> Vec<(Ticket, Bytes)> {
    records_of(HERE, records).expect("a process can read the records that it wrote")
}

/// Returns the records of a role among those of its process, which are all records from the first on.
pub(crate) fn log_of_role(records: Vec<Bytes>) -> Vec<Bytes> {
    let records = records.into_iter().zip(1..).map(|(record, ticket)| (Ticket(ticket), record)).collect();
    records_of_role(records).into_iter().map(|(_, record)| record).collect()
}
