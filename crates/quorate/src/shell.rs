//! The shell of a process: it runs a node on a reactor, searches for other processes, and notices the node's
//! end.
//!
//! ```text
//!   callers        ── commands ──▶ protocol thread ── events ──▶ host
//!   seeking thread ── Seeds ─────▶                       (who listens at the known addresses)
//!   watching thread ◀── a panic ──
//! ```
//!
//! Every process of this crate has this shell. Each capability adds its protocol, the host that takes the
//! protocol's events, and the state that protocol and host share.
//!
//! | capability | its node |
//! |---|---|
//! | tables (`process`) | one endpoint, with the disk of a router or of a storage process |
//! | groups (`group/process.rs`) | one endpoint |
//! | maps (`maps/process.rs`) | one endpoint, with a door for clients, and with the disk of a cell |
//! | services (`service/process`) | endpoints of services, which come and go, with the disk of a host |
//!
//! A `Caller` of a service (`service/caller.rs`) has no shell, because the calling thread itself drives its
//! node.

use std::{
    io,
    net::TcpListener,
    sync::{Mutex, OnceLock},
    thread,
};

use crossbeam_channel::{Sender, bounded};
use quorate_node::{EndpointId, Node};
use quorate_protocol::{Peer, Protocol, Ticket, wire::Wire};
use quorate_runtime::{Config, Disk, Handle, Host, Port, StartError, door::ClientLimits};

use crate::{
    end::{End, EndReporter},
    lock::lock,
    seek::Search,
};

/// A running node.
pub(crate) struct Shell<H: Protocol<Message: Wire>> {
    node: Handle<Node<H>>,
    /// The sender of kicks, which make the search look at once. The search ends when this sender is dropped.
    kicks: Mutex<Option<Sender<()>>>,
}

impl<H> Shell<H>
where
    H: Protocol<Message: Wire + Send, Command: Send, Event: Send> + Send + 'static,
{
    /// Starts a node with one endpoint in the domain of `config`, and puts the endpoint's port into `shared`.
    /// The host's threads may need the port before it is there, and then wait for it. The node may have a
    /// disk (with the ticket of the first record on it), and a door for clients.
    pub(crate) fn start(
        protocol: H,
        host: impl Host<H> + 'static,
        config: Config,
        disk: Option<(Disk, Ticket)>,
        door: Option<(TcpListener, ClientLimits)>,
        shared: &OnceLock<Port<H>>,
    ) -> Result<Shell<H>, StartError> {
        let port = Port::alone_with(EndpointId::TABLES, protocol, host, config, disk, door)?;
        assert!(shared.set(port.clone()).is_ok(), "a process has one port");
        Ok(Shell::of(port.node().clone()))
    }

    /// Starts a node whose endpoints come and go, and puts its handle into `shared`.
    #[cfg(feature = "services")]
    pub(crate) fn start_node(
        node: Node<H>,
        host: impl Host<Node<H>> + 'static,
        config: Config,
        disk: Option<Disk>,
        shared: &OnceLock<Handle<Node<H>>>,
    ) -> Result<Shell<H>, StartError> {
        let handle = quorate_runtime::Reactor::start_with(node, host, config, disk, None)?;
        assert!(shared.set(handle.clone()).is_ok(), "a process has one node");
        Ok(Shell::of(handle))
    }

    fn of(node: Handle<Node<H>>) -> Shell<H> {
        Shell { node, kicks: Mutex::default() }
    }

    /// Searches for other processes, and passes the processes of each round to `found`. The search repeats,
    /// so `found` may lose some of them.
    pub(crate) fn seek(
        &self,
        search: Search,
        found: impl FnMut(Vec<Peer>) + Send + 'static,
    ) -> io::Result<()> {
        let (kick, kicks) = bounded(1);
        *lock(&self.kicks) = Some(kick);
        search.go_on(kicks, found)
    }

    /// Makes the search begin a round at once.
    #[cfg(feature = "services")]
    pub(crate) fn kick(&self) {
        if let Some(kicks) = &*lock(&self.kicks) {
            // If the channel is full, the search is about to begin a round.
            let _ = kicks.try_send(());
        }
    }

    /// Reports the end of the process if the protocol thread panics.
    pub(crate) fn watch(&self, end: EndReporter) -> io::Result<()> {
        let watched = self.node.clone();
        let watch = move || {
            if watched.wait().is_err() {
                end.report(End::Broken(String::from("the protocol thread panicked")));
            }
        };
        thread::Builder::new().name(String::from("watch")).spawn(watch).map(drop)
    }

    /// Stops the threads.
    pub(crate) fn stop(&self) {
        drop(lock(&self.kicks).take());
        // If a thread has panicked, it has printed its panic.
        let _ = self.node.stop();
    }
}

/// Returns a function that takes the processes of a search, and passes them to an endpoint as the command
/// that `seeds` makes.
pub(crate) fn seeds_to<H>(
    port: Port<H>,
    seeds: fn(Vec<Peer>) -> H::Command,
) -> impl FnMut(Vec<Peer>) + Send + 'static
where
    H: Protocol<Message: Wire + Send, Command: Send> + Send + 'static,
{
    move |found| {
        if !found.is_empty() {
            // The search repeats, so losing one command does no harm.
            let _ = port.try_command(seeds(found));
        }
    }
}
