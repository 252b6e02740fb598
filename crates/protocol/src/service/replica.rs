//! One replica: its log, its sessions, and its reign while it leads.

mod checkpoint;
mod clients;
mod execution;
mod log;
mod transactions;

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};

use super::{
    Abort, Body, CallId, CallOutcome, Command, Event, GroupId, Message, SessionId, Settings, TransactionId,
    checkpoint::OutgoingCheckpoint, reign::Reign, request::RequestBody, sessions::Sessions,
};
use crate::{
    id::{Peer, ProcessId},
    paxos::{self, Ballot, Paxos, Slot},
    seam::{Context, Destination, Input, Protocol, Sink},
    time::{Duration, Time},
};

/// A replica of a service.
#[derive(Debug)]
pub struct Replica {
    group: GroupId,
    pub(super) settings: Settings,
    pub(super) paxos: Paxos,
    /// Events of the log that were not handled yet.
    events: VecDeque<paxos::Event>,
    pub(super) reign: Option<Reign>,
    standing_back: Option<ExecutionPause>,
    /// Whether the log has refused a proposal of the present reign.
    has_hole: bool,
    pub(super) sessions: Sessions,
    /// The last slot that this replica has learned.
    pub(super) slot: Slot,
    /// The number of the last chosen instance.
    pub(super) chosen: u64,
    /// The ballot of the reign that executed the last chosen instance.
    pub(super) ballot: Ballot,
    /// The number of the last work or order to rest that this replica gave to the host. The numbers ascend
    /// through all reigns.
    pub(super) works: u64,
    /// Answers to be sent at the end of the batch of inputs.
    answers: BTreeMap<(ProcessId, SessionId), Vec<(u64, CallOutcome)>>,
    /// Whether the last input ended a batch of inputs, or only reported that the records of that batch are
    /// durable.
    drained: bool,
    /// Reads that clients have announced to this replica, and that this replica has yet to confirm to the
    /// leader.
    announced_reads: Vec<CallId>,
    /// The number of the last checkpoint that the host was ordered to take.
    pub(super) checkpoints: u64,
    /// The checkpoint that is being given to another replica or to the disk.
    pub(super) giving: Option<OutgoingCheckpoint>,
    /// The last chosen whole state, if it is known.
    pub(super) latest: Option<Bytes>,
    /// The bytes of another replica's table of sessions that have arrived so far.
    pub(super) coming: BytesMut,
    /// Whether parts of another replica's state have arrived.
    pub(super) has_incoming: bool,
    /// The number of refused messages: openings of sessions for which there was no room, and messages that no
    /// correct process sends here.
    refused: u64,
    /// Whether the log did not decode. Then the replica does nothing more.
    pub(super) corrupt: bool,
    resigning: Option<Resigning>,
}

/// The progress of a replica whose host has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resigning {
    /// The replica's reign goes on without executing. Holds the number of ticks since the host stopped.
    Leading(u32),
    /// The replica has asked the other replicas to remove it. Holds the number of ticks since it asked.
    Leaving(u32),
    /// The replica has emitted [`Event::Resigned`].
    Done,
}

/// A period in which the replica leads but executes nothing.
#[derive(Debug)]
struct ExecutionPause {
    ballot: Ballot,
    /// Number of proposals that must be learned before the replica executes again.
    left: usize,
    /// The number of the last question to the log in this ballot.
    asked: u64,
}

/// The state of a replica, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The state of the replica's log.
    pub log: paxos::Status,
    /// The number of the last chosen instance.
    pub chosen: u64,
    /// Whether the replica executes calls.
    pub serving: bool,
    /// The number of messages that were refused.
    pub refused: u64,
}

impl Replica {
    /// Founds a new set with its first replica (rule S1). Callers do this only once for each set, and draw
    /// `group` at random.
    pub fn found(group: GroupId, me: Peer, settings: Settings, now: Time) -> Replica {
        let paxos = Paxos::found(me, settings.log.clone(), now);
        Replica::new(group, paxos, settings)
    }

    /// Returns a replica that asks `seeds` for admission to a set.
    pub fn join(group: GroupId, me: Peer, seeds: Vec<Peer>, settings: Settings, now: Time) -> Replica {
        let paxos = Paxos::join(me, seeds, settings.log.clone(), now);
        Replica::new(group, paxos, settings)
    }

    /// Returns the replica that continues from its records, which must include all durable records
    /// ([`Paxos::recover`]). Returns `None` if there are no records.
    pub fn recover(
        group: GroupId,
        me: Peer,
        settings: Settings,
        records: impl IntoIterator<Item = Bytes>,
        now: Time,
    ) -> Result<Option<Replica>, paxos::Corrupt> {
        let paxos = Paxos::recover(me, settings.log.clone(), records, now)?;
        Ok(paxos.map(|paxos| Replica::new(group, paxos, settings)))
    }

    fn new(group: GroupId, paxos: Paxos, settings: Settings) -> Replica {
        assert!(
            settings.in_flight_bytes_max <= settings.log.pending_bytes_max,
            "the log has room for all that a reign hands it"
        );
        Replica {
            group,
            paxos,
            events: VecDeque::new(),
            reign: None,
            standing_back: None,
            has_hole: false,
            sessions: Sessions::new(&settings),
            slot: Slot::ZERO,
            chosen: 0,
            ballot: Ballot::ZERO,
            works: 0,
            answers: BTreeMap::new(),
            drained: false,
            announced_reads: Vec::new(),
            checkpoints: 0,
            giving: None,
            latest: None,
            coming: BytesMut::new(),
            has_incoming: false,
            refused: 0,
            corrupt: false,
            resigning: None,
            settings,
        }
    }

    /// Returns the replica's log.
    pub fn log(&self) -> &Paxos {
        &self.paxos
    }

    /// Returns the last instance that the replica has learned.
    pub fn chosen(&self) -> u64 {
        self.chosen
    }

    /// Whether the replica executes calls.
    pub fn is_serving(&self) -> bool {
        self.reign.as_ref().is_some_and(|reign| reign.settled)
    }

    /// Returns the size of results that this replica holds outside its log, in bytes. The replica cannot
    /// refuse a result. So a host with long results executes nothing more while the size is above
    /// [`Settings::results_held_max`]. The size falls without the host's help: the log goes on, or the reign
    /// ends.
    pub fn results_held(&self) -> usize {
        self.reign.as_ref().map_or(0, |reign| reign.results_held() + reign.reads.bytes())
    }

    /// Whether the host should execute nothing more for now ([`Replica::results_held`]).
    pub fn holds_too_much(&self) -> bool {
        self.results_held() > self.settings.results_held_max
    }

    /// Returns the size of the replies that the replica remembers, in bytes.
    pub fn remembered(&self) -> usize {
        self.sessions.bytes()
    }

    /// Returns the size of the remembered replies of the session with the largest replies in total, in bytes.
    pub fn remembered_of_one(&self) -> usize {
        self.sessions.bytes_of_one()
    }

    /// Whether a session is open, as far as this replica has learned.
    pub fn has_session(&self, session: SessionId) -> bool {
        self.sessions.is_open(session)
    }

    /// Returns the open sessions, as far as this replica has learned, each with the number below which its
    /// calls are forgotten.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, u64)> {
        self.sessions.forgotten()
    }

    /// Returns the replica's state.
    pub fn status(&self) -> Status {
        Status {
            log: self.paxos.status(),
            chosen: self.chosen,
            serving: self.is_serving(),
            refused: self.refused,
        }
    }
}

impl Protocol for Replica {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        if self.corrupt {
            return;
        }
        let (is_drained, is_persisted) =
            (matches!(input, Input::Drained), matches!(input, Input::Persisted(_)));
        match input {
            Input::Receive { from, message } => self.receive(cx, from, message, out),
            Input::Command(command) => self.command(cx, command, out),
            Input::Drained => {
                self.flush(cx, out);
                self.drive(cx, Input::Drained, out);
                self.leave(cx, out);
                self.confirm_reads(out);
                self.send_answers(out);
            }
            input => {
                let part_waits = self.part_waits_for_room();
                match (&input, &mut self.reign) {
                    (Input::Deadline, Some(reign)) => {
                        if reign.tick(part_waits) {
                            self.revert_for_checkpoint(cx, out);
                        }
                        self.end_idle_sessions(cx.now);
                        self.abort_idle(cx.now, out);
                        self.notify_waiting_clients();
                        self.resign_in_time();
                    }
                    (Input::Deadline, None) => self.resign_in_time(),
                    (Input::Unlinked { peer }, Some(reign)) => {
                        reign.callers.remove(peer);
                        self.abort_of(*peer, out);
                    }
                    _ => {}
                }
                let input = input.map(
                    |_| unreachable!("messages were handled above"),
                    |_| unreachable!("commands were handled above"),
                );
                self.drive(cx, input, out);
            }
        }
        // Without a disk, records count as durable right after the batch. If this replica is alone in its
        // set, its proposals are chosen only then, so their answers leave here.
        if is_persisted && self.drained {
            if self.reign.as_ref().is_some_and(Reign::keeps_back) {
                self.propose(cx, out);
            }
            self.send_answers(out);
        }
        self.drained = is_drained || self.drained && is_persisted;
    }

    fn deadline(&self) -> Option<Time> {
        self.paxos.deadline()
    }

    fn gathering(&self) -> Duration {
        self.paxos.gathering()
    }
}

impl Replica {
    fn receive(&mut self, cx: &mut Context<'_>, from: ProcessId, message: Message, out: &mut dyn Sink<Self>) {
        if message.group != self.group {
            self.refused += 1;
            return;
        }
        match message.body {
            // A replica never proposes results that another replica executed.
            Body::Paxos(paxos::Message::Forward { .. }) => self.refused += 1,
            Body::Paxos(message) => self.drive(cx, Input::Receive { from, message }, out),
            Body::Open { nonce } => self.asked(from, [RequestBody::Open { nonce }], out),
            Body::Calls { session, done, mut calls } => {
                if self.settings.whole_states {
                    // A whole state holds everything, so each call must lock everything.
                    calls.iter_mut().filter_map(|call| call.scope.as_mut()).for_each(|it| it.keys.clear());
                }
                if let Some(reign) = &mut self.reign {
                    reign.transactions.now = cx.now;
                    if self.sessions.is_open(session) {
                        reign.idle.heard(session, cx.now);
                    }
                }
                let wishes = calls.into_iter().map(|call| RequestBody::Call { session, done, call });
                self.asked(from, wishes, out);
            }
            Body::Reads { session, numbers } => {
                if self.reign.is_none() {
                    self.announced_reads.extend(numbers.into_iter().map(|number| CallId { session, number }));
                }
            }
            Body::Abandon { session, transactions } => {
                for number in transactions {
                    self.abort(TransactionId { session, number }, Abort::Gone, out);
                }
            }
            Body::ReadsConfirmed { ballot, reads } => self.follows(from, ballot, reads),
            Body::Opened { .. } | Body::Answers { .. } | Body::Members { .. } | Body::Redirect { .. } => {
                self.refused += 1
            }
        }
    }

    /// Counts another replica's confirmation that it followed this ballot after it learned of these reads.
    fn follows(&mut self, from: ProcessId, ballot: Ballot, reads: Vec<CallId>) {
        let Replica { reign: Some(reign), paxos, .. } = self else { return };
        if reign.ballot == ballot {
            for read in reads {
                reign.reads.follows(from, read, |by| paxos.is_majority(|id| by.contains(&id)));
            }
            self.answer_reads();
        }
    }

    /// Confirms all reads that clients have announced here, to the leader that this replica follows.
    fn confirm_reads(&mut self, out: &mut dyn Sink<Self>) {
        let reads = std::mem::take(&mut self.announced_reads);
        if let Some(ballot) = self.paxos.followed()
            && !reads.is_empty()
        {
            let (to, body) = (Destination::One(ballot.router), Body::ReadsConfirmed { ballot, reads });
            let message = Message { group: self.group, body };
            match self.paxos.promise_awaited() {
                Some(promise) => out.send(to, message, Some(promise)),
                None => out.send_aside(to, message),
            }
        }
    }

    fn command(&mut self, cx: &mut Context<'_>, command: Command, out: &mut dyn Sink<Self>) {
        match command {
            Command::Executed { work, result } => {
                self.executed(work, result, out);
                self.propose_full_batch(cx, out);
                self.checkpoint(cx, out);
            }
            Command::Rests { rest } => {
                if let Some(reign) = &mut self.reign {
                    reign.rests(rest);
                }
                self.checkpoint(cx, out);
            }
            Command::CheckpointPart { checkpoint, bytes, last } => {
                // A slow host may still give parts of an earlier checkpoint.
                if let Some(command) = self.take_host_part(checkpoint, &bytes, last, out) {
                    self.drive(cx, Input::Command(command), out);
                }
            }
            Command::AddReplica(peer) => {
                self.drive(cx, Input::Command(paxos::Command::AddRouter(peer)), out);
            }
            Command::RemoveReplica(process) => {
                self.drive(cx, Input::Command(paxos::Command::RemoveRouter(process)), out);
            }
            Command::Seeds(seeds) => self.drive(cx, Input::Command(paxos::Command::Seeds(seeds)), out),
            Command::Resign => {
                self.resigning.get_or_insert(Resigning::Leading(0));
                if let Some(reign) = &mut self.reign {
                    reign.stop_executing();
                }
            }
        }
    }

    /// Counts a tick while the replica resigns. The limit of ticks keeps it from waiting for other processes
    /// for ever.
    fn resign_in_time(&mut self) {
        if let Some(Resigning::Leading(ticks) | Resigning::Leaving(ticks)) = &mut self.resigning {
            *ticks += 1;
        }
    }

    /// Leaves the set once this replica's reign, which executes nothing more, has given all answers that it
    /// can.
    fn leave(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        match self.resigning {
            Some(Resigning::Leading(ticks)) => {
                let has_answered_all = self.reign.as_ref().is_none_or(Reign::has_answered_all);
                if !has_answered_all && ticks < RESIGNING_TICKS_MAX {
                    return;
                }
                self.resigning = Some(Resigning::Leaving(0));
                if self.on_disk() || self.paxos.members().len() < 2 {
                    return self.resigned(out);
                }
                let me = self.paxos.me();
                self.drive(cx, Input::Command(paxos::Command::RemoveRouter(me)), out);
            }
            Some(Resigning::Leaving(ticks)) if ticks >= RESIGNING_TICKS_MAX => self.resigned(out),
            _ => {}
        }
    }

    fn resigned(&mut self, out: &mut dyn Sink<Self>) {
        if self.resigning.replace(Resigning::Done) != Some(Resigning::Done) {
            self.send_answers(out);
            out.emit(Event::Resigned);
        }
    }

    /// Reverts unchosen changes, as at the end of a reign, because a checkpoint is wanted and no proposal
    /// gets chosen: the replicas that should accept the proposals may need the checkpoint first. Takes the
    /// checkpoint at once. The proposals may still be chosen. This replica then applies them like a backup.
    /// Once all of them are chosen, this replica executes again, in the same ballot.
    ///
    /// If the checkpoint was already taken, and a part of it waits for room at the host, the host has room
    /// now.
    fn revert_for_checkpoint(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let is_wanted = self.reign.as_ref().is_some_and(|reign| reign.pausing);
        self.revert_unchosen(out);
        if is_wanted {
            let command = self.begin_checkpoint(out);
            self.drive(cx, Input::Command(command), out);
        }
        self.resume_execution(out);
    }

    /// Reverts unchosen changes, and executes nothing until all proposals are learned. The replica still
    /// leads its log.
    fn revert_unchosen(&mut self, out: &mut dyn Sink<Self>) {
        let Some(reign) = &self.reign else { return };
        let (ballot, left, asked) = (reign.ballot, reign.proposals(), reign.reads.asked());
        self.standing_back = Some(ExecutionPause { ballot, left, asked });
        self.resign(out);
    }

    fn resume_execution(&mut self, out: &mut dyn Sink<Self>) {
        if let Some(it) = self.standing_back.take_if(|it| it.left == 0) {
            let mut reign = Reign::new(it.ballot, self.slot, &self.settings);
            reign.settle(self.chosen);
            if self.resigning.is_some() {
                reign.stop_executing();
            }
            // Confirmations of earlier questions do not cover calls that come now.
            reign.reads.continue_above(it.asked);
            self.reign = Some(reign);
            out.emit(Event::Serving);
        }
    }

    /// Ends the reign: reverts changes that were applied but not chosen, and redirects clients.
    fn resign(&mut self, out: &mut dyn Sink<Self>) {
        let reign = self.reign.take().expect("a reign ends once");
        out.emit(Event::Revert);
        // Answers to chosen calls leave before the redirections.
        self.send_answers(out);
        self.redirect(reign.callers, out);
    }
}

/// The number of ticks that a replica without a host waits for other replicas, in each phase of resigning.
const RESIGNING_TICKS_MAX: u32 = 10;

#[cfg(test)]
mod tests;
