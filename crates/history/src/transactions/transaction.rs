//! One recorded transaction of a client.

use crate::operation::{Action, Nanos, Outcome};

/// One transaction of one client: reads and writes that took effect together, or had no effect at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedTransaction {
    /// Number of the client. A client starts a transaction only after its previous transaction has ended.
    pub client: u64,
    /// The keys and what the transaction did to them, in order. A step is a read, a write or an append. The
    /// answers of reads count only if the outcome is [`Outcome::Ok`].
    pub steps: Vec<(Box<str>, Action)>,
    /// Time at which the client began the transaction.
    pub start: Nanos,
    /// Time at which the client learned the outcome, or `None` if it never learned it.
    pub finish: Option<Nanos>,
    /// The outcome of the transaction.
    pub outcome: Outcome,
    /// Place of the transaction in the order in which, by the store's report, transactions took effect. A
    /// transaction that writes has a position of its own. A transaction that only reads may have the position
    /// of the last write that it could see.
    pub position: Option<u64>,
}
