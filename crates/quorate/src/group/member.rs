//! A member: this program's end of one group.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    thread,
};

use bytes::Bytes;
use quorate_protocol::{
    ProcessId,
    group::{Command, CommandOutcome, Failure, Mark, Phi, Place, SendStrength},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot::error::RecvError};
use tracing::warn;

use super::{
    Key, KeyId, Object, View, message, open_commands::CommandEnd, outbox::Sent, process::Process,
    replica::LocalReplica, shared::Seat,
};
use crate::{error::Error, pending::Pending, wait::Wait};

/// A member of a group. Clones stand for the same member. When the last clone is dropped, the member leaves
/// in the background.
///
/// A call of `send`, `ordered_send` or `safe_send` passes the message on at once if there is room, in the
/// order of the calls. The future ends when the send has ended. Dropping the future does not take the message
/// back.
pub struct Member<R: Object>(Arc<MemberHandle>, PhantomData<fn() -> R>);

pub(super) struct MemberHandle {
    process: Arc<Process>,
    seat: Arc<Seat>,
    room: Arc<Semaphore>,
}

/// Upper bound of a member's sends in progress, in bytes. Later sends wait.
const ROOM_BYTES: usize = 8 << 20;
/// Bytes of `ROOM_BYTES` that even the smallest send takes.
const SEND_BYTES_MIN: usize = 256;
/// Upper bound of an update or query, in bytes.
const BODY_BYTES_MAX: usize = 8 << 20;

impl<R: Object> Member<R> {
    pub(super) fn new(process: Arc<Process>, seat: Arc<Seat>) -> Self {
        Member(
            Arc::new(MemberHandle { process, seat, room: Arc::new(Semaphore::new(ROOM_BYTES)) }),
            PhantomData,
        )
    }

    pub(super) fn seat(&self) -> &Arc<Seat> {
        &self.0.seat
    }

    pub(super) fn held(&self) -> &Arc<MemberHandle> {
        &self.0
    }

    /// Applies all deliveries, then passes the replica to `read`.
    pub(super) fn lend<T>(&self, read: impl FnOnce(&LocalReplica<R>) -> T) -> Result<T, Error> {
        self.0.seat.lend(&self.0.process.shared, read)
    }

    /// Returns this member's process. Members of one group in one process share it.
    pub fn id(&self) -> ProcessId {
        self.0.process.me()
    }

    /// Returns the group's name.
    pub fn name(&self) -> &str {
        &self.0.seat.name
    }

    /// Sends a *soft* update. This process delivers it as soon as this member may send, and the other members
    /// deliver this member's updates in the order of their sending. The update survives if any member of the
    /// next view has it. The future ends once the update is delivered here.
    pub fn send(&self, update: R::Update) -> Pending<'static, Place> {
        self.send_as(SendStrength::Soft, update)
    }

    /// Sends an update that all members deliver in one order with all other ordered and safe updates. The
    /// future ends once the update is delivered here.
    pub fn ordered_send(&self, update: R::Update) -> Pending<'static, Place> {
        self.send_as(SendStrength::Ordered, update)
    }

    /// Sends an update that no member delivers before all members and a majority of the routers have it. The
    /// future ends once the update is delivered here. The update is not lost as long as one member with the
    /// group's state is left.
    pub fn safe_send(&self, update: R::Update) -> Pending<'static, Place> {
        self.send_as(SendStrength::Safe(Phi::All), update)
    }

    /// Sends an update like [`Member::safe_send`], but members deliver the update once the given number of
    /// members has it. The update is not lost as long as a majority of the routers or one of these members is
    /// left. Earlier soft updates of this member may be lost.
    pub fn safe_send_to(&self, members: Phi, update: R::Update) -> Pending<'static, Place> {
        self.send_as(SendStrength::Safe(members), update)
    }

    /// Sends an update at the given strength. The future ends once the update is delivered here.
    pub fn send_as(&self, strength: SendStrength, update: R::Update) -> Pending<'static, Place> {
        message::update(self.0.seat.id, &update, |body| self.submit(strength, body)).unwrap_or_else(|why| {
            Box::pin(async move { Err(Error::invalid(format!("the update cannot be encoded: {why}"))) })
        })
    }

    /// Passes a message to the outbox at once if this member has room, or else as soon as it has room.
    pub(super) fn submit(&self, strength: SendStrength, body: &[u8]) -> Pending<'static, Place> {
        if body.len() > BODY_BYTES_MAX {
            let (bytes, limit) = (body.len(), BODY_BYTES_MAX);
            return Box::pin(async move { Err(Error::TooLarge { bytes, limit }) });
        }
        let held = self.0.clone();
        let bytes = body.len().max(SEND_BYTES_MIN) as u32;
        match held.room.clone().try_acquire_many_owned(bytes) {
            Ok(room) => {
                let sent = held.hand_over(room, strength, body);
                Box::pin(SendFuture { held, sent: sent.map_err(Some) })
            }
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {
                let body = Bytes::copy_from_slice(body);
                Box::pin(async move {
                    let room = held
                        .room
                        .clone()
                        .acquire_many_owned(bytes)
                        .await
                        .expect("the semaphore is never closed");
                    let sent = held.hand_over(room, strength, &body)?;
                    held.to_user_result(sent.await)
                })
            }
        }
    }

    /// Changes the key with which the group seals. A safe message, sealed with the former key, carries the
    /// new key to the members. The future ends once that message is delivered here. Members still open
    /// messages that were sealed before. A new member needs the new key.
    pub fn rotate(&self, key: &Key) -> Pending<'static, Place> {
        match &self.0.seat.group_keys {
            Some(_) => self.submit(SendStrength::Safe(Phi::All), &message::rekey(key)),
            None => Box::pin(async {
                Err(Error::invalid("the group has no key to change: its first member joined without a key"))
            }),
        }
    }

    /// Returns the id of the key with which this member seals, if the group has a key.
    pub fn key(&self) -> Option<KeyId> {
        self.0.seat.group_keys.as_ref().map(|group_keys| group_keys.id())
    }

    /// Returns the number of repeated messages that were refused, and the number of refused messages that no
    /// holder of the key had sealed.
    pub fn key_refusals(&self) -> (u64, u64) {
        self.0.seat.group_keys.as_ref().map_or((0, 0), |group_keys| group_keys.refused())
    }

    /// Waits until all members have every message that was delivered here so far, from any sender. After the
    /// wait, these messages are as durable as safe messages. Other sends go on meanwhile.
    pub fn flush(&self) -> Pending<'static, ()> {
        let held = self.0.clone();
        let flushed = held.check().and_then(|()| {
            let group = held.seat.group;
            held.process.shared.call(|id| Command::Flush { id, group })
        });
        Box::pin(async move { held.ended(flushed?).await.map(drop) })
    }

    /// Saves the group's state, with every message that was delivered here so far. The state goes to the
    /// [checkpoint file](super::Group::checkpoint_file) of this member, and of all other members that have
    /// one. The future ends once this member's file is durable and the routers know of it: if all members
    /// end, the group continues from nothing older. The save begins a view, so soft sends wait for a moment.
    pub fn save(&self) -> Pending<'static, Mark> {
        let held = self.0.clone();
        if held.seat.keeper.is_none() {
            return Box::pin(async {
                Err(Error::invalid(
                    "this member joined without a checkpoint file, so its state cannot be saved",
                ))
            });
        }
        let group = held.seat.group;
        let marked = held
            .check()
            .and_then(|()| held.process.shared.call(|id| Command::Save { id, group, last: false }));
        Box::pin(async move {
            let marked = held.ended(marked?).await?;
            saved(&held.seat, marked).await
        })
    }

    /// Applies all deliveries, then passes the object to `read`. Other callbacks of this member wait
    /// meanwhile. `read` must not wait for its own sends.
    pub fn read<T>(&self, read: impl FnOnce(&R) -> T) -> Result<T, Error> {
        self.lend(|copy| read(&copy.object))
    }

    /// Returns the view of the state that [`Member::read`] would show.
    pub fn view(&self) -> Result<View, Error> {
        let view = self.lend(|copy| copy.view.clone())?;
        view.ok_or_else(|| Error::not_member("the member has no view yet"))
    }

    /// Whether the member began with its own object because no member had the group's state: the member was
    /// the first, or all members with the state were gone.
    pub fn is_fresh(&self) -> Result<bool, Error> {
        self.lend(|copy| copy.fresh)
    }

    /// Returns the reason why the member ended, if it has ended.
    pub fn ended(&self) -> Option<Error> {
        self.0.seat.over()
    }

    /// Leaves the group after all sends of this member. A member with a [checkpoint
    /// file](super::Group::checkpoint_file) saves the state first. If the save fails, the member leaves
    /// nevertheless, and the future returns the error. The future ends once the member is out of the group.
    /// The only member with the state stays until another member has the state. If the future is dropped
    /// early, the member leaves, and the state may not be saved.
    pub fn leave(self) -> Pending<'static, ()> {
        let held = self.0.clone();
        Box::pin(async move {
            if held.seat.over().is_some() || held.seat.leaving.swap(true, Ordering::AcqRel) {
                return Ok(());
            }
            let going = LeaveGuard(Some(held.clone()));
            let kept = match held.process.shared.close(&held.seat) {
                Some(closing) => finish(&held.seat, closing).await,
                None => Ok(()),
            };
            going.has_gone();
            let left = held.process.shared.leave(&held.seat);
            held.ended(left).await?;
            kept
        })
    }
}

/// A member that is marked as leaving and has not left. The mark keeps the drop of the last clone from making
/// the member leave, so the drop of this value does that.
struct LeaveGuard(Option<Arc<MemberHandle>>);

impl LeaveGuard {
    fn has_gone(mut self) {
        self.0 = None;
    }
}

impl Drop for LeaveGuard {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            drop(held.process.shared.leave(&held.seat));
        }
    }
}

/// A send that the outbox accepted or refused. This future is written by hand, so that it is small and its
/// poll is short, because busy senders spend their time here.
struct SendFuture {
    held: Arc<MemberHandle>,
    /// The accepted send, or the reason for the refusal. The future returns the reason once.
    sent: Result<Sent, Option<Error>>,
}

impl Future for SendFuture {
    type Output = Result<Place, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.sent {
            Ok(sent) => Pin::new(sent).poll(cx).map(|result| self.held.to_user_result(result)),
            Err(why) => Poll::Ready(Err(why.take().expect("a future is not polled again once it has ended"))),
        }
    }
}

impl MemberHandle {
    pub(super) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// Sends a message at once, even if this member has no room. No caller waits for the send.
    pub(super) fn say(&self, strength: SendStrength, body: &[u8]) {
        let group = self.seat.group;
        self.seat.sealed(body, |body| self.process.shared.say(group, strength, body));
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        // The seat knows the reason for its own end more precisely than the process does.
        self.seat.over().map_or(Ok(()), Err)?;
        self.process.shared.check()
    }

    fn hand_over(
        &self,
        room: OwnedSemaphorePermit,
        strength: SendStrength,
        body: &[u8],
    ) -> Result<Sent, Error> {
        self.check()?;
        let group = self.seat.group;
        self.seat.sealed(body, |body| self.process.shared.send((group, strength), body, room))
    }

    async fn ended(&self, ending: CommandEnd) -> Result<CommandOutcome, Error> {
        self.to_user_result(ending.await)
    }

    fn to_user_result<T>(&self, result: Result<Result<T, Failure>, RecvError>) -> Result<T, Error> {
        match result {
            Ok(result) => result.map_err(|failure| match self.seat.over() {
                // The seat knows more precisely why the member is out of the group.
                Some(why) if matches!(failure, Failure::NotMember | Failure::Wedged) => why,
                _ => failure.into(),
            }),
            Err(RecvError { .. }) => Err(ended_meanwhile()),
        }
    }
}

impl Drop for MemberHandle {
    fn drop(&mut self) {
        if self.seat.over().is_some() || self.seat.leaving.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(closing) = self.process.shared.close(&self.seat) else {
            return drop(self.process.shared.leave(&self.seat));
        };
        let (process, seat) = (self.process.clone(), self.seat.clone());
        let leaving = thread::Builder::new().name(String::from("leave")).spawn(move || {
            if let Err(why) = finish(&seat, closing).wait() {
                warn!(
                    group = seat.name, %why,
                    "a dropped member leaves its group without saving a checkpoint"
                );
            }
            drop(process.shared.leave(&seat));
        });
        if leaving.is_err() {
            warn!(
                group = self.seat.name,
                "a dropped member leaves its group without saving a checkpoint, because the system gives no \
                 thread"
            );
            drop(self.process.shared.leave(&self.seat));
        }
    }
}

/// Waits until the state of a member that is about to leave is saved.
pub(super) async fn finish(seat: &Seat, closing: Result<CommandEnd, Error>) -> Result<(), Error> {
    match closing?.await {
        Ok(Ok(marked)) => saved(seat, marked).await.map(drop),
        Ok(Err(failure)) => Err(seat.over().unwrap_or(failure.into())),
        Err(_) => Err(ended_meanwhile()),
    }
}

/// Waits until a marked checkpoint is saved.
async fn saved(seat: &Seat, marked: CommandOutcome) -> Result<Mark, Error> {
    let (Some(keeper), CommandOutcome::Marked(mark)) = (&seat.keeper, marked) else {
        unreachable!("a save ended in {marked:?}");
    };
    keeper.wait(mark).await.unwrap_or_else(|_| Err(ended_meanwhile()))
}

fn ended_meanwhile() -> Error {
    Error::MaybeApplied { id: None, why: String::from("the process ended before the checkpoint was saved") }
}

impl<R: Object> Clone for Member<R> {
    fn clone(&self) -> Self {
        Member(self.0.clone(), PhantomData)
    }
}

impl<R: Object> fmt::Debug for Member<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("group", &self.name()).field("of", &self.id()).finish_non_exhaustive()
    }
}
