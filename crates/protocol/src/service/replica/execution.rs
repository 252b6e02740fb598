//! The execution of calls: a replica that leads gives calls to its host, and handles the results.

use xxhash_rust::xxh3::xxh3_64;

use super::Replica;
use crate::{
    id::ProcessId,
    seam::Sink,
    service::{
        Call, CallId, CallOutcome, Event, Executed, Kind, SessionId,
        locks::LockOutcome,
        request::{ASKED_BYTES, Access, EntryContent, ExecutedEntry, HostedCall, PendingCall, RequestBody},
        sessions::CallRecord,
    },
    time::Time,
};

impl Replica {
    /// Handles waiting requests, as far as there is room.
    pub(super) fn handle_waiting_requests(&mut self, out: &mut dyn Sink<Self>) {
        self.grant(out);
        while let Some(reign) = &mut self.reign
            && reign.settled
            && !reign.pausing
            && reign.has_room(&self.settings)
            && let Some(asked) = reign.waiting.pop_front()
        {
            reign.waiting_bytes -= asked.wish.bytes();
            let client = asked.client;
            match asked.wish {
                RequestBody::Open { nonce } => {
                    reign.builder.open(reign.ballot, reign.next);
                    reign.next += 1;
                    reign.in_flight_bytes += ASKED_BYTES;
                    let of = EntryContent::Open { nonce };
                    reign.gathering.push(ExecutedEntry { client: Some(client), of, bytes: ASKED_BYTES });
                }
                RequestBody::Call { session, done, call } if call.part().is_some() => {
                    self.part(PendingCall { client, session, done, call }, out);
                }
                RequestBody::Call { session, done, call } => {
                    self.call(PendingCall { client, session, done, call }, out)
                }
            }
        }
    }

    fn call(&mut self, mut called: PendingCall, out: &mut dyn Sink<Self>) {
        let reign = self.reign.as_mut().expect("only a leader executes requests");
        let (client, id) = (called.client, called.id());
        let is_read = called.call.kind.is_read();
        let known = if id.session == SessionId::KEYED {
            called.done = xxh3_64(&called.call.request);
            self.sessions.find_keyed(id.number, called.done)
        } else {
            self.sessions.find(id)
        };
        match known {
            _ if is_read => {}
            CallRecord::Done(reply) => return self.answer(client, id, CallOutcome::Done(reply)),
            // An earlier attempt is under way and will be answered, although the table of sessions will not
            // record it.
            CallRecord::Forgotten if reign.under_way.contains(&id) => return,
            // This answer depends on the state, like a read: a deposed leader may not have learned that the
            // session began.
            CallRecord::Forgotten => {
                let (seen, question) = (reign.seen(), reign.reads.cover());
                return reign.reads.executed(seen, question, client, id, CallOutcome::Expired);
            }
            CallRecord::Reused => return self.answer(client, id, CallOutcome::Reused),
            // An earlier attempt is under way and will be answered.
            CallRecord::New if !reign.under_way.insert(id) => return,
            CallRecord::New => {}
        }
        let locks = &mut reign.transactions.locks;
        if locks.are_free() {
            return self.execute(called, out);
        }
        // The other half of the memory is kept for calls of transactions that hold locks. Without that memory
        // these transactions could never end.
        let bytes = called.bytes();
        let may_wait = reign.locked_bytes + bytes <= self.settings.waiting_bytes_max / 2;
        match locks.ask(None, called.call.touch(), may_wait, called) {
            LockOutcome::Granted(called) => self.execute(called, out),
            LockOutcome::Waits => reign.begin_to_wait(bytes),
            LockOutcome::Full(_) => {
                reign.under_way.remove(&id);
                self.answer(client, id, CallOutcome::Full);
            }
            LockOutcome::Deadlock(_) => unreachable!("a plain call holds no lock that other calls wait for"),
        }
    }

    /// Executes a plain call that conflicts with no lock.
    pub(super) fn execute(&mut self, called: PendingCall, out: &mut dyn Sink<Self>) {
        let reign = self.reign.as_mut().expect("only a leader executes requests");
        let access = match called.call.kind {
            Kind::Write => Access::Write,
            Kind::AnnouncedRead if reign.reads.expect(called.id()) => Access::Announced,
            Kind::Read | Kind::AnnouncedRead => Access::Asked(reign.reads.cover()),
            Kind::Commit => unreachable!("a commit is a part of its transaction"),
        };
        self.order(called, access, out);
    }

    /// Gives a call to the host.
    pub(super) fn order(&mut self, called: PendingCall, access: Access, out: &mut dyn Sink<Self>) {
        let (id, read) = (called.id(), called.call.kind.is_read());
        let PendingCall { client, done, call: Call { request, .. }, .. } = called;
        let transaction = match access {
            Access::Part(transaction) => Some(transaction),
            _ => None,
        };
        let work = self.work(client, id, done, access, request.len());
        out.emit(Event::Execute { work, request, read, transaction });
    }

    /// Records a work that is given to the host, so that its result can be recognized. Returns the work's
    /// number.
    pub(super) fn work(
        &mut self,
        client: ProcessId,
        id: CallId,
        done: u64,
        access: Access,
        bytes: usize,
    ) -> u64 {
        self.works += 1;
        let reign = self.reign.as_mut().expect("only a leader executes requests");
        let bytes = ASKED_BYTES + bytes;
        reign.in_flight_bytes += bytes;
        reign.executing.push_back(HostedCall { number: self.works, client, id, done, access, bytes });
        self.works
    }

    /// Handles a result of the host.
    pub(super) fn executed(&mut self, number: u64, result: Executed, out: &mut dyn Sink<Self>) {
        // A result from a reign that has ended is ignored, because the host was ordered to revert it.
        let Replica { reign: Some(reign), paxos, .. } = self else { return };
        let Some(HostedCall { client, id, done, access, bytes, .. }) = reign.take_work(number) else {
            return;
        };
        reign.in_flight_bytes -= bytes;
        let seen = reign.seen();
        let majority = |by: &[ProcessId]| paxos.is_majority(|id| by.contains(&id));
        let read = |result| match result {
            Executed::Unchanged { reply } => CallOutcome::Done(reply),
            Executed::Rejected { reason } => CallOutcome::Rejected(reason),
            Executed::Changed { .. } => panic!("a read changes nothing"),
        };
        match (access, result) {
            (Access::Asked(question), result) => {
                reign.reads.executed(seen, question, client, id, read(result));
            }
            (Access::Announced, result) => {
                reign.reads.executed_announced(seen, client, id, read(result), majority)
            }
            // A refusal depends on the state, so its answer waits like the answer to a read.
            (Access::Write, Executed::Rejected { reason }) => {
                reign.under_way.remove(&id);
                let question = reign.reads.cover();
                reign.reads.executed(seen, question, client, id, CallOutcome::Rejected(reason));
            }
            (Access::Write, Executed::Unchanged { reply }) => {
                reign.gather(number, client, id, done, &reply, None);
            }
            (Access::Write, Executed::Changed { reply, change }) => {
                reign.gather(number, client, id, done, &reply, Some(&change));
            }
            (Access::Part(transaction), result) => self.part_executed(transaction, client, id, result, out),
            (Access::Commit(transaction), _) => reign.gather_commit(number, client, id, done, transaction),
        }
        self.answer_reads();
        self.handle_waiting_requests(out);
    }

    /// Ends the sessions that have been idle for too long.
    pub(super) fn end_idle_sessions(&mut self, now: Time) {
        let Replica { reign: Some(reign), sessions, settings, .. } = self else { return };
        if reign.settled && !reign.pausing && reign.has_room(settings) {
            for session in reign.idle.look(now, settings.session_idle, sessions.ids()) {
                reign.close(session);
            }
        }
    }

    /// Sends the answers to reads and refusals whose waits are over.
    pub(super) fn answer_reads(&mut self) {
        while let Some(reign) = &mut self.reign
            && let Some((client, id, outcome)) = reign.reads.next(self.chosen)
        {
            self.answer(client, id, outcome);
        }
    }
}
