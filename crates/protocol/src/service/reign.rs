//! One reign of a replica: the calls that wait, the works that the host executes, and the proposals.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use rustc_hash::FxHashSet;

use super::{
    CallId, Pipelining, SessionId, Settings, TransactionId,
    batch::Builder,
    idle::Idle,
    reads::Reads,
    request::{ASKED_BYTES, ClientRequest, EntryContent, ExecutedEntry, HostedCall, PendingCall},
    transactions::Transactions,
};
use crate::{
    id::ProcessId,
    paxos::{Ballot, Slot},
};

/// The state of one reign.
#[derive(Debug)]
pub(super) struct Reign {
    pub(super) ballot: Ballot,
    /// The last slot of the log with which the reign began.
    pub(super) start: Slot,
    /// Whether all entries of the log with which the reign began are chosen.
    pub(super) settled: bool,
    /// Whether a checkpoint is wanted, so that nothing more is executed until all results are chosen.
    pub(super) pausing: bool,
    /// The number of the order to rest (to complete no task until the checkpoint is taken) that the host got
    /// for the checkpoint, and whether the host already rests.
    rest: Option<(u64, bool)>,
    /// Number of ticks for which a wanted checkpoint has waited.
    paused_ticks: u32,
    /// Number of ticks since a proposal of the reign was last chosen. Counted while some result is not chosen
    /// and a checkpoint, or a part of a checkpoint, waits for that.
    stuck_ticks: u32,
    /// Whether the host has stopped executing for good.
    stopped: bool,
    /// Requests of clients that were not handled yet.
    pub(super) waiting: VecDeque<ClientRequest>,
    pub(super) waiting_bytes: usize,
    /// The memory of requests that wait for locks, in bytes.
    pub(super) locked_bytes: usize,
    /// Works that the host is executing.
    pub(super) executing: VecDeque<HostedCall>,
    /// Whether changes are whole states.
    whole_states: bool,
    /// The batch of instances that gather for the next proposal.
    pub(super) builder: Builder,
    pub(super) gathering: Vec<ExecutedEntry>,
    /// Batches for which the log had no room, oldest first, each with the entries to be answered.
    kept_back: VecDeque<(Bytes, Vec<ExecutedEntry>)>,
    kept_back_bytes: usize,
    /// Proposals that are not chosen yet, oldest first, each with the entries to be answered.
    proposed: VecDeque<Vec<ExecutedEntry>>,
    /// Writes that the replica gave to the host and that are not chosen yet.
    pub(super) under_way: FxHashSet<CallId>,
    pub(super) transactions: Transactions,
    /// The memory of requests at the host and of unchosen results, in bytes.
    pub(super) in_flight_bytes: usize,
    /// The number of the next instance.
    pub(super) next: u64,
    pub(super) reads: Reads,
    pub(super) idle: Idle,
    /// Linked clients that have called, and to which this leader has sent the list of replicas.
    pub(super) callers: BTreeSet<ProcessId>,
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

    /// Counts the memory of a request that has begun to wait for locks.
    pub(super) fn begin_to_wait(&mut self, bytes: usize) {
        self.locked_bytes += bytes;
    }

    /// No longer counts the memory of a request that has stopped waiting for locks.
    pub(super) fn end_waiting(&mut self, called: &PendingCall) {
        self.locked_bytes -= called.bytes();
    }

    /// Queues a client's request. If there is no room, returns the request as the error.
    pub(super) fn ask(&mut self, asked: ClientRequest, settings: &Settings) -> Result<(), ClientRequest> {
        let bytes = asked.wish.bytes();
        if self.waiting_bytes + self.locked_bytes + bytes > settings.waiting_bytes_max {
            return Err(asked);
        }
        self.waiting_bytes += bytes;
        self.waiting.push_back(asked);
        Ok(())
    }

    /// Stops executing for good: the host does not even execute the requests that the replica has given it.
    pub(super) fn stop_executing(&mut self) {
        self.stopped = true;
        self.executing.clear();
    }

    /// Whether all results are chosen, and all waiting refusals and reads are answered.
    pub(super) fn has_answered_all(&self) -> bool {
        self.is_quiet() && !self.reads.owe()
    }

    /// Settles the reign: instances up to `chosen` are chosen, and the replica may begin to execute.
    pub(super) fn settle(&mut self, chosen: u64) {
        self.settled = true;
        self.next = chosen + 1;
    }

    /// Counts a tick. Returns whether a wanted checkpoint, or a part of a checkpoint that waits for room, has
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

    /// Removes and returns a work that the host has finished. Most hosts finish works in their order.
    pub(super) fn take_work(&mut self, number: u64) -> Option<HostedCall> {
        if let Some(work) = self.executing.pop_front_if(|work| work.number == number) {
            return Some(work);
        }
        let place = self.executing.binary_search_by_key(&number, |work| work.number).ok()?;
        self.executing.remove(place)
    }

    /// Pauses for a checkpoint. Returns `rest`, the number of an order to rest, if the reign was not yet
    /// pausing. The caller then sends the host this order, so that the host gets it only once.
    pub(super) fn pause(&mut self, rest: Option<u64>) -> Option<u64> {
        let is_first = !std::mem::replace(&mut self.pausing, true);
        let order = rest.filter(|_| is_first)?;
        self.rest = Some((order, false));
        Some(order)
    }

    /// Records that the host rests now, after the order to rest with this number.
    pub(super) fn rests(&mut self, rest: u64) {
        if let Some((order, rests)) = &mut self.rest {
            *rests |= *order == rest;
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

    /// Returns the last instance whose change the state holds. The state may also hold changes of open
    /// transactions.
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
    /// Returns `None` if there is no batch, or the log has no room for it. No batch overtakes an earlier
    /// batch.
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

    /// Returns the size of results that are not in the log, in bytes: results gathered for the next batch,
    /// and results that were kept back.
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

    /// Adds an instance to the next proposal.
    pub(super) fn gather(
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

    /// Adds a transaction to the next proposal. From now on other requests see the transaction's changes,
    /// like the changes of any unchosen write.
    pub(super) fn gather_commit(
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
    pub(super) fn close(&mut self, session: SessionId) {
        self.builder.close(self.ballot, self.next, session);
        self.next += 1;
        self.in_flight_bytes += ASKED_BYTES;
        self.gathering.push(ExecutedEntry { client: None, of: EntryContent::Close, bytes: ASKED_BYTES });
    }

    /// Returns the size of the gathering instances, in bytes.
    pub(super) fn results_gathered(&self) -> usize {
        self.builder.bytes()
    }

    /// Returns the size of the gathering instances without the last whole state, which the next state
    /// replaces, in bytes.
    pub(super) fn gathered(&self) -> usize {
        self.builder.bytes_apart_from_state()
    }
}

/// Number of ticks without a chosen proposal after which a leader that has to give a checkpoint, or a part of
/// a checkpoint, reverts its unchosen changes. The replicas that should accept the proposals may need the
/// checkpoint first.
const STUCK_TICKS_MAX: u32 = 10;

/// The number of ticks, ten seconds in all, after which a leader with a wanted checkpoint reverts its
/// unchosen changes in any case. Until then its host may execute the requests that it already has.
const PAUSED_TICKS_MAX: u32 = 200;
