//! A reactor without a thread of its own: its owner runs the turns.
//!
//! Such a reactor suits a blocking client, which waits for its answer anyway. If the client's thread runs the
//! reactor meanwhile, no message has to pass between threads, which would cost more than many a request
//! itself.

use quorate_protocol::{Duration, Protocol, wire::Wire};

use crossbeam_channel::Sender;

use super::{CommandError, Host, Reactor, command_error};
use crate::{
    clock,
    config::{Config, StartError},
};

/// A reactor that works only while its owner calls [`turn`](Driven::turn). Between calls, messages of peers
/// wait in the sockets. If a peer's message waits for long, the peer may take this process for dead.
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
    /// Listens on the configured addresses, if any. The process keeps nothing on disk.
    pub fn start(protocol: P, host: H, config: Config) -> Result<Self, StartError> {
        let (reactor, commands, _) = Reactor::new(protocol, host, config, None, None)?;
        Ok(Driven { reactor, commands })
    }

    /// Queues a command for the next turn.
    pub fn command(&mut self, command: P::Command) -> Result<(), CommandError<P::Command>> {
        self.commands.try_send(command).map_err(command_error)
    }

    /// Waits for work, at most `patience`, and then runs one turn.
    pub fn turn(&mut self, patience: Duration) {
        let mut now = clock::now();
        let timeout = self.reactor.timeout(now).map_or(patience, |timeout| timeout.min(patience));
        self.reactor.wait_and_turn(Some(timeout), &mut now);
    }

    /// Returns the host, which has received the protocol's events.
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
