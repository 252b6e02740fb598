//! Answers to queries: now, later, or declined.
//!
//! `Replica::query` runs between two updates, and later deliveries wait for it. A member may have to ask
//! another party first, or to compute for long. In that case it returns [`Answer::Later`] and passes the
//! [`Promise`] to another thread.
//!
//! **Invariants.**
//! - *One answer for each query.* An answer consumes its promise. Dropping an unanswered promise declines the
//!   query.
//! - *No delivery waits for an answer.* The applying thread only notes the asker. The thread that answers
//!   serialises, seals and sends the reply, with the group's key of that moment.
//! - *A promise answers for the member that was asked.* Once the member is out of its group, its promises
//!   send nothing, because the asker learns from the view that the member is gone. A promise keeps neither
//!   the member nor its process alive.

use std::{
    fmt,
    marker::PhantomData,
    mem,
    sync::{Arc, Mutex},
    thread,
};

use serde::Serialize;

use super::{message::encode, open_queries::QueryAnswer};
use crate::lock::lock;

/// A member's answer to a query.
///
/// ```
/// use std::thread;
///
/// use quorate::group::{Answer, Share};
///
/// fn query(number: u64, _: Share) -> Answer<u64> {
///     let (answer, promise) = Answer::later();
///     thread::spawn(move || promise.answer((1..=number).product()));
///     answer
/// }
/// ```
#[derive(Debug)]
pub enum Answer<T> {
    /// The reply.
    Now(T),
    /// The reply comes later, through the [`Promise`] that was made with this value.
    Later(Later<T>),
    /// The member does not reply.
    Declined,
}

impl<T> Answer<T> {
    /// Returns an answer that comes later, and the promise through which the member gives it. The asker waits
    /// no longer than its own deadline, and drops and counts a later reply (`quorate_group_late_replies`).
    pub fn later() -> (Answer<T>, Promise<T>) {
        let state = Arc::new(Mutex::new(PromiseState::Open));
        (Answer::Later(Later(state.clone(), PhantomData)), Promise(Some(state), PhantomData))
    }
}

/// The place of an answer that comes later.
pub struct Later<T>(Arc<Mutex<PromiseState>>, PhantomData<fn() -> T>);

impl<T> Later<T> {
    /// Binds the answer to its asker, after `query` has returned it.
    pub(super) fn bind(self, asker: impl Asker + 'static) {
        let mut state = lock(&self.0);
        match mem::replace(&mut *state, PromiseState::Over) {
            PromiseState::Answered(answer) => {
                drop(state);
                asker.send_answer(answer);
            }
            _ => *state = PromiseState::Awaited(Box::new(asker)),
        }
    }
}

impl<T> fmt::Debug for Later<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

/// The means to answer a query from any thread after [`query`](super::Replica::query) has returned. Dropping
/// the promise declines the query. If a panicking thread drops the promise, the asker learns that the member
/// failed.
#[must_use = "a promise that is dropped declines the query"]
pub struct Promise<T>(Option<Arc<Mutex<PromiseState>>>, PhantomData<fn(T)>);

impl<T: Serialize> Promise<T> {
    /// Answers the query. The call may wait for a moment while the process is busy. If the reply does not
    /// serialise, the asker gets [`Failed`](super::Absence::Failed).
    pub fn answer(mut self, reply: T) {
        let answer = match encode(&reply) {
            Ok(reply) => QueryAnswer::Reply(reply),
            Err(why) => QueryAnswer::Failed(why.into_bytes()),
        };
        if let Some((asker, answer)) = self.0.take().and_then(|state| take_asker(&state, || answer)) {
            asker.send_answer(answer);
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let answer = || match thread::panicking() {
            true => QueryAnswer::Failed(b"the thread that was to answer the query panicked".to_vec()),
            false => QueryAnswer::Declined,
        };
        if let Some((asker, answer)) = self.0.take().and_then(|state| take_asker(&state, answer)) {
            asker.try_send_answer(answer);
        }
    }
}

impl<T> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Promise")
    }
}

/// The state of an answer that comes later.
enum PromiseState {
    /// `query` has not returned, and the promise has not answered.
    Open,
    /// The promise has answered, and `query` has not returned.
    Answered(QueryAnswer),
    /// `query` has returned, and the promise has not answered.
    Awaited(Box<dyn Asker>),
    Over,
}

/// Takes the answer of a promise. Returns the asker together with the answer if `query` has returned already.
fn take_asker(
    state: &Mutex<PromiseState>,
    answer: impl FnOnce() -> QueryAnswer,
) -> Option<(Box<dyn Asker>, QueryAnswer)> {
    let mut state = lock(state);
    match mem::replace(&mut *state, PromiseState::Over) {
        PromiseState::Awaited(asker) => Some((asker, answer())),
        _ => {
            *state = PromiseState::Answered(answer());
            None
        }
    }
}

/// The asker of a query, as the answering member sees it.
pub(super) trait Asker: Send {
    /// Sends the answer if this member is still in its group. Does not run on the protocol thread.
    fn send_answer(&self, answer: QueryAnswer);

    /// Sends the answer like [`Asker::send_answer`], but never blocks the thread, because an object with
    /// promises may be dropped on any thread.
    fn try_send_answer(&self, answer: QueryAnswer);
}
