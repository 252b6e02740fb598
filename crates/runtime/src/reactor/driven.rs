//! A reactor without a thread of its own: its owner runs the turns.
//!
//! A blocking client waits for its answer all the same. If it drives the reactor meanwhile, no message changes threads on its way,
//! which costs more than many a request.

use quorate_protocol::{Duration, Protocol, wire::Wire};

use crossbeam_channel::Sender;

use super::{Host, Reactor, Untaken, untaken};
use crate::{
    clock,
    config::{Config, StartError},
};

/// A reactor that does nothing except while its owner has it do so ([`turn`](Driven::turn)). What peers send meanwhile waits in
/// sockets; a peer that waits for long may take it for dead.
pub struct Driven<P, H>
where
    P: Protocol,
    P::Message: Wire,
    H: Host<P>,
{
    reactor: Reactor<P, H>,
    commands: Sender<P::Command>,
}

impl<P, H> Driven<P, H>
where
    P: Protocol,
    P::Message: Wire,
    H: Host<P>,
{
    /// Listens where the configuration says, if anywhere. Nothing is remembered when it ends.
    pub fn start(protocol: P, host: H, config: Config) -> Result<Self, StartError> {
        let (reactor, commands, _) = Reactor::new(protocol, host, config, None, None)?;
        Ok(Driven { reactor, commands })
    }

    /// Hands a command to the next turn.
    pub fn command(&mut self, command: P::Command) -> Result<(), Untaken<P::Command>> {
        self.commands.try_send(command).map_err(untaken)
    }

    /// Waits until there is something to do, at most for so long, and does it.
    pub fn turn(&mut self, patience: Duration) {
        let mut now = clock::now();
        let timeout = self.reactor.timeout(now).map_or(patience, |timeout| timeout.min(patience));
        self.reactor.wait_and_turn(Some(timeout), &mut now);
    }

    /// The host that was told what happened.
    pub fn host(&mut self) -> &mut H {
        &mut self.reactor.host
    }
}

impl<P, H> Drop for Driven<P, H>
where
    P: Protocol,
    P::Message: Wire,
    H: Host<P>,
{
    fn drop(&mut self) {
        self.reactor.links.flush_all();
    }
}
