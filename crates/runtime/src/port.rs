//! One home endpoint of a node that runs, for those who ask it for something.

use std::{fmt, marker::PhantomData, net::TcpListener};

use bytes::Bytes;
use quorate_node::{Channel, Command, EndpointId, Event, Newcomer, Node};
use quorate_protocol::{DomainId, Protocol, Ticket, Time, wire::Wire};
use tracing::warn;

use crate::{
    config::{Config, StartError},
    discover::{Answer, Presence},
    disk::{Disk, DiskError},
    door::{ClientId, ClientLimits, Clients, Door, Flow},
    dropped::Dropped,
    reactor::{Handle, Host, Reactor, Stopped, Untaken},
};

/// A home endpoint of a running node, for any thread: a [`Handle`] whose commands are the endpoint's own.
pub struct Port<H: Protocol<Message: Wire>> {
    handle: Handle<Node<H>>,
    channel: Channel,
}

impl<H: Protocol<Message: Wire>> Port<H> {
    /// The endpoint at a channel.
    pub fn new(handle: Handle<Node<H>>, channel: Channel) -> Self {
        Port { handle, channel }
    }

    /// The node.
    pub fn node(&self) -> &Handle<Node<H>> {
        &self.handle
    }

    /// Hands a command over; waits while too many others do.
    pub fn command(&self, command: H::Command) -> Result<(), Stopped<H::Command>> {
        let sent = self.handle.command(Command::Home(self.channel, command));
        sent.map_err(|Stopped(command)| Stopped(own(command)))
    }

    /// Hands a command over unless too many others wait; never blocks.
    pub fn try_command(&self, command: H::Command) -> Result<(), Untaken<H::Command>> {
        let sent = self.handle.try_command(Command::Home(self.channel, command));
        sent.map_err(|untaken| match untaken {
            Untaken::Full(command) => Untaken::Full(own(command)),
            Untaken::Stopped(command) => Untaken::Stopped(own(command)),
        })
    }
}

impl<H> Port<H>
where
    H: Protocol<Message: Wire + Send, Command: Send, Event: Send> + Send + 'static,
{
    /// Starts a process with this endpoint in its domain, without which it does not go on.
    pub fn alone(
        endpoint: EndpointId,
        protocol: H,
        host: impl Host<H> + 'static,
        config: Config,
    ) -> Result<Self, StartError> {
        let (newcomer, host, channel) = alone(endpoint, protocol, host, &config);
        Ok(Port::new(Reactor::start(Node::with(newcomer), host, config)?, channel))
    }

    /// The same for an endpoint that has a disk. It was made from the records that were found there, of which `first` is the
    /// first.
    pub fn alone_on_disk(
        endpoint: EndpointId,
        protocol: H,
        host: impl Host<H> + 'static,
        config: Config,
        (disk, first): (Disk, Ticket),
    ) -> Result<Self, StartError> {
        let (newcomer, host, channel) = alone(endpoint, protocol, host, &config);
        let handle = Reactor::start_on_disk(Node::with(newcomer.recovered(first)), host, config, disk)?;
        Ok(Port::new(handle, channel))
    }

    /// The same with a door for clients, which connect to `listener`, and perhaps on a disk. The host has to have a door
    /// ([`Host::door`]).
    pub fn alone_with_door(
        endpoint: EndpointId,
        protocol: H,
        host: impl Host<H> + 'static,
        config: Config,
        door: (TcpListener, ClientLimits),
        disk: Option<(Disk, Ticket)>,
    ) -> Result<Self, StartError> {
        let (newcomer, host, channel) = alone(endpoint, protocol, host, &config);
        let (disk, newcomer) = match disk {
            Some((disk, first)) => (Some(disk), newcomer.recovered(first)),
            None => (None, newcomer),
        };
        let handle = Reactor::start_with_door(Node::with(newcomer), host, config, door, disk)?;
        Ok(Port::new(handle, channel))
    }
}

/// The endpoint as the only one of a node, and the node's host.
fn alone<P: Protocol<Message: Wire>, H: Host<P>>(
    endpoint: EndpointId,
    protocol: P,
    host: H,
    config: &Config,
) -> (Newcomer<P>, Alone<P, H>, Channel) {
    let channel = Channel { domain: config.domain, endpoint };
    let dropped = Dropped::new(&config.metrics);
    (
        Newcomer::home(channel, protocol).vital(),
        Alone { host, channel, dropped, protocol: PhantomData },
        channel,
    )
}

/// The host of a node with one endpoint, which has a host of its own.
struct Alone<P, H> {
    host: H,
    channel: Channel,
    dropped: Dropped,
    protocol: PhantomData<fn(&P)>,
}

impl<P: Protocol<Message: Wire>, H: Host<P>> Host<Node<P>> for Alone<P, H> {
    fn event(&mut self, event: Event<P>, now: Time) {
        match event {
            Event::Home(_, event) => self.host.event(event, now),
            Event::Stranger { peer, ours, theirs, .. } => self.host.stranger(peer, &ours, &theirs),
            Event::Malformed { peer, error, .. } => {
                warn!("{peer} sent what is no message ({error}): the session with it is over");
            }
            _ => unreachable!("nobody adds an endpoint or takes this one away, and a port asks nobody else"),
        }
    }

    fn fill(&mut self, command: &mut Command<P>) {
        if let Command::Home(_, command) = command {
            self.host.fill(command);
        }
    }

    fn drained(&mut self, now: Time) {
        self.host.drained(now);
    }

    fn turned(&mut self, node: &Node<P>) {
        self.dropped.follow(node.figures());
    }

    fn answer(&self, node: &Node<P>, domain: DomainId) -> Answer {
        match node.home(self.channel).filter(|_| domain == self.channel.domain) {
            Some(protocol) => self.host.answer(protocol, domain),
            None => Answer { presence: Presence::Joining, pass: Bytes::new() },
        }
    }

    fn door(&mut self) -> Option<&mut dyn Door<Node<P>>> {
        self.host.door().is_some().then_some(self as _)
    }

    fn disk_failed(&mut self, error: &DiskError) {
        self.host.disk_failed(error);
    }
}

impl<P: Protocol<Message: Wire>, H: Host<P>> Alone<P, H> {
    fn own_door(&mut self) -> &mut dyn Door<P> {
        self.host.door().expect("a host that has a door keeps it")
    }
}

impl<P: Protocol<Message: Wire>, H: Host<P>> Door<Node<P>> for Alone<P, H> {
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
        self.own_door().take(client, input, now, &mut |command| ask(Command::Home(channel, command)))
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

/// What comes back is what was handed over.
fn own<H: Protocol>(command: Command<H>) -> H::Command {
    match command {
        Command::Home(_, command) => command,
        _ => unreachable!("a port sends nothing else"),
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
