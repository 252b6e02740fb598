//! The part of Paxos that is the same in every role: sending messages and writing records, and promising,
//! accepting and learning values. Leaders, followers and candidates call these methods of [`Core`].

use bytes::{Bytes, BytesMut};

use super::{
    Ballot, Event, Message, Paxos, Record, Slot, SlotValue,
    core::{Chunk, Core, Incoming, moved},
    log::Log,
};
use crate::{
    id::{Peer, ProcessId},
    seam::{Destination, Sink, Ticket},
};

impl Core {
    /// Writes a record of the log.
    pub(super) fn persist(&mut self, record: Record, out: &mut dyn Sink<Paxos>) -> Ticket {
        self.journaled += record.bytes();
        let ticket = out.persist(record);
        self.held_record = Some(ticket);
        ticket
    }

    /// Sends a report about the log that this process holds, once that log is durable.
    pub(super) fn send_held(&self, to: ProcessId, message: Message, out: &mut dyn Sink<Paxos>) {
        out.send(Destination::One(to), message, self.awaited(self.held_record));
    }

    /// Sends a message that a slow disk must not delay.
    pub(super) fn send_aside(&self, to: ProcessId, message: Message, out: &mut dyn Sink<Paxos>) {
        out.send_aside(Destination::One(to), message);
    }

    pub(super) fn send_all_aside(&self, to: Vec<ProcessId>, message: Message, out: &mut dyn Sink<Paxos>) {
        if let Some(to) = destination(to) {
            out.send_aside(to, message);
        }
    }

    /// Sends a message once the last promise is durable, because a router must never use a ballot again after
    /// other processes have heard of it.
    pub(super) fn send(&self, to: ProcessId, message: Message, out: &mut dyn Sink<Paxos>) {
        out.send(Destination::One(to), message, self.awaited(self.promise));
    }

    /// Sends a message about ballots. The message waits only for the record of the promise.
    pub(super) fn send_vote(&self, to: ProcessId, message: Message, out: &mut dyn Sink<Paxos>) {
        match self.promise_awaited() {
            Some(promise) => out.send(Destination::One(to), message, Some(promise)),
            None => out.send_aside(Destination::One(to), message),
        }
    }

    pub(super) fn send_all(&self, to: Vec<ProcessId>, message: Message, out: &mut dyn Sink<Paxos>) {
        if let Some(to) = destination(to) {
            out.send(to, message, self.awaited(self.promise));
        }
    }

    /// Promises to take part in no ballot below `ballot` from now on (phase 1b). Returns the ticket of the
    /// promise's record.
    pub(super) fn promise(&mut self, ballot: Ballot, out: &mut dyn Sink<Paxos>) -> Ticket {
        assert!(
            ballot >= self.promised,
            "a promise is never below an earlier one: {ballot} < {}",
            self.promised
        );
        self.promised = ballot;
        self.round = self.round.max(ballot.round);
        let record = Record::Promised(ballot);
        self.journaled += record.bytes();
        let ticket = out.persist(record);
        self.promise = Some(ticket);
        ticket
    }

    /// Replaces everything after `start`, except chosen slots, by `values`: the whole log of the leader of
    /// `ballot`.
    pub(super) fn replace(
        &mut self,
        ballot: Ballot,
        start: Slot,
        values: &[SlotValue],
        out: &mut dyn Sink<Paxos>,
    ) -> Ticket {
        assert!(
            ballot >= self.promised,
            "no value is accepted below a promise: {ballot} < {}",
            self.promised
        );
        assert!(ballot > self.accepted, "a log is replaced at most once per ballot");
        assert!(start <= self.chosen, "values that are not known to be chosen are replaced");
        let keep = self.chosen;
        self.log.truncate(keep);
        let skip = (keep.0 - start.0) as usize;
        for value in values.iter().skip(skip) {
            assert!(
                self.members_open().is_none(),
                "no value is proposed behind an open change of the members"
            );
            self.log.push(value.clone());
        }
        self.accepted = ballot;
        let values = self.log.range(keep, self.log.last());
        self.persist(Record::Accepted { ballot, start: keep, chosen: keep, values }, out)
    }

    /// Accepts values after the end of the log (phase 2b).
    pub(super) fn append(
        &mut self,
        ballot: Ballot,
        values: Vec<SlotValue>,
        out: &mut dyn Sink<Paxos>,
    ) -> Ticket {
        assert!(
            ballot >= self.promised,
            "no value is accepted below a promise: {ballot} < {}",
            self.promised
        );
        assert!(ballot == self.accepted, "accepted values continue the log of their ballot");
        let start = self.log.last();
        for value in &values {
            assert!(
                self.members_open().is_none(),
                "no value is proposed behind an open change of the members"
            );
            self.log.push(value.clone());
        }
        self.persist(Record::Accepted { ballot, start, chosen: self.chosen, values }, out)
    }

    /// Learns chosen values from a router that knows them. `values` are the values after `start` in the log
    /// of `ballot`.
    pub(super) fn learn_from(
        &mut self,
        ballot: Ballot,
        start: Slot,
        values: &[SlotValue],
        out: &mut dyn Sink<Paxos>,
    ) {
        assert!(
            start <= self.chosen,
            "chosen values leave no gap: these come behind slot {start}, and slots are known up to {}",
            self.chosen
        );
        let skip = (self.chosen.0 - start.0) as usize;
        let mut slot = self.chosen;
        for value in values.iter().skip(skip) {
            slot = slot.next();
            if self.log.value(slot).is_some_and(|held| held != value) {
                // A value other than the one accepted here was chosen in a higher ballot. So the value
                // accepted here and all values after it are dead.
                assert!(slot > self.chosen, "one value is chosen for a slot, but slot {slot} has two");
                self.log.truncate(Slot(slot.0 - 1));
            }
            if self.log.last() < slot {
                self.log.push(value.clone());
            }
        }
        if slot > self.chosen {
            self.taught = self.taught.max(ballot);
            let values = self.log.range(self.chosen, slot);
            self.persist(Record::Learned { ballot, start: self.chosen, values }, out);
        }
        self.learn(slot, out);
    }

    /// Learns the values of the log's slots up to `through`, which are chosen.
    pub(super) fn learn(&mut self, through: Slot, out: &mut dyn Sink<Paxos>) {
        assert!(through <= self.log.last(), "only values that this process holds are learned");
        while self.chosen < through {
            let slot = self.chosen.next();
            self.chosen = slot;
            match self.log.value(slot).expect("a learned value is in the log") {
                SlotValue::Payloads(payloads) => {
                    out.emit(Event::Learned { slot, payloads: payloads.to_vec() });
                }
                SlotValue::Members(members) => {
                    let before = std::mem::replace(&mut self.members, members.to_vec());
                    assert!(moved(&before, members) <= 1, "members change one at a time");
                    self.members_changed = true;
                    let gone = before.iter().map(|peer| peer.id).find(|id| !self.is_member(*id));
                    self.departed.extend(gone);
                    if self.departed.len() > DEPARTED_MAX {
                        self.departed.pop_front();
                    }
                    out.emit(Event::Learned { slot, payloads: Vec::new() });
                    out.emit(Event::Members(self.members.clone()));
                }
            }
        }
        self.collect(Slot::ZERO);
    }

    /// Takes a part of a snapshot. Returns the number of bytes received so far; `None` if this part does not
    /// continue the earlier parts.
    pub(super) fn take_chunk(
        &mut self,
        ballot: Ballot,
        chunk: Chunk,
        out: &mut dyn Sink<Paxos>,
    ) -> Option<u64> {
        let Chunk { slot, members, total, offset, bytes } = chunk;
        if slot <= self.chosen {
            return Some(total);
        }
        if offset == 0 {
            self.incoming = Some(Incoming { ballot, slot, total, bytes: BytesMut::new() });
        }
        let incoming = self.incoming.as_mut()?;
        let expected = (incoming.ballot, incoming.slot, incoming.total, incoming.bytes.len() as u64);
        if expected != (ballot, slot, total, offset) || offset + bytes.len() as u64 > total {
            return None;
        }
        incoming.bytes.extend_from_slice(&bytes);
        if (incoming.bytes.len() as u64) < total {
            return Some(incoming.bytes.len() as u64);
        }
        let state = self.incoming.take().expect("the incoming snapshot was just completed").bytes.freeze();
        self.taught = self.taught.max(ballot);
        self.install(slot, members.clone(), state.clone(), out);
        self.persist(Record::Installed { ballot, slot, members: members.into(), state }, out);
        Some(total)
    }

    /// Replaces the log up to `slot` by a snapshot.
    pub(super) fn install(
        &mut self,
        slot: Slot,
        members: Vec<Peer>,
        state: Bytes,
        out: &mut dyn Sink<Paxos>,
    ) {
        assert!(slot > self.chosen, "a snapshot is newer than the log that it replaces");
        if self.log.last() >= slot {
            // Slots accepted after the snapshot stay accepted.
            self.log.collect(slot);
        } else {
            self.log = Log::new(slot);
        }
        self.gathered.take_if(|(gathered, _)| *gathered < self.log.start());
        self.chosen = slot;
        self.members = members;
        self.members_changed = true;
        out.emit(Event::Install { slot, state });
        out.emit(Event::Members(self.members.clone()));
    }

    /// Announces the leader to the user if the user does not know it yet. With `again`, announces it in any
    /// case.
    pub(super) fn announce_leader(&mut self, again: bool, out: &mut dyn Sink<Paxos>) {
        let leader = self.leader.filter(|_| self.is_member(self.me.id)).map(|ballot| ballot.router);
        if leader != self.announced_leader || again {
            self.announced_leader = leader;
            out.emit(Event::Leader(leader));
        }
    }

    pub(super) fn reach(&mut self, peer: &Peer, out: &mut dyn Sink<Paxos>) {
        if peer.id != self.me.id && self.reached.get(&peer.id) != Some(&peer.address) {
            self.reached.insert(peer.id, peer.address.clone());
            out.reach(peer.id, &peer.address);
        }
    }

    pub(super) fn forget(&mut self, process: ProcessId, out: &mut dyn Sink<Paxos>) {
        if self.reached.remove(&process).is_some() {
            out.forget(process);
        }
    }
}

/// Returns a destination that consists of these processes; `None` if there are none.
fn destination(to: Vec<ProcessId>) -> Option<Destination> {
    match to[..] {
        [] => None,
        [one] => Some(Destination::One(one)),
        _ => Some(Destination::Many(to)),
    }
}

/// Number of voted-out routers that are remembered.
const DEPARTED_MAX: usize = 256;
