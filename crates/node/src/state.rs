//! The links and sessions of a node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use quorate_protocol::{MulticastAddress, ProcessId, Session, Time};

use crate::{records::Records, session::SessionState};

/// An endpoint's sessions that are open or wanted, by peer.
pub(crate) type SessionTable = BTreeMap<ProcessId, SessionState>;

/// State that all endpoints of a process share.
#[derive(Debug, Default)]
pub(crate) struct NodeState {
    pub(super) peers: BTreeMap<ProcessId, Peer>,
    /// The number of the newest session.
    pub(super) number: u32,
    /// The times at which slots ask peers for sessions again.
    pub(super) retries: BTreeSet<(Time, usize, ProcessId)>,
    /// Events that the slots have not received yet.
    pub(crate) session_events: VecDeque<(usize, SessionEvent)>,
    pub(crate) records: Records,
    /// The multicast addresses to which endpoints listen, each with the endpoint's slot in this process.
    /// Endpoints of two domains may listen to the same address.
    pub(super) multicast_listeners: BTreeSet<(MulticastAddress, usize)>,
}

/// A process with which endpoints have or want sessions.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) link: Link,
    /// Number of slots that reach for the peer.
    pub(super) wanted: usize,
    /// Whether the node has requested a link to the peer.
    pub(super) reached: bool,
    /// The slots that have or want a session with the peer.
    pub(super) slots: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Link {
    #[default]
    Unknown,
    Down,
    Up,
}

#[derive(Debug)]
pub(crate) enum SessionEvent {
    Linked(ProcessId, Session),
    Unlinked(ProcessId),
    /// The endpoint's policy does not admit the peer, which showed this pass.
    PolicyMismatch(ProcessId, Bytes),
}
