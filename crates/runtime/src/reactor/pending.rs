//! Outputs of a protocol that its reactor has not passed on yet.

use std::collections::VecDeque;

use quorate_protocol::{Protocol, Ticket};

use super::durable::{Durable, SendCounts};

/// Output of the protocol that the loop has not passed on yet.
pub(super) struct PendingOutputs<P: Protocol> {
    /// Messages of this process to itself.
    pub(super) to_self: VecDeque<P::Message>,
    pub(super) ticket: Ticket,
    pub(super) persisted: Option<Ticket>,
    /// The journal, if the process has a disk.
    pub(super) durable: Option<Durable<P::Message>>,
    pub(super) has_emitted: bool,
    /// Commands that the host has made of events ([`Host::completed`](super::Host::completed)). Bounded by
    /// the events of one turn.
    pub(super) completed: VecDeque<P::Command>,
    pub(super) send_counts: SendCounts,
}
