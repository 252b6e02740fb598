//! Transactions at the leader (003 §VI.A.4, *T-Paxos*).
//!
//! **Promise.** The requests of a transaction take effect together, at its commit, or not at all. Transactions and plain calls
//! are serializable in the order of the log, and that order is the one in which they were seen to happen: what was committed before
//! another one began comes before it. A commit takes effect at most once, and one that was answered is never lost.
//!
//! **Source.** The leader executes a transaction's requests and answers them at once, without asking anybody: no replica hears of them. The
//! commit is one instance with all changes, agreed on like a write. What the source leaves to "locks or other mechanisms" is
//! in `locks`.
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
//!    │◀──── answer ─────┤ locks are released when the instance has its place; answers wait until it is chosen
//! ```
//!
//! **What is locked.** Each request names the keys that it touches, or touches everything. The transaction holds them until it
//! ends, so what its requests saw stands until its commit has its place among the instances. A plain request is executed when it
//! conflicts with no transaction, and waits otherwise. While no transaction is open nobody looks at locks.
//!
//! **Changes stand in the state from the moment of execution**, like those of plain writes that are not chosen. The host
//! remembers to which transaction each belongs. It takes them back, the latest first, when the transaction is aborted, while others
//! that were applied later stay: they touch other keys, so the order does not matter. Backups apply the changes at the place of the commit.
//!
//! **A transaction that changed nothing** has no instance. Its commit is confirmed like a read (rule S16): a majority followed the
//! ballot after the commit came, and all that it saw is chosen. Until then its locks have kept what it saw as it was.
//!
//! **What ends a transaction without a commit.** Each of these is told as `Outcome::Aborted` to the next call of it:
//! its leader is deposed or dies, its client's link breaks, its client is silent for `Settings::transaction_idle`,
//! it closes a circle of waiting, its changes are too many, the client abandons it, or a checkpoint is wanted while it has changed something.
//!
//! **Attacks considered.**
//!
//! - *The leader is deposed between two requests.* The host reverts all that is not chosen, which a transaction's changes
//!   are. The next leader knows nothing of it, and says so. A client gives its transactions up when it turns to another replica.
//! - *An answer inside a transaction comes from a leader that is deposed already.* What it says may never have been. The commit finds out: an
//!   instance is chosen only in the reign that executed it, and a commit without changes is confirmed. So only of a transaction that
//!   commits does it matter what it saw.
//! - *The answer to a commit is lost.* The instance carries the call's id into every table of sessions, so a repetition is answered from there. A
//!   commit that no settled leader has in its log can never be chosen later. So it is aborted; that is told when the reign was confirmed,
//!   for a leader that was deposed may lack the commit.
//! - *A commit comes twice to one leader.* While the first is under way the second adds nothing.
//! - *A transaction is aborted while a request of it is executed.* The host is told to abort behind the order to execute. The result that
//!   comes then belongs to nothing.
//! - *A commit is overtaken by a write that the host executed before it.* The commit goes through the host like every work, and
//!   gets its instance when its turn comes. So the host's order is the log's.
//! - *A checkpoint would hold what is not committed.* Transactions that have changed something are aborted when one is wanted; those
//!   that come meanwhile wait until it was taken.
//! - *A plain write waits for a transaction, and its client sends it again.* It is under way, and is not queued twice.
//! - *A client leaves a transaction open.* Its locks go with its link, or after a while.
//! - *Requests that come before the one under way was answered.* Their order is not known, so the transaction is aborted.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    Abort, CallId, Event, Executed, Kind, Outcome, Replica, TransactionId,
    locks::{Granting, Locks},
    reign::{Access, Called},
    sessions::Known,
};
use crate::{
    id::ProcessId,
    seam::Sink,
    time::{Duration, Time},
};

/// The transactions of a reign.
#[derive(Debug, Default)]
pub(super) struct Transactions {
    open: BTreeMap<TransactionId, Transaction>,
    pub(super) locks: Locks<Called>,
    /// The time of the latest input that told it.
    pub(super) now: Time,
}

/// A transaction that has not ended.
#[derive(Debug)]
struct Transaction {
    client: ProcessId,
    changes: Vec<Bytes>,
    bytes: usize,
    stage: Stage,
    /// When its client was heard last.
    heard: Time,
}

/// What is under way of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    /// A call waits for locks.
    Waiting(CallId),
    /// A call is at the host.
    Executing(CallId),
    /// Its commit is at the host.
    Committing,
}

impl Transaction {
    fn new(client: ProcessId, now: Time) -> Transaction {
        Transaction { client, changes: Vec::new(), bytes: 0, stage: Stage::Idle, heard: now }
    }

    /// Whether the host has changed anything for it, or may have.
    fn has_changed(&self) -> bool {
        !self.changes.is_empty() || matches!(self.stage, Stage::Executing(_))
    }
}

impl Transactions {
    /// Whether the state holds what one of them has changed.
    pub(super) fn have_changed(&self) -> bool {
        self.open.values().any(Transaction::has_changed)
    }

    /// The changes of one whose commit has its turn.
    pub(super) fn committed(&mut self, id: TransactionId) -> Vec<Bytes> {
        let transaction = self.open.remove(&id).expect("one that commits is not aborted");
        assert!(transaction.stage == Stage::Committing, "a commit has its turn once");
        assert!(self.locks.release(id).is_none(), "one that commits waits for nothing");
        transaction.changes
    }

    /// Those of some kind that can still be aborted.
    fn those(&self, which: impl Fn(&Transaction) -> bool) -> Vec<TransactionId> {
        let open = self.open.iter().filter(|(_, it)| it.stage != Stage::Committing && which(it));
        open.map(|(id, _)| *id).collect()
    }
}

impl Replica {
    /// A call of a transaction has its turn.
    pub(super) fn part(&mut self, called: Called, out: &mut dyn Sink<Self>) {
        let Some(reign) = &mut self.reign else { unreachable!("a leader is called") };
        let Some((part, id)) = called.call.part().map(|part| (part, called.id())) else {
            unreachable!("a plain call is no part")
        };
        let transaction = TransactionId { session: called.session, number: part.transaction };
        if called.call.kind == Kind::Commit {
            return self.commit(transaction, &called, out);
        }
        let Transactions { open, locks, now } = &mut reign.transactions;
        if part.first && !open.contains_key(&transaction) {
            if open.len() >= self.settings.transactions_max {
                return self.answer(called.client, id, Outcome::Full);
            }
            open.insert(transaction, Transaction::new(called.client, *now));
        }
        let Some(it) = open.get_mut(&transaction) else {
            return self.answer(called.client, id, Outcome::Aborted(Abort::Gone));
        };
        if it.stage != Stage::Idle {
            self.abort(transaction, Abort::Misused, out);
            return self.answer(called.client, id, Outcome::Aborted(Abort::Misused));
        }
        (it.client, it.heard, it.stage) = (called.client, *now, Stage::Waiting(id));
        match locks.ask(Some(transaction), called.call.touch(), called) {
            Granting::Granted(called) => self.granted(called, out),
            Granting::Waits => {}
            Granting::Deadlock(_) => self.abort(transaction, Abort::Deadlock, out),
            Granting::Full(_) => unreachable!("transactions are counted when they begin"),
        }
    }

    /// Requests that wait for no transaction any more.
    pub(super) fn grant(&mut self, out: &mut dyn Sink<Self>) {
        while let Some(reign) = &mut self.reign
            && !reign.pausing
            && reign.has_room(&self.settings)
            && let Some(called) = reign.transactions.locks.next()
        {
            self.granted(called, out);
        }
    }

    fn granted(&mut self, called: Called, out: &mut dyn Sink<Self>) {
        let Some(part) = called.call.part() else { return self.execute(called, out) };
        let Some(reign) = &mut self.reign else { unreachable!("a leader grants") };
        let transaction = TransactionId { session: called.session, number: part.transaction };
        let it = reign.transactions.open.get_mut(&transaction).expect("it waited");
        it.stage = Stage::Executing(called.id());
        self.order(called, Access::Part(transaction), out);
    }

    /// The host has executed a request of a transaction.
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
        // One that was aborted meanwhile has been told so, and the host reverts.
        let Some(it) = reign.transactions.open.get_mut(&transaction) else { return };
        if it.stage != Stage::Executing(id) {
            return;
        }
        (it.stage, it.heard) = (Stage::Idle, reign.transactions.now);
        let outcome = match result {
            Executed::Unchanged { reply } => Outcome::Done(reply),
            Executed::Rejected { reason } => Outcome::Rejected(reason),
            Executed::Changed { reply, change } => {
                it.bytes += change.len() + CHANGE_BYTES;
                it.changes.push(change);
                if it.bytes > self.settings.transaction_bytes_max {
                    self.abort(transaction, Abort::TooLarge, out);
                    Outcome::Aborted(Abort::TooLarge)
                } else {
                    Outcome::Done(reply)
                }
            }
        };
        self.answer(client, id, outcome);
    }

    fn commit(&mut self, transaction: TransactionId, called: &Called, out: &mut dyn Sink<Self>) {
        let Some(reign) = &mut self.reign else { unreachable!("a leader is called") };
        let (client, id) = (called.client, called.id());
        match self.sessions.find(id) {
            Known::Done(reply) => return self.answer(client, id, Outcome::Done(reply)),
            Known::Forgotten | Known::Reused => {
                self.abort(transaction, Abort::Gone, out);
                return self.answer(client, id, Outcome::Expired);
            }
            // The attempt that is under way will be answered.
            Known::New if reign.under_way.contains(&id) => return,
            Known::New => {}
        }
        let Some(it) = reign.transactions.open.get_mut(&transaction) else {
            // A leader that was deposed may lack the commit: this tells of the state, like a read.
            let (seen, question) = (reign.seen(), reign.reads.cover());
            return reign.reads.executed(seen, question, client, id, Outcome::Aborted(Abort::Gone));
        };
        if it.stage != Stage::Idle {
            self.abort(transaction, Abort::Misused, out);
            return self.answer(client, id, Outcome::Aborted(Abort::Misused));
        }
        if it.changes.is_empty() {
            reign.transactions.open.remove(&transaction);
            reign.transactions.locks.release(transaction);
            let (seen, question) = (reign.seen(), reign.reads.cover());
            reign.reads.executed(seen, question, client, id, Outcome::Done(Bytes::new()));
            return self.grant(out);
        }
        it.stage = Stage::Committing;
        reign.under_way.insert(id);
        let work = self.work(client, id, called.done, Access::Commit(transaction), 0);
        out.emit(Event::Commit { work, transaction });
    }

    /// Nothing of a transaction takes effect.
    pub(super) fn abort(&mut self, transaction: TransactionId, why: Abort, out: &mut dyn Sink<Self>) {
        let Some(reign) = &mut self.reign else { return };
        let Some(it) = reign.transactions.open.get(&transaction) else { return };
        if it.stage == Stage::Committing {
            return;
        }
        let (client, stage, has_changed) = (it.client, it.stage, it.has_changed());
        reign.transactions.open.remove(&transaction);
        reign.transactions.locks.release(transaction);
        if has_changed {
            out.emit(Event::Abort { transaction });
        }
        if let Stage::Waiting(id) | Stage::Executing(id) = stage {
            self.answer(client, id, Outcome::Aborted(why));
        }
        self.grant(out);
    }

    /// Aborts those that have changed something: a checkpoint is wanted.
    pub(super) fn abort_changed(&mut self, out: &mut dyn Sink<Self>) {
        self.abort_those(Transaction::has_changed, out);
    }

    /// Aborts those of a client that is not linked any more.
    pub(super) fn abort_of(&mut self, client: ProcessId, out: &mut dyn Sink<Self>) {
        self.abort_those(|it| it.client == client, out);
    }

    /// Aborts those whose clients have said nothing for long.
    pub(super) fn abort_idle(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        let idle: Duration = self.settings.transaction_idle;
        self.abort_those(|it| it.stage == Stage::Idle && now.since(it.heard) >= idle, out);
    }

    /// Tells clients whose calls wait for others that they are not forgotten: they would turn to another replica, and lose
    /// their transactions by it.
    pub(super) fn reassure(&mut self) {
        let Some(Transactions { open, locks, .. }) = self.reign.as_ref().map(|reign| &reign.transactions)
        else {
            return;
        };
        let busy = open.iter().filter(|(_, it)| it.stage != Stage::Idle);
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

/// The memory of a change beside its bytes, about, in bytes.
const CHANGE_BYTES: usize = 48;
