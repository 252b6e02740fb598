//! Transactions at the leader (003 §VI.A.4, *T-Paxos*).
//!
//! **Promise.** The requests of a transaction take effect together, at its commit, or not at all.
//! Transactions and plain calls are serializable in the order of the log. This order respects time: if one
//! transaction committed before another one began, it comes first. A commit takes effect at most once, and a
//! commit that was answered is never lost.
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
//! transaction is open the leader does not look at locks.
//!
//! **Changes are in the state from the moment of execution**, like those of plain writes that are not chosen.
//! The host remembers to which transaction each change belongs. If the transaction is aborted, the host
//! reverts these changes, the latest first. Later changes of others stay: they touch other keys, so the order
//! does not matter. Backups apply the changes at the place of the commit.
//!
//! **A transaction that changed nothing** has no instance. Its commit is confirmed like a read (rule S16): a
//! majority followed the ballot after the commit came, and all that the transaction saw is chosen. Its locks
//! have kept those values until then.
//!
//! **Ends without a commit.** In each of these cases the transaction's next call is answered
//! `Outcome::Aborted`: its leader is deposed or dies, its client's link breaks, its client is silent for
//! `Settings::transaction_idle`, it closes a circle of waiting, its changes are too many, the client abandons
//! it, or a checkpoint is wanted after it has changed something.
//!
//! **Attacks considered.**
//!
//! - *The leader is deposed between two requests.* The host reverts everything that is not chosen, including
//!   the transaction's changes. The next leader does not know the transaction, and says so. A client gives
//!   its transactions up when it turns to another replica.
//! - *A leader that is already deposed answers a request of a transaction.* The answer may rest on changes
//!   that are lost. The commit finds out: an instance is chosen only in the reign that executed it, and a
//!   commit without changes is confirmed. So wrong answers never reach a transaction that commits.
//! - *The answer to a commit is lost.* The instance carries the call's id into every table of sessions, which
//!   answers a repetition. A commit that a settled leader does not have in its log can never be chosen later,
//!   so it is aborted. The leader answers that once its reign is confirmed, because a deposed leader may lack
//!   the commit.
//! - *A commit comes twice to one leader.* While the first is under way the second has no effect.
//! - *A transaction is aborted while the host executes a request of it.* The order to abort stands behind the
//!   order to execute. The result that then comes belongs to no transaction.
//! - *A commit is overtaken by a write that the host executed before it.* The commit goes through the host
//!   like every work, and gets its instance in its turn. So the host's order is the log's.
//! - *A checkpoint would hold uncommitted changes.* When a checkpoint is wanted, the leader aborts the
//!   transactions that have changed something. Later ones wait until the checkpoint was taken.
//! - *A plain write waits for a transaction, and its client sends it again.* The write is under way, and is
//!   not queued twice.
//! - *A client leaves a transaction open.* Its locks are released when its link breaks, or after a while.
//! - *A request comes before the previous one was answered.* Their order is unknown, so the transaction is
//!   aborted.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    Abort, CallId, Event, Executed, Kind, Outcome, Replica, TransactionId,
    locks::{LockOutcome, Locks},
    reign::{Access, PendingCall},
    sessions::CallRecord,
};
use crate::{
    id::ProcessId,
    seam::Sink,
    time::{Duration, Time},
};

/// The open transactions of a reign.
#[derive(Debug, Default)]
pub(super) struct Transactions {
    open: BTreeMap<TransactionId, Transaction>,
    /// The memory of all their changes, in bytes.
    bytes: usize,
    pub(super) locks: Locks<PendingCall>,
    /// The time of the latest input that carried one.
    pub(super) now: Time,
}

/// A transaction that has not ended.
#[derive(Debug)]
struct Transaction {
    client: ProcessId,
    changes: Vec<Bytes>,
    bytes: usize,
    stage: TransactionProgress,
    /// The time at which the transaction's client was last heard.
    heard: Time,
}

/// The call of a transaction that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransactionProgress {
    Idle,
    /// This call waits for locks.
    Waiting(CallId),
    /// This call is at the host.
    Executing(CallId),
    /// The commit is at the host.
    Committing,
}

impl Transaction {
    fn new(client: ProcessId, now: Time) -> Transaction {
        Transaction { client, changes: Vec::new(), bytes: 0, stage: TransactionProgress::Idle, heard: now }
    }

    /// Whether the host has changed its state for this transaction, or may have.
    fn has_changed(&self) -> bool {
        !self.changes.is_empty() || matches!(self.stage, TransactionProgress::Executing(_))
    }
}

impl Transactions {
    /// Whether the state holds a change of an open transaction.
    pub(super) fn have_changed(&self) -> bool {
        self.open.values().any(Transaction::has_changed)
    }

    fn remove(&mut self, id: TransactionId) -> Option<Transaction> {
        let transaction = self.open.remove(&id)?;
        self.bytes -= transaction.bytes;
        Some(transaction)
    }

    /// Ends a transaction whose commit the host has executed, and returns its changes.
    pub(super) fn committed(&mut self, id: TransactionId) -> Vec<Bytes> {
        let transaction = self.remove(id).expect("a transaction that commits is not aborted");
        assert!(transaction.stage == TransactionProgress::Committing, "a commit has its turn once");
        assert!(self.locks.release(id).is_none(), "a transaction that commits waits for no lock");
        transaction.changes
    }

    /// Returns the transactions that satisfy `which` and can still be aborted.
    fn those(&self, which: impl Fn(&Transaction) -> bool) -> Vec<TransactionId> {
        let open =
            self.open.iter().filter(|(_, it)| it.stage != TransactionProgress::Committing && which(it));
        open.map(|(id, _)| *id).collect()
    }
}

impl Replica {
    /// Handles a call of a transaction.
    pub(super) fn part(&mut self, called: PendingCall, out: &mut dyn Sink<Self>) {
        let Some(reign) = &mut self.reign else { unreachable!("only a leader executes transactions") };
        let Some((part, id)) = called.call.part().map(|part| (part, called.id())) else {
            unreachable!("a plain call is no part of a transaction")
        };
        let transaction = TransactionId { session: called.session, number: part.transaction };
        if called.call.kind == Kind::Commit {
            return self.commit(transaction, &called, out);
        }
        let Transactions { open, locks, now, .. } = &mut reign.transactions;
        if part.first && !open.contains_key(&transaction) {
            if open.len() >= self.settings.transactions_max {
                return self.answer(called.client, id, Outcome::Full);
            }
            open.insert(transaction, Transaction::new(called.client, *now));
        }
        let Some(it) = open.get_mut(&transaction) else {
            return self.answer(called.client, id, Outcome::Aborted(Abort::Gone));
        };
        if it.stage != TransactionProgress::Idle {
            self.abort(transaction, Abort::Misused, out);
            return self.answer(called.client, id, Outcome::Aborted(Abort::Misused));
        }
        (it.client, it.heard, it.stage) = (called.client, *now, TransactionProgress::Waiting(id));
        let bytes = called.bytes();
        match locks.ask(Some(transaction), called.call.touch(), true, called) {
            LockOutcome::Granted(called) => self.granted(called, out),
            LockOutcome::Waits => reign.begin_to_wait(bytes),
            LockOutcome::Deadlock(_) => self.abort(transaction, Abort::Deadlock, out),
            LockOutcome::Full(_) => unreachable!("transactions are counted when they begin"),
        }
    }

    /// Executes the requests whose wait for locks is over.
    pub(super) fn grant(&mut self, out: &mut dyn Sink<Self>) {
        while let Some(reign) = &mut self.reign
            && !reign.pausing
            && reign.has_room(&self.settings)
            && let Some(called) = reign.transactions.locks.next()
        {
            reign.end_waiting(&called);
            self.granted(called, out);
        }
    }

    fn granted(&mut self, called: PendingCall, out: &mut dyn Sink<Self>) {
        let Some(part) = called.call.part() else { return self.execute(called, out) };
        let Some(reign) = &mut self.reign else { unreachable!("only a leader grants locks") };
        let transaction = TransactionId { session: called.session, number: part.transaction };
        let it = reign.transactions.open.get_mut(&transaction).expect("it waited");
        it.stage = TransactionProgress::Executing(called.id());
        self.order(called, Access::Part(transaction), out);
    }

    /// Handles the host's result of a request of a transaction.
    pub(super) fn part_executed(
        &mut self,
        transaction: TransactionId,
        client: ProcessId,
        id: CallId,
        result: Executed,
        out: &mut dyn Sink<Self>,
    ) {
        let Some(reign) = &mut self.reign else {
            unreachable!("results of a reign that is over are dropped")
        };
        // If the transaction was aborted meanwhile, its client knows, and the host reverts.
        let Some(it) = reign.transactions.open.get_mut(&transaction) else { return };
        if it.stage != TransactionProgress::Executing(id) {
            return;
        }
        (it.stage, it.heard) = (TransactionProgress::Idle, reign.transactions.now);
        let outcome = match result {
            Executed::Unchanged { reply } => Outcome::Done(reply),
            Executed::Rejected { reason } => Outcome::Rejected(reason),
            Executed::Changed { reply, change } => {
                let bytes = change.len() + CHANGE_BYTES;
                it.bytes += bytes;
                it.changes.push(change);
                let is_large = it.bytes > self.settings.transaction_bytes_max;
                reign.transactions.bytes += bytes;
                if is_large || reign.transactions.bytes > self.settings.transactions_bytes_max {
                    self.abort(transaction, Abort::TooLarge, out);
                    Outcome::Aborted(Abort::TooLarge)
                } else {
                    Outcome::Done(reply)
                }
            }
        };
        self.answer(client, id, outcome);
    }

    fn commit(&mut self, transaction: TransactionId, called: &PendingCall, out: &mut dyn Sink<Self>) {
        let Some(reign) = &mut self.reign else { unreachable!("only a leader executes transactions") };
        let (client, id) = (called.client, called.id());
        match self.sessions.find(id) {
            CallRecord::Done(reply) => return self.answer(client, id, Outcome::Done(reply)),
            // The attempt that is under way will be answered.
            CallRecord::New | CallRecord::Forgotten | CallRecord::Reused if reign.under_way.contains(&id) => {
                return;
            }
            CallRecord::Forgotten | CallRecord::Reused => {
                // This answer depends on the state, like a read: a deposed leader may not have learned that
                // the session began.
                let (seen, question) = (reign.seen(), reign.reads.cover());
                reign.reads.executed(seen, question, client, id, Outcome::Expired);
                return self.abort(transaction, Abort::Gone, out);
            }
            CallRecord::New => {}
        }
        let Some(it) = reign.transactions.open.get_mut(&transaction) else {
            // This answer depends on the state, like a read: a deposed leader may lack the commit.
            let (seen, question) = (reign.seen(), reign.reads.cover());
            return reign.reads.executed(seen, question, client, id, Outcome::Aborted(Abort::Gone));
        };
        if it.stage != TransactionProgress::Idle {
            self.abort(transaction, Abort::Misused, out);
            return self.answer(client, id, Outcome::Aborted(Abort::Misused));
        }
        if it.changes.is_empty() {
            reign.transactions.remove(transaction);
            reign.transactions.locks.release(transaction);
            let (seen, question) = (reign.seen(), reign.reads.cover());
            reign.reads.executed(seen, question, client, id, Outcome::Done(Bytes::new()));
            return self.grant(out);
        }
        it.stage = TransactionProgress::Committing;
        reign.under_way.insert(id);
        let work = self.work(client, id, called.done, Access::Commit(transaction), 0);
        out.emit(Event::Commit { work, transaction });
    }

    /// Aborts a transaction, unless its commit is at the host.
    pub(super) fn abort(&mut self, transaction: TransactionId, why: Abort, out: &mut dyn Sink<Self>) {
        let Some(reign) = &mut self.reign else { return };
        let Some(it) = reign.transactions.open.get(&transaction) else { return };
        if it.stage == TransactionProgress::Committing {
            return;
        }
        let (client, stage, has_changed) = (it.client, it.stage, it.has_changed());
        reign.transactions.remove(transaction);
        if let Some(called) = reign.transactions.locks.release(transaction) {
            reign.end_waiting(&called);
        }
        if has_changed {
            out.emit(Event::Abort { transaction });
        }
        if let TransactionProgress::Waiting(id) | TransactionProgress::Executing(id) = stage {
            self.answer(client, id, Outcome::Aborted(why));
        }
        self.grant(out);
    }

    /// Aborts the transactions that have changed something, because a checkpoint is wanted.
    pub(super) fn abort_changed(&mut self, out: &mut dyn Sink<Self>) {
        self.abort_those(Transaction::has_changed, out);
    }

    /// Aborts the transactions of a client whose link broke.
    pub(super) fn abort_of(&mut self, client: ProcessId, out: &mut dyn Sink<Self>) {
        self.abort_those(|it| it.client == client, out);
    }

    /// Aborts the transactions whose clients have been silent for too long.
    pub(super) fn abort_idle(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        let idle: Duration = self.settings.transaction_idle;
        self.abort_those(|it| it.stage == TransactionProgress::Idle && now.since(it.heard) >= idle, out);
    }

    /// Tells clients whose calls wait for locks that their calls are under way. Else they would turn to
    /// another replica, and so lose their transactions.
    pub(super) fn reassure(&mut self) {
        let Some(Transactions { open, locks, .. }) = self.reign.as_ref().map(|reign| &reign.transactions)
        else {
            return;
        };
        let busy = open.iter().filter(|(_, it)| it.stage != TransactionProgress::Idle);
        let busy = busy.map(|(id, it)| (it.client, id.session));
        let waiting = locks.requests().map(|called| (called.client, called.session));
        let clients: Vec<_> = busy.chain(waiting).collect();
        for (client, session) in clients {
            self.reassured(client, session);
        }
    }

    fn abort_those(&mut self, which: impl Fn(&Transaction) -> bool, out: &mut dyn Sink<Self>) {
        let those = self.reign.as_ref().map(|reign| reign.transactions.those(which)).unwrap_or_default();
        for transaction in those {
            self.abort(transaction, Abort::Gone, out);
        }
    }
}

/// The approximate memory of a change in addition to its bytes.
const CHANGE_BYTES: usize = 48;
