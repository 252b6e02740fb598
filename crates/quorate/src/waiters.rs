//! Waiters: the callers that wait for the answers to their requests.
//!
//! ```text
//!   caller          ── adds a waiter, sends the request under its token ──▶ protocol thread
//!   protocol thread ── removes the waiter of an answered token ──▶ gives it the answer
//! ```
//!
//! **One answer.** The thread that answers removes the waiter from the table. So a waiter gets one answer at
//! most, and a second answer finds no waiter.
//!
//! **No lost answer.** A waiter is in the table before its request is sent. If the request is refused, the
//! waiter is removed again.
//!
//! **No endless wait.** A process of groups or services that ends closes its table: it drops all waiters, and
//! their callers take this as the end of the process. A closed table refuses waiters, because a request may
//! still enter the queue of a protocol thread that takes no more requests. SQL requests outlive processes:
//! their table stays open, and the end of a process removes all waiters. A blocking call has a time limit of
//! its own.
//!
//! **No code of callers under the lock.** The methods return the waiters that they remove, because an answer
//! wakes a caller, and wakers are the callers' code.
//!
//! | table | waiters |
//! |---|---|
//! | `process/shared.rs`, `maps/process.rs`, `group/shared.rs` | threads in blocking calls |
//! | `cluster/requests.rs` | SQL requests, and the remaining pieces of long answers |
//! | `group/shared.rs` | commands of groups, and packs of updates |
//! | `service/process/shared.rs` | calls of services that were made together |
//!
//! Other tables of callers differ, because a token has no single answer there. A query of a group gathers an
//! answer of each member (`group/open_queries.rs`). A claim for a lock has to be released after its caller
//! gave it up (`group/claims.rs`). The end of a newer save also ends an older save (`group/keeper.rs`).

#[cfg(any(feature = "tables", feature = "groups", feature = "services"))]
use std::collections::BTreeMap;
#[cfg(any(feature = "groups", feature = "services"))]
use std::collections::hash_map::{Entry, OccupiedEntry};
use std::{
    mem,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use rustc_hash::FxHashMap;

use crate::lock::lock;

/// The callers that wait for an answer, by the tokens of their requests.
#[derive(Debug)]
pub(crate) struct Waiters<W> {
    open: Mutex<OpenWaiters<W>>,
    /// Number of tokens drawn so far.
    tokens: AtomicU64,
}

#[derive(Debug)]
struct OpenWaiters<W> {
    /// The waiters by token: one for each request that has no answer yet. The number is bounded, because each
    /// caller bounds its requests in progress.
    by_token: FxHashMap<u64, W>,
    is_closed: bool,
}

impl<W> Default for Waiters<W> {
    fn default() -> Self {
        let open = OpenWaiters { by_token: FxHashMap::default(), is_closed: false };
        Waiters { open: Mutex::new(open), tokens: AtomicU64::new(0) }
    }
}

impl<W> Waiters<W> {
    /// Returns a token that no other request has or gets.
    pub(crate) fn token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Adds a waiter, and sends its request under the token that `send` gets. Removes the waiter if the
    /// request is refused. Returns the token, or the reason for the refusal: the error of `send`, or `closed`
    /// if the table is closed.
    pub(crate) fn send<E>(
        &self,
        waiter: W,
        closed: impl FnOnce() -> E,
        send: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<u64, E> {
        let token = self.token();
        let mut open = lock(&self.open);
        if open.is_closed {
            return Err(closed());
        }
        open.by_token.insert(token, waiter);
        drop(open);
        send(token).inspect_err(|_| drop(self.take(token)))?;
        Ok(token)
    }

    /// Removes the waiter of a request that was answered, or whose caller no longer waits.
    pub(crate) fn take(&self, token: u64) -> Option<W> {
        lock(&self.open).by_token.remove(&token)
    }

    /// Passes the waiter of a request to `change`, if there is one, for an answer that comes in parts.
    #[cfg(feature = "tables")]
    pub(crate) fn change<R>(&self, token: u64, change: impl FnOnce(&mut W) -> R) -> Option<R> {
        lock(&self.open).by_token.get_mut(&token).map(change)
    }

    /// Removes and returns the waiters for which `is_over` returns true, in the order of their tokens.
    #[cfg(any(feature = "tables", feature = "groups", feature = "services"))]
    pub(crate) fn take_where(&self, mut is_over: impl FnMut(&W) -> bool) -> Vec<W> {
        let taken = lock(&self.open).by_token.extract_if(|_, waiter| is_over(waiter)).collect();
        BTreeMap::<u64, W>::into_values(taken).collect()
    }

    /// Adds a waiter for each item, all under one lock. `split` makes from an item a waiter, and a request to
    /// send under the given token. Panics if there are items after the end of the process.
    #[cfg(feature = "groups")]
    pub(crate) fn add_each<I, R>(
        &self,
        items: impl IntoIterator<Item = I>,
        mut split: impl FnMut(I, u64) -> (W, R),
    ) -> Vec<R> {
        let mut open = lock(&self.open);
        let add = |item| {
            assert!(!open.is_closed, "a process that has ended sends nothing");
            let token = self.token();
            let (waiter, request) = split(item, token);
            open.by_token.insert(token, waiter);
            request
        };
        items.into_iter().map(add).collect()
    }

    /// Passes answers to their waiters under one lock. When a waiter has its whole answer, `answer` removes
    /// the waiter, and returns it.
    #[cfg(any(feature = "groups", feature = "services"))]
    pub(crate) fn answer_each<A, R>(
        &self,
        answers: impl IntoIterator<Item = (u64, A)>,
        mut answer: impl FnMut(OccupiedEntry<'_, u64, W>, A) -> Option<R>,
    ) -> Vec<R> {
        let mut open = lock(&self.open);
        let pass = |(token, part)| match open.by_token.entry(token) {
            Entry::Occupied(waiter) => answer(waiter, part),
            Entry::Vacant(_) => None,
        };
        answers.into_iter().filter_map(pass).collect()
    }

    /// Closes the table and drops all waiters, because their process ends.
    pub(crate) fn close(&self) {
        let mut open = lock(&self.open);
        open.is_closed = true;
        let waiters = mem::take(&mut open.by_token);
        drop(open);
        drop(waiters);
    }
}

/// Threads that wait for the answers to their commands.
pub(crate) type Calls<T> = Waiters<Sender<T>>;

/// The reason why a blocking call returned no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The process did not accept the command.
    NotTaken,
    /// The process accepted the command, and may still be executing it.
    TimedOut,
    /// The process accepted the command, and ended before it answered.
    Ended,
}

impl<T> Calls<T> {
    /// Lets `ask` send a command under a new token, and blocks until the answer is there, at most for
    /// `patience`. `ask` returns whether the command was accepted.
    pub(crate) fn call(&self, patience: Duration, ask: impl FnOnce(u64) -> bool) -> Result<T, CallError> {
        let (sender, receiver) = bounded(1);
        let not_taken = || CallError::NotTaken;
        let token = self.send(sender, not_taken, |token| ask(token).then_some(()).ok_or_else(not_taken))?;
        let answer = receiver.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => CallError::TimedOut,
            RecvTimeoutError::Disconnected => CallError::Ended,
        });
        self.take(token);
        answer
    }

    /// Passes the answer to the thread that asked under this token, if that thread still waits. Does not
    /// block.
    pub(crate) fn answer(&self, token: u64, answer: T) {
        if let Some(caller) = self.take(token) {
            // The time limit of the thread may end at this very moment.
            let _ = caller.try_send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn each_thread_gets_the_answer_to_its_own_command() {
        let waiters: Arc<Calls<u64>> = Arc::default();
        let (asked, commands) = bounded(64);
        let callers: Vec<_> = (0..64)
            .map(|_| {
                let (waiters, asked) = (waiters.clone(), asked.clone());
                thread::spawn(move || {
                    let mut token = None;
                    let answer = waiters.call(Duration::from_secs(60), |drawn| {
                        token = Some(drawn);
                        asked.send(drawn).is_ok()
                    });
                    assert_eq!(answer.ok(), token.map(|token| token * 10));
                })
            })
            .collect();
        let mut tokens: Vec<u64> = commands.iter().take(64).collect();
        tokens.sort_unstable_by_key(|token| std::cmp::Reverse(*token));
        for token in tokens {
            waiters.answer(token, token * 10);
            waiters.answer(token, 0);
        }
        for caller in callers {
            caller.join().unwrap();
        }
    }

    #[test]
    fn a_command_that_is_refused_or_does_not_end_leaves_no_waiter() {
        let waiters: Calls<()> = Waiters::default();
        assert_eq!(waiters.call(Duration::from_secs(60), |_| false), Err(CallError::NotTaken));
        assert_eq!(waiters.call(Duration::from_millis(1), |_| true), Err(CallError::TimedOut));
        waiters.answer(1, ());
        assert!(lock(&waiters.open).by_token.is_empty());
    }

    #[test]
    fn a_caller_learns_that_the_process_ended_before_it_answered() {
        let waiters: Arc<Calls<()>> = Arc::default();
        let (asked, commands) = bounded(1);
        let caller = {
            let waiters = waiters.clone();
            thread::spawn(move || waiters.call(Duration::from_secs(60), |token| asked.send(token).is_ok()))
        };
        commands.recv().unwrap();
        waiters.close();
        assert_eq!(caller.join().unwrap(), Err(CallError::Ended));
        assert_eq!(waiters.call(Duration::from_secs(60), |_| true), Err(CallError::NotTaken));
    }

    #[cfg(feature = "groups")]
    #[test]
    fn a_closed_table_drops_its_waiters_and_refuses_new_ones() {
        let waiters: Calls<()> = Waiters::default();
        let (sender, receiver) = bounded(1);
        assert_eq!(waiters.send(sender.clone(), || "closed", |_| Ok(())), Ok(1));
        waiters.close();
        assert!(waiters.take(1).is_none());
        let sent = waiters.send(sender, || "closed", |_| panic!("nothing is sent"));
        assert_eq!(sent, Err("closed"));
        assert!(receiver.try_recv().is_err(), "all senders are gone");
    }

    #[cfg(feature = "groups")]
    #[test]
    fn a_waiter_stays_until_its_answer_is_whole() {
        let waiters: Waiters<u32> = Waiters::default();
        let tokens = waiters.add_each([2, 1], |parts, token| (parts, token));
        let answer = |token: u64| {
            waiters.answer_each([(token, ())], |mut waiter, ()| {
                *waiter.get_mut() -= 1;
                (*waiter.get() == 0).then(|| waiter.remove_entry().0)
            })
        };
        assert!(answer(tokens[0]).is_empty(), "half of the answer is missing");
        assert_eq!(answer(tokens[1]), [tokens[1]]);
        assert_eq!(answer(tokens[0]), [tokens[0]]);
        assert!(answer(tokens[0]).is_empty(), "nobody waits");
        waiters.add_each([3, 4, 5], |waiter, _| (waiter, ()));
        assert_eq!(waiters.take_where(|waiter| *waiter != 4), [3, 5]);
    }
}
