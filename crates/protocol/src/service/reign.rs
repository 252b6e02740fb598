//! One reign of a replica: what it was called for, what it executes, what it has proposed.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use rustc_hash::FxHashSet;

use super::{
    Call, CallId, Event, Executed, Kind, Outcome, Pipelining, Replica, SessionId, Settings, batch::Builder,
    idle::Idle, reads::Reads, sessions::Known,
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
    /// Ticks since then.
    paused_ticks: u32,
    /// Calls that have not been looked at.
    waiting: VecDeque<Asked>,
    waiting_bytes: usize,
    /// Works at the host.
    executing: VecDeque<Work>,
    /// Instances that gather for a proposal.
    builder: Builder,
    gathering: Vec<Entry>,
    /// Proposals that are not chosen, and who is to be answered for them.
    proposed: VecDeque<Vec<Entry>>,
    /// Writes executed and not chosen.
    under_way: FxHashSet<CallId>,
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

impl Wish {
    fn bytes(&self) -> usize {
        match self {
            Wish::Open { .. } => ASKED_BYTES,
            Wish::Call { call, .. } => ASKED_BYTES + call.request.len(),
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
enum Access {
    Write,
    /// A read, and the question that covers it.
    Asked(u64),
    /// A read of which the replicas were told.
    Told,
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

/// The next step for a call.
enum Step {
    Answer(Outcome),
    Execute,
    Nothing,
}

impl Reign {
    pub(super) fn new(ballot: Ballot, start: Slot) -> Reign {
        Reign {
            ballot,
            start,
            settled: false,
            pausing: false,
            paused_ticks: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            executing: VecDeque::new(),
            builder: Builder::default(),
            gathering: Vec::new(),
            proposed: VecDeque::new(),
            under_way: FxHashSet::default(),
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

    /// Everything before `next` is chosen, and the reign may begin to execute.
    pub(super) fn settle(&mut self, chosen: u64) {
        self.settled = true;
        self.next = chosen + 1;
    }

    /// Time has passed. Says whether a checkpoint has been waited for in vain.
    pub(super) fn tick(&mut self) -> bool {
        self.reads.tick();
        self.paused_ticks = if self.settled && self.pausing { self.paused_ticks + 1 } else { 0 };
        self.paused_ticks >= PAUSED_TICKS_MAX
    }

    /// Proposals that are not chosen.
    pub(super) fn proposals(&self) -> usize {
        self.proposed.len()
    }

    /// Whether everything that the host has applied is chosen.
    pub(super) fn is_quiet(&self) -> bool {
        self.executing.is_empty() && self.gathering.is_empty() && self.proposed.is_empty()
    }

    fn has_room(&self, settings: &Settings) -> bool {
        match settings.pipelining {
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
    pub(super) fn go_on(&mut self, out: &mut impl Sink<Self>) {
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
                Wish::Call { session, done, call } => self.call(client, session, done, call, out),
            }
        }
    }

    fn call(
        &mut self,
        client: ProcessId,
        session: SessionId,
        done: u64,
        call: Call,
        out: &mut impl Sink<Self>,
    ) {
        let reign = self.reign.as_mut().expect("a leader is called");
        let id = call.id(session);
        let step = match self.sessions.find(id) {
            _ if call.kind.is_read() => Step::Execute,
            Known::Done(reply) => Step::Answer(Outcome::Done(reply)),
            Known::Forgotten => Step::Answer(Outcome::Expired),
            Known::New if !reign.under_way.insert(id) => Step::Nothing,
            Known::New => Step::Execute,
        };
        match step {
            Step::Answer(outcome) => self.answer(client, id, outcome),
            // The attempt that is under way will be answered.
            Step::Nothing => {}
            Step::Execute => {
                self.works += 1;
                let access = match call.kind {
                    Kind::Write => Access::Write,
                    Kind::ToldRead if reign.reads.expect(id) => Access::Told,
                    Kind::Read | Kind::ToldRead => Access::Asked(reign.reads.cover()),
                };
                let bytes = ASKED_BYTES + call.request.len();
                reign.in_flight_bytes += bytes;
                reign.executing.push_back(Work { number: self.works, client, id, done, access, bytes });
                let (request, read) = (call.request, call.kind.is_read());
                out.emit(Event::Execute { work: self.works, request, read });
            }
        }
    }

    /// The host has executed a request.
    pub(super) fn executed(&mut self, number: u64, result: Executed, out: &mut impl Sink<Self>) {
        // A result of a reign that is over is nobody's: the host was told to revert it.
        let Replica { reign: Some(reign), paxos, .. } = self else { return };
        let Some(Work { client, id, done, access, bytes, .. }) =
            reign.executing.pop_front_if(|work| work.number == number)
        else {
            return;
        };
        reign.in_flight_bytes -= bytes;
        let seen = reign.next - 1;
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
        self.next += 1;
        let bytes = ASKED_BYTES + reply.len() + change.map_or(0, <[u8]>::len);
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
