//! One replica: its log, its sessions, and its reign while it leads.

mod checkpoint;
mod execution;
mod transactions;

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};

use super::{
    Abort, Batch, Body, CallId, Command, Event, GroupId, Instance, Message, Outcome, SessionId, Settings,
    TransactionId,
    checkpoint::OutgoingCheckpoint,
    reign::Reign,
    request::{ClientRequest, EntryContent, RequestBody},
    sessions::Sessions,
};
use crate::{
    id::{Peer, ProcessId},
    paxos::{self, Ballot, Paxos, Slot},
    seam::{Context, Destination, Input, Lift, Protocol, Sink},
    time::{Duration, Time},
    wire::{Wire, WireError},
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
    /// The last slot that was learned.
    pub(super) slot: Slot,
    /// The number of the last chosen instance.
    pub(super) chosen: u64,
    /// The ballot of the reign that executed that instance.
    pub(super) ballot: Ballot,
    /// The number of the last work or rest that the host was given. The numbers ascend through all reigns.
    pub(super) works: u64,
    /// Answers to be sent at the end of the batch of inputs.
    answers: BTreeMap<(ProcessId, SessionId), Vec<(u64, Outcome)>>,
    /// Whether the last input ended a batch, or only reported that this batch's records are durable.
    drained: bool,
    /// Reads that clients have announced to this replica, and that it has not confirmed to the leader yet.
    told: Vec<CallId>,
    /// The number of checkpoints that the host was asked for.
    pub(super) checkpoints: u64,
    /// The checkpoint that is being given.
    pub(super) giving: Option<OutgoingCheckpoint>,
    /// The last chosen whole state, if it is known.
    pub(super) latest: Option<Bytes>,
    /// The bytes that have come of another replica's table of sessions.
    pub(super) coming: BytesMut,
    /// Whether parts of another replica's state have come.
    pub(super) has_incoming: bool,
    /// The number of refused messages: openings without room, and messages that no correct process sends
    /// here.
    refused: u64,
    /// Whether the log does not decode. Then the replica does nothing more.
    pub(super) corrupt: bool,
    resigning: Option<Resigning>,
}

/// The progress of a replica whose host has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resigning {
    /// The replica's reign goes on without executing. Counts the ticks since then.
    Leading(u32),
    /// The replica has asked the other replicas to remove it. Counts the ticks since then.
    Leaving(u32),
    /// The replica has emitted [`Event::Resigned`].
    Done,
}

/// A ballot in which the replica leads and executes nothing.
#[derive(Debug)]
struct ExecutionPause {
    ballot: Ballot,
    /// Number of proposals that must be learned before the replica executes again.
    left: usize,
    /// The last question to the log in this ballot.
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
    /// Founds a new set with its first replica (rule S1). Callers do this once for each set, ever, and draw
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

    /// Returns the replica that continues its records, which must be all durable ones ([`Paxos::recover`]).
    /// Returns `None` if there are none.
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
            told: Vec::new(),
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

    /// Returns the bytes of results that this replica holds and its log does not. The replica cannot refuse a
    /// result. So a host whose results are long executes nothing more while this is above
    /// [`Settings::results_held_max`]. It falls again without the host: the log goes on, or the reign ends.
    pub fn results_held(&self) -> usize {
        self.reign.as_ref().map_or(0, |reign| reign.results_held() + reign.reads.bytes())
    }

    /// Whether the host should execute nothing more for now ([`Replica::results_held`]).
    pub fn holds_too_much(&self) -> bool {
        self.results_held() > self.settings.results_held_max
    }

    /// Returns the bytes of the replies that it remembers.
    pub fn remembered(&self) -> usize {
        self.sessions.bytes()
    }

    /// Returns the bytes of the remembered replies of the session that holds most.
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
                self.tell(out);
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
                        self.reassure();
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
        // Without a disk, records count as durable right after the batch. That makes a sole replica's
        // proposals chosen, so their answers leave here.
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
            // A replica never proposes results that another one executed.
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
                    self.told.extend(numbers.into_iter().map(|number| CallId { session, number }));
                }
            }
            Body::Abandon { session, transactions } => {
                for number in transactions {
                    self.abort(TransactionId { session, number }, Abort::Gone, out);
                }
            }
            Body::Told { ballot, reads } => self.follows(from, ballot, reads),
            Body::Opened { .. } | Body::Answers { .. } | Body::Members { .. } | Body::Redirect { .. } => {
                self.refused += 1
            }
        }
    }

    /// Takes a client's requests, if this replica leads.
    fn asked(
        &mut self,
        client: ProcessId,
        wishes: impl IntoIterator<Item = RequestBody>,
        out: &mut dyn Sink<Self>,
    ) {
        let Some(reign) = &mut self.reign else { return self.redirect([client], out) };
        if reign.callers.insert(client) {
            self.tell_members([client], out);
        }
        for wish in wishes {
            let reign = self.reign.as_mut().expect("the reign goes on while requests are asked");
            let Err(asked) = reign.ask(ClientRequest { client, wish }, &self.settings) else { continue };
            match asked.wish {
                RequestBody::Call { session, call, .. } => {
                    self.answer(client, call.id(session), Outcome::Full);
                }
                // The client asks again.
                RequestBody::Open { .. } => self.refused += 1,
            }
        }
        self.go_on(out);
    }

    /// Counts a replica's confirmation that it followed this ballot after it learned of these reads.
    fn follows(&mut self, from: ProcessId, ballot: Ballot, reads: Vec<CallId>) {
        let Replica { reign: Some(reign), paxos, .. } = self else { return };
        if reign.ballot == ballot {
            for read in reads {
                reign.reads.follows(from, read, |by| paxos.is_majority(|id| by.contains(&id)));
            }
            self.answer_reads();
        }
    }

    /// Confirms all told reads to the leader that this replica follows.
    fn tell(&mut self, out: &mut dyn Sink<Self>) {
        let reads = std::mem::take(&mut self.told);
        if let Some(ballot) = self.paxos.followed()
            && !reads.is_empty()
        {
            let (to, body) = (Destination::One(ballot.router), Body::Told { ballot, reads });
            let message = Message { group: self.group, body };
            match self.paxos.promise_awaited() {
                Some(promise) => out.send(to, message, Some(promise)),
                None => out.send_aside(to, message),
            }
        }
    }

    fn redirect(&self, clients: impl IntoIterator<Item = ProcessId>, out: &mut dyn Sink<Self>) {
        let members = self.paxos.members();
        for client in clients {
            let body = Body::Redirect { leader: self.paxos.leader(), members: members.to_vec() };
            self.send(client, body, out);
        }
    }

    /// Tells clients which processes are the replicas now.
    fn tell_members(&self, clients: impl IntoIterator<Item = ProcessId>, out: &mut dyn Sink<Self>) {
        for client in clients {
            self.send(client, Body::Members { members: self.paxos.members().to_vec() }, out);
        }
    }

    fn send(&self, to: ProcessId, body: Body, out: &mut dyn Sink<Self>) {
        out.send(Destination::One(to), Message { group: self.group, body }, None);
    }

    pub(super) fn answer(&mut self, client: ProcessId, id: CallId, outcome: Outcome) {
        self.answers.entry((client, id.session)).or_default().push((id.number, outcome));
    }

    /// Sends a message without answers, by which a client learns that its calls are under way.
    pub(super) fn reassured(&mut self, client: ProcessId, session: SessionId) {
        self.answers.entry((client, session)).or_default();
    }

    fn send_answers(&mut self, out: &mut dyn Sink<Self>) {
        for ((client, session), mut answers) in std::mem::take(&mut self.answers) {
            loop {
                let rest = answers.split_off(fitting(&answers));
                self.send(client, Body::Answers { session, answers }, out);
                if rest.is_empty() {
                    break;
                }
                answers = rest;
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

    /// Proposes the gathered results, as far as the log has room. Keeps back a batch that the log would
    /// refuse, and all batches behind it, because later instances rest on it.
    fn propose(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let room = self.settings.in_flight_bytes_max;
        while let Some(reign) = &mut self.reign {
            let pending = self.paxos.pending_bytes();
            let Some(payload) = reign.propose(|bytes| pending == 0 || pending + bytes <= room) else {
                return;
            };
            let command = paxos::Command::ProposeIn { ballot: reign.ballot, payload };
            self.drive(cx, Input::Command(command), out);
        }
    }

    /// Once the gathering batch is full, proposes it, or keeps it back.
    fn propose_full_batch(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let full = self.settings.log.batch_bytes_max;
        let is_full = |reign: &Reign| reign.results_gathered() >= full;
        if !self.reign.as_ref().is_some_and(is_full) {
            return;
        }
        self.propose(cx, out);
        if let Some(reign) = &mut self.reign
            && reign.gathered() >= full
        {
            reign.keep_back();
        }
    }

    /// Counts a tick of resigning, so that the replica waits for no other process without end.
    fn resign_in_time(&mut self) {
        if let Some(Resigning::Leading(ticks) | Resigning::Leaving(ticks)) = &mut self.resigning {
            *ticks += 1;
        }
    }

    /// Leaves the set, once this replica's reign, which executes nothing more, has answered all that it can.
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

    /// Ends a batch of inputs with one proposal for all results, and one question for all reads.
    fn flush(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        self.propose(cx, out);
        if let Some(reign) = &mut self.reign
            && let Some(through) = reign.reads.question()
        {
            let command = paxos::Command::Confirm { ballot: reign.ballot, through };
            self.drive(cx, Input::Command(command), out);
        }
    }

    /// Hands an input to the log, and handles the events that follow.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>, input: Input<Paxos>, out: &mut dyn Sink<Self>) {
        self.give(cx, input, out);
        while !self.corrupt
            && let Some(event) = self.events.pop_front()
        {
            if let Some(command) = self.told(event, out) {
                self.give(cx, Input::Command(command), out);
            }
        }
        if std::mem::take(&mut self.has_hole) {
            self.revert_unchosen(out);
            self.resume_execution(out);
        }
        self.answer_reads();
        self.go_on(out);
        self.checkpoint(cx, out);
    }

    fn give(&mut self, cx: &mut Context<'_>, input: Input<Paxos>, out: &mut dyn Sink<Self>) {
        let Replica { paxos, events, group, .. } = self;
        let mut lift = Lift::<Self, _, _>::new::<Paxos>(
            out,
            |_, _, message| Some(Message { group: *group, body: Body::Paxos(message) }),
            |_, event| events.push_back(event),
        );
        paxos.handle(cx, input, &mut lift);
    }

    /// Handles an event of the log. Returns the log's next command, if it needs one.
    fn told(&mut self, event: paxos::Event, out: &mut dyn Sink<Self>) -> Option<paxos::Command> {
        match event {
            paxos::Event::Learned { slot, payloads } => {
                self.slot = slot;
                for mut payload in payloads {
                    match Batch::decode(&mut payload) {
                        Ok(batch) => self.learn(slot, batch, out),
                        Err(error) => {
                            self.fail(error, out);
                            return None;
                        }
                    }
                }
            }
            paxos::Event::Reign { ballot, start } => {
                assert!(self.reign.is_none(), "a reign begins after the one before has ended");
                let reign = self.reign.insert(Reign::new(ballot, start, &self.settings));
                if self.resigning.is_some() {
                    reign.stop_executing();
                }
            }
            paxos::Event::Settled { ballot } => {
                let reign = self.reign.as_mut().expect("a reign begins before it is settled");
                assert!(
                    reign.ballot == ballot && self.slot >= reign.start,
                    "a settled reign has learned all slots before its start"
                );
                reign.settle(self.chosen);
                out.emit(Event::Serving);
            }
            paxos::Event::Deposed { ballot } => {
                self.standing_back.take_if(|it| it.ballot == ballot);
                if self.reign.as_ref().is_some_and(|reign| reign.ballot == ballot) {
                    self.resign(out);
                }
                // The checkpoint was for a joining replica, and a later leader sends its own. A checkpoint
                // for the disk is useful to a backup, too.
                if !self.on_disk() {
                    self.give_up(out);
                }
            }
            paxos::Event::Confirmed { ballot, through } => {
                if let Some(reign) = self.reign.as_mut().filter(|reign| reign.ballot == ballot) {
                    reign.reads.confirmed(through);
                }
            }
            // In a standing reign nothing may be proposed behind a refused proposal, because later results
            // rest on it. A reign that has ended has reverted its proposals already.
            paxos::Event::Refused { ballot, .. } => {
                if let Some(reign) = self.reign.as_mut().filter(|reign| reign.ballot == ballot) {
                    reign.refused();
                    self.has_hole = true;
                }
            }
            paxos::Event::Detour(_) => {}
            // The checkpoint that is being gathered for the disk serves this wish too.
            paxos::Event::SnapshotWanted { .. } if self.on_disk() && self.giving.is_some() => {}
            paxos::Event::SnapshotWanted { .. } if let Some(state) = &self.latest => {
                let state = state.clone();
                return Some(self.give_latest(state));
            }
            paxos::Event::SnapshotWanted { .. } => {
                if let Some(reign) = &mut self.reign {
                    // The rest is numbered like works, so that an answer to an earlier rest does not count
                    // for it.
                    let rest = self.settings.any_order.then_some(self.works + 1);
                    if let Some(rest) = reign.pause(rest) {
                        self.works = rest;
                        out.emit(Event::Rest { rest });
                    }
                    self.abort_changed(out);
                } else if self.on_disk() || self.standing_back.is_some() {
                    return Some(self.begin_checkpoint(out));
                }
            }
            paxos::Event::SnapshotPartWanted { slot, bytes } => return self.part_wanted(slot, bytes, out),
            paxos::Event::SnapshotUnwanted { .. } => self.give_up(out),
            paxos::Event::InstallPart { number, bytes, .. } => self.take_part(number == 0, bytes, out),
            paxos::Event::Install { slot, state } => {
                if !state.is_empty() {
                    self.take_part(true, state, out);
                }
                self.install(slot, out);
            }
            paxos::Event::Leader(leader) => out.emit(Event::Leader(leader)),
            paxos::Event::Members(members) => {
                out.emit(Event::Members(members));
                if let Some(reign) = &self.reign {
                    self.tell_members(reign.callers.iter().copied(), out);
                }
            }
            paxos::Event::Removed if self.resigning.is_some() => self.resigned(out),
            paxos::Event::Removed => out.emit(Event::Removed),
            paxos::Event::ChangeRefused { .. } if self.resigning.is_some() => self.resigned(out),
            paxos::Event::ChangeRefused { change, reason } => {
                out.emit(Event::ChangeRefused { change, reason });
            }
        }
        None
    }

    pub(super) fn fail(&mut self, error: WireError, out: &mut dyn Sink<Self>) {
        self.corrupt = true;
        out.emit(Event::Corrupt(error.to_string()));
    }

    /// Learns a chosen batch: applies it, or answers for it if this reign executed it.
    fn learn(&mut self, slot: Slot, batch: Batch, out: &mut dyn Sink<Self>) {
        assert!(
            batch.ballot >= self.ballot,
            "the ballots of chosen batches never decrease: {} < {}",
            batch.ballot,
            self.ballot
        );
        assert!(
            batch.first == self.chosen + 1,
            "a change rests on the state it was computed in: instance {} comes behind {}",
            batch.first,
            self.chosen
        );
        self.ballot = batch.ballot;
        let own = self.reign.as_mut().filter(|reign| slot > reign.start).map(Reign::chosen);
        if let Some(entries) = &own {
            assert!(entries.len() == batch.instances.len(), "a reign's slots hold what it proposed");
        }
        let mut changes = Vec::new();
        let mut last_work = None;
        for (index, instance) in batch.instances.into_iter().enumerate() {
            self.chosen += 1;
            let entry = own.as_ref().map(|entries| (entries[index].client, entries[index].of));
            match instance {
                Instance::Open => {
                    self.sessions.open(self.chosen);
                    if let Some((Some(client), EntryContent::Open { nonce })) = entry {
                        let session = SessionId(self.chosen);
                        self.send(client, Body::Opened { nonce, session }, out);
                    }
                }
                Instance::Close(session) => self.sessions.close(session),
                Instance::Call { id, done, reply, change } => {
                    self.note_state(change.as_ref());
                    self.sessions.record(self.chosen, id, done, reply.clone());
                    match entry {
                        Some((Some(client), EntryContent::Call { work, .. })) => {
                            last_work = Some(work);
                            self.answer(client, id, Outcome::Done(reply));
                        }
                        _ => changes.extend(change),
                    }
                }
                Instance::Transaction { id, done, changes: together } => {
                    self.note_state(together.last());
                    self.sessions.record(self.chosen, id, done, Bytes::new());
                    match entry {
                        Some((Some(client), EntryContent::Call { work, .. })) => {
                            last_work = Some(work);
                            self.answer(client, id, Outcome::Done(Bytes::new()));
                        }
                        _ => changes.extend(together),
                    }
                }
            }
        }
        if let Some(work) = last_work {
            out.emit(Event::Chosen { work });
        }
        if self.settings.whole_states {
            changes = changes.into_iter().rfind(|state| !state.is_empty()).into_iter().collect();
        }
        if !changes.is_empty() {
            out.emit(Event::Apply { through: self.chosen, changes });
        }
        if let Some(it) = &mut self.standing_back
            && it.ballot == self.ballot
        {
            it.left -= 1;
        }
        self.resume_execution(out);
    }

    /// Keeps a chosen whole state.
    fn note_state(&mut self, change: Option<&Bytes>) {
        if self.settings.whole_states
            && let Some(state) = change.filter(|state| !state.is_empty())
        {
            self.latest = Some(state.clone());
        }
    }

    /// Stands back because a checkpoint is wanted and no proposal gets chosen: perhaps the replicas that
    /// should accept need the checkpoint first. Reverts what is not chosen, as at the end of a reign, and
    /// takes the checkpoint at once. The proposals may still be chosen, and are then applied as at a backup.
    /// Once all of them are, this replica executes again, in the same ballot.
    ///
    /// If a checkpoint was taken before, and a part of it waits for room at the host, the host has room now.
    fn revert_for_checkpoint(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let is_wanted = self.reign.as_ref().is_some_and(|reign| reign.pausing);
        self.revert_unchosen(out);
        if is_wanted {
            let command = self.begin_checkpoint(out);
            self.drive(cx, Input::Command(command), out);
        }
        self.resume_execution(out);
    }

    /// Reverts what is not chosen, and executes nothing until all proposals are learned. The log still leads.
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
            // Confirmations of earlier questions say nothing about calls that come now.
            reign.reads.go_on_behind(it.asked);
            self.reign = Some(reign);
            out.emit(Event::Serving);
        }
    }

    /// Ends the reign: reverts changes that were applied and not chosen, and redirects clients.
    fn resign(&mut self, out: &mut dyn Sink<Self>) {
        let reign = self.reign.take().expect("a reign ends once");
        out.emit(Event::Revert);
        // Answers to chosen calls leave first.
        self.send_answers(out);
        self.redirect(reign.callers, out);
    }
}

/// Returns how many of these answers one message takes: at least one if there is any, and at most
/// [`ANSWERS_BYTES`].
fn fitting(answers: &[(u64, Outcome)]) -> usize {
    let mut bytes = 0;
    let fit = answers.iter().take_while(|(_, outcome)| {
        bytes += outcome.bytes();
        bytes <= ANSWERS_BYTES
    });
    fit.count().max(1).min(answers.len())
}

/// The number of ticks that a replica without a host waits for the others, in each phase of resigning.
const RESIGNING_TICKS_MAX: u32 = 10;

/// The most bytes of answers in one message, unless one answer alone is longer.
const ANSWERS_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests;
