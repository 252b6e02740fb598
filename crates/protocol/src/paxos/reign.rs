//! The state that a leader keeps for its reign: the progress of each follower, the rounds that confirm its
//! lead, and the snapshot that it sends.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::{Ballot, Slot};
use crate::{
    id::{Peer, ProcessId},
    seam::Ticket,
    time::Time,
};

/// A leader's state for its reign.
#[derive(Debug)]
pub(super) struct Reign {
    pub(super) ballot: Ballot,
    /// The other members, and the learners that may become members.
    pub(super) peers: BTreeMap<ProcessId, Progress>,
    /// The end of the log with which the reign began.
    pub(super) start: Slot,
    /// Whether the user knows that the reign is settled.
    pub(super) settled: bool,
    /// The rounds that ask whether the reign still stands.
    pub(super) rounds: Rounds,
    /// The last slot that this process itself has accepted durably.
    pub(super) own: Slot,
    /// The leader's own acceptances on their way to the disk.
    pub(super) tickets: VecDeque<(Ticket, Slot)>,
    /// Proposals that wait for a slot.
    pub(super) pending: VecDeque<Bytes>,
    pub(super) pending_bytes: usize,
    /// Maximum number of slots in flight.
    pub(super) window: usize,
    /// Size in bytes of each slot in flight.
    pub(super) open: VecDeque<usize>,
    pub(super) open_bytes: usize,
    /// The last chosen slot that the leader has announced to the followers.
    pub(super) announced: Slot,
    /// Time at which the leader tells the followers the last chosen slot, unless an earlier message carries
    /// it.
    pub(super) announce_at: Option<Time>,
    /// A snapshot that is being sent.
    pub(super) snapshot: Option<OutgoingSnapshot>,
    /// The slot of the snapshot that this process requested from its user, and the members after that slot.
    pub(super) asked: Option<(Slot, Vec<Peer>)>,
    /// Members that a command removes, each with the process that requested the removal.
    pub(super) removals: VecDeque<(ProcessId, ProcessId)>,
    /// Members that were voted out and are not dismissed yet, each with the slot of the change.
    pub(super) leaving: Vec<(Slot, ProcessId)>,
}

/// The leader's knowledge of one other process.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) peer: Peer,
    /// Whether the process has a vote.
    pub(super) member: bool,
    pub(super) phase: FollowerPhase,
    /// The slot up to which the process holds the leader's log.
    pub(super) acked: Slot,
    /// The slot up to which the process has learned the log.
    pub(super) chosen: Slot,
    /// The last round that the process confirmed.
    pub(super) confirmed: u64,
    /// Time since which the process seems to have failed.
    pub(super) suspected: Option<Time>,
    /// Whether the leader has heard of a younger incarnation of the process's node.
    pub(super) replaced: bool,
    /// The process whose command makes this process a member; `None` without such a command.
    pub(super) demanded: Option<ProcessId>,
}

/// The way in which a follower is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowerPhase {
    /// The follower's log is not known; a heartbeat asks for it.
    Probing,
    /// The leader has sent the follower the chosen part of the log through this slot, and sends more once the
    /// follower has learned that part.
    CatchingUp(Slot),
    /// The follower lacks more than the kept log, and waits for the user's snapshot.
    Waiting,
    /// The follower gets a snapshot. `sent` and `taken` count bytes if the snapshot is sent whole, and parts
    /// otherwise.
    Installing { slot: Slot, sent: u64, taken: u64 },
    /// The leader has sent the follower the whole log, and sends new slots at once.
    Streaming,
}

impl Progress {
    pub(super) fn new(peer: Peer, member: bool) -> Progress {
        Progress {
            peer,
            member,
            phase: FollowerPhase::Probing,
            acked: Slot::ZERO,
            chosen: Slot::ZERO,
            confirmed: 0,
            suspected: None,
            replaced: false,
            demanded: None,
        }
    }
}

/// The confirm rounds of one reign.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// The number of the last question.
    pub(super) asked: u64,
    /// The last question that belongs to a round.
    pub(super) covered: u64,
    /// The number of the last round begun.
    pub(super) last: u64,
    /// The rounds in progress, each with the last question that came before the round began.
    pub(super) open: VecDeque<(u64, u64)>,
}

/// A snapshot that is being sent.
#[derive(Debug)]
pub(super) struct OutgoingSnapshot {
    pub(super) slot: Slot,
    pub(super) members: Vec<Peer>,
    pub(super) content: SnapshotContent,
}

#[derive(Debug)]
pub(super) enum SnapshotContent {
    Whole(Bytes),
    Parts(OutgoingParts),
}

/// The parts of a snapshot that some receiver has not acknowledged.
#[derive(Debug, Default)]
pub(super) struct OutgoingParts {
    /// The number of the snapshot part at the front of `kept`.
    pub(super) first: u64,
    pub(super) kept: VecDeque<Bytes>,
    /// Whether the user has given the last part.
    pub(super) whole: bool,
    /// Whether this process has requested the next part from the user.
    pub(super) wanted: bool,
}

impl OutgoingParts {
    /// Returns the number of the next part that the user gives.
    pub(super) fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }
}
