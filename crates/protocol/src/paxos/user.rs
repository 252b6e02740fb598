//! Between the log and its user: how it is set, what it is asked, what it tells.

use std::fmt;

use bytes::Bytes;

#[cfg(doc)]
use super::Paxos;
use super::{Ballot, Change, ChangeRefusal, Slot};
use crate::{
    detector,
    id::{Peer, ProcessId},
    time::Duration,
};

/// How a router set behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// When a router is suspected.
    pub detector: detector::Settings,
    /// How many routers there should be.
    pub wanted: usize,
    /// How long a router stays suspected before it is removed.
    pub remove_after: Duration,
    /// The same for one that said that it stops for a moment.
    pub away_max: Duration,
    /// No slot holds more bytes of payload, unless one payload alone does.
    pub batch_bytes_max: usize,
    /// The window never closes further than to this many slots in flight.
    pub window_min: usize,
    /// The window never opens further than to this many slots in flight.
    pub window_max: usize,
    /// No slot is opened while this many bytes are in flight.
    pub in_flight_bytes_max: usize,
    /// Proposals that wait for a slot beyond this many bytes are dropped, and their proposer told.
    pub pending_bytes_max: usize,
    /// How much chosen log is kept for those that lag.
    pub log_bytes_kept: usize,
    /// How much of a snapshot or of a long log goes into one message.
    pub chunk_bytes: usize,
    /// On a disk: once about so many bytes of records have been written since the last checkpoint, another one is made.
    /// `None`: there is no disk.
    pub checkpoint_bytes: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            detector: detector::Settings::default(),
            wanted: 3,
            remove_after: Duration::from_secs(1),
            away_max: Duration::from_secs(30),
            batch_bytes_max: 256 << 10,
            window_min: 2,
            window_max: 32,
            in_flight_bytes_max: 8 << 20,
            pending_bytes_max: 256 << 20,
            log_bytes_kept: 64 << 20,
            chunk_bytes: 256 << 10,
            checkpoint_bytes: None,
        }
    }
}

/// Commands of the user of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Put this into the log. An *attempt*: it is lost when no leader is known, or with a leader or a link to it. Within
    /// one reign and one link session, what one process proposes is learned in the order in which it was proposed. Until
    /// it has learned its proposal the proposer proposes again upon every [`Event::Leader`] that names one, and tells
    /// repetitions apart itself (rule S3).
    Propose {
        /// The bytes; opaque here.
        payload: Bytes,
    },
    /// Put this into the log, in this reign or not at all: it rests on what this process knew when it led in `ballot`. Never
    /// forwarded, and never proposed in another reign. While the process leads in `ballot` it is learned behind
    /// [`Event::Reign`]'s `start`, in the order in which it was proposed. [`Event::Refused`] says that it never will be; after
    /// [`Event::Deposed`] it may still be learned as a part of another leader's log.
    ProposeIn {
        /// The reign.
        ballot: Ballot,
        /// The bytes; opaque here.
        payload: Bytes,
    },
    /// Find out whether this process still led in `ballot` after this was asked. Questions are numbered in rising order. Ends
    /// in [`Event::Confirmed`] or [`Event::Deposed`].
    Confirm {
        /// The reign.
        ballot: Ballot,
        /// The last question's number.
        through: u64,
    },
    /// Make this process, which must be running and joining, a router, beyond the wanted number too. Ends in
    /// [`Event::Members`] or [`Event::ChangeRefused`].
    AddRouter(Peer),
    /// Remove this router, which may be this one. Ends in [`Event::Members`], [`Event::Removed`] or
    /// [`Event::ChangeRefused`].
    RemoveRouter(ProcessId),
    /// This process is about to stop for a moment. If it leads it has another router lead, which lacks nothing, and stands for
    /// leader no more. The others do not vote it out for [`Settings::away_max`] if it has a disk to come back from.
    Pause,
    /// Go on as the only member: an operator says that a majority of the others is gone for good. To be given only when
    /// [`Paxos::can_reform`] allows it.
    Reform,
    /// Begin a log as the only member, as a founder does: an operator says that all routers are gone for good. To be given
    /// only when [`Paxos::can_found`] allows it.
    Found,
    /// The answer to [`Event::SnapshotWanted`]: in the same turn, or in a later one. With a disk, a later one is announced
    /// ([`Command::SnapshotLater`]).
    Snapshot {
        /// The slot that was told.
        slot: Slot,
        /// The state behind it.
        state: Bytes,
    },
    /// Another answer to [`Event::SnapshotWanted`]: the user gathers its state as it is behind this slot, and gives it whole in a
    /// later turn ([`Command::Snapshot`]). Unless the slot is the last one learned, it is asked again; so it is when it took so
    /// long that the log behind it is gone.
    SnapshotLater {
        /// The last slot that the state holds.
        slot: Slot,
    },
    /// Another answer to [`Event::SnapshotWanted`], if there is no disk: the state as it is behind this slot comes in parts. The
    /// user answers when it likes. Unless the slot is the last one learned, it is asked again.
    SnapshotBegins {
        /// The last slot that the state holds.
        slot: Slot,
    },
    /// The answer to [`Event::SnapshotPartWanted`], when the user likes. Parts of the snapshot that was begun last alone are
    /// given: two may have one slot.
    SnapshotPart {
        /// The slot of the snapshot.
        slot: Slot,
        /// The bytes behind those given before.
        bytes: Bytes,
        /// Whether these are the last.
        last: bool,
    },
    /// More processes to ask for admission, while joining. Any other router looks for a link to each for a moment: if a later
    /// generation has begun without it, and has gone on to other members, nobody else would tell it.
    Seeds(Vec<Peer>),
}

/// Events for the user of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A slot is chosen. In the order of slots, each exactly once, all from the installed snapshot on. The payloads may
    /// be none.
    Learned {
        /// Which.
        slot: Slot,
        /// What it holds.
        payloads: Vec<Bytes>,
    },
    /// Who leads now, as far as this process knows. Told again when the link to the leader was renewed, or the leader
    /// had no room: propose again what was not learned. Told to members only.
    Leader(Option<ProcessId>),
    /// This process leads from now on. Slots up to `start` come from earlier reigns; each one behind holds proposals of this
    /// reign alone, or is a change of the members.
    Reign {
        /// Its ballot.
        ballot: Ballot,
        /// The end of the log with which it began.
        start: Slot,
    },
    /// All that the reign began with is chosen and learned, and a majority of the members accepted it in this ballot: both
    /// phases are complete (003 §VI.B, *New leader*).
    Settled {
        /// The reign.
        ballot: Ballot,
    },
    /// This process does not lead in this ballot any more, or did not when it was asked to [`Command::Confirm`]. Comes before
    /// anything is learned of a later reign. Proposals that were not learned may be a part of another leader's log.
    Deposed {
        /// The reign that ended.
        ballot: Ballot,
    },
    /// A [`Command::ProposeIn`] came to nothing: this process does not lead in the ballot, or has no room. In the latter case
    /// it would take smaller ones; its user must not propose what rests on this one.
    Refused {
        /// The reign that it named.
        ballot: Ballot,
        /// The proposal.
        payload: Bytes,
    },
    /// When the questions up to `through` were asked, no later reign had chosen anything.
    Confirmed {
        /// The reign.
        ballot: Ballot,
        /// The last question's number.
        through: u64,
    },
    /// The leader is reached through this router from now on; `None`: directly, or not at all.
    Detour(Option<ProcessId>),
    /// The state is wanted as it is behind this slot, which is the last one learned: for others, or for the disk.
    SnapshotWanted {
        /// The last slot learned.
        slot: Slot,
    },
    /// The next part of the snapshot that was begun is wanted.
    SnapshotPartWanted {
        /// The slot of the snapshot.
        slot: Slot,
        /// About how many bytes are wanted.
        bytes: usize,
    },
    /// The snapshot that was begun is needed no more. Nothing of it is after [`Event::Deposed`] either.
    SnapshotUnwanted {
        /// Its slot.
        slot: Slot,
    },
    /// A part of a state to come. It takes the place of nothing before [`Event::Install`]. Parts that came before number 0 are
    /// void.
    InstallPart {
        /// The slot of the snapshot.
        slot: Slot,
        /// Counts the parts, from 0.
        number: u64,
        /// As they were given to [`Command::SnapshotPart`] somewhere.
        bytes: Bytes,
    },
    /// Replace the state; the next slot learned is the one behind.
    Install {
        /// The slot behind which the state is this one.
        slot: Slot,
        /// As it was given to [`Command::Snapshot`] somewhere; empty if the parts told before are the state.
        state: Bytes,
    },
    /// From the next slot on these are the members. Comes right behind the `Learned` or `Install` that brought it.
    Members(Vec<Peer>),
    /// This process was a router and is one no more. It takes no further part; only a new incarnation may join.
    Removed,
    /// A change of the members will not be.
    ChangeRefused {
        /// What.
        change: Change,
        /// Why.
        reason: ChangeRefusal,
    },
}

/// What a router is in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// Asks for admission, and votes on nothing.
    Joining,
    /// Follows a leader, or waits for one.
    Follower,
    /// Would lead.
    Candidate,
    /// Leads.
    Leader,
    /// Was a member, and takes no further part.
    Removed,
}

impl fmt::Display for StateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            StateKind::Joining => "joining",
            StateKind::Follower => "follower",
            StateKind::Candidate => "candidate",
            StateKind::Leader => "leader",
            StateKind::Removed => "removed",
        })
    }
}

/// A router as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What it is.
    pub state: StateKind,
    /// The leader, if known.
    pub leader: Option<ProcessId>,
    /// The highest ballot promised.
    pub promised: Ballot,
    /// The ballot in which the log was accepted.
    pub accepted: Ballot,
    /// The last slot chosen and learned.
    pub chosen: Slot,
    /// The last slot of the log.
    pub last: Slot,
    /// The newest log of which a part is known for sure, by its ballot, and how far: who of several has the greatest knows
    /// everything that they can have learned.
    pub known: (Ballot, Slot),
    /// The members behind the last slot learned.
    pub members: Vec<Peer>,
    /// The members that an open change would make. It is by a majority of these that a leader is elected.
    pub members_open: Option<Vec<Peer>>,
    /// Members that the leader suspects.
    pub suspected: Vec<ProcessId>,
    /// Slots that may be in flight, when leading.
    pub window: usize,
    /// Bytes that wait for a slot, when leading.
    pub pending_bytes: usize,
}
