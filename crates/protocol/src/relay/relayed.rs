//! The view that a relay has of the protocol above it.

use crate::{id::ProcessId, seam::Protocol, time::Time};

/// A protocol whose links may be relayed.
pub trait Relayed: Protocol {
    /// Whether this process is a router.
    fn is_router(&self) -> bool;

    /// Returns the routers that the process knows, in the order in which they should relay.
    fn routers(&self) -> Vec<ProcessId>;

    /// Whether a router may relay the link to this process. Otherwise that link is direct or not at all.
    fn may_relay_to(&self, _peer: ProcessId) -> bool {
        true
    }

    /// Notes `last`, the time at which this process last heard any of its [`routers`](Relayed::routers) on a
    /// direct link. While such a link stands, the relay calls this method at each
    /// [interval](super::Settings::interval). The protocol needs the time because a link may stand for ten
    /// seconds without a message, and no router can relay for a process that reaches no router.
    fn routers_heard(&mut self, last: Time) {
        let _ = last;
    }

    /// Lets the protocol put the relay's counters into an event that it is about to emit.
    fn add_counters(event: &mut Self::Event, counters: Counters) {
        let _ = (event, counters);
    }
}

/// Counters of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of standing sessions of this process.
    pub sessions: u64,
    /// Number of sessions of this process that have begun.
    pub begun: u64,
    /// Number of pairs for which this router relays.
    pub pairs: u64,
    /// Bytes relayed.
    pub carried_bytes: u64,
    /// Number of invalid messages that were refused.
    pub refused: u64,
}

/// A protocol that wraps another one, for example to delay or to change messages. Its links are relayed like
/// the links of the protocol within it ([`Relayed`]).
pub trait Wrapper: Protocol {
    /// The protocol within.
    type Inner: Relayed;

    /// Returns the protocol within.
    fn inner(&self) -> &Self::Inner;

    /// Returns the protocol within.
    fn inner_mut(&mut self) -> &mut Self::Inner;
}

impl<W: Wrapper> Relayed for W {
    fn is_router(&self) -> bool {
        self.inner().is_router()
    }

    fn routers(&self) -> Vec<ProcessId> {
        self.inner().routers()
    }

    fn may_relay_to(&self, peer: ProcessId) -> bool {
        self.inner().may_relay_to(peer)
    }

    fn routers_heard(&mut self, last: Time) {
        self.inner_mut().routers_heard(last);
    }
}

/// Sorts routers into the order in which they should relay. The leader comes last, because it has the most
/// work.
pub fn leader_last(
    routers: impl IntoIterator<Item = ProcessId>,
    leader: Option<ProcessId>,
) -> Vec<ProcessId> {
    let mut routers: Vec<ProcessId> = routers.into_iter().collect();
    routers.sort_by_key(|router| (Some(*router) == leader, *router));
    routers
}
