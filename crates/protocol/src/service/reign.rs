//! One reign of a replica: the calls that wait, the works at the host, and the proposals.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use rustc_hash::FxHashSet;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Call, CallId, Event, Executed, Kind, Outcome, Pipelining, Replica, SessionId, Settings, TransactionId,
    batch::Builder, idle::Idle, locks::LockOutcome, reads::Reads, sessions::CallRecord,
    transactions::Transactions,
};
use crate::{
    id::ProcessId,
    paxos::{Ballot, Slot},
    seam::Sink,
    time::Time,
};

/// The state of one reign.
#[derive(Debug)]
pub(super) struct Reign {
    pub(super) ballot: Ballot,
    /// The last slot before the reign's own slots.
    pub(super) start: Slot,
    /// Whether everything that the reign began with is chosen.
    pub(super) settled: bool,
    /// Whether a checkpoint is wanted, so that nothing is executed before all results are chosen.
    pub(super) pausing: bool,
    /// The number of the rest that the host was ordered to take for the checkpoint, and whether the host
    /// rests.
    rest: Option<(u64, bool)>,
    /// Ticks for which a wanted checkpoint has waited.
    paused_ticks: u32,
    /// Ticks since the last of its proposals was chosen, while something is not chosen and a checkpoint waits
    /// for it.
    stuck_ticks: u32,
    /// Whether the host has stopped executing for good.
    stopped: bool,
    /// Requests of clients that were not handled yet.
    waiting: VecDeque<ClientRequest>,
    waiting_bytes: usize,
    /// The memory of requests that wait for locks, in bytes.
    locked_bytes: usize,
    /// Works at the host.
    executing: VecDeque<HostedCall>,
    /// Whether changes are whole states.
    whole_states: bool,
    /// Instances that gather for the next proposal.
    builder: Builder,
    gathering: Vec<ExecutedEntry>,
    /// Batches for which the log had no room, the oldest first, with their entries.
    kept_back: VecDeque<(Bytes, Vec<ExecutedEntry>)>,
    kept_back_bytes: usize,
    /// Proposals that are not chosen, the oldest first, with the entries to be answered.
    proposed: VecDeque<Vec<ExecutedEntry>>,
    /// Writes that were given to the host and are not chosen.
    pub(super) under_way: FxHashSet<CallId>,
    pub(super) transactions: Transactions,
    /// The memory of requests at the host and of unchosen results, in bytes.
    in_flight_bytes: usize,
    /// The number of the next instance.
    next: u64,
    pub(super) reads: Reads,
    pub(super) idle: Idle,
    /// Linked clients that have called, and to which this leader has sent the list of replicas.
    pub(super) callers: BTreeSet<ProcessId>,
}

/// A client's request to the leader.
#[derive(Debug)]
pub(super) struct ClientRequest {
    pub(super) client: ProcessId,
    pub(super) wish: RequestBody,
}

#[derive(Debug)]
pub(super) enum RequestBody {
    Open { nonce: u64 },
    Call { session: SessionId, done: u64, call: Call },
}

/// A call, with its client and session.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) client: ProcessId,
    pub(super) session: SessionId,
    /// The number below which the client no longer needs the session's answers. For a call with a key, the
    /// hash of its request.
    pub(super) done: u64,
    pub(super) call: Call,
}

impl PendingCall {
    pub(super) fn id(&self) -> CallId {
        self.call.id(self.session)
    }

    /// Returns the call's memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        ASKED_BYTES + self.call.request.len() + self.call.scope_bytes()
    }
}

impl RequestBody {
    fn bytes(&self) -> usize {
        match self {
            RequestBody::Open { .. } => ASKED_BYTES,
            RequestBody::Call { call, .. } => ASKED_BYTES + call.request.len() + call.scope_bytes(),
        }
    }
}

/// A request that the host is executing.
#[derive(Debug)]
struct HostedCall {
    number: u64,
    client: ProcessId,
    id: CallId,
    done: u64,
    access: Access,
    bytes: usize,
}

/// The effects that a work may have, and how the leader learns that it may answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    Write,
    /// A read, with the question that covers it.
    Asked(u64),
    /// A told read: the client has announced it to the replicas.
    Told,
    /// A request of a transaction.
    Part(TransactionId),
    /// The commit of a transaction.
    Commit(TransactionId),
}

/// An executed instance that is not chosen.
#[derive(Debug)]
pub(super) struct ExecutedEntry {
    /// The client that gets the answer. `None` for the end of a session.
    pub(super) client: Option<ProcessId>,
    pub(super) of: EntryContent,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum EntryContent {
    Open { nonce: u64 },
    Close,
    Call { id: CallId, work: u64 },
}

impl Reign {
    pub(super) fn new(ballot: Ballot, start: Slot, settings: &Settings) -> Reign {
        Reign {
            whole_states: settings.whole_states,
            ballot,
            start,
            settled: false,
            pausing: false,
            rest: None,
            paused_ticks: 0,
            stuck_ticks: 0,
            stopped: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            locked_bytes: 0,
            executing: VecDeque::new(),
            builder: Builder::default(),
            gathering: Vec::new(),
            kept_back: VecDeque::new(),
            kept_back_bytes: 0,
            proposed: VecDeque::new(),
            under_way: FxHashSet::default(),
            transactions: Transactions::default(),
            in_flight_bytes: 0,
            next: 0,
            reads: Reads::default(),
            idle: Idle::default(),
            callers: BTreeSet::new(),
        }
    }

    /// Counts a request that has begun to wait for locks.
    pub(super) fn begin_to_wait(&mut self, bytes: usize) {
        self.locked_bytes += bytes;
    }

    /// Counts a request that no longer waits for locks.
    pub(super) fn end_waiting(&mut self, called: &PendingCall) {
        self.locked_bytes -= called.bytes();
    }

    /// Queues a client's request. Gives it back if there is no room.
    pub(super) fn ask(&mut self, asked: ClientRequest, settings: &Settings) -> Result<(), ClientRequest> {
        let bytes = asked.wish.bytes();
        if self.waiting_bytes + self.locked_bytes + bytes > settings.waiting_bytes_max {
            return Err(asked);
        }
        self.waiting_bytes += bytes;
        self.waiting.push_back(asked);
        Ok(())
    }

    /// Stops executing for good: the host does not even execute the requests that it was given.
    pub(super) fn stop_executing(&mut self) {
        self.stopped = true;
        self.executing.clear();
    }

    /// Whether all results are chosen, and all refusals and reads of them are answered.
    pub(super) fn has_answered_all(&self) -> bool {
        self.is_quiet() && !self.reads.owe()
    }

    /// Settles the reign: instances up to `chosen` are chosen, and the reign may begin to execute.
    pub(super) fn settle(&mut self, chosen: u64) {
        self.settled = true;
        self.next = chosen + 1;
    }

    /// Counts a tick. Returns whether a checkpoint that is wanted, or a part of one that waits for room, has
    /// waited for too long.
    pub(super) fn tick(&mut self, part_waits_for_room: bool) -> bool {
        self.reads.tick();
        if !self.settled || self.stopped || !self.pausing && !part_waits_for_room {
            (self.paused_ticks, self.stuck_ticks) = (0, 0);
            return false;
        }
        self.paused_ticks = if self.pausing { self.paused_ticks + 1 } else { 0 };
        self.stuck_ticks = if self.has_unchosen() { self.stuck_ticks + 1 } else { 0 };
        self.stuck_ticks >= STUCK_TICKS_MAX || self.paused_ticks >= PAUSED_TICKS_MAX
    }

    /// Returns the number of proposals that are not chosen.
    pub(super) fn proposals(&self) -> usize {
        self.proposed.len()
    }

    /// Removes and returns a work that the host has done. Most hosts do works in their order.
    fn take_work(&mut self, number: u64) -> Option<HostedCall> {
        if let Some(work) = self.executing.pop_front_if(|work| work.number == number) {
            return Some(work);
        }
        let place = self.executing.binary_search_by_key(&number, |work| work.number).ok()?;
        self.executing.remove(place)
    }

    /// Pauses for a checkpoint. Returns `rest` if the host is to be ordered to rest, which happens once.
    pub(super) fn pause(&mut self, rest: Option<u64>) -> Option<u64> {
        let is_first = !std::mem::replace(&mut self.pausing, true);
        let told = rest.filter(|_| is_first)?;
        self.rest = Some((told, false));
        Some(told)
    }

    /// Records that the host rests.
    pub(super) fn rests(&mut self, rest: u64) {
        if let Some((told, rests)) = &mut self.rest {
            *rests |= *told == rest;
        }
    }

    /// Ends the pause after a checkpoint was taken.
    pub(super) fn go_on_behind_checkpoint(&mut self) {
        (self.pausing, self.rest) = (false, None);
    }

    /// Whether all changes that the host has applied are chosen.
    pub(super) fn is_quiet(&self) -> bool {
        let executes = !self.executing.is_empty() && !matches!(self.rest, Some((_, true)));
        !executes && !self.has_unchosen()
    }

    /// Whether any result is not chosen.
    fn has_unchosen(&self) -> bool {
        !self.gathering.is_empty() || !self.kept_back.is_empty() || !self.proposed.is_empty()
    }

    /// Returns the last instance whose change the state holds. Changes of open transactions come on top.
    pub(super) fn seen(&self) -> u64 {
        self.next - 1
    }

    pub(super) fn has_room(&self, settings: &Settings) -> bool {
        match settings.pipelining {
            _ if self.stopped => false,
            Pipelining::Speculative => {
                self.in_flight_bytes + self.reads.bytes() < settings.in_flight_bytes_max
            }
            Pipelining::OneAtATime => self.is_quiet(),
        }
    }

    /// Returns the next proposal: the oldest batch that was kept back, or else the gathering instances.
    /// Returns `None` if there is none or the log has no room for it. No batch overtakes an earlier one.
    pub(super) fn propose(&mut self, has_room: impl Fn(usize) -> bool) -> Option<Bytes> {
        if let Some((payload, _)) = self.kept_back.front() {
            if !has_room(payload.len()) {
                return None;
            }
            let (payload, entries) = self.kept_back.pop_front()?;
            self.kept_back_bytes -= payload.len();
            self.proposed.push_back(entries);
            return Some(payload);
        }
        if !has_room(self.builder.bytes()) {
            return None;
        }
        let payload = self.builder.finish()?;
        self.proposed.push_back(std::mem::take(&mut self.gathering));
        Some(payload)
    }

    /// Ends the gathering batch, and keeps it until the log has room.
    pub(super) fn keep_back(&mut self) {
        if let Some(payload) = self.builder.finish() {
            self.kept_back_bytes += payload.len();
            self.kept_back.push_back((payload, std::mem::take(&mut self.gathering)));
        }
    }

    /// Whether batches wait until the log has room.
    pub(super) fn keeps_back(&self) -> bool {
        !self.kept_back.is_empty()
    }

    /// Removes the last proposal, which the log refused for good.
    pub(super) fn refused(&mut self) {
        self.proposed.pop_back().expect("the log refuses only a value that was proposed");
    }

    /// Returns the bytes of results that are not in the log: gathering ones, and those that were kept back.
    pub(super) fn results_held(&self) -> usize {
        self.builder.bytes() + self.kept_back_bytes
    }

    /// Removes the oldest proposal, which was chosen, and returns its entries.
    pub(super) fn chosen(&mut self) -> Vec<ExecutedEntry> {
        let entries = self.proposed.pop_front().expect("a reign's slots hold what it proposed");
        self.stuck_ticks = 0;
        for entry in &entries {
            self.in_flight_bytes -= entry.bytes;
            if let EntryContent::Call { id, .. } = entry.of {
                self.under_way.remove(&id);
            }
        }
        entries
    }
}

impl Replica {
    /// Handles waiting requests, as far as there is room.
    pub(super) fn go_on(&mut self, out: &mut dyn Sink<Self>) {
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
            CallRecord::Done(reply) => return self.answer(client, id, Outcome::Done(reply)),
            // The attempt that is under way will be answered, although no table will record it.
            CallRecord::Forgotten if reign.under_way.contains(&id) => return,
            // This answer depends on the state, like a read: a deposed leader may not have learned that the
            // session began.
            CallRecord::Forgotten => {
                let (seen, question) = (reign.seen(), reign.reads.cover());
                return reign.reads.executed(seen, question, client, id, Outcome::Expired);
            }
            CallRecord::Reused => return self.answer(client, id, Outcome::Reused),
            // The attempt that is under way will be answered.
            CallRecord::New if !reign.under_way.insert(id) => return,
            CallRecord::New => {}
        }
        let locks = &mut reign.transactions.locks;
        if locks.are_free() {
            return self.execute(called, out);
        }
        // The other half of the memory is for holders of locks, who could never end their transactions
        // without it.
        let bytes = called.bytes();
        let may_wait = reign.locked_bytes + bytes <= self.settings.waiting_bytes_max / 2;
        match locks.ask(None, called.call.touch(), may_wait, called) {
            LockOutcome::Granted(called) => self.execute(called, out),
            LockOutcome::Waits => reign.begin_to_wait(bytes),
            LockOutcome::Full(_) => {
                reign.under_way.remove(&id);
                self.answer(client, id, Outcome::Full);
            }
            LockOutcome::Deadlock(_) => unreachable!("a plain call holds no lock that other calls wait for"),
        }
    }

    /// Executes a plain call that conflicts with no lock.
    pub(super) fn execute(&mut self, called: PendingCall, out: &mut dyn Sink<Self>) {
        let reign = self.reign.as_mut().expect("only a leader executes requests");
        let access = match called.call.kind {
            Kind::Write => Access::Write,
            Kind::ToldRead if reign.reads.expect(called.id()) => Access::Told,
            Kind::Read | Kind::ToldRead => Access::Asked(reign.reads.cover()),
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

    /// Counts a work that the host is given. Returns its number.
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
        // A result from a reign that has ended counts no longer: the host was ordered to revert it.
        let Replica { reign: Some(reign), paxos, .. } = self else { return };
        let Some(HostedCall { client, id, done, access, bytes, .. }) = reign.take_work(number) else {
            return;
        };
        reign.in_flight_bytes -= bytes;
        let seen = reign.seen();
        let majority = |by: &[ProcessId]| paxos.is_majority(|id| by.contains(&id));
        let read = |result| match result {
            Executed::Unchanged { reply } => Outcome::Done(reply),
            Executed::Rejected { reason } => Outcome::Rejected(reason),
            Executed::Changed { .. } => panic!("a read changes nothing"),
        };
        match (access, result) {
            (Access::Asked(question), result) => {
                reign.reads.executed(seen, question, client, id, read(result));
            }
            (Access::Told, result) => reign.reads.executed_told(seen, client, id, read(result), majority),
            // A refusal depends on the state, like a read.
            (Access::Write, Executed::Rejected { reason }) => {
                reign.under_way.remove(&id);
                let question = reign.reads.cover();
                reign.reads.executed(seen, question, client, id, Outcome::Rejected(reason));
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
        self.go_on(out);
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

    /// Gives the answers whose waits are over.
    pub(super) fn answer_reads(&mut self) {
        while let Some(reign) = &mut self.reign
            && let Some((client, id, outcome)) = reign.reads.next(self.chosen)
        {
            self.answer(client, id, outcome);
        }
    }
}

impl Reign {
    /// Adds an instance to the next proposal.
    fn gather(
        &mut self,
        work: u64,
        client: ProcessId,
        id: CallId,
        done: u64,
        reply: &[u8],
        change: Option<&[u8]>,
    ) {
        self.builder.call(self.ballot, self.next, id, done, reply, change);
        if let Some(state) = change.filter(|_| self.whole_states) {
            self.builder.supersede(state.len());
        }
        self.next += 1;
        let bytes = ASKED_BYTES + reply.len() + change.map_or(0, <[u8]>::len);
        self.in_flight_bytes += bytes;
        self.gathering.push(ExecutedEntry {
            client: Some(client),
            of: EntryContent::Call { id, work },
            bytes,
        });
    }

    /// Adds a transaction to the next proposal. From now on other requests see its changes, like those of any
    /// unchosen write.
    fn gather_commit(
        &mut self,
        work: u64,
        client: ProcessId,
        id: CallId,
        done: u64,
        transaction: TransactionId,
    ) {
        let mut changes = self.transactions.committed(transaction);
        if self.whole_states {
            changes.drain(..changes.len() - 1);
        }
        self.builder.transaction(self.ballot, self.next, id, done, &changes);
        if let ([state], true) = (&changes[..], self.whole_states) {
            self.builder.supersede(state.len());
        }
        self.next += 1;
        let bytes = ASKED_BYTES + changes.iter().map(Bytes::len).sum::<usize>();
        self.in_flight_bytes += bytes;
        self.gathering.push(ExecutedEntry {
            client: Some(client),
            of: EntryContent::Call { id, work },
            bytes,
        });
    }

    /// Adds the end of a session to the next proposal.
    fn close(&mut self, session: SessionId) {
        self.builder.close(self.ballot, self.next, session);
        self.next += 1;
        self.in_flight_bytes += ASKED_BYTES;
        self.gathering.push(ExecutedEntry { client: None, of: EntryContent::Close, bytes: ASKED_BYTES });
    }

    /// Returns the bytes of the gathering instances.
    pub(super) fn results_gathered(&self) -> usize {
        self.builder.bytes()
    }

    /// Returns the same without the last whole state, which the next one replaces.
    pub(super) fn gathered(&self) -> usize {
        self.builder.bytes_apart_from_state()
    }
}

/// The number of ticks without a chosen proposal after which a leader that is to give a checkpoint, or a part
/// of one, reverts what is not chosen: the replicas that should accept may need the checkpoint first.
const STUCK_TICKS_MAX: u32 = 10;

/// The number of ticks, ten seconds, after which a leader whose checkpoint is wanted reverts in any case.
/// Until then its host may execute the requests that it was given.
const PAUSED_TICKS_MAX: u32 = 200;

/// The approximate memory of a call in addition to its bytes.
const ASKED_BYTES: usize = 96;
