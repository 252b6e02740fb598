//! The state of a router in every role: promise, log, learned slots, links.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};

use super::{Ballot, Log, Settings, Slot, SlotValue, pulse::Contacts};
use crate::{
    detector::Detector,
    id::{Peer, ProcessId},
    seam::Ticket,
    time::Time,
};

#[derive(Debug)]
pub(super) struct Core {
    pub(super) me: Peer,
    pub(super) settings: Settings,
    /// The highest ballot promised: the router takes part in no lower ballot.
    pub(super) promised: Ballot,
    /// The ballot in which the log after `chosen` was accepted. That part of the log is a prefix of the
    /// proposals of this ballot's leader.
    pub(super) accepted: Ballot,
    /// The log. Slots up to `chosen` are chosen, and later slots were accepted in the ballot `accepted`.
    pub(super) log: Log,
    /// The last slot known to be chosen; everything up to it is learned.
    pub(super) chosen: Slot,
    /// The ballot of the newest log from which this router learned chosen slots. Slots that it learned as a
    /// follower of that log's leader do not count.
    pub(super) taught: Ballot,
    /// The members after `chosen`, in id order.
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
    /// Processes to which this router has requested links from the runtime, with their addresses.
    pub(super) reached: BTreeMap<ProcessId, String>,
    pub(super) detector: Detector,
    pub(super) contacts: Contacts,
    /// Members that have stopped of their own will, before a restart. Each has the time until which no router
    /// votes it out for the stop. Every router keeps this list, because often it was the leader that stopped.
    pub(super) away: BTreeMap<ProcessId, Time>,
    /// The record of the last promise.
    pub(super) promise: Option<Ticket>,
    /// The last record of the log.
    pub(super) held_record: Option<Ticket>,
    /// The record up to which all records are durable.
    pub(super) durable: Option<Ticket>,
    /// Approximate bytes of records since the last checkpoint.
    pub(super) journaled: usize,
    /// The slot of the state that the user has begun to gather for the disk, and the members after it. The
    /// log after that slot is kept.
    pub(super) gathered: Option<(Slot, Vec<Peer>)>,
    /// The leader that the user last learned.
    pub(super) announced_leader: Option<ProcessId>,
    /// Whether a snapshot is being sent. Until it has arrived, more of the log after the snapshot is kept,
    /// so that the snapshot is not too old when it arrives.
    pub(super) snapshot_underway: bool,
    /// The received part of a snapshot of known length.
    pub(super) incoming: Option<Incoming>,
    /// A snapshot that arrives in parts.
    pub(super) arriving: Option<Arriving>,
}

/// An arriving snapshot of known length.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) ballot: Ballot,
    pub(super) slot: Slot,
    pub(super) total: u64,
    pub(super) bytes: BytesMut,
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
            announced_leader: None,
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

    /// Returns the members after the last slot of the log, if that slot is a change of the members and not
    /// known to be chosen.
    pub(super) fn members_open(&self) -> Option<&Arc<[Peer]>> {
        let last = self.log.last();
        match self.log.value(last) {
            Some(SlotValue::Members(members)) if last > self.chosen => Some(members),
            _ => None,
        }
    }

    /// Returns the members of the newest change in the log, chosen or not, because a router that holds a
    /// change acts on it.
    pub(super) fn acting(&self) -> &[Peer] {
        self.members_open().map_or(&self.members, |open| open)
    }

    /// Returns the newest log of which this process knows a part: its ballot, and its known end. If chosen
    /// slots were learned from a later reign than `accepted`, the slots accepted after these chosen slots
    /// are dead.
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

    /// Whether each change of the members in `values`, which come after `start`, is one step from the chosen
    /// members or from the previous change. A correct log contains only such changes.
    pub(super) fn are_steps(&self, start: Slot, values: &[SlotValue]) -> bool {
        let mut before = &self.members[..];
        let skip = self.chosen.0.saturating_sub(start.0) as usize;
        values.iter().skip(skip).all(|value| match value {
            SlotValue::Payloads(_) => true,
            SlotValue::Members(members) => moved(std::mem::replace(&mut before, members), members) <= 1,
        })
    }

    /// Whether `process` is a member, or will be one if an open change is chosen.
    pub(super) fn concerns(&self, process: ProcessId) -> bool {
        self.is_member(process) || self.acting().iter().any(|peer| peer.id == process)
    }

    /// Returns the slot through which this process holds the proposals of the leader of `ballot`; `None`
    /// before the first sync in `ballot`.
    pub(super) fn held(&self, ballot: Ballot) -> Option<Slot> {
        (self.accepted == ballot).then(|| self.log.last())
    }

    /// Whether enough was written since the last checkpoint to make the next one.
    pub(super) fn wants_checkpoint(&self) -> bool {
        let enough = self.settings.checkpoint_bytes.is_some_and(|most| self.journaled >= most);
        enough && self.chosen > Slot::ZERO
    }

    /// Returns the record, unless it is durable.
    pub(super) fn awaited(&self, record: Option<Ticket>) -> Option<Ticket> {
        record.filter(|record| self.durable.is_none_or(|durable| durable < *record))
    }

    /// Returns the record of the last promise, if it is not durable yet.
    pub(super) fn promise_awaited(&self) -> Option<Ticket> {
        self.awaited(self.promise)
    }

    /// Forgets the chosen log up to `everybody`, which every member holds, and the oldest part of the
    /// remaining log if there is too much.
    pub(super) fn collect(&mut self, everybody: Slot) {
        let gathered = self.gathered.as_ref().map(|(slot, _)| *slot);
        self.log.collect(everybody.min(self.chosen).min(gathered.unwrap_or(self.chosen)));
        let underway = self.snapshot_underway || gathered.is_some();
        let kept = self.settings.log_bytes_kept * if underway { 4 } else { 1 };
        while self.log.bytes() > kept && self.log.start() < self.chosen {
            self.log.collect(self.log.start().next());
        }
        // If the log after the state that the user gathers is gone, the user must gather a state again.
        self.gathered.take_if(|(slot, _)| *slot < self.log.start());
    }

    /// Starts to watch a process. If the process has no link, it gets as much time as if its link had broken
    /// now.
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

/// Returns the number of processes that join plus the number of processes that leave between two sets of
/// members.
pub(super) fn moved(before: &[Peer], after: &[Peer]) -> usize {
    let is_in = |peers: &[Peer], id: ProcessId| peers.iter().any(|peer| peer.id == id);
    before.iter().filter(|peer| !is_in(after, peer.id)).count()
        + after.iter().filter(|peer| !before.contains(peer)).count()
}

/// The contents of [`Message::Chunk`](super::Message::Chunk).
pub(super) struct Chunk {
    pub(super) slot: Slot,
    pub(super) members: Vec<Peer>,
    pub(super) total: u64,
    pub(super) offset: u64,
    pub(super) bytes: Bytes,
}

/// The contents of [`Message::Part`](super::Message::Part).
pub(super) struct SnapshotPart {
    pub(super) slot: Slot,
    pub(super) members: Vec<Peer>,
    pub(super) number: u64,
    pub(super) last: bool,
    pub(super) bytes: Bytes,
}

/// A snapshot that arrives in parts.
#[derive(Debug)]
pub(super) struct Arriving {
    pub(super) ballot: Ballot,
    pub(super) slot: Slot,
    /// Number of parts received.
    pub(super) taken: u64,
    /// The bytes received, kept only if there is a disk.
    pub(super) bytes: BytesMut,
}
