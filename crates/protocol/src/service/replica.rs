//! One replica: its log, its sessions, and the reign it leads, if it leads.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};

use super::{
    Abort, Batch, Body, CallId, Command, Event, GroupId, Instance, Message, Outcome, SessionId, Settings,
    TransactionId,
    checkpoint::Giving,
    reign::{Asked, EntryOf, Reign, Wish},
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
    /// Events of the log that nobody has looked at.
    events: VecDeque<paxos::Event>,
    pub(super) reign: Option<Reign>,
    standing_back: Option<StandingBack>,
    pub(super) sessions: Sessions,
    /// The last slot learned.
    pub(super) slot: Slot,
    /// The last instance chosen.
    pub(super) chosen: u64,
    /// The reign of that instance.
    pub(super) ballot: Ballot,
    /// Works that the host was given, in this reign and before.
    pub(super) works: u64,
    /// Answers to be sent at the end of the batch of inputs.
    answers: BTreeMap<(ProcessId, SessionId), Vec<(u64, Outcome)>>,
    /// Whether the last input was the end of a batch, or only said what that one's records came to.
    drained: bool,
    /// Reads that clients told this replica of, for the leader.
    told: Vec<CallId>,
    /// Checkpoints that the host was asked for.
    pub(super) checkpoints: u64,
    /// The checkpoint that is being given.
    pub(super) giving: Option<Giving>,
    /// The whole state of the last instance that changed it, if it is known.
    pub(super) latest: Option<Bytes>,
    /// Another replica's table of sessions, as far as it came.
    pub(super) coming: BytesMut,
    /// Whether parts of another replica's state have come.
    pub(super) parts_come: bool,
    /// Messages that no replica of this set is to be sent.
    refused: u64,
    /// The log does not decode: nothing is done any more.
    pub(super) corrupt: bool,
    resigning: Option<Resigning>,
}

/// How far a replica is whose host can do nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resigning {
    /// So many ticks ago its reign went on without executing.
    Leading(u32),
    /// It asks to be removed, since so many ticks.
    Leaving(u32),
    /// It has told its host.
    Done,
}

/// A ballot in which a replica leads and executes nothing.
#[derive(Debug)]
struct StandingBack {
    ballot: Ballot,
    /// Proposals to be learned before it executes again.
    left: usize,
    /// The last question that was put to the log in this ballot.
    asked: u64,
}

/// A replica as it looks from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Of the log.
    pub log: paxos::Status,
    /// The last instance chosen.
    pub chosen: u64,
    /// Whether it executes calls.
    pub serving: bool,
    /// Messages that were refused.
    pub refused: u64,
}

impl Replica {
    /// The first replica of a new set (rule S1). To be called once per set, ever; `group` is drawn at random for it.
    pub fn found(group: GroupId, me: Peer, settings: Settings, now: Time) -> Replica {
        let paxos = Paxos::found(me, settings.log.clone(), now);
        Replica::new(group, paxos, settings)
    }

    /// A replica that asks `seeds` for admission to a set.
    pub fn join(group: GroupId, me: Peer, seeds: Vec<Peer>, settings: Settings, now: Time) -> Replica {
        let paxos = Paxos::join(me, seeds, settings.log.clone(), now);
        Replica::new(group, paxos, settings)
    }

    /// A replica that goes on from the records that it wrote before it ended, all of those that were durable
    /// ([`Paxos::recover`]). `None`: there are none.
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
            settings.in_flight_bytes_max < settings.log.pending_bytes_max / 2,
            "what is in flight has room in the log"
        );
        Replica {
            group,
            paxos,
            events: VecDeque::new(),
            reign: None,
            standing_back: None,
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
            parts_come: false,
            refused: 0,
            corrupt: false,
            resigning: None,
            settings,
        }
    }

    /// Its log.
    pub fn log(&self) -> &Paxos {
        &self.paxos
    }

    /// The last instance that it has learned.
    pub fn chosen(&self) -> u64 {
        self.chosen
    }

    /// Whether it executes calls.
    pub fn is_serving(&self) -> bool {
        self.reign.as_ref().is_some_and(|reign| reign.settled)
    }

    /// How it is.
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
                match (&input, &mut self.reign) {
                    (Input::Deadline, Some(reign)) => {
                        if reign.tick() {
                            self.stand_back(cx, out);
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
        // In memory records are complete at once, behind the end of the batch. A sole replica has its proposals chosen by that.
        if is_persisted && self.drained {
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
            // A replica proposes nothing that another one executed.
            Body::Paxos(paxos::Message::Forward { .. }) => self.refused += 1,
            Body::Paxos(message) => self.drive(cx, Input::Receive { from, message }, out),
            Body::Open { nonce } => self.asked(from, [Wish::Open { nonce }], out),
            Body::Calls { session, done, mut calls } => {
                if self.settings.whole_states {
                    // A state holds everything.
                    calls.iter_mut().filter_map(|call| call.scope.as_mut()).for_each(|it| it.keys.clear());
                }
                if let Some(reign) = &mut self.reign {
                    reign.transactions.now = cx.now;
                    if self.sessions.is_open(session) {
                        reign.idle.heard(session, cx.now);
                    }
                }
                let wishes = calls.into_iter().map(|call| Wish::Call { session, done, call });
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

    /// A client wants something.
    fn asked(&mut self, client: ProcessId, wishes: impl IntoIterator<Item = Wish>, out: &mut dyn Sink<Self>) {
        let Some(reign) = &mut self.reign else { return self.redirect([client], out) };
        if reign.callers.insert(client) {
            self.tell_members([client], out);
        }
        for wish in wishes {
            let reign = self.reign.as_mut().expect("nothing here ends a reign");
            let Err(asked) = reign.ask(Asked { client, wish }, &self.settings) else { continue };
            match asked.wish {
                Wish::Call { session, call, .. } => {
                    self.answer(client, call.id(session), Outcome::Full);
                }
                // It will be asked for again.
                Wish::Open { .. } => self.refused += 1,
            }
        }
        self.go_on(out);
    }

    /// A replica followed this ballot after it was told of these reads.
    fn follows(&mut self, from: ProcessId, ballot: Ballot, reads: Vec<CallId>) {
        let Replica { reign: Some(reign), paxos, .. } = self else { return };
        if reign.ballot == ballot {
            for read in reads {
                reign.reads.follows(from, read, |by| paxos.is_majority(|id| by.contains(&id)));
            }
            self.answer_reads();
        }
    }

    /// Tells the leader that this replica follows, for all reads that it was told of.
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

    /// Tells clients which the replicas are now.
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

    /// A message without answers tells a client that its calls are under way.
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
                let full = self.settings.log.batch_bytes_max;
                if self.reign.as_ref().is_some_and(|reign| reign.gathered() >= full) {
                    self.propose(cx, out);
                }
                self.checkpoint(cx, out);
            }
            Command::Rests { rest } => {
                if let Some(reign) = &mut self.reign {
                    reign.rests(rest);
                }
                self.checkpoint(cx, out);
            }
            Command::CheckpointPart { checkpoint, bytes, last } => {
                // A slow host may still give parts of an earlier one.
                if let Some(command) = self.part_given(checkpoint, &bytes, last, out) {
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

    /// Proposes what has gathered.
    fn propose(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if let Some(reign) = &mut self.reign
            && let Some(payload) = reign.propose()
        {
            let command = paxos::Command::ProposeIn { ballot: reign.ballot, payload };
            self.drive(cx, Input::Command(command), out);
        }
    }

    /// Time has passed for one that resigns: nobody is waited for without end.
    fn resign_in_time(&mut self) {
        if let Some(Resigning::Leading(ticks) | Resigning::Leaving(ticks)) = &mut self.resigning {
            *ticks += 1;
        }
    }

    /// Leaves, once a reign without a host has nothing more to tell.
    fn leave(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        match self.resigning {
            Some(Resigning::Leading(ticks)) => {
                let is_through = self.reign.as_ref().is_none_or(Reign::is_through);
                if !is_through && ticks < RESIGNING_TICKS_MAX {
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

    /// The end of a batch of inputs: one proposal for all that was executed, and one question for all reads.
    fn flush(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        self.propose(cx, out);
        if let Some(reign) = &mut self.reign
            && let Some(through) = reign.reads.question()
        {
            let command = paxos::Command::Confirm { ballot: reign.ballot, through };
            self.drive(cx, Input::Command(command), out);
        }
    }

    /// Hands an input to the log, and takes care of all that comes of it.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>, input: Input<Paxos>, out: &mut dyn Sink<Self>) {
        self.give(cx, input, out);
        while !self.corrupt
            && let Some(event) = self.events.pop_front()
        {
            if let Some(command) = self.told(event, out) {
                self.give(cx, Input::Command(command), out);
            }
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

    /// The log tells something; perhaps it is to be given an answer.
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
                assert!(reign.ballot == ballot && self.slot >= reign.start, "a settled reign has learned");
                reign.settle(self.chosen);
                out.emit(Event::Serving);
            }
            paxos::Event::Deposed { ballot } => {
                self.standing_back.take_if(|it| it.ballot == ballot);
                if self.reign.as_ref().is_some_and(|reign| reign.ballot == ballot) {
                    self.resign(out);
                }
            }
            paxos::Event::Confirmed { ballot, through } => {
                if let Some(reign) = self.reign.as_mut().filter(|reign| reign.ballot == ballot) {
                    reign.reads.confirmed(through);
                }
            }
            // The reign is over, and what it proposed was reverted.
            paxos::Event::Refused { .. } | paxos::Event::Detour(_) => {}
            // One that is being gathered for the disk will do.
            paxos::Event::SnapshotWanted { .. } if self.on_disk() && self.giving.is_some() => {}
            paxos::Event::SnapshotWanted { .. } if let Some(state) = &self.latest => {
                let state = state.clone();
                return Some(self.give_latest(state));
            }
            paxos::Event::SnapshotWanted { .. } => {
                if let Some(reign) = &mut self.reign {
                    // Numbered like works, so that no answer to an earlier one is taken for its own.
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
            paxos::Event::InstallPart { number, bytes, .. } => self.part_came(number == 0, bytes, out),
            paxos::Event::Install { slot, state } => {
                if !state.is_empty() {
                    self.part_came(true, state, out);
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

    /// A batch is chosen.
    fn learn(&mut self, slot: Slot, batch: Batch, out: &mut dyn Sink<Self>) {
        assert!(batch.ballot >= self.ballot, "primaries are in one line: {} < {}", batch.ballot, self.ballot);
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
                    if let Some((Some(client), EntryOf::Open { nonce })) = entry {
                        let session = SessionId(self.chosen);
                        self.send(client, Body::Opened { nonce, session }, out);
                    }
                }
                Instance::Close(session) => self.sessions.close(session),
                Instance::Call { id, done, reply, change } => {
                    self.note_state(change.as_ref());
                    self.sessions.record(self.chosen, id, done, reply.clone());
                    match entry {
                        Some((Some(client), EntryOf::Call { work, .. })) => {
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
                        Some((Some(client), EntryOf::Call { work, .. })) => {
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
        self.step_forward(out);
    }

    /// An instance is learned, with this change.
    fn note_state(&mut self, change: Option<&Bytes>) {
        if self.settings.whole_states
            && let Some(state) = change.filter(|state| !state.is_empty())
        {
            self.latest = Some(state.clone());
        }
    }

    /// A checkpoint is wanted, and what was proposed is not chosen: perhaps those who are to accept it need the checkpoint first. So what is
    /// not chosen is taken back, as if the reign had ended, and the checkpoint is taken at once. What was proposed may be chosen yet,
    /// and is applied then as a backup does; once all of it is, this replica executes again, in the same ballot.
    fn stand_back(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let Some(reign) = &self.reign else { return };
        let (ballot, left, asked) = (reign.ballot, reign.proposals(), reign.reads.asked());
        self.standing_back = Some(StandingBack { ballot, left, asked });
        self.resign(out);
        let command = self.begin_checkpoint(out);
        self.drive(cx, Input::Command(command), out);
        self.step_forward(out);
    }

    fn step_forward(&mut self, out: &mut dyn Sink<Self>) {
        if let Some(it) = self.standing_back.take_if(|it| it.left == 0) {
            let mut reign = Reign::new(it.ballot, self.slot, &self.settings);
            reign.settle(self.chosen);
            // A confirmation of what was asked before says nothing of calls that come now.
            reign.reads.go_on_behind(it.asked);
            self.reign = Some(reign);
            out.emit(Event::Serving);
        }
    }

    /// The reign is over: what it applied and had not chosen is taken back, and clients are sent away.
    fn resign(&mut self, out: &mut dyn Sink<Self>) {
        let reign = self.reign.take().expect("a reign ends once");
        out.emit(Event::Revert);
        // The disk's is of use to a backup, too.
        if !self.on_disk() {
            self.give_up(out);
        }
        // The chosen ones are answered first.
        self.send_answers(out);
        self.redirect(reign.callers, out);
    }
}

/// How many of these answers one message takes: one if there is any, and no more than stay within [`ANSWERS_BYTES`].
fn fitting(answers: &[(u64, Outcome)]) -> usize {
    let mut bytes = 0;
    let fit = answers.iter().take_while(|(_, outcome)| {
        bytes += outcome.bytes();
        bytes <= ANSWERS_BYTES
    });
    fit.count().max(1).min(answers.len())
}

/// For so many ticks a replica without a host waits for the others.
const RESIGNING_TICKS_MAX: u32 = 10;

/// Answers in one message, unless one alone is longer, in bytes.
const ANSWERS_BYTES: usize = 256 << 10;
