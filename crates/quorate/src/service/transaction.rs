//! Transactions (003 §VI.A.4).

use std::fmt;

use bytes::Bytes;
use quorate_protocol::{CommandId, service::ClientCommand};

use super::{Kind, Service, Stub, encoder::Encoder, fate_context::decode_reply, process::Process};
use crate::error::Error;

/// Calls that take effect together, at the commit, or not at all. Dropping the transaction before its commit
/// aborts it.
///
/// The leader executes and answers calls at once, without the other replicas. The replicas agree only on the
/// commit. Transactions and calls outside of them are serializable. A call that touches data of another
/// transaction ([`Service::keys`]) waits until that transaction ends. A transaction ends as
/// [`Error::Aborted`] in four cases: the leader changes, transactions would wait for each other, the
/// transaction is idle for 5 s, or its changes exceed 1 MiB. The answers to a transaction's calls are only
/// valid once the transaction is committed.
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
    progress: TransactionProgress,
}

/// The progress of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransactionProgress {
    /// Nothing of the transaction has been passed on.
    New,
    /// All the transaction's calls were answered.
    Idle,
    /// A call was passed on, and its outcome has not been seen. A later call that finds this state aborts the
    /// transaction, because the earlier call may have been executed or not.
    Calling,
    /// The commit was passed on, or the transaction was aborted. There is nothing to abort any longer.
    Over,
}

impl<S: Service> Transaction<S> {
    pub(super) fn new(stub: Stub<S>) -> Self {
        let number = Process::transaction(&stub.endpoint);
        Transaction { stub, number, progress: TransactionProgress::New }
    }

    /// Calls the service. If the future is dropped before it is ready, the next call or commit aborts the
    /// transaction ([`Error::Aborted`]), because it is unknown whether the dropped call was executed. A
    /// future that was never polled has sent nothing.
    pub fn call<'a>(
        &'a mut self,
        request: &S::Request,
    ) -> impl Future<Output = Result<S::Reply, Error>> + Send + use<'a, S> {
        let reply = self.call_for_bytes(request);
        async move { decode_reply(&reply.await?) }
    }

    /// Calls the service, and returns the bytes of the reply.
    pub(super) fn call_for_bytes<'a>(
        &'a mut self,
        request: &S::Request,
    ) -> impl Future<Output = Result<Bytes, Error>> + Send + use<'a, S> {
        let (read, keys) = (S::kind(request) == Kind::Read, S::keys(request));
        let encoded = Encoder::default().encode(&[], request);
        async move {
            let request =
                encoded.map_err(|why| Error::invalid(format!("the request cannot be encoded: {why}")))?;
            self.check_calls()?;
            let transaction = self.number;
            let part =
                |command: CommandId| vec![ClientCommand::Part { command, transaction, read, keys, request }];
            let sent = self.stub.hand_over(1, part).await?;
            self.progress = TransactionProgress::Calling;
            // After an error the progress stays `Calling`, because the fate of the call is unknown.
            let fate = sent.fates().await?.pop().expect("a call has one fate");
            self.progress = TransactionProgress::Idle;
            self.stub.reply(fate)
        }
    }

    /// Makes all changes of the transaction take effect. After [`Error::MaybeApplied`], [`Stub::committed`]
    /// finds the outcome. If the future is dropped before it is ready, the transaction may still take effect.
    /// Dropping a future that was never polled aborts the transaction.
    pub async fn commit(mut self) -> Result<(), Error> {
        self.check_calls()?;
        let transaction = self.number;
        let commit = |command| vec![ClientCommand::Commit { command, transaction }];
        let sent = self.stub.hand_over(1, commit).await?;
        self.progress = TransactionProgress::Over;
        let fate = sent.fates().await?.pop().expect("a call has one fate");
        self.stub.reply(fate).map(drop)
    }

    /// Takes all changes of the transaction back. Dropping the transaction has the same effect.
    pub fn abort(self) {}

    /// Aborts the transaction if the outcome of an earlier call is unknown.
    fn check_calls(&mut self) -> Result<(), Error> {
        let why = match self.progress {
            TransactionProgress::New | TransactionProgress::Idle => return Ok(()),
            TransactionProgress::Calling => {
                "an earlier call of the transaction was given up before its outcome was known"
            }
            TransactionProgress::Over => "the transaction was aborted before",
        };
        self.abandon();
        Err(Error::Aborted { why: String::from(why) })
    }

    /// If the transaction has passed a call on, makes the leader take the transaction's changes back and
    /// release its locks.
    fn abandon(&mut self) {
        if matches!(self.progress, TransactionProgress::Idle | TransactionProgress::Calling) {
            self.stub.connection.process.abandon(&self.stub.endpoint, self.number);
        }
        self.progress = TransactionProgress::Over;
    }
}

impl<S: Service> Drop for Transaction<S> {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl<S: Service> fmt::Debug for Transaction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("number", &self.number).finish_non_exhaustive()
    }
}

impl<S: Service> Stub<S> {
    /// Begins a transaction. The first call is the first message to the service.
    pub fn begin(&self) -> Transaction<S> {
        Transaction::new(self.clone())
    }
}
