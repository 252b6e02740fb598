//! Transactions at the leader (003 §VI.A.4, *T-Paxos*).
//!
//! **Promise.** The requests of a transaction take effect together, at its commit, or not at all.
//! Transactions and plain calls are serializable in the order of the log. This order respects time: a
//! transaction that committed before another transaction began comes first. A commit takes effect at most
//! once, and a commit that was answered is never lost.
//!
//! **Source.** The leader executes a transaction's requests and answers them at once, without asking any
//! replica. The commit is one instance with all changes, agreed on like a write. The source leaves isolation
//! to "locks or other mechanisms", and `locks` provides it.
//!
//! ```text
//!  client            leader                        backups
//!    ├── call 1 ───────▶│ lock, Execute               │
//!    │◀──── answer 1 ───┤                             │   as fast as a service that is not replicated
//!    ├── call 2 ───────▶│ lock, Execute               │
//!    │◀──── answer 2 ───┤                             │
//!    ├── commit ───────▶│ Commit                      │
//!    │                  ├── Accept [id, changes 1+2] ▶│
//!    │                  │◀────────────────── Accepted ┤
//!    │◀──── answer ─────┤ locks are released when the instance has its place; answers wait until chosen
//! ```
//!
//! **Locks.** Each request names the keys that it touches, or touches everything. The transaction holds them
//! until it ends, so the values that its requests saw stay valid until its commit has its place among the
//! instances. A plain request is executed if it conflicts with no transaction, and waits otherwise. While no
//! transaction is open, the leader does not look at locks.
//!
//! **Changes are in the state from the moment of execution**, like the changes of plain writes that are not
//! chosen. The host remembers to which transaction each change belongs. If the transaction is aborted, the
//! host reverts these changes, the latest first. Later changes of other requests stay: they touch other keys,
//! so the order does not matter. Backups apply the changes at the place of the commit.
//!
//! **A transaction that changed nothing** has no instance. Its commit is confirmed like a read (rule S16): a
//! majority followed the ballot after the commit came, and all that the transaction saw is chosen. Until then
//! its locks keep other requests from changing the values that it saw.
//!
//! **Ends without a commit.** A transaction ends without effect if its leader is deposed or dies, if its
//! client's link breaks, or if its client is silent for `Settings::transaction_idle`. It also ends if its
//! request would close a circle of waiting transactions, if its changes are too large, if its client abandons
//! it, or if a checkpoint is wanted after it has changed something. In each case the replica that then leads
//! answers the transaction's next call with `CallOutcome::Aborted`.
//!
//! **Attacks considered.**
//!
//! - *The leader is deposed between two requests.* The host reverts everything that is not chosen, including
//!   the transaction's changes. The next leader does not know the transaction, and answers *aborted*. A
//!   client gives its transactions up when it turns to another replica.
//! - *A leader that is already deposed answers a request of a transaction.* The answer may rest on changes
//!   that are lost. The commit fails in this case: an instance is chosen only if the reign that executed it
//!   stands, and a commit without changes is confirmed by a majority. So wrong answers never reach a
//!   transaction that commits.
//! - *The answer to a commit is lost.* The instance carries the call's id into every table of sessions, which
//!   answers a repetition. A commit that a settled leader does not have in its log can never be chosen later,
//!   so it is aborted. The leader answers *aborted* once its reign is confirmed, because a deposed leader may
//!   lack the commit.
//! - *A commit comes twice to one leader.* While the first attempt is under way, the second has no effect.
//! - *A transaction is aborted while the host executes a request of it.* The host carries out the order to
//!   abort after the order to execute. The result that comes meanwhile belongs to no transaction.
//! - *A commit is overtaken by a write that the host executed before it.* The commit passes through the host
//!   like every other work, and gets its instance in its turn. So the host's order is the order of the log.
//! - *A checkpoint would hold uncommitted changes.* When a checkpoint is wanted, the leader aborts the
//!   transactions that have changed something. Later transactions wait until the checkpoint was taken.
//! - *A plain write waits for a transaction, and its client sends it again.* The write is under way, and is
//!   not queued twice.
//! - *A client leaves a transaction open.* Its locks are released when its link breaks, or after a while.
//! - *A request of a transaction comes before the previous request was answered.* Their order is unknown, so
//!   the transaction is aborted.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{CallId, TransactionId, locks::Locks, request::PendingCall};
use crate::{id::ProcessId, time::Time};

/// The open transactions of a reign.
#[derive(Debug, Default)]
pub(super) struct Transactions {
    pub(super) open: BTreeMap<TransactionId, Transaction>,
    /// The memory of the changes of all open transactions, in bytes.
    pub(super) bytes: usize,
    pub(super) locks: Locks<PendingCall>,
    /// The time of the latest input that had a time.
    pub(super) now: Time,
}

/// A transaction that has not ended.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) client: ProcessId,
    pub(super) changes: Vec<Bytes>,
    pub(super) bytes: usize,
    pub(super) stage: TransactionProgress,
    /// The time at which the transaction's client was last heard.
    pub(super) heard: Time,
}

/// The call of a transaction that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransactionProgress {
    Idle,
    /// This call waits for locks.
    Waiting(CallId),
    /// This call is at the host.
    Executing(CallId),
    /// The commit is at the host.
    Committing,
}

impl Transaction {
    pub(super) fn new(client: ProcessId, now: Time) -> Transaction {
        Transaction { client, changes: Vec::new(), bytes: 0, stage: TransactionProgress::Idle, heard: now }
    }

    /// Whether the host has changed, or may have changed, its state for this transaction.
    pub(super) fn has_changed(&self) -> bool {
        !self.changes.is_empty() || matches!(self.stage, TransactionProgress::Executing(_))
    }
}

impl Transactions {
    /// Whether the state holds a change of an open transaction.
    pub(super) fn have_changed(&self) -> bool {
        self.open.values().any(Transaction::has_changed)
    }

    pub(super) fn remove(&mut self, id: TransactionId) -> Option<Transaction> {
        let transaction = self.open.remove(&id)?;
        self.bytes -= transaction.bytes;
        Some(transaction)
    }

    /// Ends a transaction after the host has executed its commit. Returns the transaction's changes.
    pub(super) fn committed(&mut self, id: TransactionId) -> Vec<Bytes> {
        let transaction = self.remove(id).expect("a transaction that commits is not aborted");
        assert!(transaction.stage == TransactionProgress::Committing, "a commit has its turn once");
        assert!(self.locks.release(id).is_none(), "a transaction that commits waits for no lock");
        transaction.changes
    }

    /// Returns the transactions that satisfy `which` and can still be aborted.
    pub(super) fn matching(&self, which: impl Fn(&Transaction) -> bool) -> Vec<TransactionId> {
        let open =
            self.open.iter().filter(|(_, it)| it.stage != TransactionProgress::Committing && which(it));
        open.map(|(id, _)| *id).collect()
    }
}
