//! What a router knows whichever part it plays: what it promised, accepted and learned, whom it is linked to.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};

use super::{
    Ballot, Event, Log, Message, Paxos, Record, Settings, Slot, Value, contacts::Contacts, snapshot::Arriving,
};
use crate::{
    detector::Detector,
    id::{Peer, ProcessId},
    seam::{Destination, Sink, Ticket},
    time::Time,
};

#[derive(Debug)]
pub(super) struct Core {
    pub(super) me: Peer,
    pub(super) settings: Settings,
    /// No ballot below this one is taken part in.
    pub(super) promised: Ballot,
    /// Whose log ours is behind `chosen`: a prefix of what the leader of this ballot proposed.
    pub(super) accepted: Ballot,
    /// The log: chosen up to `chosen`, accepted in `accepted` behind it.
    pub(super) log: Log,
    /// The last slot known to be chosen; everything up to it is learned.
    pub(super) chosen: Slot,
    /// The newest log of which chosen slots were learned from somebody else, rather than from the leader whose log ours is.
    pub(super) taught: Ballot,
    /// The members behind `chosen`, in id order.
    pub(super) members: Vec<Peer>,
    /// Whether `members` changed during this turn.
    pub(super) members_changed: bool,
    /// Who was voted out lately. Such a process never comes in again: a request for admission that it sent long ago may
    /// still be on its way when it has gone for good.
    pub(super) departed: VecDeque<ProcessId>,
    /// The reign that this process follows or leads.
    pub(super) leader: Option<Ballot>,
    /// The highest round heard of.
    pub(super) round: u64,
    pub(super) links: BTreeSet<ProcessId>,
    /// Whom we asked the runtime to reach.
    pub(super) reached: BTreeMap<ProcessId, String>,
    pub(super) detector: Detector,
    pub(super) contacts: Contacts,
    /// Members that have stopped for a moment, of their own will, and until when nobody votes them out for it. Whoever comes to lead
    /// must know: often it was the leader that stopped.
    pub(super) away: BTreeMap<ProcessId, Time>,
    /// The record of the last promise.
    promise: Option<Ticket>,
    /// The last record of the log.
    held_record: Option<Ticket>,
    /// Records up to this one are durable.
    pub(super) durable: Option<Ticket>,
    /// Bytes of records since the last checkpoint, about.
    pub(super) journaled: usize,
    /// The state that the user has begun to gather for the disk: its slot, and the members behind it. The log behind it is kept.
    pub(super) gathered: Option<(Slot, Vec<Peer>)>,
    /// What the user was told last.
    told: Option<ProcessId>,
    /// Whether a snapshot is being sent: the log behind it is kept longer then, lest it be too old when it arrives.
    pub(super) snapshot_underway: bool,
    /// Part of a snapshot that is coming.
    pub(super) incoming: Option<Incoming>,
    /// A snapshot that is coming in parts.
    pub(super) arriving: Option<Arriving>,
}

/// A snapshot on its way in.
#[derive(Debug)]
pub(super) struct Incoming {
    ballot: Ballot,
    slot: Slot,
    total: u64,
    bytes: BytesMut,
}

impl Core {
    pub(super) fn new(me: Peer, settings: Settings) -> Core {
        Core {
            me,
            promised: Ballot::ZERO,
            accepted: Ballot::ZERO,
            log: Log::new(Slot::ZERO),
            chosen: Slot::ZERO,
            taught: Ballot::ZERO,
            members: Vec::new(),
            members_changed: false,
            departed: VecDeque::new(),
            leader: None,
            round: 0,
            links: BTreeSet::new(),
            reached: BTreeMap::new(),
            detector: Detector::new(settings.detector),
            contacts: Contacts::default(),
            away: BTreeMap::new(),
            promise: None,
            held_record: None,
            durable: None,
            journaled: 0,
            gathered: None,
            told: None,
            snapshot_underway: false,
            incoming: None,
            arriving: None,
            settings,
        }
    }

    pub(super) fn is_member(&self, process: ProcessId) -> bool {
        self.members.iter().any(|peer| peer.id == process)
    }

    /// The members but this process.
    pub(super) fn others(&self) -> Vec<ProcessId> {
        self.members.iter().map(|peer| peer.id).filter(|id| *id != self.me.id).collect()
    }

    /// The members that the end of the log would make, if it is a stop command not known to be chosen.
    pub(super) fn members_open(&self) -> Option<&Arc<[Peer]>> {
        let last = self.log.last();
        match self.log.value(last) {
            Some(Value::Members(members)) if last > self.chosen => Some(members),
            _ => None,
        }
    }

    /// The members that the newest change in the log makes, chosen or not: whoever holds a change acts on it.
    pub(super) fn acting(&self) -> &[Peer] {
        self.members_open().map_or(&self.members, |open| open)
    }

    /// Of the newest log that this process knows a part of: whose it is, and how far it is known. Who has learned chosen
    /// slots of a later reign than that in which it accepted, knows that log so far, and what it accepted behind is dead.
    pub(super) fn known(&self) -> (Ballot, Slot) {
        if self.taught > self.accepted {
            (self.taught, self.chosen)
        } else {
            (self.accepted, self.log.last())
        }
    }

    /// The members that the newest change makes in the log that is [`known`](Core::known).
    pub(super) fn members_known(&self) -> &[Peer] {
        if self.known().1 > self.chosen { self.acting() } else { &self.members }
    }

    /// Whether each change of the members in `values`, which come behind `start`, is one step from what is known to be
    /// chosen, or from the change before it: no log has others.
    pub(super) fn are_steps(&self, start: Slot, values: &[Value]) -> bool {
        let mut before = &self.members[..];
        let skip = self.chosen.0.saturating_sub(start.0) as usize;
        values.iter().skip(skip).all(|value| match value {
            Value::Payloads(_) => true,
            Value::Members(members) => moved(std::mem::replace(&mut before, members), members) <= 1,
        })
    }

    /// Whether `process` is a member, or will be one if an open change is chosen.
    pub(super) fn concerns(&self, process: ProcessId) -> bool {
        self.is_member(process) || self.acting().iter().any(|peer| peer.id == process)
    }

    /// The slot through which this process holds what the leader of `ballot` proposed; `None` before its first sync.
    pub(super) fn held(&self, ballot: Ballot) -> Option<Slot> {
        (self.accepted == ballot).then(|| self.log.last())
    }

    /// Writes a record of the log.
    pub(super) fn persist(&mut self, record: Record, out: &mut dyn Sink<Paxos>) -> Ticket {
        self.journaled += record.bytes();
        let ticket = out.persist(record);
        self.held_record = Some(ticket);
        ticket
    }

    /// Whether enough was written since the last checkpoint for another one.
    pub(super) fn wants_checkpoint(&self) -> bool {
        let enough = self.settings.checkpoint_bytes.is_some_and(|most| self.journaled >= most);
        enough && self.chosen > Slot::ZERO
    }

    /// The record, unless it is on disk.
    fn awaited(&self, record: Option<Ticket>) -> Option<Ticket> {
        record.filter(|record| self.durable.is_none_or(|durable| durable < *record))
    }

    /// Says what this process holds: not before that is on disk.
    pub(super) fn send_held(&self, to: ProcessId, message: Message, out: &mut dyn Sink<Paxos>) {
        out.send(Destination::One(to), message, self.awaited(self.held_record));
    }

    /// Sends what no slow disk may hold back.
    pub(super) fn send_aside(&self, to: ProcessId, message: Message, out: &mut dyn Sink<Paxos>) {
        out.send_aside(Destination::One(to), message);
    }

    pub(super) fn send_all_aside(&self, to: Vec<ProcessId>, message: Message, out: &mut dyn Sink<Paxos>) {
        if let Some(to) = destination(to) {
            out.send_aside(to, message);
        }
    }

    /// Sends once the last promise is on disk: a ballot that others hear of is never used again.
    pub(super) fn send(&self, to: ProcessId, message: Message, out: &mut dyn Sink<Paxos>) {
        out.send(Destination::One(to), message, self.awaited(self.promise));
    }

    /// Says which ballot stands: aside of what waits for the disk, unless the promise itself does.
    pub(super) fn send_vote(&self, to: ProcessId, message: Message, out: &mut dyn Sink<Paxos>) {
        match self.promise_awaited() {
            Some(promise) => out.send(Destination::One(to), message, Some(promise)),
            None => out.send_aside(Destination::One(to), message),
        }
    }

    /// The record of the last promise, if it is not durable yet.
    pub(super) fn promise_awaited(&self) -> Option<Ticket> {
        self.awaited(self.promise)
    }

    pub(super) fn send_all(&self, to: Vec<ProcessId>, message: Message, out: &mut dyn Sink<Paxos>) {
        if let Some(to) = destination(to) {
            out.send(to, message, self.awaited(self.promise));
        }
    }

    /// Phase 1b: takes part in no ballot below this one any more.
    pub(super) fn promise(&mut self, ballot: Ballot, out: &mut dyn Sink<Paxos>) -> Ticket {
        assert!(ballot >= self.promised, "promised below promise: {ballot} < {}", self.promised);
        self.promised = ballot;
        self.round = self.round.max(ballot.round);
        let record = Record::Promised(ballot);
        self.journaled += record.bytes();
        let ticket = out.persist(record);
        self.promise = Some(ticket);
        ticket
    }

    /// Replaces everything behind `start`, and what is chosen, by `values`: the whole log of the leader of `ballot`.
    pub(super) fn replace(
        &mut self,
        ballot: Ballot,
        start: Slot,
        values: &[Value],
        out: &mut dyn Sink<Paxos>,
    ) -> Ticket {
        assert!(ballot >= self.promised, "accepted below promise: {ballot} < {}", self.promised);
        assert!(ballot > self.accepted, "a log is replaced at most once per ballot");
        assert!(start <= self.chosen, "what is not known to be chosen is replaced, not kept");
        let keep = self.chosen;
        self.log.truncate(keep);
        let skip = (keep.0 - start.0) as usize;
        for value in values.iter().skip(skip) {
            assert!(
                self.members_open().is_none(),
                "something is proposed behind an open change of the members"
            );
            self.log.push(value.clone());
        }
        self.accepted = ballot;
        let values = self.log.range(keep, self.log.last());
        self.persist(Record::Accepted { ballot, start: keep, chosen: keep, values }, out)
    }

    /// Phase 2b: accepts what follows the end of the log.
    pub(super) fn append(&mut self, ballot: Ballot, values: Vec<Value>, out: &mut dyn Sink<Paxos>) -> Ticket {
        assert!(ballot >= self.promised, "accepted below promise: {ballot} < {}", self.promised);
        assert!(ballot == self.accepted, "what is accepted continues the log of its ballot");
        let start = self.log.last();
        for value in &values {
            assert!(
                self.members_open().is_none(),
                "something is proposed behind an open change of the members"
            );
            self.log.push(value.clone());
        }
        self.persist(Record::Accepted { ballot, start, chosen: self.chosen, values }, out)
    }

    /// Values that are chosen come from someone who knows: `values` are those behind `start` in the log of `ballot`, all
    /// chosen.
    pub(super) fn learn_from(
        &mut self,
        ballot: Ballot,
        start: Slot,
        values: &[Value],
        out: &mut dyn Sink<Paxos>,
    ) {
        assert!(
            start <= self.chosen,
            "chosen values leave a gap: they come behind {start}, known is {}",
            self.chosen
        );
        let skip = (self.chosen.0 - start.0) as usize;
        let mut slot = self.chosen;
        for value in values.iter().skip(skip) {
            slot = slot.next();
            if self.log.value(slot).is_some_and(|held| held != value) {
                // Another value was chosen than the one accepted here, in a higher ballot: whatever follows ours is dead.
                assert!(slot > self.chosen, "two values chosen for {slot}");
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

    /// Everything up to `through` is chosen, and is what the log holds.
    pub(super) fn learn(&mut self, through: Slot, out: &mut dyn Sink<Paxos>) {
        assert!(through <= self.log.last(), "learned what is not held");
        while self.chosen < through {
            let slot = self.chosen.next();
            self.chosen = slot;
            match self.log.value(slot).expect("what is learned is in the log") {
                Value::Payloads(payloads) => {
                    out.emit(Event::Learned { slot, payloads: payloads.to_vec() });
                }
                Value::Members(members) => {
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

    /// Forgets chosen log that everybody holds, up to `everybody`, and the oldest when there is too much.
    pub(super) fn collect(&mut self, everybody: Slot) {
        let gathered = self.gathered.as_ref().map(|(slot, _)| *slot);
        self.log.collect(everybody.min(self.chosen).min(gathered.unwrap_or(self.chosen)));
        let underway = self.snapshot_underway || gathered.is_some();
        let kept = self.settings.log_bytes_kept * if underway { 4 } else { 1 };
        while self.log.bytes() > kept && self.log.start() < self.chosen {
            self.log.collect(self.log.start().next());
        }
        // A user that takes too long over a state begins anew.
        self.gathered.take_if(|(slot, _)| *slot < self.log.start());
    }

    /// Takes a part of a snapshot. Says how many bytes of it are there; `None` when this part does not continue them.
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
        let state = self.incoming.take().expect("it was just completed").bytes.freeze();
        self.taught = self.taught.max(ballot);
        self.install(slot, members.clone(), state.clone(), out);
        self.persist(Record::Installed { ballot, slot, members: members.into(), state }, out);
        Some(total)
    }

    /// A snapshot takes the place of the log up to `slot`.
    pub(super) fn install(
        &mut self,
        slot: Slot,
        members: Vec<Peer>,
        state: Bytes,
        out: &mut dyn Sink<Paxos>,
    ) {
        assert!(slot > self.chosen, "a snapshot from the past");
        if self.log.last() >= slot {
            // What was accepted behind it stays accepted.
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

    /// Tells the user who leads; `again` even if it was told so.
    pub(super) fn tell_leader(&mut self, again: bool, out: &mut dyn Sink<Paxos>) {
        let leader = self.leader.filter(|_| self.is_member(self.me.id)).map(|ballot| ballot.router);
        if leader != self.told || again {
            self.told = leader;
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

    /// Starts to watch a process; one without a link is given as long to get one as a broken link may stay broken.
    pub(super) fn watch(&mut self, process: ProcessId, now: Time) {
        self.detector.watch(process, now);
        if !self.links.contains(&process) {
            self.detector.unlinked(process, now);
        }
    }

    pub(super) fn watch_only(&mut self, processes: &[ProcessId], now: Time) {
        let gone: Vec<_> = self.detector.watched().filter(|watched| !processes.contains(watched)).collect();
        for process in gone {
            self.detector.unwatch(process);
        }
        for process in processes {
            self.watch(*process, now);
        }
    }
}

/// Everybody of these, if there is anybody.
fn destination(to: Vec<ProcessId>) -> Option<Destination> {
    match to[..] {
        [] => None,
        [one] => Some(Destination::One(one)),
        _ => Some(Destination::Many(to)),
    }
}

/// How many processes come in or go between two sets of members.
fn moved(before: &[Peer], after: &[Peer]) -> usize {
    let is_in = |peers: &[Peer], id: ProcessId| peers.iter().any(|peer| peer.id == id);
    before.iter().filter(|peer| !is_in(after, peer.id)).count()
        + after.iter().filter(|peer| !before.contains(peer)).count()
}

/// How many of those voted out are remembered.
const DEPARTED_MAX: usize = 256;

/// What [`Message::Chunk`] carries.
pub(super) struct Chunk {
    pub(super) slot: Slot,
    pub(super) members: Vec<Peer>,
    pub(super) total: u64,
    pub(super) offset: u64,
    pub(super) bytes: Bytes,
}
