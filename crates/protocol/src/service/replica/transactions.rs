//! The transactions at a replica that leads ([`transactions`](crate::service::transactions)): their calls,
//! commits and aborts.

use bytes::Bytes;

use super::Replica;
use crate::{
    id::ProcessId,
    seam::Sink,
    service::{
        Abort, CallId, CallOutcome, Event, Executed, Kind, TransactionId,
        locks::LockOutcome,
        request::{Access, PendingCall},
        sessions::CallRecord,
        transactions::{Transaction, TransactionProgress, Transactions},
    },
    time::{Duration, Time},
};

impl Replica {
    /// Handles a call that belongs to a transaction.
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
                return self.answer(called.client, id, CallOutcome::Full);
            }
            open.insert(transaction, Transaction::new(called.client, *now));
        }
        let Some(it) = open.get_mut(&transaction) else {
            return self.answer(called.client, id, CallOutcome::Aborted(Abort::Gone));
        };
        if it.stage != TransactionProgress::Idle {
            self.abort(transaction, Abort::Misused, out);
            return self.answer(called.client, id, CallOutcome::Aborted(Abort::Misused));
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
        // If the transaction was aborted meanwhile, its client already knows, and the host reverts its
        // changes.
        let Some(it) = reign.transactions.open.get_mut(&transaction) else { return };
        if it.stage != TransactionProgress::Executing(id) {
            return;
        }
        (it.stage, it.heard) = (TransactionProgress::Idle, reign.transactions.now);
        let outcome = match result {
            Executed::Unchanged { reply } => CallOutcome::Done(reply),
            Executed::Rejected { reason } => CallOutcome::Rejected(reason),
            Executed::Changed { reply, change } => {
                let bytes = change.len() + CHANGE_BYTES;
                it.bytes += bytes;
                it.changes.push(change);
                let is_large = it.bytes > self.settings.transaction_bytes_max;
                reign.transactions.bytes += bytes;
                if is_large || reign.transactions.bytes > self.settings.transactions_bytes_max {
                    self.abort(transaction, Abort::TooLarge, out);
                    CallOutcome::Aborted(Abort::TooLarge)
                } else {
                    CallOutcome::Done(reply)
                }
            }
        };
        self.answer(client, id, outcome);
    }

    fn commit(&mut self, transaction: TransactionId, called: &PendingCall, out: &mut dyn Sink<Self>) {
        let Some(reign) = &mut self.reign else { unreachable!("only a leader executes transactions") };
        let (client, id) = (called.client, called.id());
        match self.sessions.find(id) {
            CallRecord::Done(reply) => return self.answer(client, id, CallOutcome::Done(reply)),
            // An earlier attempt is under way and will be answered.
            CallRecord::New | CallRecord::Forgotten | CallRecord::Reused if reign.under_way.contains(&id) => {
                return;
            }
            CallRecord::Forgotten | CallRecord::Reused => {
                // This answer depends on the state, like a read: a deposed leader may not have learned that
                // the session began.
                let (seen, question) = (reign.seen(), reign.reads.cover());
                reign.reads.executed(seen, question, client, id, CallOutcome::Expired);
                return self.abort(transaction, Abort::Gone, out);
            }
            CallRecord::New => {}
        }
        let Some(it) = reign.transactions.open.get_mut(&transaction) else {
            // This answer depends on the state, like a read: a deposed leader may lack the commit.
            let (seen, question) = (reign.seen(), reign.reads.cover());
            return reign.reads.executed(seen, question, client, id, CallOutcome::Aborted(Abort::Gone));
        };
        if it.stage != TransactionProgress::Idle {
            self.abort(transaction, Abort::Misused, out);
            return self.answer(client, id, CallOutcome::Aborted(Abort::Misused));
        }
        if it.changes.is_empty() {
            reign.transactions.remove(transaction);
            reign.transactions.locks.release(transaction);
            let (seen, question) = (reign.seen(), reign.reads.cover());
            reign.reads.executed(seen, question, client, id, CallOutcome::Done(Bytes::new()));
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
            self.answer(client, id, CallOutcome::Aborted(why));
        }
        self.grant(out);
    }

    /// Aborts the transactions that have changed something, because a checkpoint is wanted.
    pub(super) fn abort_changed(&mut self, out: &mut dyn Sink<Self>) {
        self.abort_matching(Transaction::has_changed, out);
    }

    /// Aborts the transactions of a client whose link has broken.
    pub(super) fn abort_of(&mut self, client: ProcessId, out: &mut dyn Sink<Self>) {
        self.abort_matching(|it| it.client == client, out);
    }

    /// Aborts the transactions whose clients have been silent for too long.
    pub(super) fn abort_idle(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        let idle: Duration = self.settings.transaction_idle;
        self.abort_matching(|it| it.stage == TransactionProgress::Idle && now.since(it.heard) >= idle, out);
    }

    /// Notifies clients whose calls wait for locks that these calls are under way. Otherwise the clients
    /// would turn to another replica, and lose their transactions.
    pub(super) fn notify_waiting_clients(&mut self) {
        let Some(Transactions { open, locks, .. }) = self.reign.as_ref().map(|reign| &reign.transactions)
        else {
            return;
        };
        let busy = open.iter().filter(|(_, it)| it.stage != TransactionProgress::Idle);
        let busy = busy.map(|(id, it)| (it.client, id.session));
        let waiting = locks.requests().map(|called| (called.client, called.session));
        let clients: Vec<_> = busy.chain(waiting).collect();
        for (client, session) in clients {
            self.queue_notice(client, session);
        }
    }

    fn abort_matching(&mut self, which: impl Fn(&Transaction) -> bool, out: &mut dyn Sink<Self>) {
        let matching =
            self.reign.as_ref().map(|reign| reign.transactions.matching(which)).unwrap_or_default();
        for transaction in matching {
            self.abort(transaction, Abort::Gone, out);
        }
    }
}

/// The approximate memory of a change in addition to its bytes, in bytes.
const CHANGE_BYTES: usize = 48;
