//! The shell of a process: one protocol on a reactor of its own, and the thread that seeks routers for it.
//!
//! ```text
//!   callers        ── commands ──▶ protocol thread ── events ──▶ host
//!   seeking thread ── Seeds ─────▶                       (who listens at the routers' addresses)
//!   watching thread ◀── a panic ──
//! ```
//!
//! A capability brings the protocol, the host that takes its events, and the state that both share.

use std::{
    io,
    sync::{Mutex, OnceLock},
    thread,
};

use crossbeam_channel::{Sender, bounded};
use quorate_node::EndpointId;
use quorate_protocol::{Peer, Protocol, Ticket, wire::Wire};
use quorate_runtime::{Config, Disk, Host, Port, StartError};

use crate::{lock::lock, seek::Search};

/// A running protocol.
pub(crate) struct Shell<P: Protocol<Message: Wire>> {
    port: Port<P>,
    /// A sender without messages: the search for routers ends when it is dropped.
    seeks: Mutex<Option<Sender<()>>>,
}

impl<P> Shell<P>
where
    P: Protocol<Message: Wire + Send, Command: Send, Event: Send> + Send + 'static,
{
    /// Starts the protocol in the domain of `config`, on its disk if it has one, and hands out its port. The
    /// host's threads may have to wait for that.
    pub(crate) fn start(
        protocol: P,
        host: impl Host<P> + 'static,
        config: Config,
        disk: Option<(Disk, Ticket)>,
        shared: &OnceLock<Port<P>>,
    ) -> Result<Shell<P>, StartError> {
        let port = match disk {
            None => Port::alone(EndpointId::TABLES, protocol, host, config)?,
            Some(disk) => Port::alone_on_disk(EndpointId::TABLES, protocol, host, config, disk)?,
        };
        assert!(shared.set(port.clone()).is_ok(), "a process has one port");
        Ok(Shell { port, seeks: Mutex::default() })
    }

    /// Seeks routers, and passes those that it finds to the protocol, as the command that `seeds` makes.
    pub(crate) fn seek(&self, search: Search, seeds: fn(Vec<Peer>) -> P::Command) -> io::Result<()> {
        let (kick, kicks) = bounded(0);
        *lock(&self.seeks) = Some(kick);
        let port = self.port.clone();
        search.go_on(kicks, move |found| {
            if !found.is_empty() {
                // The search repeats, so a lost command does no harm.
                let _ = port.try_command(seeds(found));
            }
        })
    }

    /// Calls `panicked` if the protocol thread panics.
    pub(crate) fn watch(&self, panicked: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let watched = self.port.node().clone();
        let watch = move || {
            if watched.wait().is_err() {
                panicked();
            }
        };
        thread::Builder::new().name(String::from("watch")).spawn(watch).map(drop)
    }

    /// Returns the port for commands.
    pub(crate) fn port(&self) -> &Port<P> {
        &self.port
    }

    /// Stops the threads.
    pub(crate) fn stop(&self) {
        drop(lock(&self.seeks).take());
        // The thread that panicked has printed its panic.
        let _ = self.port.node().stop();
    }
}
