//! What ends a statement before its time.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::error::{Result, SqlError, code};

/// What ends a statement before its time.
pub(super) struct Limit {
    cancelled: Arc<Notify>,
    deadline: Option<Instant>,
}

impl Limit {
    pub(super) fn new(cancelled: &Arc<Notify>, timeout: Option<Duration>) -> Self {
        Limit { cancelled: cancelled.clone(), deadline: timeout.map(|timeout| Instant::now() + timeout) }
    }

    pub(super) async fn keep<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.keep_io(work).await?
    }

    pub(super) async fn keep_io<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let late = async {
            match self.deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.cancelled.notified() => {
                Err(SqlError::new(code::QUERY_CANCELED, "canceling statement due to user request"))
            }
            () = late => {
                Err(SqlError::new(code::QUERY_CANCELED, "canceling statement due to statement timeout"))
            }
        }
    }
}
