//! What can be simulated: processes, their workload, and the checkers that watch them.

pub mod ecast;
pub mod paxos;
mod rooms;
mod routers;
pub mod table;

use std::time::Duration;

use quorate_protocol::{Input, Protocol};

/// How long a router that was removed stays, so that its last words arrive: only it may know that it is out.
pub(crate) const LINGER: Duration = Duration::from_millis(500);

/// What a process hands on to the protocol inside it.
pub(crate) fn child<P, C>(input: Input<P>, command: impl FnOnce(P::Command) -> C::Command) -> Input<C>
where
    P: Protocol,
    C: Protocol<Message = P::Message>,
{
    match input {
        Input::Receive { from, message } => Input::Receive { from, message },
        Input::Command(ask) => Input::Command(command(ask)),
        Input::Deadline => Input::Deadline,
        Input::Persisted(ticket) => Input::Persisted(ticket),
        Input::Linked { peer, session } => Input::Linked { peer, session },
        Input::Unlinked { peer } => Input::Unlinked { peer },
        Input::Drained => Input::Drained,
    }
}
