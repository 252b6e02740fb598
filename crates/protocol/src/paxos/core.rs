//! The state of a router in every role: promise, log, learned slots, links.

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
    /// The router takes part in no ballot below this one.
    pub(super) promised: Ballot,
    /// The ballot of the log behind `chosen`, which is a prefix of that leader's proposals.
    pub(super) accepted: Ballot,
    /// The log: chosen up to `chosen`, accepted in `accepted` behind it.
    pub(super) log: Log,
    /// The last slot known to be chosen; everything up to it is learned.
    pub(super) chosen: Slot,
    /// The ballot of the newest log from which chosen slots were learned, other than by following its leader.
    pub(super) taught: Ballot,
    /// The members behind `chosen`, in id order.
    pub(super) members: Vec<Peer>,
    /// Whether `members` changed during this turn.
    pub(super) members_changed: bool,
    /// Routers that were voted out lately. They may never join again: an old request for admission may still
    /// be on its way when its sender is gone.
    pub(super) departed: VecDeque<ProcessId>,
    /// The reign that this process follows or leads.
    pub(super) leader: Option<Ballot>,
    /// The highest round heard of.
    pub(super) round: u64,
    pub(super) links: BTreeSet<ProcessId>,
    /// Processes that the runtime was asked to reach, with their addresses.
    pub(super) reached: BTreeMap<ProcessId, String>,
    pub(super) detector: Detector,
    pub(super) contacts: Contacts,
    /// Members that have stopped for a moment, of their own will, and until when nobody votes them out for
    /// it. Every router keeps this list, because often it was the leader that stopped.
    pub(super) away: BTreeMap<ProcessId, Time>,
    /// The record of the last promise.
    promise: Option<Ticket>,
    /// The last record of the log.
    held_record: Option<Ticket>,
    /// Records up to this one are durable.
    pub(super) durable: Option<Ticket>,
    /// Approximate bytes of records since the last checkpoint.
    pub(super) journaled: usize,
    /// The slot of the state that the user has begun to gather for the disk, and the members behind it. The
    /// log behind that slot is kept.
    pub(super) gathered: Option<(Slot, Vec<Peer>)>,
    /// The leader that the user last learned of.
    told: Option<ProcessId>,
    /// Whether a snapshot is being sent. The log behind it is kept longer then, so that the snapshot is not
    /// too old when it arrives.
    pub(super) snapshot_underway: bool,
    /// The received part of a snapshot of known length.
    pub(super) incoming: Option<Incoming>,
    /// A snapshot that arrives in parts.
    pub(super) arriving: Option<Arriving>,
}

/// An arriving snapshot of known length.
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

    /// Returns the members except this process.
    pub(super) fn others(&self) -> Vec<ProcessId> {
        self.members.iter().map(|peer| peer.id).filter(|id| *id != self.me.id).collect()
    }

    /// Returns the members that the end of the log would make, if it is a stop command that is not known to
    /// be chosen.
    pub(super) fn members_open(&self) -> Option<&Arc<[Peer]>> {
        let last = self.log.last();
        match self.log.value(last) {
            Some(Value::Members(members)) if last > self.chosen => Some(members),
            _ => None,
        }
    }

    /// Returns the members of the newest change in the log, chosen or not, because a router that holds a
    /// change acts on it.
    pub(super) fn acting(&self) -> &[Peer] {
        self.members_open().map_or(&self.members, |open| open)
    }

    /// Returns the newest log of which this process knows a part: its ballot, and its known end. If chosen
    /// slots were learned from a later reign than `accepted`, the slots accepted behind them are dead.
    pub(super) fn known(&self) -> (Ballot, Slot) {
        if self.taught > self.accepted {
            (self.taught, self.chosen)
        } else {
            (self.accepted, self.log.last())
        }
    }

    /// Returns the members of the newest change in the log that is [`known`](Core::known).
    pub(super) fn members_known(&self) -> &[Peer] {
        if self.known().1 > self.chosen { self.acting() } else { &self.members }
    }

    /// Whether each change of the members in `values`, which come behind `start`, is one step from the chosen
    /// members or from the previous change. No correct log has others.
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

    /// Returns the slot through which this process holds the proposals of the leader of `ballot`; `None`
    /// before its first sync.
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

    /// Returns the record, unless it is durable.
    fn awaited(&self, record: Option<Ticket>) -> Option<Ticket> {
        record.filter(|record| self.durable.is_none_or(|durable| durable < *record))
    }

    /// Sends a report of what this process holds, once that is durable.
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

    /// Sends a message once the last promise is durable: a ballot that others hear of is never used again.
    pub(super) fn send(&self, to: ProcessId, message: Message, out: &mut dyn Sink<Paxos>) {
        out.send(Destination::One(to), message, self.awaited(self.promise));
    }

    /// Sends a message about ballots. It waits only for the record of the promise.
    pub(super) fn send_vote(&self, to: ProcessId, message: Message, out: &mut dyn Sink<Paxos>) {
        match self.promise_awaited() {
            Some(promise) => out.send(Destination::One(to), message, Some(promise)),
            None => out.send_aside(Destination::One(to), message),
        }
    }

    /// Returns the record of the last promise, if it is not durable yet.
    pub(super) fn promise_awaited(&self) -> Option<Ticket> {
        self.awaited(self.promise)
    }

    pub(super) fn send_all(&self, to: Vec<ProcessId>, message: Message, out: &mut dyn Sink<Paxos>) {
        if let Some(to) = destination(to) {
            out.send(to, message, self.awaited(self.promise));
        }
    }

    /// Phase 1b: takes part in no ballot below this one from now on.
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

    /// Replaces everything behind `start`, except chosen slots, by `values`: the whole log of the leader of
    /// `ballot`.
    pub(super) fn replace(
        &mut self,
        ballot: Ballot,
        start: Slot,
        values: &[Value],
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

    /// Phase 2b: accepts values behind the end of the log.
    pub(super) fn append(&mut self, ballot: Ballot, values: Vec<Value>, out: &mut dyn Sink<Paxos>) -> Ticket {
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

    /// Learns chosen values from a router that knows them: `values` are those behind `start` in the log of
    /// `ballot`.
    pub(super) fn learn_from(
        &mut self,
        ballot: Ballot,
        start: Slot,
        values: &[Value],
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
                // A higher ballot chose another value than the one accepted here, so everything behind the
                // accepted one is dead.
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

    /// Learns the log's values up to `through`, which are chosen.
    pub(super) fn learn(&mut self, through: Slot, out: &mut dyn Sink<Paxos>) {
        assert!(through <= self.log.last(), "only values that this process holds are learned");
        while self.chosen < through {
            let slot = self.chosen.next();
            self.chosen = slot;
            match self.log.value(slot).expect("a learned value is in the log") {
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

    /// Forgets the chosen log that everybody holds, up to `everybody`, and the oldest part of it if there is
    /// too much.
    pub(super) fn collect(&mut self, everybody: Slot) {
        let gathered = self.gathered.as_ref().map(|(slot, _)| *slot);
        self.log.collect(everybody.min(self.chosen).min(gathered.unwrap_or(self.chosen)));
        let underway = self.snapshot_underway || gathered.is_some();
        let kept = self.settings.log_bytes_kept * if underway { 4 } else { 1 };
        while self.log.bytes() > kept && self.log.start() < self.chosen {
            self.log.collect(self.log.start().next());
        }
        // If the log behind a gathered state is gone, the user must begin again.
        self.gathered.take_if(|(slot, _)| *slot < self.log.start());
    }

    /// Takes a part of a snapshot. Returns the number of bytes received so far; `None` if this part does not
    /// continue them.
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
            // Slots accepted behind the snapshot stay accepted.
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

    /// Announces the leader to the user; with `again` even if the user knows it.
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

    /// Starts to watch a process. A process without a link gets as much time for one as a broken link may
    /// stay broken.
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

/// Returns the destination of these processes, if there are any.
fn destination(to: Vec<ProcessId>) -> Option<Destination> {
    match to[..] {
        [] => None,
        [one] => Some(Destination::One(one)),
        _ => Some(Destination::Many(to)),
    }
}

/// Returns the number of processes that join or leave between two sets of members.
fn moved(before: &[Peer], after: &[Peer]) -> usize {
    let is_in = |peers: &[Peer], id: ProcessId| peers.iter().any(|peer| peer.id == id);
    before.iter().filter(|peer| !is_in(after, peer.id)).count()
        + after.iter().filter(|peer| !before.contains(peer)).count()
}

/// Number of voted-out routers that are remembered.
const DEPARTED_MAX: usize = 256;

/// The contents of [`Message::Chunk`].
pub(super) struct Chunk {
    pub(super) slot: Slot,
    pub(super) members: Vec<Peer>,
    pub(super) total: u64,
    pub(super) offset: u64,
    pub(super) bytes: Bytes,
}
