//! Multi-Paxos: one log that all routers agree on.

mod ballot;
mod log;
mod message;

use std::sync::Arc;

use bytes::Bytes;

pub use self::{
    ballot::{Ballot, Slot},
    log::Value,
    message::{Change, ChangeRefusal, Message, Prepare, Refusal},
};
use crate::{
    detector,
    id::{Peer, ProcessId},
    seam::{Context, Input, Protocol, Sink},
    time::{Duration, Time},
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
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            detector: detector::Settings::default(),
            wanted: 3,
            remove_after: Duration::from_secs(1),
            batch_bytes_max: 256 << 10,
            window_min: 2,
            window_max: 32,
            in_flight_bytes_max: 8 << 20,
            pending_bytes_max: 256 << 20,
            log_bytes_kept: 64 << 20,
            chunk_bytes: 256 << 10,
        }
    }
}

/// What the user of the log asks for.
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
    /// Make this process, which must be running and joining, a router, beyond the wanted number too. Ends in
    /// [`Event::Members`] or [`Event::ChangeRefused`].
    AddRouter(Peer),
    /// Remove this router, which may be this one. Ends in [`Event::Members`], [`Event::Removed`] or
    /// [`Event::ChangeRefused`].
    RemoveRouter(ProcessId),
    /// The answer to [`Event::SnapshotWanted`], in the same turn.
    Snapshot {
        /// The slot that was told.
        slot: Slot,
        /// The state behind it.
        state: Bytes,
    },
    /// More processes to ask for admission, while joining.
    Seeds(Vec<Peer>),
}

/// What the user of the log is told.
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
    /// The state is wanted as it is behind this slot, which is the last one learned.
    SnapshotWanted {
        /// The last slot learned.
        slot: Slot,
    },
    /// Replace the state; the next slot learned is the one behind.
    Install {
        /// The slot behind which the state is this one.
        slot: Slot,
        /// As it was given to [`Command::Snapshot`] somewhere.
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

/// What must be on disk before certain messages may leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// No ballot below this one is taken part in.
    Promised(Ballot),
    /// The log behind `start` is this, as the leader of `ballot` has it.
    Accepted {
        /// The leader's ballot.
        ballot: Ballot,
        /// The values come behind this slot, and nothing behind them.
        start: Slot,
        /// The values.
        values: Vec<Value>,
    },
    /// A snapshot took the place of the log up to this slot.
    Installed {
        /// The slot.
        slot: Slot,
        /// The members behind it.
        members: Arc<[Peer]>,
        /// The state behind it.
        state: Bytes,
    },
}

/// What a router looks like from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Which part it plays: `joining`, `follower`, `candidate`, `leader` or `removed`.
    pub role: &'static str,
    /// Who leads, if known.
    pub leader: Option<ProcessId>,
    /// The highest ballot promised.
    pub promised: Ballot,
    /// The ballot in which the log was accepted.
    pub accepted: Ballot,
    /// The last slot chosen and learned.
    pub chosen: Slot,
    /// The last slot of the log.
    pub last: Slot,
    /// The members behind the last slot learned.
    pub members: Vec<Peer>,
    /// Members that the leader suspects.
    pub suspected: Vec<ProcessId>,
    /// Slots that may be in flight, when leading.
    pub window: usize,
    /// Bytes that wait for a slot, when leading.
    pub pending_bytes: usize,
}

/// A router's part in the log.
#[derive(Debug)]
pub struct Paxos {
    me: Peer,
    settings: Settings,
    members: Vec<Peer>,
    applied: Slot,
    pending: Vec<Bytes>,
    deadline: Option<Time>,
}

impl Paxos {
    /// The first router of a new domain (rule S1): sole member, and leader. To be called once per domain, ever.
    pub fn found(me: Peer, settings: Settings, _now: Time) -> Paxos {
        Paxos {
            members: vec![me.clone()],
            me,
            settings,
            applied: Slot::ZERO,
            pending: Vec::new(),
            deadline: None,
        }
    }

    /// A router that asks `seeds`, and whoever it gets a link to, for admission. It votes on nothing until it is a member.
    pub fn join(me: Peer, _seeds: Vec<Peer>, settings: Settings, now: Time) -> Paxos {
        Paxos { members: Vec::new(), ..Paxos::found(me, settings, now) }
    }

    /// Who leads, as far as this process knows.
    pub fn leader(&self) -> Option<ProcessId> {
        self.is_leader().then_some(self.me.id)
    }

    /// Whether this process leads.
    pub fn is_leader(&self) -> bool {
        !self.members.is_empty()
    }

    /// The members behind the last slot learned, in id order.
    pub fn members(&self) -> &[Peer] {
        &self.members
    }

    /// The last slot learned.
    pub fn applied(&self) -> Slot {
        self.applied
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}

impl Protocol for Paxos {
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, _cx: &mut Context<'_>, input: Input<Self>, out: &mut impl Sink<Self>) {
        match input {
            Input::Command(Command::Propose { payload }) if self.is_leader() => self.pending.push(payload),
            Input::Drained if !self.pending.is_empty() => {
                self.applied = self.applied.next();
                let payloads = std::mem::take(&mut self.pending);
                out.emit(Event::Learned { slot: self.applied, payloads });
            }
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.deadline
    }
}
