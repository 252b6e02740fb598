//! A seat: one member of a group in this process, with the user's object and the deliveries that it has not
//! applied.
//!
//! The protocol thread pushes ([`Seat::push`]). The first thread to come applies ([`Seat::catch_up`]): a
//! reader, or the delivery thread.

use crate::lock::lock;
use std::{
    any::Any,
    borrow::Cow,
    collections::BTreeMap,
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use quorate_node::panic_message;
use quorate_protocol::{
    ProcessId,
    ecast::Position,
    group::{self, Claim, Command, Failure, Grant, GroupId, Locks, Mark, Outcome, Place, SeatId, Updates},
    wire::{WireError, decode_body, encode_body, put_process, take_process, take_u8},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::{
    Answer, Key, Object, Origin, Share, Snapshot, View,
    answer::Asker,
    checkpoint::{Keeper, Loaded},
    key::{GroupKeys, OpenError, Secrets},
    lock::Claims,
    process::GroupShared,
    query::{self, ANSWER_BYTES_MAX, OpenQueries, QueryAnswer},
    signature::Signature,
};
use crate::{error::Error, pending::in_background};

/// A delivery of the protocol thread. All deliveries have one order.
#[derive(Clone)]
pub(super) enum Delivery {
    /// The object from here on; `None` keeps the object that is here.
    Restore(Option<Bytes>),
    View {
        view: Arc<group::View>,
        arrived: Arc<[(ProcessId, SeatId)]>,
        departed: Arc<[(ProcessId, SeatId)]>,
        missing: BTreeMap<ProcessId, u64>,
        waited: Duration,
    },
    /// A request for the object's state at this place.
    StateWanted(StateReceiver),
    /// A request to save the object's state at this place.
    Keep(Mark),
    /// A mark: the protocol waits until everything before it is applied.
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
    /// Members of this process, which came with the last view.
    Seats(Vec<Arc<Seat>>),
}

impl Delivery {
    /// Returns the delivery's weight in the inbox, in bytes. A state that a member was given weighs nothing.
    fn bytes(&self) -> usize {
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
const DELIVERY_BYTES: usize = mem::size_of::<Delivery>();
/// Deliveries that were applied leave the count of an inbox in steps of this size, in bytes.
const APPLIED_BYTES: usize = 1 << 20;

/// One member of a group in this process.
pub(super) struct Seat {
    pub(super) name: String,
    pub(super) group: GroupId,
    pub(super) id: SeatId,
    me: ProcessId,
    /// The group's keys, if it has any.
    pub(super) group_keys: Option<Arc<GroupKeys>>,
    /// The checkpoint file, if the member has one.
    pub(super) keeper: Option<Arc<Keeper>>,
    inbox: Mutex<Inbox>,
    /// The user's object. A thread that waits for this lock holds no other lock of this crate.
    copy: Mutex<Box<dyn Replicated>>,
    /// The number of the thread that runs the object's code; 0 if none does.
    inside: AtomicU64,
    /// The sender that reports that the object is the group's.
    ready: Mutex<Option<oneshot::Sender<Result<(), Error>>>>,
    /// The reason why this member ended.
    over: OnceLock<Error>,
    /// Whether the member is leaving.
    pub(super) leaving: AtomicBool,
    /// The sender that reports that the member is out.
    out: Mutex<Option<oneshot::Sender<Result<Outcome, Failure>>>>,
    debts: Mutex<ObjectDebts>,
    /// Whether the member waits for the delivery thread.
    pub(super) queued: AtomicBool,
    /// The view after all deliveries that were pushed.
    latest: Mutex<Option<Arc<group::View>>>,
    pub(super) open_queries: Mutex<OpenQueries>,
    pub(super) claims: Mutex<Claims>,
}

#[derive(Default)]
struct Inbox {
    queue: Vec<Delivery>,
    /// Bytes of the queue, and of deliveries that were taken off it and are not applied yet.
    bytes: usize,
    closed: bool,
    /// Whether the object comes from another member of this process and has not arrived; until then nothing
    /// is taken.
    waits: bool,
}

/// Objects that a member still has to give.
#[derive(Default)]
struct ObjectDebts {
    owed: usize,
    /// Whether the member ends once it has given them.
    gone: bool,
}

/// A replica whose type is not known here.
trait Replicated: Any + Send {
    fn take(&mut self, delivery: Delivery, context: &ReplicaContext<'_>) -> Result<(), Error>;
}

/// The context that a replica needs to answer.
struct ReplicaContext<'a> {
    seat: &'a Arc<Seat>,
    shared: &'a Arc<GroupShared>,
}

/// The replica that readers borrow.
pub(super) struct LocalReplica<R> {
    pub(super) object: R,
    pub(super) locks: Locks,
    pub(super) view: Option<View>,
    /// Whether the member began with its own object and not with the group's.
    pub(super) fresh: bool,
    /// The state from the file, until it is known whether it is needed; or the reason why it cannot be used.
    loaded: Option<Result<Loaded<R>, Error>>,
}

/// The state that a member brings along, in case nobody has the group's.
pub(super) struct Brought<R> {
    pub(super) object: R,
    /// The state from the member's checkpoint file.
    pub(super) loaded: Option<Result<Loaded<R>, Error>>,
}

impl Seat {
    pub(super) fn new<R: Object>(
        name: String,
        group: GroupId,
        (me, id): (ProcessId, SeatId),
        group_keys: Option<Arc<GroupKeys>>,
        keeper: Option<Arc<Keeper>>,
        Brought { object, loaded }: Brought<R>,
        ready: oneshot::Sender<Result<(), Error>>,
    ) -> Seat {
        let local_replica =
            LocalReplica { object, locks: Locks::default(), view: None, fresh: false, loaded };
        Seat {
            name,
            group,
            id,
            me,
            group_keys,
            keeper,
            inbox: Mutex::default(),
            copy: Mutex::new(Box::new(local_replica)),
            inside: AtomicU64::new(0),
            ready: Mutex::new(Some(ready)),
            over: OnceLock::new(),
            leaving: AtomicBool::new(false),
            out: Mutex::new(None),
            debts: Mutex::default(),
            queued: AtomicBool::new(false),
            latest: Mutex::new(None),
            open_queries: Mutex::new(OpenQueries::new(id, ANSWER_BYTES_MAX)),
            claims: Mutex::new(Claims::new(id)),
        }
    }

    /// Whether the seat's process can have no other member of the group. With a key, each message would have
    /// to be opened by several members; a checkpoint file belongs to one member.
    pub(super) fn is_alone(&self) -> bool {
        self.group_keys.is_some() || self.keeper.is_some()
    }

    /// Passes a message on, sealed if the group has a key.
    pub(super) fn sealed<T>(&self, body: &[u8], hand_over: impl FnOnce(&[u8]) -> T) -> T {
        match &self.group_keys {
            None => hand_over(body),
            Some(group_keys) => group_keys.send(query::head_bytes(body), body, hand_over),
        }
    }

    /// Returns the content behind the head of a message of `sender`, opened if the group has a key. `None` if
    /// the message has to be skipped.
    fn opened<'a>(
        &self,
        sender: ProcessId,
        head: &[u8],
        content: &'a [u8],
    ) -> Result<Option<Cow<'a, [u8]>>, Error> {
        let Some(group_keys) = &self.group_keys else { return Ok(Some(content.into())) };
        match group_keys.open_next(sender, head, content) {
            Ok(plain) => Ok(Some(Vec::from(plain).into())),
            Err(OpenError::OtherKey(key)) => Err(Error::not_member(format!(
                "a message of {sender} is sealed with the key {key}, which this member does not have"
            ))),
            // This member's program has already heard that the message was delivered.
            Err(OpenError::Replayed) if sender == self.me => Err(Error::not_member(
                "all members refused one of this member's own messages as a repetition",
            )),
            Err(why @ (OpenError::Damaged | OpenError::Replayed)) => {
                warn!(
                    group = self.name, %sender, ?why,
                    "a message of a group is skipped, because its seal is damaged or was used before"
                );
                Ok(None)
            }
        }
    }

    /// Takes all `deliveries` of the protocol, in their order, and leaves the vector empty. Runs on the
    /// protocol thread. The error says that the member does not keep up, because more than `bytes_max` bytes
    /// wait. It is returned once.
    pub(super) fn push(&self, deliveries: &mut Vec<Delivery>, bytes_max: usize) -> Option<Error> {
        for delivery in &*deliveries {
            match delivery {
                Delivery::View { view, .. } => {
                    *lock(&self.latest) = Some(view.clone());
                    lock(&self.open_queries).view(view);
                }
                Delivery::Updates { sender, updates } if *sender == self.me => {
                    for number in updates.iter().filter_map(|(_, message)| query::number_of(message)) {
                        if let Some(view) = &*lock(&self.latest) {
                            lock(&self.open_queries).delivered(number, view);
                        }
                    }
                }
                _ => {}
            }
        }
        let mut inbox = lock(&self.inbox);
        if inbox.closed {
            deliveries.clear();
            return None;
        }
        inbox.bytes += deliveries.iter().map(Delivery::bytes).sum::<usize>();
        inbox.queue.append(deliveries);
        if inbox.bytes <= bytes_max {
            return None;
        }
        inbox.closed = true;
        let for_what =
            if inbox.waits { "for the object of another member of this process" } else { "to be applied" };
        let bytes = inbox.bytes;
        Some(Error::not_member(format!(
            "this member does not keep up: {bytes} bytes of updates wait {for_what}, and at most \
             {bytes_max} may wait"
        )))
    }

    /// Returns the bytes that were delivered and are not applied.
    pub(super) fn waiting_bytes(&self) -> usize {
        lock(&self.inbox).bytes
    }

    /// Applies all deliveries so far. The returned lock keeps the object unchanged.
    fn catch_up<'a>(
        self: &'a Arc<Self>,
        shared: &Arc<GroupShared>,
    ) -> Result<MutexGuard<'a, Box<dyn Replicated>>, Error> {
        let here = thread_number();
        if self.inside.load(Ordering::Relaxed) == here {
            return Err(Error::invalid("this call is not possible inside a callback of the same replica"));
        }
        let mut copy = lock(&self.copy);
        let batch = {
            let mut inbox = lock(&self.inbox);
            if inbox.waits || inbox.queue.is_empty() {
                return Ok(copy);
            }
            mem::take(&mut inbox.queue)
        };
        self.inside.store(here, Ordering::Relaxed);
        // The lock of the inbox is taken once for many deliveries, to spread its cost.
        let mut applied = 0;
        for delivery in batch {
            if self.over().is_some() {
                break;
            }
            applied += delivery.bytes();
            if applied >= APPLIED_BYTES {
                // This delivery stays in the count until it has been applied.
                self.applied(applied - delivery.bytes());
                applied = delivery.bytes();
            }
            let context = ReplicaContext { seat: self, shared };
            let taken = catch_unwind(AssertUnwindSafe(|| copy.take(delivery, &context)));
            let taken = taken.unwrap_or_else(|panic| {
                Err(Error::not_member(format!(
                    "the group's object panicked at this member: {}",
                    panic_message(&*panic)
                )))
            });
            if let Err(error) = taken {
                self.fail(error, shared);
            }
        }
        self.applied(applied);
        self.inside.store(0, Ordering::Relaxed);
        Ok(copy)
    }

    /// Takes applied deliveries off the count, `bytes` in all.
    fn applied(&self, bytes: usize) {
        let mut inbox = lock(&self.inbox);
        // The inbox of an ended member has been emptied meanwhile.
        inbox.bytes = inbox.bytes.saturating_sub(bytes);
    }

    /// Applies all deliveries so far, on the delivery thread.
    pub(super) fn deliver(self: &Arc<Self>, shared: &Arc<GroupShared>) {
        // The flag is cleared before the look, so that a delivery that comes meanwhile queues the member
        // again.
        self.queued.store(false, Ordering::Release);
        // Applying fails only within a callback, and this is not one.
        drop(self.catch_up(shared));
    }

    /// Applies all deliveries, then passes the replica to `read`.
    pub(super) fn lend<R: Object, T>(
        self: &Arc<Self>,
        shared: &Arc<GroupShared>,
        read: impl FnOnce(&LocalReplica<R>) -> T,
    ) -> Result<T, Error> {
        // The check is repeated after the deliveries were applied, because the member may have ended with one
        // of them.
        self.over().map_or(Ok(()), Err)?;
        shared.check()?;
        let copy = self.catch_up(shared)?;
        self.over().map_or(Ok(()), Err)?;
        let copy: &dyn Any = &**copy;
        let copy = copy.downcast_ref::<LocalReplica<R>>().expect("the member was made with this type");
        let (here, before) = (thread_number(), self.inside.load(Ordering::Relaxed));
        self.inside.store(here, Ordering::Relaxed);
        let told = catch_unwind(AssertUnwindSafe(|| read(copy)));
        self.inside.store(before, Ordering::Relaxed);
        // `read` only borrowed the object, so the object is intact. The panic goes on once the lock is
        // released in order.
        Ok(told.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    /// Returns the reason why this member ended, if it has ended.
    pub(super) fn over(&self) -> Option<Error> {
        self.over.get().cloned()
    }

    /// Ends this member for a reason of its own: it is out, and the others go on.
    pub(super) fn fail(&self, why: Error, shared: &Arc<GroupShared>) {
        warn!(
            group = self.name, %why,
            "a member of a group ends in this process, and the other members go on"
        );
        if self.end(why.clone()) {
            shared.lose_member(self, &why);
        }
    }

    /// Counts one more object that this member has to give.
    pub(super) fn owe(&self) {
        lock(&self.debts).owed += 1;
    }

    /// Whether anybody waits for its object.
    pub(super) fn owes(&self) -> bool {
        lock(&self.debts).owed > 0
    }

    /// Ends the member as soon as it has given the objects that it owes.
    pub(super) fn depart(&self) {
        let mut debts = lock(&self.debts);
        debts.gone = true;
        if debts.owed == 0 {
            drop(debts);
            self.end(Error::not_member("the member has left the group"));
        }
    }

    /// Notes that the member has given one object that it owed.
    fn paid(&self) {
        let mut debts = lock(&self.debts);
        debts.owed = debts.owed.saturating_sub(1);
        if debts.gone && debts.owed == 0 {
            drop(debts);
            self.end(Error::not_member("the member has left the group"));
        }
    }

    /// Makes the inbox wait: the object comes from another member of this process.
    pub(super) fn wait(&self) {
        lock(&self.inbox).waits = true;
    }

    /// Takes the object for which the inbox waited.
    fn begin(&self, state: Bytes) {
        let mut inbox = lock(&self.inbox);
        inbox.waits = false;
        if !inbox.closed {
            inbox.queue.insert(0, Delivery::Restore(Some(state)));
        }
    }

    /// Sets the sender that reports that the member is out. Reports at once if it is.
    pub(super) fn tell_out(&self, told: oneshot::Sender<Result<Outcome, Failure>>) {
        *lock(&self.out) = Some(told);
        if self.over().is_some() {
            self.say_out();
        }
    }

    /// Ends the wait for the member to be out, with an unknown outcome.
    pub(super) fn leave_unheard(&self) {
        if let Some(told) = lock(&self.out).take() {
            // The caller may have lost interest.
            let _ = told.send(Err(Failure::MaybeApplied));
        }
    }

    fn say_out(&self) {
        if let Some(told) = lock(&self.out).take() {
            // The caller may have lost interest.
            let _ = told.send(Ok(Outcome::Left));
        }
    }

    /// Ends this member: no further delivery is applied to its object. Returns whether it had not ended
    /// before.
    pub(super) fn end(&self, why: Error) -> bool {
        {
            let mut inbox = lock(&self.inbox);
            inbox.closed = true;
            inbox.queue.clear();
            inbox.bytes = 0;
        }
        lock(&self.open_queries).end();
        lock(&self.claims).end();
        if let Some(keeper) = &self.keeper {
            keeper.fail(&why);
        }
        if let Some(ready) = lock(&self.ready).take() {
            // The caller of the join may have lost interest.
            let _ = ready.send(Err(why.clone()));
        }
        let first = self.over.set(why).is_ok();
        self.say_out();
        first
    }

    /// Notes a granted claim for a lock, if the claim is of this process.
    fn granted(&self, grant: Grant) {
        if grant.claim.member == self.me {
            lock(&self.claims).granted(grant);
        }
    }

    fn restored(&self) {
        if let Some(ready) = lock(&self.ready).take() {
            // The caller of the join may have lost interest.
            let _ = ready.send(Ok(()));
        }
    }
}

impl<R: Object> Replicated for LocalReplica<R> {
    fn take(&mut self, delivery: Delivery, context: &ReplicaContext<'_>) -> Result<(), Error> {
        match delivery {
            Delivery::Restore(None) => {
                self.fresh = true;
                self.locks = Locks::default();
                if let Some(loaded) = self.loaded.take() {
                    let Loaded { mark, object, locks, secrets, .. } = loaded?;
                    info!(group = context.seat.name, %mark, "the group goes on from a checkpoint");
                    (self.object, self.locks, self.fresh) = (object, locks, false);
                    if let (Some(group_keys), Some(secrets)) = (&context.seat.group_keys, secrets) {
                        group_keys.adopt(secrets);
                    }
                }
                context.seat.restored();
            }
            Delivery::Restore(Some(state)) => {
                self.loaded = None;
                (self.object, self.locks) = restored(&self.object, context.seat, &state)?;
                self.fresh = false;
                context.seat.restored();
            }
            Delivery::View { view, arrived, departed, missing, waited } => {
                let grants = self.locks.view(&view);
                if let Some(group_keys) = &context.seat.group_keys {
                    group_keys.view(|process| view.entry(process).is_some());
                }
                let processes = |places: &[(ProcessId, SeatId)]| places.iter().map(|(id, _)| *id).collect();
                let here = (context.seat.me, context.seat.id);
                let view = View {
                    number: view.number.0,
                    members: view.places().map(|(id, _)| id).collect(),
                    joined: processes(&arrived),
                    left: processes(&departed),
                    me: context.seat.me,
                    place: view.places().position(|place| place == here),
                    missing: missing.into_iter().collect(),
                    waited,
                };
                self.object.view(&view);
                self.view = Some(view);
                grants.into_iter().for_each(|grant| context.seat.granted(grant));
            }
            Delivery::StateWanted(receiver) => self.checkpoint(receiver, context)?,
            Delivery::Progress => {
                context.shared.command_owed(Command::Progress { group: context.seat.group });
                context.seat.paid();
            }
            Delivery::Keep(mark) => {
                if let Some(keeper) = &context.seat.keeper {
                    keeper.keep(context.seat, context.shared, mark, &self.object, self.locks.clone());
                }
            }
            Delivery::Updates { sender, updates } => {
                for (place, message) in updates.iter() {
                    let mut content = message;
                    let kind = query::kind_of(&mut content);
                    let head = &message[..message.len() - content.len()];
                    if let Some(body) = context.seat.opened(sender, head, content)? {
                        self.message(sender, place, kind, &body, context)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl<R: Object> LocalReplica<R> {
    /// Takes a message of a member.
    fn message(
        &mut self,
        sender: ProcessId,
        place: Place,
        kind: query::Kind,
        body: &[u8],
        context: &ReplicaContext<'_>,
    ) -> Result<(), Error> {
        match kind {
            query::Kind::Update(seat) => {
                let update = decode(body).map_err(|why| {
                    Error::not_member(format!(
                        "an update of {sender} does not decode as an update of this group: {why}"
                    ))
                })?;
                let own = (sender, seat) == (context.seat.me, context.seat.id);
                let origin = Origin { sender, own, place };
                self.object.apply(update, &origin);
            }
            query::Kind::Query(number) => self.answer(sender, number, body, context),
            query::Kind::Claim(number) => {
                let (name, claim) = (String::from_utf8_lossy(body), Claim { member: sender, number });
                self.locks
                    .claim(place, &name, claim)
                    .into_iter()
                    .for_each(|grant| context.seat.granted(grant));
            }
            query::Kind::Release(number) => {
                let (name, claim) = (String::from_utf8_lossy(body), Claim { member: sender, number });
                if sender == context.seat.me {
                    lock(&context.seat.claims).released(number);
                }
                self.locks
                    .release(place, &name, claim)
                    .into_iter()
                    .for_each(|grant| context.seat.granted(grant));
            }
            query::Kind::Rekey => match (&context.seat.group_keys, <[u8; 32]>::try_from(body)) {
                (Some(group_keys), Ok(key)) => group_keys.turn(Key::from_bytes(key), || {
                    if let Place::Ordered(at, _) = place {
                        context.shared.tell(Command::Follow { group: context.seat.group, at });
                    }
                }),
                _ => warn!(
                    %sender,
                    "a process sent an invalid key of a group, or a key to a group without one; the key is \
                     ignored"
                ),
            },
            query::Kind::Strange => warn!(
                %sender,
                "a process sent a message that is neither an update nor a query; the message is ignored"
            ),
        }
        Ok(())
    }

    /// Gives the object to members that joined.
    fn checkpoint(&self, receiver: StateReceiver, context: &ReplicaContext<'_>) -> Result<(), Error> {
        let snapshot = self.object.checkpoint();
        let state = GroupState::new(context.seat, Signature::of(&self.object), self.locks.clone());
        if snapshot.is_late() {
            let (seat, shared) = (context.seat.clone(), context.shared.clone());
            let write = move || match state.of(snapshot) {
                Ok(state) => receiver.get(&seat, &shared, state),
                Err(why) => seat.fail(
                    Error::not_member(format!(
                        "the checkpoint of this member's copy of the group's state cannot be written: {why}"
                    )),
                    &shared,
                ),
            };
            return in_background("checkpoint", write).map_err(Error::start);
        }
        let state = state.of(snapshot).map_err(|why| {
            Error::not_member(format!(
                "the checkpoint of this member's copy of the group's state cannot be written: {why}"
            ))
        })?;
        receiver.get(context.seat, context.shared, state);
        Ok(())
    }

    /// Answers the query of another member, or of this one.
    fn answer(&self, sender: ProcessId, number: u64, query: &[u8], context: &ReplicaContext<'_>) {
        let Some(view) = &self.view else { return };
        let share = Share { rank: view.rank().unwrap_or(0), of: view.members.len() };
        let answered = catch_unwind(AssertUnwindSafe(|| {
            let query = decode(query)
                .map_err(|why| format!("the query does not decode as a query of this group: {why}"))?;
            Ok(match self.object.query(query, share) {
                Answer::Declined => Some(QueryAnswer::Declined),
                Answer::Now(reply) => Some(QueryAnswer::Reply(encode(&reply)?)),
                Answer::Later(later) => {
                    later.bind(Asker::new(context.seat, context.shared, sender, number));
                    None
                }
            })
        }));
        let answered = answered.unwrap_or_else(|panic| {
            Err(format!("the member panicked while it answered the query: {}", panic_message(&*panic)))
        });
        if let Some(answer) = answered.unwrap_or_else(|why| Some(QueryAnswer::Failed(why.into_bytes()))) {
            context.shared.answer(context.seat, sender, number, answer);
        }
    }
}

impl StateReceiver {
    /// Passes the object on to its receivers, and notes that the giver has given it.
    fn get(self, giver: &Seat, shared: &GroupShared, state: Bytes) {
        match self {
            StateReceiver::Group(view) => {
                shared.tell(Command::Checkpoint { group: giver.group, view, state })
            }
            StateReceiver::Seats(seats) => {
                for seat in seats {
                    seat.begin(state.clone());
                    shared.got(&seat);
                    shared.queue_for_delivery(seat);
                }
            }
        }
        giver.paid();
    }
}

/// The state of a group without its object, as of one place in its messages: the replica's signature, the
/// locks, the secrets.
struct GroupState {
    signature: Signature,
    locks: Locks,
    me: ProcessId,
    secrets: Option<(Arc<GroupKeys>, Secrets)>,
}

const PLAIN: u8 = 0;
const SEALED: u8 = 1;

impl GroupState {
    fn new(seat: &Seat, signature: Signature, locks: Locks) -> Self {
        let secrets = seat.group_keys.as_ref().map(|group_keys| (group_keys.clone(), group_keys.secrets()));
        GroupState { signature, locks, me: seat.me, secrets }
    }

    /// Returns the encoded state with this object. A sealed state names the process that seals it, because
    /// the key depends on it.
    fn of(&self, object: Snapshot) -> Result<Bytes, String> {
        let mut bytes = BytesMut::new();
        bytes.put_u8(if self.secrets.is_some() { SEALED } else { PLAIN });
        if self.secrets.is_some() {
            put_process(&mut bytes, self.me);
        }
        let head = bytes.len();
        encode_body(&mut bytes, &self.signature);
        if let Some((_, secrets)) = &self.secrets {
            encode_body(&mut bytes, secrets);
        }
        encode_body(&mut bytes, &self.locks);
        let bytes = object.finish_behind(bytes.into())?;
        let bytes = match &self.secrets {
            None => bytes.into(),
            // The ring may have changed its key meanwhile. A process that joins at this place lacks the new
            // one.
            Some((group_keys, secrets)) => group_keys.seal_with(secrets, head, &bytes),
        };
        Ok(if bytes.len() < LARGE_BYTES { bytes } else { Bytes::from_owner(Large(bytes)) })
    }
}

/// Size from which memory takes long to release, in bytes.
const LARGE_BYTES: usize = 16 << 20;

/// A state whose memory is released in the background, because its last user is the protocol thread.
struct Large(Bytes);

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        let bytes = mem::take(&mut self.0);
        // If no thread can start, the memory is released here.
        let _ = in_background("give back", move || drop(bytes));
    }
}

/// Returns the object and the locks of a group's state, for a member that brought the object `brought` along.
fn restored<R: Object>(brought: &R, seat: &Seat, state: &Bytes) -> Result<(R, Locks), Error> {
    let Seat { name, group_keys, .. } = seat;
    let strange = |why: &dyn fmt::Display| Error::mismatch(format!("the state of the group `{name}`"), why);
    let locked = |why: &str| Error::mismatch(format!("the key of the group `{name}`"), why);
    let damaged = |error: WireError| strange(&error);
    let mut rest = state.clone();
    let mut secrets = None;
    let mut content = match (take_u8(&mut rest).map_err(damaged)?, group_keys) {
        (PLAIN, None) => rest,
        (PLAIN, Some(group_keys)) => {
            return Err(locked(&format!(
                "the group has no key, and this member was given the key {}: join without a key",
                group_keys.id()
            )));
        }
        (SEALED, None) => {
            return Err(locked(
                "the group has a key, and this member was given none: join with the group's key",
            ));
        }
        (SEALED, Some(group_keys)) => {
            let giver = take_process(&mut rest).map_err(damaged)?;
            let head = &state[..state.len() - rest.len()];
            let plain = group_keys.open(giver, head, &rest).map_err(|why| match why {
                OpenError::OtherKey(key) => locked(&format!(
                    "the group has the key {key}, and this member was given the key {}: join with the \
                     group's key",
                    group_keys.id()
                )),
                OpenError::Damaged | OpenError::Replayed => {
                    strange(&"the received state is damaged, because its seal does not fit")
                }
            })?;
            secrets = Some(group_keys);
            plain
        }
        (tag, _) => return Err(damaged(WireError::Tag(tag))),
    };
    let theirs: Signature = decode_body(&mut content).map_err(damaged)?;
    if let Some(why) = Signature::of(brought).differs(&theirs) {
        return Err(strange(&why));
    }
    if let Some(group_keys) = secrets {
        group_keys.adopt(decode_body(&mut content).map_err(damaged)?);
    }
    let locks = decode_body(&mut content).map_err(damaged)?;
    let object = brought.restore(&Snapshot::of_bytes(content));
    Ok((object.map_err(|corrupt| strange(&corrupt))?, locks))
}

/// Serialises a value.
pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>, String> {
    postcard::to_stdvec(value).map_err(|error| format!("the value does not serialise: {error}"))
}

/// Decodes a value that takes up all of `bytes`.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(format!("{} bytes are left over after the value", rest.len())),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the number of this thread, which no other thread has.
fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: u64 = LAST.fetch_add(1, Ordering::Relaxed) + 1);
    NUMBER.with(|number| *number)
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::unbounded;
    use quorate_protocol::Incarnation;

    use super::*;
    use crate::group::{Handlers, outbox::PackBounds};

    const ME: ProcessId = ProcessId { node: 1, incarnation: Incarnation(1) };

    /// Makes a member whose object records at each view how many bytes its own inbox holds.
    fn member() -> (Arc<Seat>, Arc<GroupShared>, Arc<Mutex<Vec<usize>>>) {
        let itself = Arc::new(OnceLock::<Arc<Seat>>::new());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (looks, sees) = (itself.clone(), seen.clone());
        let object = Handlers::new("test/1", 0_u64)
            .update(|_: &mut u64, _: u64, _: &Origin| ())
            .view(move |_, _| lock(&sees).push(looks.get().expect("it is made").waiting_bytes()));
        let brought = Brought { object, loaded: None };
        let (told, _) = oneshot::channel();
        let seat = Seat::new(String::from("g"), GroupId(1), (ME, SeatId(0)), None, None, brought, told);
        let seat = Arc::new(seat);
        assert!(itself.set(seat.clone()).is_ok(), "it is made once");
        let bounds = PackBounds { soft_bytes: 1, ordered_bytes: 1, updates: 1 };
        (seat, Arc::new(GroupShared::new(ME, unbounded().0, bounds, 1)), seen)
    }

    fn views(count: usize) -> Vec<Delivery> {
        let view = Delivery::View {
            view: Arc::default(),
            arrived: Arc::default(),
            departed: Arc::default(),
            missing: BTreeMap::new(),
            waited: Duration::ZERO,
        };
        vec![view; count]
    }

    #[test]
    fn what_is_being_applied_is_in_the_inbox_still() {
        let (seat, shared, seen) = member();
        assert_eq!(seat.push(&mut views(3), usize::MAX), None);
        let all = 3 * DELIVERY_BYTES;
        assert_eq!(seat.waiting_bytes(), all);
        seat.deliver(&shared);
        assert_eq!(*lock(&seen), [all, all, all], "it takes memory until it is applied");
        assert_eq!(seat.waiting_bytes(), 0);
        // A long batch leaves the count step by step.
        let count = 3 * APPLIED_BYTES / DELIVERY_BYTES;
        assert_eq!(seat.push(&mut views(count), usize::MAX), None);
        seat.deliver(&shared);
        let last = *lock(&seen).last().expect("it saw them");
        assert!((1..=APPLIED_BYTES + DELIVERY_BYTES).contains(&last), "{last}");
        assert_eq!(seat.waiting_bytes(), 0);
    }

    #[test]
    fn a_member_that_does_not_keep_up_is_told_once_how_much_waits() {
        let (seat, _, _) = member();
        let most = 5 * DELIVERY_BYTES;
        assert_eq!(seat.push(&mut views(5), most), None);
        let why = seat.push(&mut views(1), most).expect("it is too much").to_string();
        assert!(
            why.contains(&format!(
                "{} bytes of updates wait to be applied, and at most {most} bytes may wait",
                6 * DELIVERY_BYTES
            )),
            "{why}"
        );
        assert_eq!(seat.push(&mut views(1), most), None, "it was told");
    }
}
