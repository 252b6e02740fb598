//! Transactions (003 §VI.A.4).

use std::fmt;

use quorate_protocol::{CommandId, service::ClientCommand};

use super::{Kind, Service, Stub, press::Press, process::Process};
use crate::error::Error;

/// Calls that take effect together, at the commit, or not at all. Dropped without one, it is aborted.
///
/// Calls are executed and answered at once by the leader, without the other replicas; the commit is agreed on. Transactions and
/// calls outside of them are serializable. A call that touches what another transaction has ([`Service::keys`]) waits for its end.
/// A transaction ends as [`Error::Aborted`] when the leader changes, when it and others would wait for each other, when it
/// is idle for 5 s, or when its changes pass 1 MiB. What its calls were answered counts only once it is committed.
///
/// ```no_run
/// # use quorate::{Error, service::{Service, Stub}};
/// # async fn run<Bank: Service<Request = (u64, i64), Reply = i64>>(bank: Stub<Bank>) -> Result<(), Error> {
/// let mut transfer = bank.begin();
/// if transfer.call(&(1, -50)).await? >= 0 {
///     transfer.call(&(2, 50)).await?;
///     transfer.commit().await?;
/// } // else dropped, which takes it back
/// # Ok(())
/// # }
/// ```
pub struct Transaction<S: Service> {
    stub: Stub<S>,
    number: u64,
    /// Whether it has ended, so that there is nothing to abandon.
    has_ended: bool,
}

impl<S: Service> Transaction<S> {
    pub(super) fn new(stub: Stub<S>) -> Self {
        let number = Process::transaction(&stub.seat);
        Transaction { stub, number, has_ended: false }
    }

    /// Calls the service. If the output is dropped before it is ready, the next call aborts the transaction.
    pub fn call<'a>(
        &'a mut self,
        request: &S::Request,
    ) -> impl Future<Output = Result<S::Reply, Error>> + Send + use<'a, S> {
        let (read, keys) = (S::kind(request) == Kind::Read, S::keys(request));
        let sealed = Press::default().seal(&[], request);
        let (stub, transaction) = (&self.stub, self.number);
        async move {
            let request = sealed.map_err(|why| Error::invalid(format!("the request: {why}")))?;
            let part =
                |command: CommandId| vec![ClientCommand::Part { command, transaction, read, keys, request }];
            let mut fates = stub.send(1, part).await?;
            stub.outcome(fates.pop().expect("a call has one fate"))
        }
    }

    /// Has all its changes take effect. After [`Error::MaybeApplied`], [`Stub::committed`] finds out.
    pub async fn commit(mut self) -> Result<(), Error> {
        self.has_ended = true;
        let transaction = self.number;
        let commit = |command| vec![ClientCommand::Commit { command, transaction }];
        let mut fates = self.stub.send(1, commit).await?;
        self.stub.reply(fates.pop().expect("a call has one fate")).map(drop)
    }

    /// Takes all its changes back; the same as dropping it.
    pub fn abort(self) {}
}

impl<S: Service> Drop for Transaction<S> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.stub.connection.process.abandon(&self.stub.seat, self.number);
        }
    }
}

impl<S: Service> fmt::Debug for Transaction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("number", &self.number).finish_non_exhaustive()
    }
}
