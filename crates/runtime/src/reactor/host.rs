//! The host of a protocol.

use quorate_protocol::{DomainId, ProcessId, Protocol, Time};

use crate::{
    discover::{DomainAnswer, DomainState},
    disk::DiskError,
    door::Door,
};

/// Receives a protocol's events. The reactor calls the host on the protocol thread, so the host must not
/// block. The host must not use [`Handle::command`](super::Handle::command), which may wait for this very
/// thread. [`Handle::try_command`](super::Handle::try_command) does not wait.
pub trait Host<P: Protocol>: Send {
    /// Receives an event of the protocol.
    fn event(&mut self, event: P::Event, now: Time);

    /// Returns a command that the host has made of the event just received, if it has. The protocol gets the
    /// command in the same turn. In this way a host may carry out short work at once, for which waking
    /// another thread would take longer than the work.
    fn completed(&mut self) -> Option<P::Command> {
        None
    }

    /// Completes a queued command just before the protocol receives it. A host may add all requests that have
    /// gathered since the command was queued, so that a busy protocol gets many requests at once.
    fn complete_command(&mut self, command: &mut P::Command) {
        let _ = command;
    }

    /// Ends a batch of events: called at the end of a turn in which [`Host::event`] was called. A host may
    /// pass on the turn's events together.
    fn batch_ended(&mut self, now: Time) {
        let _ = now;
    }

    /// Ends a turn: called at the end of every turn. A host may read the protocol's counters here.
    fn turn_ended(&mut self, protocol: &P) {
        let _ = protocol;
    }

    /// Returns the state of this process in one of its domains, as the answer to processes that ask
    /// ([`discover`](crate::discover)).
    fn answer(&self, protocol: &P, domain: DomainId) -> DomainAnswer {
        let _ = domain;
        DomainAnswer { presence: DomainState::Settled, pass: protocol.policy().pass() }
    }

    /// Handles the failure to link a peer, because one side's [`Policy`](quorate_protocol::Policy) does not
    /// admit the other. `ours` and `theirs` are the passes that the two sides showed.
    fn policy_mismatch(&mut self, peer: ProcessId, ours: &[u8], theirs: &[u8]) {
        let _ = (peer, ours, theirs);
    }

    /// Returns the door for clients, if the reactor was started with one
    /// ([`Reactor::start_with`](super::Reactor::start_with)).
    fn door(&mut self) -> Option<&mut dyn Door<P>> {
        None
    }

    /// Handles the end of the protocol thread after the disk has failed. The process should end too.
    /// Everything that it has reported as durable is durable.
    fn disk_failed(&mut self, error: &DiskError) {
        let _ = error;
    }
}
