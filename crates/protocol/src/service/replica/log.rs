//! The log of a replica. The replica proposes results to the log, and handles the log's events: reigns,
//! chosen batches and requests for checkpoints.

use bytes::Bytes;

use super::Replica;
use crate::{
    paxos::{self, Paxos, Slot},
    seam::{Context, Input, Lift, Protocol, Sink},
    service::{
        Batch, Body, CallOutcome, Event, Instance, Message, SessionId, reign::Reign, request::EntryContent,
    },
    wire::{Wire, WireError},
};

impl Replica {
    /// Proposes the gathered results, as far as the log has room. Keeps back a batch that the log would
    /// refuse, and all later batches, because later instances rest on earlier instances.
    pub(super) fn propose(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
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

    /// Proposes the gathering batch once it is full, or keeps the batch back.
    pub(super) fn propose_full_batch(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
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

    /// Ends a batch of inputs with one proposal for all results, and one question for all reads.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
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
            if let Some(command) = self.on_log_event(event, out) {
                self.give(cx, Input::Command(command), out);
            }
        }
        if std::mem::take(&mut self.has_hole) {
            self.revert_unchosen(out);
            self.resume_execution(out);
        }
        self.answer_reads();
        self.handle_waiting_requests(out);
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
    fn on_log_event(&mut self, event: paxos::Event, out: &mut dyn Sink<Self>) -> Option<paxos::Command> {
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
                // The checkpoint was meant for a joining replica. A later leader will send that replica its
                // own checkpoint. But a checkpoint for the disk is useful to a backup, too.
                if !self.on_disk() {
                    self.give_up(out);
                }
            }
            paxos::Event::Confirmed { ballot, through } => {
                if let Some(reign) = self.reign.as_mut().filter(|reign| reign.ballot == ballot) {
                    reign.reads.confirmed(through);
                }
            }
            // Later results rest on earlier results, so nothing more may be proposed in a standing reign
            // after the log has refused a proposal. If the reign has ended, its proposals were already
            // reverted.
            paxos::Event::Refused { ballot, .. } => {
                if let Some(reign) = self.reign.as_mut().filter(|reign| reign.ballot == ballot) {
                    reign.refused();
                    self.has_hole = true;
                }
            }
            paxos::Event::Detour(_) => {}
            // The checkpoint that is already being gathered for the disk serves this request, too.
            paxos::Event::SnapshotWanted { .. } if self.on_disk() && self.giving.is_some() => {}
            paxos::Event::SnapshotWanted { .. } if let Some(state) = &self.latest => {
                let state = state.clone();
                return Some(self.give_latest(state));
            }
            paxos::Event::SnapshotWanted { .. } => {
                if let Some(reign) = &mut self.reign {
                    // [`Event::Rest`] gets the next work number, so that an answer to an earlier order to
                    // rest is not taken for an answer to this order.
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
                    self.send_members(reign.callers.iter().copied(), out);
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

    /// Learns a chosen batch: applies its changes, or answers its calls if this reign executed it.
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
                            self.answer(client, id, CallOutcome::Done(reply));
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
                            self.answer(client, id, CallOutcome::Done(Bytes::new()));
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
}
