//! A handle to one typed endpoint of a running node.

use std::{fmt, marker::PhantomData, net::TcpListener};

use bytes::Bytes;
use quorate_node::{Channel, Command, EndpointId, Event, NewEndpoint, Node};
use quorate_protocol::{DomainId, Protocol, Ticket, Time, wire::Wire};
use tracing::warn;

use crate::{
    config::{Config, StartError},
    discover::{DomainAnswer, DomainState},
    disk::{Disk, DiskError},
    door::{ClientId, ClientLimits, Clients, Door, Flow},
    node_metrics::NodeMetrics,
    reactor::{CommandError, Handle, Host, Reactor, Stopped},
};

/// A typed endpoint of a running node, usable from any thread: a [`Handle`] with the endpoint's own commands.
pub struct Port<H: Protocol<Message: Wire>> {
    handle: Handle<Node<H>>,
    channel: Channel,
}

impl<H: Protocol<Message: Wire>> Port<H> {
    /// Makes a handle to the endpoint at channel `channel`.
    pub fn new(handle: Handle<Node<H>>, channel: Channel) -> Self {
        Port { handle, channel }
    }

    /// Returns the handle to the whole node.
    pub fn node(&self) -> &Handle<Node<H>> {
        &self.handle
    }

    /// Queues a command. Waits while the queue is full.
    pub fn command(&self, command: H::Command) -> Result<(), Stopped<H::Command>> {
        let sent = self.handle.command(Command::Typed(self.channel, command));
        sent.map_err(|Stopped(command)| Stopped(own(command)))
    }

    /// Queues a command unless the queue is full. Never blocks.
    pub fn try_command(&self, command: H::Command) -> Result<(), CommandError<H::Command>> {
        let sent = self.handle.try_command(Command::Typed(self.channel, command));
        sent.map_err(|command_error| match command_error {
            CommandError::Full(command) => CommandError::Full(own(command)),
            CommandError::Stopped(command) => CommandError::Stopped(own(command)),
        })
    }
}

impl<H> Port<H>
where
    H: Protocol<Message: Wire + Send, Command: Send, Event: Send> + Send + 'static,
{
    /// Starts a process with only this endpoint, in the domain of `config`. If the endpoint panics, the
    /// process ends.
    pub fn alone(
        endpoint: EndpointId,
        protocol: H,
        host: impl Host<H> + 'static,
        config: Config,
    ) -> Result<Self, StartError> {
        Port::alone_with(endpoint, protocol, host, config, None, None)
    }

    /// Starts a process like [`Port::alone`], with a disk and a door for clients if it has them
    /// ([`Reactor::start_with`]). The caller has made the endpoint from the records on the disk, of which the
    /// ticket names the first.
    pub fn alone_with(
        endpoint: EndpointId,
        protocol: H,
        host: impl Host<H> + 'static,
        config: Config,
        disk: Option<(Disk, Ticket)>,
        door: Option<(TcpListener, ClientLimits)>,
    ) -> Result<Self, StartError> {
        let (new_endpoint, host, channel) = alone(endpoint, protocol, host, &config);
        let (disk, new_endpoint) = match disk {
            Some((disk, first)) => (Some(disk), new_endpoint.recovered(first)),
            None => (None, new_endpoint),
        };
        let handle = Reactor::start_with(Node::with(new_endpoint), host, config, disk, door)?;
        Ok(Port::new(handle, channel))
    }
}

/// Wraps the endpoint as the only one of a node, and its host as the node's host.
fn alone<P: Protocol<Message: Wire>, H: Host<P>>(
    endpoint: EndpointId,
    protocol: P,
    host: H,
    config: &Config,
) -> (NewEndpoint<P>, SingleEndpointHost<P, H>, Channel) {
    let channel = Channel { domain: config.domain, endpoint };
    let dropped = NodeMetrics::new(&config.metrics);
    (
        NewEndpoint::typed(channel, protocol).vital(),
        SingleEndpointHost { host, channel, dropped, protocol: PhantomData },
        channel,
    )
}

/// The host of a node with one endpoint. It passes every event to the endpoint's host.
struct SingleEndpointHost<P, H> {
    host: H,
    channel: Channel,
    dropped: NodeMetrics,
    protocol: PhantomData<fn(&P)>,
}

impl<P: Protocol<Message: Wire>, H: Host<P>> Host<Node<P>> for SingleEndpointHost<P, H> {
    fn event(&mut self, event: Event<P>, now: Time) {
        match event {
            Event::Typed(_, event) => self.host.event(event, now),
            Event::PolicyMismatch { peer, ours, theirs, .. } => {
                self.host.policy_mismatch(peer, &ours, &theirs)
            }
            Event::Malformed { peer, error, .. } => {
                warn!(
                    "process {peer} sent an invalid message ({error}), so the session with that process ends"
                );
            }
            _ => unreachable!("no other event arrives, because a port has one endpoint, which stays"),
        }
    }

    fn completed(&mut self) -> Option<Command<P>> {
        self.host.completed().map(|command| Command::Typed(self.channel, command))
    }

    fn complete_command(&mut self, command: &mut Command<P>) {
        if let Command::Typed(_, command) = command {
            self.host.complete_command(command);
        }
    }

    fn batch_ended(&mut self, now: Time) {
        self.host.batch_ended(now);
    }

    fn turn_ended(&mut self, node: &Node<P>) {
        self.dropped.follow(node.counters());
    }

    fn answer(&self, node: &Node<P>, domain: DomainId) -> DomainAnswer {
        match node.typed(self.channel).filter(|_| domain == self.channel.domain) {
            Some(protocol) => self.host.answer(protocol, domain),
            None => DomainAnswer { presence: DomainState::Joining, pass: Bytes::new() },
        }
    }

    fn door(&mut self) -> Option<&mut dyn Door<Node<P>>> {
        self.host.door().is_some().then_some(self as _)
    }

    fn disk_failed(&mut self, error: &DiskError) {
        self.host.disk_failed(error);
    }
}

impl<P: Protocol<Message: Wire>, H: Host<P>> SingleEndpointHost<P, H> {
    fn own_door(&mut self) -> &mut dyn Door<P> {
        self.host.door().expect("a host that has a door keeps it")
    }
}

impl<P: Protocol<Message: Wire>, H: Host<P>> Door<Node<P>> for SingleEndpointHost<P, H> {
    fn opened(&mut self, client: ClientId, now: Time) {
        self.own_door().opened(client, now);
    }

    fn take(
        &mut self,
        client: ClientId,
        input: &[u8],
        now: Time,
        ask: &mut dyn FnMut(Command<P>),
    ) -> (usize, Flow) {
        let channel = self.channel;
        self.own_door().take(client, input, now, &mut |command| ask(Command::Typed(channel, command)))
    }

    fn give(&mut self, clients: &mut Clients) {
        self.own_door().give(clients);
    }

    fn closed(&mut self, client: ClientId) {
        self.own_door().closed(client);
    }

    fn crowded(&mut self) -> &'static [u8] {
        self.own_door().crowded()
    }
}

/// Unwraps a command that the port has wrapped.
fn own<H: Protocol>(command: Command<H>) -> H::Command {
    match command {
        Command::Typed(_, command) => command,
        _ => unreachable!("a port sends no other message"),
    }
}

impl<H: Protocol<Message: Wire>> Clone for Port<H> {
    fn clone(&self) -> Self {
        Port { handle: self.handle.clone(), channel: self.channel }
    }
}

impl<H: Protocol<Message: Wire>> fmt::Debug for Port<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("channel", &self.channel).finish_non_exhaustive()
    }
}
