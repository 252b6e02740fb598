//! The content of pulses, the messages by which members tell each other about their contacts, and the record
//! that a router keeps of them ([`contacts`](super::contacts)).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Ballot;
use crate::{id::ProcessId, time::Time};

/// A member's description of itself, which it sends to the other members at each tick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulse {
    /// Number of the sender's pulse.
    pub beat: u64,
    /// The highest round that the sender has heard of.
    pub round: u64,
    /// Number of members with which the sender talks, itself included.
    pub reach: u32,
    /// Whether the sender leads, or hears the leader that it follows.
    pub led: bool,
    /// The sender's path to the newest leader that the sender knows.
    pub way: Option<LeaderRoute>,
    /// The sender's knowledge of each other member.
    pub contacts: Vec<Contact>,
}

/// A member's knowledge of another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// The other member.
    pub process: ProcessId,
    /// The number of the newest pulse of that member that the sender knows, from that member itself or from
    /// another member.
    pub beat: u64,
    /// Whether the sender hears the other member.
    pub heard: bool,
}

/// A way to a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderRoute {
    /// The ballot of the leader's reign.
    pub ballot: Ballot,
    /// The next router on the way to the leader.
    pub next: ProcessId,
    /// Number of links on the way; zero at the leader itself.
    pub hops: u32,
}

/// A router's knowledge of the contacts of all other members.
#[derive(Debug, Default)]
pub(super) struct Contacts {
    pub(super) beat: u64,
    pub(super) known: BTreeMap<ProcessId, KnownMember>,
    /// Time at which this process last talked with the leader that it follows.
    pub(super) led_at: Option<Time>,
    /// The way to the leader, while this process cannot reach the leader directly.
    pub(super) detour: Option<LeaderRoute>,
    /// Processes that count this process as a member but that this process does not know, each with the time
    /// of its last pulse.
    pub(super) strangers: BTreeMap<ProcessId, Time>,
}

#[derive(Debug)]
pub(super) struct KnownMember {
    pub(super) beat: u64,
    /// Time at which the number of the member's newest known pulse last grew.
    pub(super) alive_at: Time,
    pub(super) hears_us: bool,
    pub(super) reach: u32,
    pub(super) led: bool,
    pub(super) way: Option<LeaderRoute>,
}
