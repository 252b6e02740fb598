//! What ends a statement before its time: its client's cancellation, or the timeout. And what ends a connection between two:
//! the server stops.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use quorate_sql::error::{Result, SqlError, code};
use tokio::time::{Instant, sleep_until};

/// A session's cancellation. It stands until a statement ends by it: one that comes while the statement is between two
/// waits, or writes to a client that does not read, is not lost. Only the connection's own task waits for it.
#[derive(Default)]
pub(super) struct Cancel {
    asked: AtomicBool,
    stopping: AtomicBool,
    handing: AtomicBool,
    waits: AtomicWaker,
}

impl Cancel {
    /// Ends the statement that runs.
    pub(super) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.waits.wake();
    }

    /// Drops a cancellation that met no statement.
    pub(super) fn forget(&self) {
        self.asked.store(false, Ordering::Release);
    }

    /// Tells that the server stops.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waits.wake();
    }

    /// Tells that the connection is to go on elsewhere.
    pub(super) fn hand_over(&self) {
        self.handing.store(true, Ordering::Release);
        self.waits.wake();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn hands_over(&self) -> bool {
        self.handing.load(Ordering::Acquire)
    }

    /// Whether the server stops, or the connection, which may be between two statements, is to go on elsewhere; if so later,
    /// the task is woken.
    pub(super) fn poll_stopping(&self, cx: &Context<'_>, is_between: bool) -> bool {
        self.waits.register(cx.waker());
        self.is_stopping() || is_between && self.hands_over()
    }

    fn take(&self) -> bool {
        self.asked.load(Ordering::Acquire) && self.asked.swap(false, Ordering::AcqRel)
    }

    fn poll_taken(&self, cx: &Context<'_>) -> bool {
        self.waits.register(cx.waker());
        // From here on it is told; what was asked before is seen.
        self.take()
    }
}

/// What ends a statement before its time.
#[derive(Clone)]
pub(super) struct Limit {
    cancel: Arc<Cancel>,
    deadline: Option<Instant>,
}

impl Limit {
    /// For a statement that begins now.
    pub(super) fn new(cancel: &Arc<Cancel>, timeout: Option<Duration>) -> Self {
        Limit { cancel: cancel.clone(), deadline: timeout.map(|timeout| Instant::now() + timeout) }
    }

    /// Does a piece of the statement's work.
    pub(super) async fn keep<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.keep_io(work).await?
    }

    /// The same for work that fails otherwise, and can be dropped at every wait.
    pub(super) async fn keep_io<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let cancelled = || SqlError::new(code::QUERY_CANCELED, "canceling statement due to user request");
        if self.cancel.take() {
            return Err(cancelled());
        }
        let mut work = pin!(work);
        let mut late = pin!(self.deadline.map(sleep_until));
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            if self.cancel.poll_taken(cx) {
                return Poll::Ready(Err(cancelled()));
            }
            match late.as_mut().as_pin_mut().map(|late| late.poll(cx)) {
                Some(Poll::Ready(())) => Poll::Ready(Err(SqlError::new(
                    code::QUERY_CANCELED,
                    "canceling statement due to statement timeout",
                ))),
                Some(Poll::Pending) | None => Poll::Pending,
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cancellation_stands_until_it_meets_work() {
        let cancel = Arc::new(Cancel::default());
        let limit = Limit::new(&cancel, None);
        cancel.ask();
        assert_eq!(limit.keep(async { Ok(1) }).await.unwrap_err().code, code::QUERY_CANCELED);
        assert_eq!(limit.keep(async { Ok(2) }).await.unwrap(), 2, "it ended one statement, not two");
        cancel.ask();
        cancel.forget();
        assert_eq!(limit.keep(async { Ok(3) }).await.unwrap(), 3);
        let asked = cancel.clone();
        let waits = tokio::spawn(async move { limit.keep(std::future::pending::<Result<()>>()).await });
        tokio::task::yield_now().await;
        asked.ask();
        assert_eq!(waits.await.unwrap().unwrap_err().code, code::QUERY_CANCELED);
    }
}
