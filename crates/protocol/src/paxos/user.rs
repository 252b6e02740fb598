//! The interface between the log and its user: settings, commands, events, status.

use std::fmt;

use bytes::Bytes;

use super::{Ballot, Change, ChangeRefusal, Slot};
use crate::{
    detector,
    id::{Peer, ProcessId},
    time::Duration,
};

/// Settings of a set of routers.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Settings of the detector, which decide when a router is suspected.
    pub detector: detector::Settings,
    /// Number of routers that the domain should have.
    pub wanted: usize,
    /// Time that a router stays suspected before it is removed.
    pub remove_after: Duration,
    /// Time that a suspected router stays a member if it has announced that it stops before a restart.
    pub away_max: Duration,
    /// Maximum number of payload bytes in a slot. A single larger payload is allowed.
    pub batch_bytes_max: usize,
    /// Minimum size of the window, in slots in flight.
    pub window_min: usize,
    /// Maximum size of the window, in slots in flight.
    pub window_max: usize,
    /// The leader opens no new slot while this number of bytes, or more, is in flight.
    pub in_flight_bytes_max: usize,
    /// Maximum size in bytes of the proposals that wait for a slot. The leader refuses proposals beyond that
    /// size, and their proposer learns of the refusal. A single larger proposal is taken if no other proposal
    /// waits.
    pub pending_bytes_max: usize,
    /// Maximum size in bytes of the chosen log that is kept for members that lag.
    pub log_bytes_kept: usize,
    /// Maximum size in bytes of the part of a snapshot, or of a long log, in one message.
    pub chunk_bytes: usize,
    /// Time for which the leader may hold back the news that slots are chosen, so that its next message to
    /// the followers carries the news. Followers need the news only to forget log and to be ready to lead.
    pub chosen_after: Duration,
    /// Approximate bytes of records after which the next checkpoint is made; `None` without a disk.
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
            chosen_after: Duration::ZERO,
            checkpoint_bytes: None,
        }
    }
}

impl Settings {
    /// The usual [`chosen_after`](Settings::chosen_after) of a router among other work: longer than an update
    /// takes, so that a single client's next update carries the news.
    pub const CHOSEN_AFTER: Duration = Duration::from_millis(1);
}

/// Commands of the user of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Puts a payload into the log. This is an *attempt*: it fails if no leader is known, or if the leader or
    /// the link to it fails. Within one reign and one link session, one process's proposals are learned in
    /// the order of proposing. The proposer proposes again at every [`Event::Leader`] that names a leader,
    /// until it has learned the proposal, and recognises repetitions itself (rule S3).
    Propose {
        /// The bytes, opaque here.
        payload: Bytes,
    },
    /// Puts a payload into the log in this reign, or not at all, because it depends on this process's
    /// knowledge as leader in `ballot`. The payload is never forwarded, and never proposed in another reign.
    /// While the process leads in `ballot`, such payloads are learned after [`Event::Reign`]'s `start`, in
    /// the order of proposing. [`Event::Refused`] reports that the payload will never be learned. After
    /// [`Event::Deposed`] it may still be learned as a part of another leader's log.
    ProposeIn {
        /// The reign.
        ballot: Ballot,
        /// The bytes, opaque here.
        payload: Bytes,
    },
    /// Asks whether a later reign than `ballot` had chosen anything when the user asked. Questions have
    /// rising numbers. Ends in [`Event::Confirmed`] or [`Event::Deposed`].
    Confirm {
        /// The reign.
        ballot: Ballot,
        /// The number of the last question.
        through: u64,
    },
    /// Makes a running, joining process a router, even beyond the wanted number. Ends in [`Event::Members`]
    /// or [`Event::ChangeRefused`].
    AddRouter(Peer),
    /// Removes this router, which may be the process itself. Ends in [`Event::Members`], [`Event::Removed`]
    /// or [`Event::ChangeRefused`].
    RemoveRouter(ProcessId),
    /// Prepares this process to stop before a restart. If it leads, it hands over to a router with a complete
    /// log. It does not stand for election any longer. If it has a disk, the other routers do not vote it out
    /// for [`Settings::away_max`].
    Pause,
    /// Continues as the only member, because an operator says that a majority of the routers is gone for
    /// good. The user may give this command only if [`Paxos::can_reform`](super::Paxos::can_reform) allows
    /// it.
    Reform,
    /// Begins a log as the only member, like a founder, because an operator says that all routers are gone
    /// for good. The user may give this command only if [`Paxos::can_found`](super::Paxos::can_found) allows
    /// it.
    Found,
    /// Answers [`Event::SnapshotWanted`], in the same turn or later. With a disk, a later answer must be
    /// announced by [`Command::SnapshotLater`].
    Snapshot {
        /// The slot from the event.
        slot: Slot,
        /// The state after the slot.
        state: Bytes,
    },
    /// Answers [`Event::SnapshotWanted`]: the user gathers its state after this slot, and gives it whole in a
    /// later turn ([`Command::Snapshot`]). The router asks the user again if the slot is not the last slot
    /// learned, or if gathering takes so long that the log after the slot is gone.
    SnapshotLater {
        /// The last slot that the state contains.
        slot: Slot,
    },
    /// Answers [`Event::SnapshotWanted`] without a disk: the state after this slot comes in parts. The user
    /// may answer at any time. If the slot is not the last slot learned, the router asks the user again.
    SnapshotBegins {
        /// The last slot that the state contains.
        slot: Slot,
    },
    /// Answers [`Event::SnapshotPartWanted`] at any time. The user may give only parts of the snapshot that
    /// it began last, because two snapshots may have the same slot.
    SnapshotPart {
        /// The slot of the snapshot.
        slot: Slot,
        /// The bytes that follow the parts given until now.
        bytes: Bytes,
        /// Whether these are the last bytes.
        last: bool,
    },
    /// Names processes outside the known members. A joining router asks them for admission. A router that
    /// does not join opens a link to each of them for a short time. A later generation may have begun without
    /// this router, and perhaps only such a process knows of it.
    Seeds(Vec<Peer>),
}

/// Events for the user of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A slot is chosen. Slots come in order, each exactly once, all after the installed snapshot. The
    /// payloads may be empty.
    Learned {
        /// The slot.
        slot: Slot,
        /// The slot's payloads.
        payloads: Vec<Bytes>,
    },
    /// The leader, as far as this process knows. Emitted again when the link to the leader was renewed, or
    /// the leader had no room, so that the user proposes unlearned payloads again. Only members get this
    /// event.
    Leader(Option<ProcessId>),
    /// This process leads from now on. Slots up to `start` come from earlier reigns. Each later slot contains
    /// proposals of this reign only, or a change of the members.
    Reign {
        /// The reign's ballot.
        ballot: Ballot,
        /// The end of the log with which the reign began.
        start: Slot,
    },
    /// The reign's initial log is chosen and learned, and a majority of the members accepted it in this
    /// ballot: both phases are complete (003 §VI.B, *New leader*).
    Settled {
        /// The reign.
        ballot: Ballot,
    },
    /// This process no longer leads in this ballot, or did not lead when it got [`Command::Confirm`]. Comes
    /// before the user learns anything of a later reign. Unlearned proposals may be a part of another
    /// leader's log.
    Deposed {
        /// The reign that ended.
        ballot: Ballot,
    },
    /// A [`Command::ProposeIn`] had no effect, because this process does not lead in the ballot, or has no
    /// room. If it has no room, there may be room for a smaller proposal, but the user must not propose
    /// anything that depends on this one.
    Refused {
        /// The reign that the command named.
        ballot: Ballot,
        /// The proposal.
        payload: Bytes,
    },
    /// No later reign had chosen anything when the user asked the questions up to `through`.
    Confirmed {
        /// The reign.
        ballot: Ballot,
        /// The number of the last question.
        through: u64,
    },
    /// The router through which this router reaches the leader from now on; `None` if it reaches the leader
    /// directly, or not at all.
    Detour(Option<ProcessId>),
    /// The user should give its state after this slot, which is the last slot learned. The state is for other
    /// routers, or for the disk. It may be for members without which nothing more can be chosen. So a user
    /// must not wait without limit for its own proposals before it answers, or before it gives a part.
    SnapshotWanted {
        /// The last slot learned.
        slot: Slot,
    },
    /// The user should give the next part of the snapshot that it began.
    SnapshotPartWanted {
        /// The slot of the snapshot.
        slot: Slot,
        /// Approximate number of bytes to give.
        bytes: usize,
    },
    /// The snapshot that the user began is no longer needed. After [`Event::Deposed`], no snapshot is needed
    /// either.
    SnapshotUnwanted {
        /// The slot of the snapshot.
        slot: Slot,
    },
    /// A part of a future state. The part replaces nothing before [`Event::Install`]. Part number 0 voids the
    /// parts that came before it.
    InstallPart {
        /// The slot of the snapshot.
        slot: Slot,
        /// Number of the part, counted from 0.
        number: u64,
        /// The bytes, as another router's user gave them to [`Command::SnapshotPart`].
        bytes: Bytes,
    },
    /// The user must replace its state by the state after this slot. The next slot to learn is the slot
    /// after it.
    Install {
        /// The slot of the state.
        slot: Slot,
        /// The state, as another router's user gave it to [`Command::Snapshot`]; empty if the parts are the
        /// state.
        state: Bytes,
    },
    /// The members from the next slot on. Comes directly after the `Learned` or `Install` that made the
    /// change.
    Members(Vec<Peer>),
    /// This process is no longer a router. It takes no further part in the log; only a new incarnation of its
    /// node may join.
    Removed,
    /// A change of the members is refused.
    ChangeRefused {
        /// The change.
        change: Change,
        /// The reason.
        reason: ChangeRefusal,
    },
}

/// The role of a router in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// The router asks for admission, and has no vote.
    Joining,
    /// The router follows a leader, or waits for one.
    Follower,
    /// The router stands for election.
    Candidate,
    /// The router leads.
    Leader,
    /// The router was a member, and takes no further part.
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

/// A router's state, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The router's role.
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
    /// The ballot and the known end of the newest log of which the router knows a part. Of several routers,
    /// the router with the greatest value knows everything that any of them can have learned.
    pub known: (Ballot, Slot),
    /// The members after the last slot learned.
    pub members: Vec<Peer>,
    /// The members of an open change, whose majority elects a leader.
    pub members_open: Option<Vec<Peer>>,
    /// Members that the leader suspects.
    pub suspected: Vec<ProcessId>,
    /// Maximum number of slots in flight; zero unless leading.
    pub window: usize,
    /// Bytes that wait for a slot; zero unless leading.
    pub pending_bytes: usize,
}
