//! What ends a statement before its time: its client's cancellation, or the timeout.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::error::{Result, SqlError, code};

/// A session's cancellation. It stands until a statement ends by it: one that comes while the statement is between two
/// waits, or writes to a client that does not read, is not lost.
#[derive(Default)]
pub(super) struct Cancel {
    asked: AtomicBool,
    told: Notify,
}

impl Cancel {
    /// Ends the statement that runs.
    pub(super) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    /// Drops a cancellation that met no statement.
    pub(super) fn forget(&self) {
        self.asked.store(false, Ordering::Release);
    }

    fn take(&self) -> bool {
        self.asked.load(Ordering::Acquire) && self.asked.swap(false, Ordering::AcqRel)
    }

    async fn taken(&self) {
        loop {
            let mut told = std::pin::pin!(self.told.notified());
            // From here on it is told; what was asked before is seen.
            told.as_mut().enable();
            if self.take() {
                return;
            }
            told.await;
        }
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
        let late = async {
            match self.deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.cancel.taken() => Err(cancelled()),
            () = late => {
                Err(SqlError::new(code::QUERY_CANCELED, "canceling statement due to statement timeout"))
            }
        }
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
