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
    group::{Command, Failure, Mark, Outcome, Phi, Place, Strength},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot::error::RecvError};
use tracing::warn;

use super::{
    Key, KeyId, Object, Query, View, Want,
    inbox::{Lent, Seat},
    outbox::Sent,
    process::{Ending, Process},
    query,
};
use crate::{error::Error, pending::Pending, wait::Wait};

/// A member of a group. Its clones share it; when the last of them is dropped, it leaves, unwaited for.
///
/// Sends are handed over when they are called, if there is room, in the order of the calls; what is awaited is their end. An output that
/// is dropped takes nothing back.
pub struct Member<R: Object>(Arc<Held>, PhantomData<fn() -> R>);

pub(super) struct Held {
    process: Arc<Process>,
    seat: Arc<Seat>,
    room: Arc<Semaphore>,
}

/// Bytes of a member's sends that may be under way; more wait.
const ROOM_BYTES: usize = 8 << 20;
/// A send takes no less room.
const SEND_BYTES_MIN: usize = 256;
/// No update or query is longer, in bytes.
const BODY_BYTES_MAX: usize = 8 << 20;

impl<R: Object> Member<R> {
    pub(super) fn new(process: Arc<Process>, seat: Arc<Seat>) -> Self {
        Member(Arc::new(Held { process, seat, room: Arc::new(Semaphore::new(ROOM_BYTES)) }), PhantomData)
    }

    pub(super) fn seat(&self) -> &Arc<Seat> {
        &self.0.seat
    }

    pub(super) fn held(&self) -> &Arc<Held> {
        &self.0
    }

    /// Looks at what is here, with everything applied that was delivered.
    pub(super) fn lend<T>(&self, read: impl FnOnce(&Lent<R>) -> T) -> Result<T, Error> {
        self.0.seat.lend(&self.0.process.shared, read)
    }

    /// The process that it is of. Members of one group in one process have it in common.
    pub fn id(&self) -> ProcessId {
        self.0.process.me()
    }

    /// The group's name.
    pub fn name(&self) -> &str {
        &self.0.seat.name
    }

    /// Sends an update, *soft*: it is delivered here as soon as this member may send, and elsewhere in this member's order. It survives if
    /// any member of the next view has it. Ends when it was delivered here.
    pub fn send(&self, update: R::Update) -> Pending<'static, Place> {
        self.send_as(Strength::Soft, &update)
    }

    /// Sends an update that is delivered in one order with all other ordered and safe ones, at all members. Ends when it was delivered
    /// here.
    pub fn ordered_send(&self, update: R::Update) -> Pending<'static, Place> {
        self.send_as(Strength::Ordered, &update)
    }

    /// Sends an update that is delivered nowhere before all members have it, and a majority of the routers. Ends when it was delivered
    /// here: it is not lost as long as a member is left.
    pub fn safe_send(&self, update: R::Update) -> Pending<'static, Place> {
        self.send_as(Strength::Safe(Phi::All), &update)
    }

    /// As [`Member::safe_send`], delivered once so many members have it. Not lost as long as a router majority or one of them is
    /// left; soft updates that this member sent before may be.
    pub fn safe_send_to(&self, members: Phi, update: R::Update) -> Pending<'static, Place> {
        self.send_as(Strength::Safe(members), &update)
    }

    fn send_as(&self, strength: Strength, update: &R::Update) -> Pending<'static, Place> {
        query::update(self.0.seat.id, update, |body| self.submit(strength, body))
            .unwrap_or_else(|why| Box::pin(async move { Err(Error::invalid(format!("the update: {why}"))) }))
    }

    /// Hands a message over, now if there is room.
    pub(super) fn submit(&self, strength: Strength, body: &[u8]) -> Pending<'static, Place> {
        if body.len() > BODY_BYTES_MAX {
            let (bytes, limit) = (body.len(), BODY_BYTES_MAX);
            return Box::pin(async move { Err(Error::TooLarge { bytes, limit }) });
        }
        let held = self.0.clone();
        let bytes = body.len().max(SEND_BYTES_MIN) as u32;
        match held.room.clone().try_acquire_many_owned(bytes) {
            Ok(room) => {
                let sent = held.hand_over(room, strength, body);
                Box::pin(Delivery { held, sent: sent.map_err(Some) })
            }
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {
                let body = Bytes::copy_from_slice(body);
                Box::pin(async move {
                    let room = held.room.clone().acquire_many_owned(bytes).await.expect("it is never closed");
                    let sent = held.hand_over(room, strength, &body)?;
                    held.told(sent.await)
                })
            }
        }
    }

    /// Has the group seal with another key from now on: told to its members with the former one, as a safe message. Ends when it was
    /// delivered here. What was sealed before is opened all the same; who joins needs the new key.
    pub fn rotate(&self, key: &Key) -> Pending<'static, Place> {
        match &self.0.seat.ring {
            Some(_) => self.submit(Strength::Safe(Phi::All), &query::rekey(key)),
            None => {
                Box::pin(async { Err(Error::invalid("the group has no key: its first member gave none")) })
            }
        }
    }

    /// The name of the key that this member seals with, if the group has one.
    pub fn key(&self) -> Option<KeyId> {
        self.0.seat.ring.as_ref().map(|ring| ring.id())
    }

    /// How many messages were refused because they had been said before, and because nobody with the key had sealed them.
    pub fn key_refusals(&self) -> (u64, u64) {
        self.0.seat.ring.as_ref().map_or((0, 0), |ring| ring.refused())
    }

    /// Waits until everything that was delivered here so far, from anyone, is at all members: as durable as if it had been sent safe.
    /// Sends meanwhile go on.
    pub fn flush(&self) -> Pending<'static, ()> {
        let held = self.0.clone();
        let flushed = held.check().and_then(|()| {
            let group = held.seat.group;
            held.process.shared.call(|id| Command::Flush { id, group })
        });
        Box::pin(async move { held.ended(flushed?).await.map(drop) })
    }

    /// Saves the group's state, with everything that was delivered here so far, to the [checkpoint
    /// file](super::Group::checkpoint_file) of this member, and of all others that have one. Ends once this member's file is
    /// durable and the routers know of it: if all members end, the group goes on from nothing older. A view begins for it, so soft
    /// sends wait for a moment.
    pub fn save(&self) -> Pending<'static, Mark> {
        let held = self.0.clone();
        if held.seat.keeper.is_none() {
            return Box::pin(async { Err(Error::invalid("it was joined without a checkpoint file")) });
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

    /// Looks at the object, with everything applied that was delivered here. Other callbacks of this member wait meanwhile; what is
    /// sent inside must not be waited for there.
    pub fn read<T>(&self, read: impl FnOnce(&R) -> T) -> Result<T, Error> {
        self.lend(|copy| read(&copy.object))
    }

    /// The view behind everything that [`Member::read`] would show.
    pub fn view(&self) -> Result<View, Error> {
        let view = self.lend(|copy| copy.view.clone())?;
        view.ok_or_else(|| Error::not_member("it has no view yet"))
    }

    /// Whether it began with the object that it brought along, because nobody had the group's state: it was the first, or all who had
    /// it were gone.
    pub fn is_fresh(&self) -> Result<bool, Error> {
        self.lend(|copy| copy.fresh)
    }

    /// Why it is at its end, if it is.
    pub fn ended(&self) -> Option<Error> {
        self.0.seat.over()
    }

    /// Asks members, each in the state that it is in behind what this member sent before.
    pub fn query(&self, query: R::Query, want: Want) -> Query<R> {
        self.query_as(Strength::Soft, &query, want)
    }

    /// Asks members, all in the same state as far as ordered and safe updates are concerned.
    pub fn ordered_query(&self, query: R::Query, want: Want) -> Query<R> {
        self.query_as(Strength::Ordered, &query, want)
    }

    /// As [`Member::ordered_query`], and nobody replies before all members have the query.
    pub fn safe_query(&self, query: R::Query, want: Want) -> Query<R> {
        self.query_as(Strength::Safe(Phi::All), &query, want)
    }

    fn query_as(&self, strength: Strength, query: &R::Query, want: Want) -> Query<R> {
        let query = super::inbox::sealed(query);
        Query { member: self.clone(), query, want, strength, deadline: query::DEADLINE, replica: PhantomData }
    }

    /// Leaves the group, behind everything that this member sent. If it has a [checkpoint file](super::Group::checkpoint_file), the state
    /// is saved first; an error of that is told, and the member is out all the same. Ends once it is out. The only one that has the
    /// state is kept until another has it.
    pub fn leave(self) -> Pending<'static, ()> {
        let held = self.0.clone();
        Box::pin(async move {
            if held.seat.over().is_some() || held.seat.leaving.swap(true, Ordering::AcqRel) {
                return Ok(());
            }
            let kept = match held.process.shared.close(&held.seat) {
                Some(closing) => finish(&held.seat, closing).await,
                None => Ok(()),
            };
            let left = held.process.shared.leave(&held.seat)?;
            held.ended(left).await?;
            kept
        })
    }
}

/// A send that was handed over, or was not. Small, and polled in one step: this is where a busy sender's time goes.
struct Delivery {
    held: Arc<Held>,
    /// An error is told once.
    sent: Result<Sent, Option<Error>>,
}

impl Future for Delivery {
    type Output = Result<Place, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.sent {
            Ok(sent) => Pin::new(sent).poll(cx).map(|told| self.held.told(told)),
            Err(why) => Poll::Ready(Err(why.take().expect("it is not polled once it has ended"))),
        }
    }
}

impl Held {
    pub(super) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// Sends what nobody waits for, whether there is room or not.
    pub(super) fn say(&self, strength: Strength, body: &[u8]) {
        let group = self.seat.group;
        self.seat.sealed(body, |body| self.process.shared.say(group, strength, body));
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        // The seat knows better why it is at its end.
        self.seat.over().map_or(Ok(()), Err)?;
        self.process.shared.check()
    }

    fn hand_over(&self, room: OwnedSemaphorePermit, strength: Strength, body: &[u8]) -> Result<Sent, Error> {
        self.check()?;
        let group = self.seat.group;
        self.seat.sealed(body, |body| self.process.shared.send((group, strength), body, room))
    }

    async fn ended(&self, ending: Ending) -> Result<Outcome, Error> {
        self.told(ending.await)
    }

    fn told<T>(&self, told: Result<Result<T, Failure>, RecvError>) -> Result<T, Error> {
        match told {
            Ok(result) => result.map_err(|failure| match self.seat.over() {
                // The seat knows better why it is no member.
                Some(why) if matches!(failure, Failure::NotMember | Failure::Wedged) => why,
                _ => failure.into(),
            }),
            Err(RecvError { .. }) => Err(ended_meanwhile()),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.seat.over().is_some() || self.seat.leaving.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(closing) = self.process.shared.close(&self.seat) else {
            return leave(&self.process, &self.seat);
        };
        let (process, seat) = (self.process.clone(), self.seat.clone());
        let leaving = thread::Builder::new().name(String::from("leave")).spawn(move || {
            // An error was told where it happened.
            let _ = finish(&seat, closing).wait();
            leave(&process, &seat);
        });
        if leaving.is_err() {
            leave(&self.process, &self.seat);
        }
    }
}

/// Has a member leave that nobody waits for.
fn leave(process: &Process, seat: &Arc<Seat>) {
    if let Err(why) = process.shared.leave(seat) {
        warn!(%why, "a member that was dropped cannot leave its group");
    }
}

/// Waits until the state of a member that is about to leave is saved.
pub(super) async fn finish(seat: &Seat, closing: Result<Ending, Error>) -> Result<(), Error> {
    match closing?.await {
        Ok(Ok(marked)) => saved(seat, marked).await.map(drop),
        Ok(Err(failure)) => Err(seat.over().unwrap_or(failure.into())),
        Err(_) => Err(ended_meanwhile()),
    }
}

/// Waits until a checkpoint that was marked is saved.
async fn saved(seat: &Seat, marked: Outcome) -> Result<Mark, Error> {
    let (Some(keeper), Outcome::Marked(mark)) = (&seat.keeper, marked) else {
        unreachable!("a save ended in {marked:?}");
    };
    keeper.wait(mark).await.unwrap_or_else(|_| Err(ended_meanwhile()))
}

fn ended_meanwhile() -> Error {
    Error::MaybeApplied { id: None, why: String::from("the process ended meanwhile") }
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
