//! A member's replica of its group: the user's object, and the locks, as of one place in the messages.

use std::{
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
};

use bytes::{BufMut, Bytes, BytesMut};
use quorate_node::panic_message;
use quorate_protocol::{
    ProcessId,
    group::{Claim, Command, Locks, Place, SeatId},
    wire::{WireError, decode_body, encode_body, put_process, take_process, take_u8},
};
use tracing::{info, warn};

use super::{
    Answer, Key, Object, Origin, Share, Snapshot, View,
    answer::Asker,
    background::in_background,
    checkpoint::Loaded,
    key::{GroupKeys, OpenError, Secrets},
    message::{Kind, decode, encode, kind_of},
    open_queries::QueryAnswer,
    shared::{Delivery, GroupShared, ReplicaContext, Replicated, Seat, StateReceiver},
    signature::Signature,
};
use crate::{error::Error, lock::lock};

/// The replica that readers borrow.
pub(super) struct LocalReplica<R> {
    pub(super) object: R,
    pub(super) locks: Locks,
    pub(super) view: Option<View>,
    /// Whether the member began with its own object, and not with the group's state.
    pub(super) fresh: bool,
    /// The state from the checkpoint file, kept until it is known whether the state is needed; or the reason
    /// why the file cannot be used.
    pub(super) loaded: Option<Result<Loaded<R>, Error>>,
}

/// The state that a joining member brings along. It counts only if no other process has the group's state.
pub(super) struct JoinerState<R> {
    pub(super) object: R,
    /// The state from the member's checkpoint file, or the reason why the file cannot be used.
    pub(super) loaded: Option<Result<Loaded<R>, Error>>,
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
                    let kind = kind_of(&mut content);
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
    /// Handles a delivered message by its kind.
    fn message(
        &mut self,
        sender: ProcessId,
        place: Place,
        kind: Kind,
        body: &[u8],
        context: &ReplicaContext<'_>,
    ) -> Result<(), Error> {
        match kind {
            Kind::Update(seat) => {
                let update = decode(body).map_err(|why| {
                    Error::not_member(format!(
                        "an update of {sender} does not decode as an update of this group: {why}"
                    ))
                })?;
                let own = (sender, seat) == (context.seat.me, context.seat.id);
                let origin = Origin { sender, own, place };
                self.object.apply(update, &origin);
            }
            Kind::Query(number) => self.answer(sender, number, body, context),
            Kind::Claim(number) => {
                let (name, claim) = (String::from_utf8_lossy(body), Claim { member: sender, number });
                self.locks
                    .claim(place, &name, claim)
                    .into_iter()
                    .for_each(|grant| context.seat.granted(grant));
            }
            Kind::Release(number) => {
                let (name, claim) = (String::from_utf8_lossy(body), Claim { member: sender, number });
                if sender == context.seat.me {
                    lock(&context.seat.claims).released(number);
                }
                self.locks
                    .release(place, &name, claim)
                    .into_iter()
                    .for_each(|grant| context.seat.granted(grant));
            }
            Kind::Rekey => match (&context.seat.group_keys, <[u8; 32]>::try_from(body)) {
                (Some(group_keys), Ok(key)) => group_keys.turn(Key::from_bytes(key), || {
                    if let Place::Ordered(at, _) = place {
                        context.shared.pass_command(Command::Follow { group: context.seat.group, at });
                    }
                }),
                _ => {
                    warn!(%sender, "a process sent an invalid key of a group, or a key to a group without one; the key is ignored")
                }
            },
            Kind::Strange => {
                warn!(%sender, "a process sent a message that is neither an update nor a query; the message is ignored")
            }
        }
        Ok(())
    }

    /// Gives the object to members that have joined.
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

    /// Answers a query, which this member or another member sent.
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
                    later.bind(QueryAsker::new(context.seat, context.shared, sender, number));
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
    /// Passes the object's bytes to the receivers, and notes that the giver has given its object.
    fn get(self, giver: &Seat, shared: &GroupShared, state: Bytes) {
        match self {
            StateReceiver::Group(view) => {
                shared.pass_command(Command::Checkpoint { group: giver.group, view, state })
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

/// The state of a group without its object, as of one place in the group's messages: the replica's signature,
/// the locks, the secrets.
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
            // The member may have changed its key meanwhile, but a process that joins at this place in the
            // messages lacks the new key. So the state is sealed with the key of this place.
            Some((group_keys, secrets)) => group_keys.seal_with(secrets, head, &bytes),
        };
        Ok(if bytes.len() < LARGE_BYTES { bytes } else { Bytes::from_owner(Large(bytes)) })
    }
}

/// Memory of this size in bytes, or larger, takes long to release.
const LARGE_BYTES: usize = 16 << 20;

/// A state whose memory another thread releases in the background, because the protocol thread drops the
/// state and must not be delayed.
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
                    "the group has the key {key}, and this member was given the key {}: join with the group's key",
                    group_keys.id()
                )),
                OpenError::Damaged | OpenError::Replayed => strange(&"the received state is damaged, because its seal does not fit"),
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

/// The asker of a query, as the answering member sees it.
struct QueryAsker {
    seat: Weak<Seat>,
    shared: Weak<GroupShared>,
    sender: ProcessId,
    number: u64,
}

impl QueryAsker {
    /// Makes the asker. `seat` is the seat of the answering member, and `sender` and `number` are those of
    /// the query.
    fn new(seat: &Arc<Seat>, shared: &Arc<GroupShared>, sender: ProcessId, number: u64) -> QueryAsker {
        QueryAsker { seat: Arc::downgrade(seat), shared: Arc::downgrade(shared), sender, number }
    }

    fn member(&self) -> Option<(Arc<Seat>, Arc<GroupShared>)> {
        let (seat, shared) = (self.seat.upgrade()?, self.shared.upgrade()?);
        seat.over().is_none().then_some((seat, shared))
    }
}

impl Asker for QueryAsker {
    fn send_answer(&self, answer: QueryAnswer) {
        if let Some((seat, shared)) = self.member() {
            shared.answer(&seat, self.sender, self.number, answer);
        }
    }

    fn try_send_answer(&self, answer: QueryAnswer) {
        if let Some((seat, shared)) = self.member() {
            shared.answer_briefly(&seat, self.sender, self.number, answer);
        }
    }
}
