//! One reign of a replica: what it was called for, what it executes, what it has proposed.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use rustc_hash::FxHashSet;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Call, CallId, Event, Executed, Kind, Outcome, Pipelining, Replica, SessionId, Settings, TransactionId,
    batch::Builder, idle::Idle, locks::Granting, reads::Reads, sessions::Known, transactions::Transactions,
};
use crate::{
    id::ProcessId,
    paxos::{Ballot, Slot},
    seam::Sink,
    time::Time,
};

/// One reign.
#[derive(Debug)]
pub(super) struct Reign {
    pub(super) ballot: Ballot,
    /// Slots behind this one are its own.
    pub(super) start: Slot,
    /// Whether all that it began with is chosen.
    pub(super) settled: bool,
    /// Whether a checkpoint is to be taken, so that nothing is executed before all is chosen.
    pub(super) pausing: bool,
    /// The rest that its host was told to take for that, and whether it does.
    rest: Option<(u64, bool)>,
    /// Ticks since then.
    paused_ticks: u32,
    /// Whether the host can do nothing more.
    stopped: bool,
    /// Calls that have not been looked at.
    waiting: VecDeque<Asked>,
    waiting_bytes: usize,
    /// Works at the host.
    executing: VecDeque<Work>,
    /// Whether changes are whole states.
    whole_states: bool,
    /// Instances that gather for a proposal.
    builder: Builder,
    gathering: Vec<Entry>,
    /// Proposals that are not chosen, and who is to be answered for them.
    proposed: VecDeque<Vec<Entry>>,
    /// Writes executed and not chosen.
    pub(super) under_way: FxHashSet<CallId>,
    pub(super) transactions: Transactions,
    /// Requests at the host and what came of others, in bytes.
    in_flight_bytes: usize,
    /// The number of the next instance.
    next: u64,
    pub(super) reads: Reads,
    pub(super) idle: Idle,
    /// Clients that have called, and were told of the replicas, while they are linked.
    pub(super) callers: BTreeSet<ProcessId>,
}

/// A client's wish.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) client: ProcessId,
    pub(super) wish: Wish,
}

#[derive(Debug)]
pub(super) enum Wish {
    Open { nonce: u64 },
    Call { session: SessionId, done: u64, call: Call },
}

/// A call, and where it came from.
#[derive(Debug)]
pub(super) struct Called {
    pub(super) client: ProcessId,
    pub(super) session: SessionId,
    /// The session's answers below this number are needed no more; of a call with a key, the print of its request.
    pub(super) done: u64,
    pub(super) call: Call,
}

impl Called {
    pub(super) fn id(&self) -> CallId {
        self.call.id(self.session)
    }
}

impl Wish {
    fn bytes(&self) -> usize {
        match self {
            Wish::Open { .. } => ASKED_BYTES,
            Wish::Call { call, .. } => ASKED_BYTES + call.request.len() + call.scope_bytes(),
        }
    }
}

/// A request at the host.
#[derive(Debug)]
struct Work {
    number: u64,
    client: ProcessId,
    id: CallId,
    done: u64,
    access: Access,
    bytes: usize,
}

/// What a call may do, and how it is known that it may be answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    Write,
    /// A read, and the question that covers it.
    Asked(u64),
    /// A read of which the replicas were told.
    Told,
    /// A request of a transaction.
    Part(TransactionId),
    /// The end of one.
    Commit(TransactionId),
}

/// An instance that is not chosen.
#[derive(Debug)]
pub(super) struct Entry {
    /// The client that is told; of the end of a session nobody is.
    pub(super) client: Option<ProcessId>,
    pub(super) of: EntryOf,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum EntryOf {
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
            stopped: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            executing: VecDeque::new(),
            builder: Builder::default(),
            gathering: Vec::new(),
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

    /// Takes a wish; gives it back if there is no room.
    pub(super) fn ask(&mut self, asked: Asked, settings: &Settings) -> Result<(), Asked> {
        let bytes = asked.wish.bytes();
        if self.waiting_bytes + bytes > settings.waiting_bytes_max {
            return Err(asked);
        }
        self.waiting_bytes += bytes;
        self.waiting.push_back(asked);
        Ok(())
    }

    /// The host executes nothing more, not even what it was given.
    pub(super) fn stop_executing(&mut self) {
        self.stopped = true;
        self.executing.clear();
    }

    /// Whether all that was executed is chosen, and all refusals and reads of it are told.
    pub(super) fn is_through(&self) -> bool {
        self.is_quiet() && !self.reads.owe()
    }

    /// Everything before `next` is chosen, and the reign may begin to execute.
    pub(super) fn settle(&mut self, chosen: u64) {
        self.settled = true;
        self.next = chosen + 1;
    }

    /// Time has passed. Says whether a checkpoint has been waited for in vain.
    pub(super) fn tick(&mut self) -> bool {
        self.reads.tick();
        self.paused_ticks =
            if self.settled && self.pausing && !self.stopped { self.paused_ticks + 1 } else { 0 };
        self.paused_ticks >= PAUSED_TICKS_MAX
    }

    /// Proposals that are not chosen.
    pub(super) fn proposals(&self) -> usize {
        self.proposed.len()
    }

    /// A work that the host has done. Most hosts do them in their order.
    fn take_work(&mut self, number: u64) -> Option<Work> {
        if let Some(work) = self.executing.pop_front_if(|work| work.number == number) {
            return Some(work);
        }
        let place = self.executing.binary_search_by_key(&number, |work| work.number).ok()?;
        self.executing.remove(place)
    }

    /// A checkpoint is wanted. A host that is to rest for it is told so once.
    pub(super) fn pause(&mut self, rest: Option<u64>) -> Option<u64> {
        let is_first = !std::mem::replace(&mut self.pausing, true);
        let told = rest.filter(|_| is_first)?;
        self.rest = Some((told, false));
        Some(told)
    }

    /// The host executes nothing more for now.
    pub(super) fn rests(&mut self, rest: u64) {
        if let Some((told, rests)) = &mut self.rest {
            *rests |= *told == rest;
        }
    }

    /// A checkpoint was taken.
    pub(super) fn go_on_behind_checkpoint(&mut self) {
        (self.pausing, self.rest) = (false, None);
    }

    /// Whether everything that the host has applied is chosen.
    pub(super) fn is_quiet(&self) -> bool {
        let executes = !self.executing.is_empty() && !matches!(self.rest, Some((_, true)));
        !executes && self.gathering.is_empty() && self.proposed.is_empty()
    }

    /// The last instance whose change the state holds, beside those of transactions.
    pub(super) fn seen(&self) -> u64 {
        self.next - 1
    }

    pub(super) fn has_room(&self, settings: &Settings) -> bool {
        match settings.pipelining {
            _ if self.stopped => false,
            Pipelining::Speculative => self.in_flight_bytes < settings.in_flight_bytes_max,
            Pipelining::OneAtATime => self.is_quiet(),
        }
    }

    /// The instances that gather, as one proposal.
    pub(super) fn propose(&mut self) -> Option<Bytes> {
        let payload = self.builder.finish()?;
        self.proposed.push_back(std::mem::take(&mut self.gathering));
        Some(payload)
    }

    /// The oldest proposal was chosen.
    pub(super) fn chosen(&mut self) -> Vec<Entry> {
        let entries = self.proposed.pop_front().expect("a reign's slots hold what it proposed");
        for entry in &entries {
            self.in_flight_bytes -= entry.bytes;
            if let EntryOf::Call { id, .. } = entry.of {
                self.under_way.remove(&id);
            }
        }
        entries
    }
}

impl Replica {
    /// Executes what waits, as far as there is room.
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
                Wish::Open { nonce } => {
                    reign.builder.open(reign.ballot, reign.next);
                    reign.next += 1;
                    reign.in_flight_bytes += ASKED_BYTES;
                    let of = EntryOf::Open { nonce };
                    reign.gathering.push(Entry { client: Some(client), of, bytes: ASKED_BYTES });
                }
                Wish::Call { session, done, call } if call.part().is_some() => {
                    self.part(Called { client, session, done, call }, out);
                }
                Wish::Call { session, done, call } => self.call(Called { client, session, done, call }, out),
            }
        }
    }

    fn call(&mut self, mut called: Called, out: &mut dyn Sink<Self>) {
        let reign = self.reign.as_mut().expect("a leader is called");
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
            Known::Done(reply) => return self.answer(client, id, Outcome::Done(reply)),
            Known::Forgotten => return self.answer(client, id, Outcome::Expired),
            Known::Reused => return self.answer(client, id, Outcome::Reused),
            // The attempt that is under way will be answered.
            Known::New if !reign.under_way.insert(id) => return,
            Known::New => {}
        }
        let locks = &mut reign.transactions.locks;
        if locks.are_free() {
            return self.execute(called, out);
        }
        match locks.ask(None, called.call.touch(), called) {
            Granting::Granted(called) => self.execute(called, out),
            Granting::Waits => {}
            Granting::Full(_) => {
                reign.under_way.remove(&id);
                self.answer(client, id, Outcome::Full);
            }
            Granting::Deadlock(_) => unreachable!("a plain call holds nothing that others wait for"),
        }
    }

    /// A plain call conflicts with nothing.
    pub(super) fn execute(&mut self, called: Called, out: &mut dyn Sink<Self>) {
        let reign = self.reign.as_mut().expect("a leader is called");
        let access = match called.call.kind {
            Kind::Write => Access::Write,
            Kind::ToldRead if reign.reads.expect(called.id()) => Access::Told,
            Kind::Read | Kind::ToldRead => Access::Asked(reign.reads.cover()),
            Kind::Commit => unreachable!("a commit is a part of its transaction"),
        };
        self.order(called, access, out);
    }

    /// Gives a request to the host.
    pub(super) fn order(&mut self, called: Called, access: Access, out: &mut dyn Sink<Self>) {
        let (id, read) = (called.id(), called.call.kind.is_read());
        let Called { client, done, call: Call { request, .. }, .. } = called;
        let transaction = match access {
            Access::Part(transaction) => Some(transaction),
            _ => None,
        };
        let work = self.work(client, id, done, access, request.len());
        out.emit(Event::Execute { work, request, read, transaction });
    }

    /// Counts a work that the host is given.
    pub(super) fn work(
        &mut self,
        client: ProcessId,
        id: CallId,
        done: u64,
        access: Access,
        bytes: usize,
    ) -> u64 {
        self.works += 1;
        let reign = self.reign.as_mut().expect("a leader is called");
        let bytes = ASKED_BYTES + bytes;
        reign.in_flight_bytes += bytes;
        reign.executing.push_back(Work { number: self.works, client, id, done, access, bytes });
        self.works
    }

    /// The host has executed a request.
    pub(super) fn executed(&mut self, number: u64, result: Executed, out: &mut dyn Sink<Self>) {
        // A result of a reign that is over is nobody's: the host was told to revert it.
        let Replica { reign: Some(reign), paxos, .. } = self else { return };
        let Some(Work { client, id, done, access, bytes, .. }) = reign.take_work(number) else { return };
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
            // A refusal tells of the state, like a read.
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

    /// Ends the sessions of which nothing was heard for long.
    pub(super) fn end_idle_sessions(&mut self, now: Time) {
        let Replica { reign: Some(reign), sessions, settings, .. } = self else { return };
        if reign.settled && !reign.pausing && reign.has_room(settings) {
            for session in reign.idle.look(now, settings.session_idle, sessions.ids()) {
                reign.close(session);
            }
        }
    }

    /// Gives the answers that waited, and may be given.
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
        self.gathering.push(Entry { client: Some(client), of: EntryOf::Call { id, work }, bytes });
    }

    /// Adds a transaction to the next proposal; from now on its changes are seen like those of any write that is not chosen.
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
        self.gathering.push(Entry { client: Some(client), of: EntryOf::Call { id, work }, bytes });
    }

    /// Adds the end of a session to the next proposal.
    fn close(&mut self, session: SessionId) {
        self.builder.close(self.ballot, self.next, session);
        self.next += 1;
        self.in_flight_bytes += ASKED_BYTES;
        self.gathering.push(Entry { client: None, of: EntryOf::Close, bytes: ASKED_BYTES });
    }

    /// Bytes of the instances that gather.
    pub(super) fn gathered(&self) -> usize {
        self.builder.bytes()
    }
}

/// For so many ticks a leader waits until all that it has applied is chosen and a checkpoint can be taken.
const PAUSED_TICKS_MAX: u32 = 10;

/// The memory of a call beside its bytes, about, in bytes.
const ASKED_BYTES: usize = 96;
