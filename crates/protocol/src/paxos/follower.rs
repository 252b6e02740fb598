//! Following: accepting and learning the leader's slots, and forwarding the user's proposals.

use super::{
    Ballot, Context, Duration, Event, Message, Paxos, ProcessId, Refusal, Sink, Slot, SlotValue,
    SnapshotPart, State, core::Chunk,
};
use crate::wire::FRAME_BYTES_MAX;

/// Maximum size in bytes of the payloads in one forwarding message; a single larger payload is sent alone.
const FORWARD_BYTES: usize = FRAME_BYTES_MAX / 4;

impl Paxos {
    /// Follows the leader of `ballot`, which sent a message, unless a higher ballot was promised. Returns
    /// whether this process follows that leader.
    pub(super) fn follow(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        ballot: Ballot,
        out: &mut dyn Sink<Self>,
    ) -> bool {
        if from != ballot.router || from == cx.me {
            return false;
        }
        if ballot < self.core.promised {
            let promised = self.core.promised;
            self.core.send(from, Message::Refused { ballot, promised, refusal: Refusal::Outbid }, out);
            return false;
        }
        if ballot > self.core.promised {
            self.core.promise(ballot, out);
        }
        if self.core.leader != Some(ballot) {
            self.end_former_role(cx, out);
            self.core.leader = Some(ballot);
            self.core.watch_members([from], cx.now);
            if self.is_voter() {
                self.core.announce_leader(true, out);
            }
        }
        self.attempts = 0;
        self.election = None;
        true
    }

    /// Ends the role that this process had in an earlier reign.
    pub(super) fn end_former_role(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        match &self.state {
            State::Leader(reign) => {
                out.emit(Event::Deposed { ballot: reign.ballot });
                self.state = State::Follower;
            }
            State::Candidate(_) => self.state = State::Follower,
            _ => {}
        }
        self.core.leader = None;
        self.core.snapshot_underway = false;
        self.core.watch_members([], cx.now);
        self.forward.clear();
        self.acceptance_due = false;
        self.confirmation_due = None;
        self.reach_members(out);
    }

    /// Handles that the leader is gone or was never known. Stands for election a little after `patience`,
    /// unless another leader appears.
    pub(super) fn lose_leader(&mut self, cx: &mut Context<'_>, patience: Duration, out: &mut dyn Sink<Self>) {
        self.end_former_role(cx, out);
        self.core.announce_leader(false, out);
        if let State::Joining { ask_at, .. } = &mut self.state {
            *ask_at = cx.now;
        }
        // A process that an open change adds stands for election, because it may be the only process that
        // knows the change. A process that the change removes stands, too, and learns in this way that it is
        // out.
        if self.core.concerns(cx.me) {
            self.stand_after(cx, patience);
        }
        self.pulse(cx, out);
    }

    /// Ends a follower's batch: reports one acceptance for everything that came, and forwards proposals.
    pub(super) fn flush_follower(&mut self, out: &mut dyn Sink<Self>) {
        let Some(ballot) = self.core.leader else { return };
        if std::mem::take(&mut self.acceptance_due)
            && let Some(through) = self.core.held(ballot)
        {
            self.core.send_held(ballot.router, Message::Accepted { ballot, through }, out);
        }
        if let Some(round) = self.confirmation_due.take() {
            assert!(self.core.promised == ballot, "a ballot is confirmed while no higher one was promised");
            self.core.send_vote(ballot.router, Message::Confirmed { ballot, round }, out);
        }
        let mut waiting = std::mem::take(&mut self.forward).into_iter().peekable();
        while waiting.peek().is_some() {
            // The proposals of several members may exceed the size of one message.
            let mut bytes = 0;
            let mut payloads = Vec::new();
            while let Some(payload) =
                waiting.next_if(|payload| bytes == 0 || bytes + payload.len() <= FORWARD_BYTES)
            {
                bytes += payload.len() + 1;
                payloads.push(payload);
            }
            self.core.send_aside(ballot.router, Message::Forward { ballot, payloads }, out);
        }
    }

    pub(super) fn heartbeat(
        &mut self,
        ballot: Ballot,
        chosen: Slot,
        collect: Slot,
        sent: Slot,
        out: &mut dyn Sink<Self>,
    ) {
        self.learn_in(ballot, chosen, out);
        self.core.collect(collect);
        let lacks = self.core.held(ballot).unwrap_or(Slot::ZERO) < sent;
        self.send_following(ballot, lacks, out);
    }

    fn send_following(&mut self, ballot: Ballot, lacks: bool, out: &mut dyn Sink<Self>) {
        let (through, chosen) = (self.core.held(ballot), self.core.chosen);
        let message = Message::Following { ballot, through, chosen, lacks };
        self.core.send_held(ballot.router, message, out);
    }

    /// Learns that everything up to `through` is chosen, as the leader of `ballot` reports.
    pub(super) fn learn_in(&mut self, ballot: Ballot, through: Slot, out: &mut dyn Sink<Self>) {
        // The leader's statement concerns only slots that are held in this ballot.
        if let Some(last) = self.core.held(ballot) {
            self.core.learn(through.min(last), out);
        }
    }

    /// Handles a leader's message of phase 2a: accepts the value of a slot, and reports that (phase 2b).
    pub(super) fn accept(
        &mut self,
        ballot: Ballot,
        slot: Slot,
        chosen: Slot,
        value: SlotValue,
        out: &mut dyn Sink<Self>,
    ) {
        self.learn_in(ballot, chosen, out);
        let Some(last) = self.core.held(ballot) else { return };
        if slot == last.next()
            && self.core.members_open().is_none()
            && self.core.are_steps(last, std::slice::from_ref(&value))
        {
            self.core.append(ballot, vec![value], out);
            self.learn_in(ballot, chosen, out);
        }
        // A slot after a gap is not accepted; the next heartbeat will reveal the gap.
        self.acceptance_due |= slot <= self.core.log.last();
    }

    /// Takes the end of the leader's log, which begins at a slot that this process holds.
    pub(super) fn sync(
        &mut self,
        ballot: Ballot,
        start: Slot,
        chosen: Slot,
        values: Vec<SlotValue>,
        out: &mut dyn Sink<Self>,
    ) {
        let held = self.core.held(ballot);
        let end = Slot(start.0.saturating_add(values.len() as u64));
        if start > held.unwrap_or(self.core.chosen) || end < self.core.chosen {
            self.send_following(ballot, true, out);
            return;
        }
        let learned = chosen.min(end).0.saturating_sub(start.0) as usize;
        let open = &values[learned..];
        if open.iter().rev().skip(1).any(|value| matches!(value, SlotValue::Members(_))) {
            // No leader proposes anything after an open change of the members.
            return;
        }
        if start <= self.core.chosen {
            if !self.core.are_steps(start, &values) {
                return;
            }
            self.core.learn_from(ballot, start, &values[..learned], out);
        }
        match held {
            None => {
                self.core.replace(ballot, start, &values, out);
            }
            Some(_) => {
                let last = self.core.log.last();
                self.core.learn(chosen.min(last), out);
                let rest = values.get(last.0.saturating_sub(start.0) as usize..).unwrap_or_default();
                if !rest.is_empty() && self.core.members_open().is_none() && self.core.are_steps(last, rest) {
                    self.core.append(ballot, rest.to_vec(), out);
                }
            }
        }
        self.learn_in(ballot, chosen, out);
        self.acceptance_due = true;
    }

    /// Takes a part of the chosen log.
    pub(super) fn catch_up(
        &mut self,
        ballot: Ballot,
        start: Slot,
        values: Vec<SlotValue>,
        out: &mut dyn Sink<Self>,
    ) {
        // The leader knows that every slot up to the end of these values is chosen.
        self.learn_in(ballot, start, out);
        let fits = start <= self.core.chosen && self.core.are_steps(start, &values);
        if fits && start.0.saturating_add(values.len() as u64) > self.core.chosen.0 {
            self.core.learn_from(ballot, start, &values, out);
        }
        self.send_following(ballot, !fits, out);
    }

    /// Takes a part of a snapshot of known length.
    pub(super) fn chunk(&mut self, ballot: Ballot, chunk: Chunk, out: &mut dyn Sink<Self>) {
        let slot = chunk.slot;
        match self.core.take_chunk(ballot, chunk, out) {
            Some(offset) => {
                let message = Message::ChunkTaken { ballot, slot, offset };
                self.core.send_held(ballot.router, message, out);
            }
            None => self.send_following(ballot, true, out),
        }
    }

    /// Takes a part of a snapshot that arrives in parts.
    pub(super) fn part(&mut self, ballot: Ballot, part: SnapshotPart, out: &mut dyn Sink<Self>) {
        let slot = part.slot;
        match self.core.take_part(ballot, part, out) {
            Some(offset) => {
                let message = Message::ChunkTaken { ballot, slot, offset };
                self.core.send_held(ballot.router, message, out);
            }
            None => self.send_following(ballot, true, out),
        }
    }
}
