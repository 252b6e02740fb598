//! Ends a statement early, because the client cancels it or its timeout passes. Ends a connection between two
//! statements, when the server stops or hands its connections over.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;
use quorate_sql::{
    error::{Result, SqlError, code},
    session::time_limit::{TimeLimit, TimeLimitKind},
};
use tokio::time::{Instant, sleep_until};

/// The cancellation of a session's current statement. A cancellation stays set until it ends a statement. So
/// it is not lost if it comes between two waits, or while the statement writes to a client that does not
/// read. Only the connection's own task waits for it.
#[derive(Default)]
pub(super) struct Cancel {
    asked: AtomicBool,
    stopping: AtomicBool,
    handing_over: AtomicBool,
    waits: AtomicWaker,
}

impl Cancel {
    /// Cancels the current statement.
    pub(super) fn request(&self) {
        self.asked.store(true, Ordering::Release);
        self.waits.wake();
    }

    /// Drops a cancellation that came while no statement was running.
    pub(super) fn clear(&self) {
        self.asked.store(false, Ordering::Release);
    }

    /// Ends the connection after its current statement, because the server stops.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waits.wake();
    }

    /// Hands the connection over as soon as it is between two statements.
    pub(super) fn hand_over(&self) {
        self.handing_over.store(true, Ordering::Release);
        self.waits.wake();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn hands_over(&self) -> bool {
        self.handing_over.load(Ordering::Acquire)
    }

    /// Whether the connection has to end here, because the server stops, or because the connection is to be
    /// handed over and `is_between` two statements. Otherwise registers the task to be woken when that
    /// changes.
    pub(super) fn poll_stopping(&self, cx: &Context<'_>, is_between: bool) -> bool {
        self.waits.register(cx.waker());
        self.is_stopping() || is_between && self.hands_over()
    }

    fn consume(&self) -> bool {
        self.asked.load(Ordering::Acquire) && self.asked.swap(false, Ordering::AcqRel)
    }

    fn poll_taken(&self, cx: &Context<'_>) -> bool {
        self.waits.register(cx.waker());
        // From here on a cancellation wakes the task. `consume` finds a cancellation that came earlier.
        self.consume()
    }
}

/// The two reasons for ending a statement early: its cancellation and its deadline.
#[derive(Clone)]
pub(super) struct Limit {
    cancel: Arc<Cancel>,
    deadline: Option<(Instant, TimeLimitKind)>,
}

impl Limit {
    /// Creates the limit of a statement that begins now.
    pub(super) fn new(cancel: &Arc<Cancel>, limit: Option<TimeLimit>) -> Self {
        let deadline = limit.map(|limit| (Instant::now() + limit.left, limit.kind));
        Limit { cancel: cancel.clone(), deadline }
    }

    /// Does a piece of the statement's work. Fails if the statement is cancelled or its deadline passes.
    pub(super) async fn run<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.run_io(work).await?
    }

    /// Runs `work` whose errors are not SQL errors. Fails if the statement is cancelled or its deadline
    /// passes. `work` may be dropped at any of its waits.
    pub(super) async fn run_io<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let cancelled = || SqlError::new(code::QUERY_CANCELED, "canceling statement due to user request");
        if self.cancel.consume() {
            return Err(cancelled());
        }
        let mut work = pin!(work);
        let mut late = pin!(self.deadline.map(|(at, _)| sleep_until(at)));
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            if self.cancel.poll_taken(cx) {
                return Poll::Ready(Err(cancelled()));
            }
            match (late.as_mut().as_pin_mut().map(|late| late.poll(cx)), self.deadline) {
                (Some(Poll::Ready(())), Some((_, kind))) => Poll::Ready(Err(kind.error())),
                _ => Poll::Pending,
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cancellation_waits_for_the_next_statement_and_ends_one() {
        let cancel = Arc::new(Cancel::default());
        let limit = Limit::new(&cancel, None);
        cancel.request();
        assert_eq!(limit.run(async { Ok(1) }).await.unwrap_err().code, code::QUERY_CANCELED);
        assert_eq!(limit.run(async { Ok(2) }).await.unwrap(), 2, "it ended one statement, not two");
        cancel.request();
        cancel.clear();
        assert_eq!(limit.run(async { Ok(3) }).await.unwrap(), 3);
        let asked = cancel.clone();
        let waits = tokio::spawn(async move { limit.run(std::future::pending::<Result<()>>()).await });
        tokio::task::yield_now().await;
        asked.request();
        assert_eq!(waits.await.unwrap().unwrap_err().code, code::QUERY_CANCELED);
    }
}
