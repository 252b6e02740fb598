//! A seat: one member of a group in this process, with the user's object and what is still to be applied to it.
//!
//! The protocol thread pushes ([`Seat::push`]); whoever comes first applies ([`Seat::catch_up`]): a reader, or the delivery thread.

use std::{
    any::Any,
    borrow::Cow,
    collections::BTreeMap,
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
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
    key::{Ring, Secrets, Unopened},
    lock::Claims,
    process::Shared,
    query::{self, Asked, Word},
    signature::Signature,
};
use crate::{error::Error, pending::in_background};

/// The deliveries of the protocol thread, in one order.
#[derive(Clone)]
pub(super) enum Delivery {
    /// The object from here on; none: the one that is here.
    Restore(Option<Bytes>),
    View {
        view: Arc<group::View>,
        arrived: Arc<[(ProcessId, SeatId)]>,
        departed: Arc<[(ProcessId, SeatId)]>,
        missing: BTreeMap<ProcessId, u64>,
        waited: Duration,
    },
    /// The object is wanted as it is here.
    Wanted(Taker),
    /// The object as it is here is saved.
    Keep(Mark),
    Updates {
        sender: ProcessId,
        updates: Updates,
    },
}

/// The receiver of a member's object.
#[derive(Clone)]
pub(super) enum Taker {
    /// Other processes, which joined with this view.
    Group(Position),
    /// Members of this process, which came with the last view.
    Seats(Vec<Arc<Seat>>),
}

impl Delivery {
    /// Its weight in the inbox. A state that a member was given has none.
    fn bytes(&self) -> usize {
        match self {
            Delivery::Restore(_) => 0,
            Delivery::View { .. } | Delivery::Wanted(_) | Delivery::Keep(_) => DELIVERY_BYTES,
            Delivery::Updates { updates, .. } => DELIVERY_BYTES + updates.bytes(),
        }
    }
}

/// The weight of a delivery beside its bytes.
const DELIVERY_BYTES: usize = 64;

/// A member whose inbox holds more than this leaves: it does not keep up, and nobody waits for it.
const INBOX_BYTES_MAX: usize = 256 << 20;

/// One member of a group in this process.
pub(super) struct Seat {
    pub(super) name: String,
    pub(super) group: GroupId,
    pub(super) id: SeatId,
    me: ProcessId,
    /// The group's keys, if it has any.
    pub(super) ring: Option<Arc<Ring>>,
    /// Its checkpoint file, if it has one.
    pub(super) keeper: Option<Arc<Keeper>>,
    inbox: Mutex<Inbox>,
    /// The user's object. No other lock of this crate is held when this one is waited for.
    copy: Mutex<Box<dyn Replicated>>,
    /// The thread that runs the object's code; 0: none.
    inside: AtomicU64,
    /// Told once the object is the group's.
    ready: Mutex<Option<oneshot::Sender<Result<(), Error>>>>,
    /// Why this member ended.
    over: OnceLock<Error>,
    /// Whether it is leaving.
    pub(super) leaving: AtomicBool,
    /// Told when it is out.
    out: Mutex<Option<oneshot::Sender<Result<Outcome, Failure>>>>,
    dues: Mutex<Dues>,
    /// Whether it waits for the delivery thread.
    pub(super) queued: AtomicBool,
    /// The view behind everything that was pushed.
    latest: Mutex<Option<Arc<group::View>>>,
    pub(super) asked: Mutex<Asked>,
    pub(super) claims: Mutex<Claims>,
}

#[derive(Default)]
struct Inbox {
    queue: Vec<Delivery>,
    bytes: usize,
    closed: bool,
    /// The object comes from another member of this process: until then nothing is taken.
    waits: bool,
}

/// Objects that a member still has to hand over.
#[derive(Default)]
struct Dues {
    owed: usize,
    /// It is let go when it has.
    gone: bool,
}

/// A replica whose type is not known here.
trait Replicated: Any + Send {
    fn take(&mut self, delivery: Delivery, scene: &Scene<'_>) -> Result<(), Error>;
}

/// All that a replica needs to answer.
struct Scene<'a> {
    seat: &'a Arc<Seat>,
    shared: &'a Arc<Shared>,
}

/// The replica itself, as readers are lent it.
pub(super) struct Lent<R> {
    pub(super) object: R,
    pub(super) locks: Locks,
    pub(super) view: Option<View>,
    /// Whether it began with the object that it was given, and not with the group's.
    pub(super) fresh: bool,
    /// The state out of its file, until it is known whether that is needed; or why it could not be used.
    loaded: Option<Result<Loaded<R>, Error>>,
}

/// The state that a member brings along, in case nobody has the group's.
pub(super) struct Brought<R> {
    pub(super) object: R,
    /// That of its checkpoint file.
    pub(super) loaded: Option<Result<Loaded<R>, Error>>,
}

impl Seat {
    pub(super) fn new<R: Object>(
        name: String,
        group: GroupId,
        (me, id): (ProcessId, SeatId),
        ring: Option<Arc<Ring>>,
        keeper: Option<Arc<Keeper>>,
        Brought { object, loaded }: Brought<R>,
        ready: oneshot::Sender<Result<(), Error>>,
    ) -> Seat {
        let lent = Lent { object, locks: Locks::default(), view: None, fresh: false, loaded };
        Seat {
            name,
            group,
            id,
            me,
            ring,
            keeper,
            inbox: Mutex::default(),
            copy: Mutex::new(Box::new(lent)),
            inside: AtomicU64::new(0),
            ready: Mutex::new(Some(ready)),
            over: OnceLock::new(),
            leaving: AtomicBool::new(false),
            out: Mutex::new(None),
            dues: Mutex::default(),
            queued: AtomicBool::new(false),
            latest: Mutex::new(None),
            asked: Mutex::new(Asked::new(id)),
            claims: Mutex::new(Claims::new(id)),
        }
    }

    /// Whether its process can have no other member of the group: what one seals, another one would have to open, and a file is one member's.
    pub(super) fn is_alone(&self) -> bool {
        self.ring.is_some() || self.keeper.is_some()
    }

    /// Hands a message over, sealed if the group has a key.
    pub(super) fn sealed<T>(&self, body: &[u8], hand_over: impl FnOnce(&[u8]) -> T) -> T {
        match &self.ring {
            None => hand_over(body),
            Some(ring) => ring.send(query::head_bytes(body), body, hand_over),
        }
    }

    /// The content behind the head of a message of `sender`, opened if the group has a key. None: the message is to be passed over.
    fn opened<'a>(
        &self,
        sender: ProcessId,
        head: &[u8],
        content: &'a [u8],
    ) -> Result<Option<Cow<'a, [u8]>>, Error> {
        let Some(ring) = &self.ring else { return Ok(Some(content.into())) };
        match ring.open_next(sender, head, content) {
            Ok(plain) => Ok(Some(Vec::from(plain).into())),
            Err(Unopened::OtherKey(key)) => Err(Error::not_member(format!(
                "what {sender} says is sealed with the key {key}, which this member does not have"
            ))),
            Err(why @ (Unopened::Damaged | Unopened::Replayed)) => {
                warn!(group = self.name, %sender, ?why, "a message is passed over");
                Ok(None)
            }
        }
    }

    /// Takes what the protocol delivers, in its order, and leaves nothing. On the protocol thread. Says whether the member does not keep
    /// up, once.
    pub(super) fn push(&self, deliveries: &mut Vec<Delivery>) -> bool {
        for delivery in &*deliveries {
            match delivery {
                Delivery::View { view, .. } => {
                    *lock(&self.latest) = Some(view.clone());
                    lock(&self.asked).view(view);
                }
                Delivery::Updates { sender, updates } if *sender == self.me => {
                    for number in updates.iter().filter_map(|(_, message)| query::number_of(message)) {
                        if let Some(view) = &*lock(&self.latest) {
                            lock(&self.asked).delivered(number, view);
                        }
                    }
                }
                _ => {}
            }
        }
        let mut inbox = lock(&self.inbox);
        if inbox.closed {
            deliveries.clear();
            return false;
        }
        inbox.bytes += deliveries.iter().map(Delivery::bytes).sum::<usize>();
        inbox.queue.append(deliveries);
        inbox.closed = inbox.bytes > INBOX_BYTES_MAX;
        inbox.closed
    }

    /// Bytes that were delivered and are not applied.
    pub(super) fn waiting_bytes(&self) -> usize {
        lock(&self.inbox).bytes
    }

    /// Applies what was delivered so far. The lock that it returns keeps the object as it is.
    fn catch_up<'a>(
        self: &'a Arc<Self>,
        shared: &Arc<Shared>,
    ) -> Result<MutexGuard<'a, Box<dyn Replicated>>, Error> {
        let here = thread_number();
        if self.inside.load(Ordering::Relaxed) == here {
            return Err(Error::invalid("asked for inside one of the replica's own callbacks"));
        }
        let mut copy = lock(&self.copy);
        let batch = {
            let mut inbox = lock(&self.inbox);
            if inbox.waits || inbox.queue.is_empty() {
                return Ok(copy);
            }
            inbox.bytes = 0;
            mem::take(&mut inbox.queue)
        };
        self.inside.store(here, Ordering::Relaxed);
        for delivery in batch {
            if self.over().is_some() {
                break;
            }
            let scene = Scene { seat: self, shared };
            let taken = catch_unwind(AssertUnwindSafe(|| copy.take(delivery, &scene)));
            let taken = taken.unwrap_or_else(|panic| {
                Err(Error::not_member(format!("its replica panicked: {}", panic_message(&*panic))))
            });
            if let Err(error) = taken {
                self.fail(error, shared);
            }
        }
        self.inside.store(0, Ordering::Relaxed);
        Ok(copy)
    }

    /// As the delivery thread does.
    pub(super) fn deliver(self: &Arc<Self>, shared: &Arc<Shared>) {
        // Off again before it looks, so that what comes meanwhile is not left lying.
        self.queued.store(false, Ordering::Release);
        // Only a callback is refused, and this is none.
        drop(self.catch_up(shared));
    }

    /// Lends the replica, with everything applied that was delivered.
    pub(super) fn lend<R: Object, T>(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        read: impl FnOnce(&Lent<R>) -> T,
    ) -> Result<T, Error> {
        // Looked at again behind what was to be applied: the member may have ended with that.
        self.over().map_or(Ok(()), Err)?;
        shared.check()?;
        let copy = self.catch_up(shared)?;
        self.over().map_or(Ok(()), Err)?;
        let copy: &dyn Any = &**copy;
        let copy = copy.downcast_ref::<Lent<R>>().expect("the member was made with this type");
        let (here, before) = (thread_number(), self.inside.load(Ordering::Relaxed));
        self.inside.store(here, Ordering::Relaxed);
        let told = catch_unwind(AssertUnwindSafe(|| read(copy)));
        self.inside.store(before, Ordering::Relaxed);
        // The object was only lent: it is whole, and its lock may be let go in order.
        Ok(told.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    /// Why this member is at its end, if it is.
    pub(super) fn over(&self) -> Option<Error> {
        self.over.get().cloned()
    }

    /// This member ends for a reason of its own: it is out, and the others go on.
    pub(super) fn fail(&self, why: Error, shared: &Arc<Shared>) {
        warn!(group = self.name, %why, "this member ends");
        if self.end(why.clone()) {
            shared.lost(self, &why);
        }
    }

    /// It is about to be asked for its object.
    pub(super) fn owe(&self) {
        lock(&self.dues).owed += 1;
    }

    /// Whether anybody waits for its object.
    pub(super) fn owes(&self) -> bool {
        lock(&self.dues).owed > 0
    }

    /// It is let go, as soon as it has handed over what it owes.
    pub(super) fn depart(&self) {
        let mut dues = lock(&self.dues);
        dues.gone = true;
        if dues.owed == 0 {
            drop(dues);
            self.end(Error::not_member("it has left"));
        }
    }

    /// It has handed over an object that it owed.
    fn paid(&self) {
        let mut dues = lock(&self.dues);
        dues.owed = dues.owed.saturating_sub(1);
        if dues.gone && dues.owed == 0 {
            drop(dues);
            self.end(Error::not_member("it has left"));
        }
    }

    /// Its object comes from another member of this process; what is delivered waits for that.
    pub(super) fn wait(&self) {
        lock(&self.inbox).waits = true;
    }

    /// The object that it waited for.
    fn begin(&self, state: Bytes) {
        let mut inbox = lock(&self.inbox);
        inbox.waits = false;
        if !inbox.closed {
            inbox.queue.insert(0, Delivery::Restore(Some(state)));
        }
    }

    /// Has it told when it is out. Told at once if it is.
    pub(super) fn tell_out(&self, told: oneshot::Sender<Result<Outcome, Failure>>) {
        *lock(&self.out) = Some(told);
        if self.over().is_some() {
            self.say_out();
        }
    }

    /// Nobody waits any more for it to be out.
    pub(super) fn leave_unheard(&self) {
        if let Some(told) = lock(&self.out).take() {
            // The one who waits may have lost interest.
            let _ = told.send(Err(Failure::MaybeApplied));
        }
    }

    fn say_out(&self) {
        if let Some(told) = lock(&self.out).take() {
            // The one who waits may have lost interest.
            let _ = told.send(Ok(Outcome::Left));
        }
    }

    /// This member ends: nothing is applied to its object any more. Says whether it had not before.
    pub(super) fn end(&self, why: Error) -> bool {
        {
            let mut inbox = lock(&self.inbox);
            inbox.closed = true;
            inbox.queue.clear();
        }
        lock(&self.asked).end();
        lock(&self.claims).end();
        if let Some(keeper) = &self.keeper {
            keeper.fail(&why);
        }
        if let Some(ready) = lock(&self.ready).take() {
            // The one who joins may have lost interest.
            let _ = ready.send(Err(why.clone()));
        }
        let first = self.over.set(why).is_ok();
        self.say_out();
        first
    }

    /// A claim for a lock is granted, here or elsewhere.
    fn granted(&self, grant: Grant) {
        if grant.claim.member == self.me {
            lock(&self.claims).granted(grant);
        }
    }

    fn restored(&self) {
        if let Some(ready) = lock(&self.ready).take() {
            // The one who joins may have lost interest.
            let _ = ready.send(Ok(()));
        }
    }
}

impl<R: Object> Replicated for Lent<R> {
    fn take(&mut self, delivery: Delivery, scene: &Scene<'_>) -> Result<(), Error> {
        match delivery {
            Delivery::Restore(None) => {
                self.fresh = true;
                self.locks = Locks::default();
                if let Some(loaded) = self.loaded.take() {
                    let Loaded { mark, object, locks, secrets, .. } = loaded?;
                    info!(group = scene.seat.name, %mark, "the group goes on from a checkpoint");
                    (self.object, self.locks, self.fresh) = (object, locks, false);
                    if let (Some(ring), Some(secrets)) = (&scene.seat.ring, secrets) {
                        ring.adopt(secrets);
                    }
                }
                scene.seat.restored();
            }
            Delivery::Restore(Some(state)) => {
                self.loaded = None;
                (self.object, self.locks) = restored(&self.object, scene.seat, &state)?;
                self.fresh = false;
                scene.seat.restored();
            }
            Delivery::View { view, arrived, departed, missing, waited } => {
                let grants = self.locks.view(&view);
                if let Some(ring) = &scene.seat.ring {
                    ring.view(|process| view.entry(process).is_some());
                }
                let processes = |places: &[(ProcessId, SeatId)]| places.iter().map(|(id, _)| *id).collect();
                let here = (scene.seat.me, scene.seat.id);
                let view = View {
                    number: view.number.0,
                    members: view.places().map(|(id, _)| id).collect(),
                    joined: processes(&arrived),
                    left: processes(&departed),
                    me: scene.seat.me,
                    place: view.places().position(|place| place == here),
                    missing: missing.into_iter().collect(),
                    waited,
                };
                self.object.view(&view);
                self.view = Some(view);
                grants.into_iter().for_each(|grant| scene.seat.granted(grant));
            }
            Delivery::Wanted(taker) => self.checkpoint(taker, scene)?,
            Delivery::Keep(mark) => {
                if let Some(keeper) = &scene.seat.keeper {
                    keeper.keep(scene.seat, scene.shared, mark, &self.object, self.locks.clone());
                }
            }
            Delivery::Updates { sender, updates } => {
                for (place, message) in updates.iter() {
                    let mut content = message;
                    let kind = query::kind_of(&mut content);
                    let head = &message[..message.len() - content.len()];
                    if let Some(body) = scene.seat.opened(sender, head, content)? {
                        self.message(sender, place, kind, &body, scene)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl<R: Object> Lent<R> {
    /// Takes a message of a member.
    fn message(
        &mut self,
        sender: ProcessId,
        place: Place,
        kind: query::Kind,
        body: &[u8],
        scene: &Scene<'_>,
    ) -> Result<(), Error> {
        match kind {
            query::Kind::Update(seat) => {
                let update = opened(body).map_err(|why| {
                    Error::not_member(format!("an update of {sender} is none of its type: {why}"))
                })?;
                let own = (sender, seat) == (scene.seat.me, scene.seat.id);
                let origin = Origin { sender, own, place };
                self.object.apply(update, &origin);
            }
            query::Kind::Query(number) => self.answer(sender, number, body, scene),
            query::Kind::Claim(number) => {
                let (name, claim) = (String::from_utf8_lossy(body), Claim { member: sender, number });
                self.locks.claim(place, &name, claim).into_iter().for_each(|grant| scene.seat.granted(grant));
            }
            query::Kind::Release(number) => {
                let (name, claim) = (String::from_utf8_lossy(body), Claim { member: sender, number });
                if sender == scene.seat.me {
                    lock(&scene.seat.claims).released(number);
                }
                self.locks
                    .release(place, &name, claim)
                    .into_iter()
                    .for_each(|grant| scene.seat.granted(grant));
            }
            query::Kind::Rekey => match (&scene.seat.ring, <[u8; 32]>::try_from(body)) {
                (Some(ring), Ok(key)) => ring.turn(Key::from_bytes(key), || {
                    if let Place::Ordered(at, _) = place {
                        scene.shared.tell(Command::Follow { group: scene.seat.group, at });
                    }
                }),
                _ => warn!(%sender, "sent a key that is none, or to a group that has none"),
            },
            query::Kind::Strange => warn!(%sender, "sent what is neither update nor query"),
        }
        Ok(())
    }

    /// Hands the object over for members that joined.
    fn checkpoint(&self, taker: Taker, scene: &Scene<'_>) -> Result<(), Error> {
        let snapshot = self.object.checkpoint();
        let state = State::new(scene.seat, Signature::of(&self.object), self.locks.clone());
        if snapshot.is_late() {
            let (seat, shared) = (scene.seat.clone(), scene.shared.clone());
            let write = move || match state.of(snapshot) {
                Ok(state) => taker.get(&seat, &shared, state),
                Err(why) => seat.fail(Error::not_member(format!("its checkpoint: {why}")), &shared),
            };
            return in_background("checkpoint", write).map_err(Error::start);
        }
        let state = state.of(snapshot).map_err(|why| Error::not_member(format!("its checkpoint: {why}")))?;
        taker.get(scene.seat, scene.shared, state);
        Ok(())
    }

    /// Answers who asks.
    fn answer(&self, sender: ProcessId, number: u64, query: &[u8], scene: &Scene<'_>) {
        let Some(view) = &self.view else { return };
        let share = Share { rank: view.rank().unwrap_or(0), of: view.members.len() };
        let answered = catch_unwind(AssertUnwindSafe(|| {
            let query = opened(query).map_err(|why| format!("the query is none of its type: {why}"))?;
            Ok(match self.object.query(query, share) {
                Answer::Declined => Some(Word::Declined),
                Answer::Now(reply) => Some(Word::Reply(sealed(&reply)?)),
                Answer::Later(later) => {
                    later.bind(Asker::new(scene.seat, scene.shared, sender, number));
                    None
                }
            })
        }));
        let answered =
            answered.unwrap_or_else(|panic| Err(format!("it panicked: {}", panic_message(&*panic))));
        if let Some(word) = answered.unwrap_or_else(|why| Some(Word::Failed(why.into_bytes()))) {
            scene.shared.answer(scene.seat, sender, number, word);
        }
    }
}

impl Taker {
    /// The object is here, in the state of the group.
    fn get(self, giver: &Seat, shared: &Shared, state: Bytes) {
        match self {
            Taker::Group(view) => shared.tell(Command::Checkpoint { group: giver.group, view, state }),
            Taker::Seats(seats) => {
                for seat in seats {
                    seat.begin(state.clone());
                    shared.got(&seat);
                    shared.stir(seat);
                }
            }
        }
        giver.paid();
    }
}

/// The state of a group but for its object, as of one place in its messages: whose replicas it is of, its locks, its secrets.
struct State {
    signature: Signature,
    locks: Locks,
    me: ProcessId,
    secrets: Option<(Arc<Ring>, Secrets)>,
}

const PLAIN: u8 = 0;
const SEALED: u8 = 1;

impl State {
    fn new(seat: &Seat, signature: Signature, locks: Locks) -> Self {
        let secrets = seat.ring.as_ref().map(|ring| (ring.clone(), ring.secrets()));
        State { signature, locks, me: seat.me, secrets }
    }

    /// With this object. What is sealed names who seals it, because the key follows from that.
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
            Some((ring, _)) => ring.seal(head, &bytes),
        };
        Ok(if bytes.len() < LARGE_BYTES { bytes } else { Bytes::from_owner(Large(bytes)) })
    }
}

/// Memory of so many bytes takes long to give back.
const LARGE_BYTES: usize = 16 << 20;

/// A state whose memory is given back in the background: the protocol thread is the last to use it.
struct Large(Bytes);

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        let bytes = mem::take(&mut self.0);
        // Without a thread it is given back here.
        let _ = in_background("give back", move || drop(bytes));
    }
}

/// The object and the locks of a group's state, for a member that has brought this object along.
fn restored<R: Object>(brought: &R, seat: &Seat, state: &Bytes) -> Result<(R, Locks), Error> {
    let Seat { name, ring, .. } = seat;
    let strange = |why: &dyn fmt::Display| Error::mismatch(format!("the state of the group `{name}`"), why);
    let locked = |why: &str| Error::mismatch(format!("the key of the group `{name}`"), why);
    let damaged = |error: WireError| strange(&error);
    let mut rest = state.clone();
    let mut secrets = None;
    let mut content = match (take_u8(&mut rest).map_err(damaged)?, ring) {
        (PLAIN, None) => rest,
        (PLAIN, Some(ring)) => {
            return Err(locked(&format!(
                "there is none, and this member has {}: join without one",
                ring.id()
            )));
        }
        (SEALED, None) => return Err(locked("there is one, and this member has none: join with it")),
        (SEALED, Some(ring)) => {
            let giver = take_process(&mut rest).map_err(damaged)?;
            let head = &state[..state.len() - rest.len()];
            let plain = ring.open(giver, head, &rest).map_err(|why| match why {
                Unopened::OtherKey(key) => {
                    locked(&format!("it is {key}, and this member has {}: join with that one", ring.id()))
                }
                Unopened::Damaged | Unopened::Replayed => strange(&"it is not as it was sealed"),
            })?;
            secrets = Some(ring);
            plain
        }
        (tag, _) => return Err(damaged(WireError::Tag(tag))),
    };
    let theirs: Signature = decode_body(&mut content).map_err(damaged)?;
    if let Some(why) = Signature::of(brought).differs(&theirs) {
        return Err(strange(&why));
    }
    if let Some(ring) = secrets {
        ring.adopt(decode_body(&mut content).map_err(damaged)?);
    }
    let locks = decode_body(&mut content).map_err(damaged)?;
    let object = brought.restore(&Snapshot::of_bytes(content));
    Ok((object.map_err(|corrupt| strange(&corrupt))?, locks))
}

/// The bytes of a value.
pub(super) fn sealed(value: &impl Serialize) -> Result<Vec<u8>, String> {
    postcard::to_stdvec(value).map_err(|error| format!("it does not serialise: {error}"))
}

/// The value that these bytes are, all of them.
pub(super) fn opened<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(format!("{} bytes are left over", rest.len())),
        Err(error) => Err(error.to_string()),
    }
}

/// A number of this thread, which no other has.
fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: u64 = LAST.fetch_add(1, Ordering::Relaxed) + 1);
    NUMBER.with(|number| *number)
}

/// The state behind these locks is whole at every step.
pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
