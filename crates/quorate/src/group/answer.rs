//! Answers to queries: now, later, or none.
//!
//! `Replica::query` runs between two updates, and everything that is delivered meanwhile waits for it. A member that has to ask somebody
//! else first, or computes for long, returns [`Answer::Later`] and hands the [`Promise`] to a thread of its own.
//!
//! **Invariants.**
//! - *One word for each query.* A promise is used up by its answer. Dropped without one, it declines.
//! - *Nobody waits for it.* The applying thread only notes who asked. The reply is serialised, sealed and handed over by the thread that
//!   answers, in the group's key of that moment.
//! - *It answers for the member that was asked.* Once that member is out of its group its promises say nothing: the asker has learnt from the
//!   view that it is gone. A promise keeps neither the member nor its process alive.

use std::{
    fmt,
    marker::PhantomData,
    mem,
    sync::{Arc, Mutex, Weak},
    thread,
};

use quorate_protocol::ProcessId;
use serde::Serialize;

use super::{
    inbox::{Seat, lock, sealed},
    process::Shared,
    query::Word,
};

/// A member's word on a query.
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
    /// This.
    Now(T),
    /// The [`Promise`] that was made with it says.
    Later(Later<T>),
    /// It has nothing to say.
    Declined,
}

impl<T> Answer<T> {
    /// An answer that is given later, and the means to give it. Whoever asks waits no longer than its own deadline; a reply that comes
    /// behind that is dropped there and counted (`quorate_group_late_replies`).
    pub fn later() -> (Answer<T>, Promise<T>) {
        let stage = Arc::new(Mutex::new(Stage::Open));
        (Answer::Later(Later(stage.clone(), PhantomData)), Promise(Some(stage), PhantomData))
    }
}

/// The place of an answer that is given later.
pub struct Later<T>(Arc<Mutex<Stage>>, PhantomData<fn() -> T>);

impl<T> Later<T> {
    /// `query` has returned it: the answer is for this one.
    pub(super) fn bind(self, asker: Asker) {
        let mut stage = lock(&self.0);
        match mem::replace(&mut *stage, Stage::Over) {
            Stage::Told(word) => {
                drop(stage);
                asker.tell(word);
            }
            _ => *stage = Stage::Asked(asker),
        }
    }
}

impl<T> fmt::Debug for Later<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

/// The means to answer a query after [`query`](super::Replica::query) has returned, from any thread. Dropped, it declines; dropped by a
/// thread that panics, it says that the member failed.
#[must_use = "the query is declined once it is dropped"]
pub struct Promise<T>(Option<Arc<Mutex<Stage>>>, PhantomData<fn(T)>);

impl<T: Serialize> Promise<T> {
    /// Answers the query. It may wait for a moment while the process has too much to do. A reply that does not serialise is told as
    /// [failed](super::Absence::Failed).
    pub fn answer(mut self, reply: T) {
        let word = match sealed(&reply) {
            Ok(reply) => Word::Reply(reply),
            Err(why) => Word::Failed(why.into_bytes()),
        };
        if let Some((asker, word)) = self.0.take().and_then(|stage| tell(&stage, || word)) {
            asker.tell(word);
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let word = || match thread::panicking() {
            true => Word::Failed(b"the thread that was to answer panicked".to_vec()),
            false => Word::Declined,
        };
        if let Some((asker, word)) = self.0.take().and_then(|stage| tell(&stage, word)) {
            asker.tell_or_not(word);
        }
    }
}

impl<T> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Promise")
    }
}

/// The state of an answer that is given later.
enum Stage {
    /// `query` has not returned, and nothing was said.
    Open,
    /// `query` has not returned.
    Told(Word),
    /// Nothing was said.
    Asked(Asker),
    Over,
}

/// A promise says this. The asker, if it is known whom to tell.
fn tell(stage: &Mutex<Stage>, word: impl FnOnce() -> Word) -> Option<(Asker, Word)> {
    let mut stage = lock(stage);
    match mem::replace(&mut *stage, Stage::Over) {
        Stage::Asked(asker) => Some((asker, word())),
        _ => {
            *stage = Stage::Told(word());
            None
        }
    }
}

/// The asker of a query, for a member that answers it.
pub(super) struct Asker {
    seat: Weak<Seat>,
    shared: Weak<Shared>,
    sender: ProcessId,
    number: u64,
}

impl Asker {
    /// The member that sent the query of this number, for the member in this seat.
    pub(super) fn new(seat: &Arc<Seat>, shared: &Arc<Shared>, sender: ProcessId, number: u64) -> Asker {
        Asker { seat: Arc::downgrade(seat), shared: Arc::downgrade(shared), sender, number }
    }

    /// Says it, if the member is one still. Not on the protocol thread.
    pub(super) fn tell(&self, word: Word) {
        if let Some((seat, shared)) = self.member() {
            shared.answer(&seat, self.sender, self.number, word);
        }
    }

    /// As [`Asker::tell`], and never waits: an object that holds promises may be dropped on any thread. Where too many commands wait nothing
    /// is said, and the asker finds out at its deadline.
    fn tell_or_not(&self, word: Word) {
        if let Some((seat, shared)) = self.member() {
            shared.try_answer(&seat, self.sender, self.number, word);
        }
    }

    fn member(&self) -> Option<(Arc<Seat>, Arc<Shared>)> {
        let (seat, shared) = (self.seat.upgrade()?, self.shared.upgrade()?);
        seat.over().is_none().then_some((seat, shared))
    }
}
