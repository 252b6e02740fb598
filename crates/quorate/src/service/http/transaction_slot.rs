//! Transactions that clients of the HTTP door have begun.

use std::{
    mem,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Instant,
};

use crate::{
    error::{Error, Name},
    service::CallId,
};

use super::{
    access::{OpenTransaction, ServiceAccess},
    fault::Fault,
};

/// A transaction that a client began at this door.
pub(super) struct TransactionSlot {
    pub(super) service: String,
    /// Time of the transaction's last use.
    pub(super) used: Mutex<Instant>,
    pub(super) stage: Arc<tokio::sync::Mutex<TransactionStage>>,
    /// Whether a commit is in progress. While it is, the commit holds the lock on `stage`.
    pub(super) commits: AtomicBool,
}

/// The progress of a transaction. It determines the answer to the next request about the transaction.
pub(super) enum TransactionStage {
    Open(Box<dyn OpenTransaction>),
    /// The transaction's commit was sent and may have taken effect. If the commit has a name, its outcome can
    /// be found by that name.
    Unknown(Option<CallId>),
    Committed,
    /// Nothing of the transaction took effect, and nothing will.
    Aborted,
}

impl TransactionStage {
    /// Returns the answer to a request that expects an open transaction.
    pub(super) fn closed(&self) -> Fault {
        Fault::Call(match self {
            TransactionStage::Open(_) => unreachable!("it is open"),
            TransactionStage::Unknown(Some(_)) => unknown(
                "the commit of this transaction was sent, and may have taken effect: send the \
                         commit again",
            ),
            TransactionStage::Unknown(None) => unknown(
                "the commit of this transaction was sent, and its outcome cannot be found out: look at the \
                 state of the service",
            ),
            TransactionStage::Committed => Error::rejected("the transaction was committed before"),
            TransactionStage::Aborted => {
                Error::Aborted { why: String::from("the transaction was aborted before") }
            }
        })
    }
}

pub(super) fn unknown(why: &str) -> Error {
    Error::MaybeApplied { id: None, why: String::from(why) }
}

impl TransactionStage {
    /// Commits the transaction, or finds the outcome of an earlier commit.
    pub(super) async fn commit(&mut self, access: &dyn ServiceAccess) -> Result<(), Fault> {
        let (outcome, asked) = match mem::replace(self, TransactionStage::Unknown(None)) {
            TransactionStage::Open(transaction) => (transaction.commit().await, None),
            TransactionStage::Unknown(Some(commit)) => (access.committed(commit).await, Some(commit)),
            closed @ (TransactionStage::Unknown(None) | TransactionStage::Aborted) => {
                *self = closed;
                return Err(self.closed());
            }
            TransactionStage::Committed => (Ok(()), None),
        };
        *self = match &outcome {
            Ok(()) => TransactionStage::Committed,
            Err(Fault::Call(Error::MaybeApplied { id: Some(Name::Call(commit)), .. })) => {
                TransactionStage::Unknown(Some(*commit))
            }
            Err(Fault::Call(Error::MaybeApplied { .. } | Error::Expired { .. })) => {
                TransactionStage::Unknown(None)
            }
            Err(Fault::Call(Error::Aborted { .. })) => TransactionStage::Aborted,
            Err(_) if asked.is_none() => TransactionStage::Aborted,
            // The question about the outcome was not sent, but the commit itself may have been sent.
            Err(_) => TransactionStage::Unknown(asked),
        };
        match (outcome, &*self) {
            (
                Err(Fault::Call(Error::NotSent { .. } | Error::Wedged { .. })),
                TransactionStage::Unknown(_),
            ) => Err(self.closed()),
            (outcome, _) => outcome,
        }
    }
}
