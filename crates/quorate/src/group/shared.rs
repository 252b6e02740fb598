//! The state that the threads of a process with groups share: its members, each in a seat, and its commands.

use std::{
    any::Any,
    collections::BTreeMap,
    mem,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use bytes::Bytes;
use crossbeam_channel::Sender;
use quorate_protocol::{
    ProcessId,
    ecast::Position,
    group::{self, CommandOutcome, Failure, GroupCounters, GroupId, Mark, SeatId, Updates},
    relay::Relay,
};
use quorate_runtime::Port;
use tokio::sync::oneshot;

use super::{
    claims::Claims, keeper::Keeper, key::GroupKeys, open_commands::OpenCommand, open_queries::OpenQueries,
    outbox::Outbox, owed::Owed, row::SeatRow, touch::Touch,
};
use crate::{
    error::Error,
    waiters::{Calls, Waiters},
};

/// The state that the threads of a process share.
pub(super) struct GroupShared {
    pub(super) me: ProcessId,
    pub(super) port: OnceLock<Port<Relay<group::Process>>>,
    pub(super) rows: Mutex<BTreeMap<GroupId, SeatRow<Arc<Seat>>>>,
    /// The channel to the delivery thread. That thread ends when this sender and the host's sender are
    /// dropped.
    pub(super) news: Mutex<Option<Sender<Arc<Seat>>>>,
    pub(super) outbox: Outbox,
    pub(super) calls: Waiters<OpenCommand>,
    pub(super) figures: Calls<GroupCounters>,
    /// Number of replies that came after their query had ended.
    pub(super) late: AtomicU64,
    pub(super) touch: Touch,
    pub(super) owed: Owed,
    /// Number of rows made so far.
    pub(super) lives: AtomicU64,
    /// The number of the last message that this process sealed.
    pub(super) numbers: Arc<AtomicU64>,
    /// Upper bound of an answer to a query, in bytes; a longer answer is refused.
    pub(super) answer_bytes_max: usize,
    pub(super) wedged: AtomicBool,
    /// The sender that reports that the process has left the domain.
    pub(super) out: Mutex<Option<oneshot::Sender<()>>>,
}

/// One member of a group in this process.
pub(super) struct Seat {
    pub(super) name: String,
    pub(super) group: GroupId,
    pub(super) id: SeatId,
    pub(super) me: ProcessId,
    /// The group's keys, if it has any.
    pub(super) group_keys: Option<Arc<GroupKeys>>,
    /// The checkpoint file, if the member has one.
    pub(super) keeper: Option<Arc<Keeper>>,
    pub(super) inbox: Mutex<Inbox>,
    /// The user's object. A thread that waits for this lock holds no other lock of this crate.
    pub(super) copy: Mutex<Box<dyn Replicated>>,
    /// The number of the thread that runs the object's code; 0 if no thread runs it.
    pub(super) inside: AtomicU64,
    /// The sender that reports to the caller of the join that the object has the group's state.
    pub(super) ready: Mutex<Option<oneshot::Sender<Result<(), Error>>>>,
    /// The reason why this member ended.
    pub(super) over: OnceLock<Error>,
    /// Whether the member is leaving.
    pub(super) leaving: AtomicBool,
    /// The sender that reports that the member is out of the group.
    pub(super) out: Mutex<Option<oneshot::Sender<Result<CommandOutcome, Failure>>>>,
    pub(super) debts: Mutex<ObjectDebts>,
    /// Whether the member is queued for the delivery thread.
    pub(super) queued: AtomicBool,
    /// The view that is current after all deliveries that were pushed into the inbox.
    pub(super) latest: Mutex<Option<Arc<group::View>>>,
    pub(super) open_queries: Mutex<OpenQueries>,
    pub(super) claims: Mutex<Claims>,
}

#[derive(Default)]
pub(super) struct Inbox {
    pub(super) queue: Vec<Delivery>,
    /// Bytes of the deliveries in the queue, and of deliveries that were taken from the queue and are not
    /// applied yet.
    pub(super) bytes: usize,
    pub(super) closed: bool,
    /// Whether the object comes from another member of this process and has not arrived; until then no
    /// delivery is applied.
    pub(super) waits: bool,
}

/// The requests to a member for its object that the member has not answered.
#[derive(Default)]
pub(super) struct ObjectDebts {
    pub(super) owed: usize,
    /// Whether the member ends once it has answered these requests.
    pub(super) gone: bool,
}

/// A delivery of the protocol thread. The deliveries to a member are applied in one order.
#[derive(Clone)]
pub(super) enum Delivery {
    /// The object takes this state; `None` keeps the object that the member brought.
    Restore(Option<Bytes>),
    View {
        view: Arc<group::View>,
        arrived: Arc<[(ProcessId, SeatId)]>,
        departed: Arc<[(ProcessId, SeatId)]>,
        missing: BTreeMap<ProcessId, u64>,
        waited: Duration,
    },
    /// A request for the object's state at this place in the deliveries.
    StateWanted(StateReceiver),
    /// A request to save the object's state at this place in the deliveries.
    Keep(Mark),
    /// A mark: the protocol waits until all deliveries before the mark are applied.
    Progress,
    Updates {
        sender: ProcessId,
        updates: Updates,
    },
}

/// The receiver of a member's object.
#[derive(Clone)]
pub(super) enum StateReceiver {
    /// Other processes, which joined with this view.
    Group(Position),
    /// Members of this process, which entered the group with the latest view.
    Seats(Vec<Arc<Seat>>),
}

impl Delivery {
    /// Returns the memory that the delivery counts for in the inbox, in bytes. A received state counts as 0.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Delivery::Restore(_) => 0,
            Delivery::View { .. } | Delivery::StateWanted(_) | Delivery::Keep(_) | Delivery::Progress => {
                DELIVERY_BYTES
            }
            Delivery::Updates { updates, .. } => DELIVERY_BYTES + updates.bytes(),
        }
    }
}

/// Memory of a delivery in addition to its payload, in bytes.
pub(super) const DELIVERY_BYTES: usize = mem::size_of::<Delivery>();

/// A replica of any type. The seat of its member keeps it.
pub(super) trait Replicated: Any + Send {
    fn take(&mut self, delivery: Delivery, context: &ReplicaContext<'_>) -> Result<(), Error>;
}

/// The parts of a seat and its process that a replica needs to answer.
pub(super) struct ReplicaContext<'a> {
    pub(super) seat: &'a Arc<Seat>,
    pub(super) shared: &'a Arc<GroupShared>,
}
