//! Feeding the user's state to processes that lack more than the kept log.
//!
//! Without a disk, the leader asks its user for the state ([`Event::SnapshotWanted`]). The user gives it
//! whole, in the same turn or later, or announces parts and gives each part on request. Parts go to all
//! processes that waited when the first part was sent, at the pace of the slowest. A part that all of these
//! have taken is dropped, so only a few parts of a large state are in memory. Processes that begin to wait
//! later get the next snapshot.
//!
//! With a disk, every router also needs a state for its disk, and snapshots are sent whole. A user that
//! gathers the state over many turns announces the slot at which it begins. The router keeps the log from
//! that slot on until it has the state. If this log becomes too long, the router drops it. Then the state
//! that the user gathered is useless, and the router asks the user again.

use bytes::{Bytes, BytesMut};

use super::{
    Ballot, Core, Event, Message, Paxos, Record, Reign, Slot, State,
    core::{Arriving, SnapshotPart},
    reign::{FollowerPhase, OutgoingParts, OutgoingSnapshot, Progress, SnapshotContent},
};
use crate::{id::ProcessId, seam::Sink};

impl Paxos {
    /// Takes the user's state after `slot`: for the disk, and for processes that wait for it.
    pub(super) fn snapshot(&mut self, slot: Slot, state: Bytes, out: &mut dyn Sink<Paxos>) {
        let Paxos { core, state: own, checkpoint, .. } = self;
        let begun = core.gathered.take_if(|(gathered, _)| *gathered == slot);
        let begun = begun.map(|(_, members)| members);
        let members = begun.clone().or_else(|| (slot == core.chosen).then(|| core.members.clone()));
        let on_disk = core.settings.checkpoint_bytes.is_some();
        if let Some(members) = &members
            && core.wants_checkpoint()
        {
            *checkpoint = Some(core.checkpoint(slot, members, state.clone(), out));
        }
        let State::Leader(reign) = own else { return };
        match (begun, members) {
            // Other processes may have begun to wait while the state was gathered.
            (Some(members), _) if reign.asked.is_some() => reign.asked = Some((slot, members)),
            (None, None) if on_disk => return reign.want_again(core, out),
            _ => {}
        }
        reign.snapshot(core, slot, state, out);
    }

    /// Notes that the user has begun to gather its state after `slot`, and will give it whole.
    pub(super) fn gather(&mut self, slot: Slot, out: &mut dyn Sink<Paxos>) {
        if slot == self.core.chosen {
            self.core.gathered = Some((slot, self.core.members.clone()));
        } else {
            // The members after that slot are no longer known, so the user must give a newer state.
            out.emit(Event::SnapshotWanted { slot: self.core.chosen });
        }
    }
}

impl Reign {
    /// Begins to send a snapshot to processes that wait for it, or asks the user for one.
    pub(super) fn offer_snapshot(&mut self, core: &mut Core, out: &mut dyn Sink<Paxos>) {
        match &self.snapshot {
            Some(OutgoingSnapshot { content: SnapshotContent::Parts(parts), .. }) if parts.first > 0 => {
                // The first parts of the snapshot are gone, so waiting processes get the next snapshot.
            }
            Some(held) if held.slot >= core.log.start() => {
                let slot = held.slot;
                let mut started = Vec::new();
                for (id, peer) in &mut self.peers {
                    if peer.phase == FollowerPhase::Waiting {
                        peer.phase = FollowerPhase::Installing { slot, sent: 0, taken: 0 };
                        started.push(*id);
                    }
                }
                for id in started {
                    self.send_chunks(core, id, out);
                }
                core.snapshot_underway = true;
                self.want_part(core, out);
            }
            _ if self.asked.is_none() => {
                self.asked = Some((core.chosen, core.members.clone()));
                core.snapshot_underway = true;
                out.emit(Event::SnapshotWanted { slot: core.chosen });
            }
            _ => {}
        }
    }

    /// Asks the user again, because its gathered state is useless.
    fn want_again(&mut self, core: &Core, out: &mut dyn Sink<Paxos>) {
        if self.asked.is_some() {
            self.asked = Some((core.chosen, core.members.clone()));
            out.emit(Event::SnapshotWanted { slot: core.chosen });
        }
    }

    /// Whether this router has requested a snapshot from the user and has not got it.
    pub(super) fn asks_for_snapshot(&self) -> bool {
        self.asked.is_some()
    }

    /// Takes the snapshot that this router requested from the user.
    pub(super) fn snapshot(&mut self, core: &mut Core, slot: Slot, state: Bytes, out: &mut dyn Sink<Paxos>) {
        let Some((asked, members)) = self.asked.take() else { return };
        assert!(asked == slot, "the snapshot has the slot that was asked for, {asked}, not {slot}");
        self.hold(core, OutgoingSnapshot { slot, members, content: SnapshotContent::Whole(state) }, out);
    }

    /// Notes that the user has begun a snapshot of the state after `slot`, and will give it in parts.
    pub(super) fn snapshot_begins(&mut self, core: &mut Core, slot: Slot, out: &mut dyn Sink<Paxos>) {
        if self.asked.is_none() {
            out.emit(Event::SnapshotUnwanted { slot });
            return;
        }
        self.asked = Some((core.chosen, core.members.clone()));
        if slot == core.chosen {
            let (_, members) = self.asked.take().expect("the wanted snapshot was just set");
            self.hold(
                core,
                OutgoingSnapshot { slot, members, content: SnapshotContent::Parts(OutgoingParts::default()) },
                out,
            );
        } else {
            // The members after that slot are no longer known, so the user must give a newer state.
            out.emit(Event::SnapshotWanted { slot: core.chosen });
        }
    }

    fn hold(&mut self, core: &mut Core, held: OutgoingSnapshot, out: &mut dyn Sink<Paxos>) {
        self.snapshot = Some(held);
        for peer in self.peers.values_mut() {
            // A process that is still receiving an older snapshot starts over, because the log after that
            // snapshot is gone.
            if matches!(peer.phase, FollowerPhase::Installing { .. }) {
                peer.phase = FollowerPhase::Waiting;
            }
        }
        self.offer_snapshot(core, out);
    }

    /// Takes the next part from the user.
    pub(super) fn snapshot_part(
        &mut self,
        core: &mut Core,
        slot: Slot,
        bytes: Bytes,
        last: bool,
        out: &mut dyn Sink<Paxos>,
    ) {
        let Some(OutgoingSnapshot { slot: held, content: SnapshotContent::Parts(parts), .. }) =
            &mut self.snapshot
        else {
            return;
        };
        if *held != slot || !std::mem::take(&mut parts.wanted) {
            return;
        }
        parts.kept.push_back(bytes);
        parts.whole = last;
        let takers =
            self.peers.iter().filter(|(_, peer)| matches!(peer.phase, FollowerPhase::Installing { .. }));
        for id in takers.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.send_chunks(core, id, out);
        }
        self.want_part(core, out);
    }

    /// Asks the user for the next part, if there is room for it.
    fn want_part(&mut self, core: &Core, out: &mut dyn Sink<Paxos>) {
        if let Some(OutgoingSnapshot { slot, content: SnapshotContent::Parts(parts), .. }) =
            &mut self.snapshot
            && !parts.whole
            && !parts.wanted
            && parts.kept.len() < PARTS_KEPT_MAX
        {
            parts.wanted = true;
            out.emit(Event::SnapshotPartWanted { slot: *slot, bytes: core.settings.chunk_bytes });
        }
    }

    /// Notes how much of the snapshot a process has received: bytes if the snapshot is sent whole, parts
    /// otherwise.
    pub(super) fn chunk_taken(
        &mut self,
        core: &mut Core,
        from: ProcessId,
        slot: Slot,
        offset: u64,
        out: &mut dyn Sink<Paxos>,
    ) {
        let (Some(peer), Some(held)) = (self.peers.get_mut(&from), &self.snapshot) else { return };
        let FollowerPhase::Installing { slot: expected, sent, taken } = peer.phase else { return };
        if slot != expected || offset > sent || offset < taken {
            return;
        }
        let ends = match &held.content {
            SnapshotContent::Whole(state) => offset == state.len() as u64,
            SnapshotContent::Parts(parts) => parts.whole && offset == parts.end(),
        };
        peer.phase = FollowerPhase::Installing { slot, sent, taken: offset };
        if ends {
            peer.chosen = peer.chosen.max(slot);
            let position = peer.chosen;
            self.feed(core, from, position, out);
        } else {
            self.send_chunks(core, from, out);
        }
        self.drop_parts();
        self.want_part(core, out);
    }

    /// Forgets the parts that every receiver has taken.
    fn drop_parts(&mut self) {
        let taken = self.peers.values().filter_map(|peer| match peer.phase {
            FollowerPhase::Installing { taken, .. } => Some(taken),
            _ => None,
        });
        let (taken, Some(OutgoingSnapshot { content: SnapshotContent::Parts(parts), .. })) =
            (taken.min(), &mut self.snapshot)
        else {
            return;
        };
        while parts.first < taken.unwrap_or(0) && parts.kept.pop_front().is_some() {
            parts.first += 1;
        }
    }

    fn send_chunks(&mut self, core: &mut Core, to: ProcessId, out: &mut dyn Sink<Paxos>) {
        let (Some(peer), Some(held)) = (self.peers.get_mut(&to), &self.snapshot) else { return };
        match &held.content {
            SnapshotContent::Whole(state) => send_whole(core, self.ballot, peer, held, state, out),
            SnapshotContent::Parts(parts) => send_parts(core, self.ballot, peer, held, parts, out),
        }
    }

    /// Frees the snapshot when nobody needs it any longer. Otherwise continues to send it, because the
    /// receiver that delayed it may have failed.
    pub(super) fn release_snapshot(&mut self, core: &mut Core, out: &mut dyn Sink<Paxos>) {
        let is_in = |phase: fn(&FollowerPhase) -> bool| self.peers.values().any(|peer| phase(&peer.phase));
        let installing = is_in(|phase| matches!(phase, FollowerPhase::Installing { .. }));
        let waiting = is_in(|phase| *phase == FollowerPhase::Waiting);
        let begun = matches!(&self.snapshot, Some(OutgoingSnapshot { content: SnapshotContent::Parts(parts), .. }) if parts.first > 0);
        if installing {
            self.drop_parts();
            self.want_part(core, out);
        } else if (!waiting || begun)
            && let Some(OutgoingSnapshot { slot, content, .. }) = self.snapshot.take()
        {
            if let SnapshotContent::Parts(_) = content {
                out.emit(Event::SnapshotUnwanted { slot });
            }
            if waiting {
                self.offer_snapshot(core, out);
            }
        }
        core.snapshot_underway = self.snapshot.is_some() || self.asked.is_some();
    }
}

fn send_whole(
    core: &Core,
    ballot: Ballot,
    peer: &mut Progress,
    held: &OutgoingSnapshot,
    state: &Bytes,
    out: &mut dyn Sink<Paxos>,
) {
    let FollowerPhase::Installing { slot, sent, taken } = &mut peer.phase else { return };
    let total = state.len() as u64;
    let chunk = core.settings.chunk_bytes.max(1) as u64;
    // Four chunks in flight hide the round trip, and do not delay other traffic on the link for long.
    while (*sent == 0 || *sent < total) && *sent < *taken + 4 * chunk {
        let end = total.min(*sent + chunk);
        let bytes = state.slice(*sent as usize..end as usize);
        let members = held.members.clone();
        let message = Message::Chunk { ballot, slot: *slot, members, total, offset: *sent, bytes };
        core.send(peer.peer.id, message, out);
        *sent = end;
        if total == 0 {
            break;
        }
    }
}

fn send_parts(
    core: &Core,
    ballot: Ballot,
    peer: &mut Progress,
    held: &OutgoingSnapshot,
    parts: &OutgoingParts,
    out: &mut dyn Sink<Paxos>,
) {
    let FollowerPhase::Installing { slot, sent, .. } = &mut peer.phase else { return };
    while let Some(bytes) = parts.kept.get((*sent - parts.first) as usize) {
        let (number, bytes, members) = (*sent, bytes.clone(), held.members.clone());
        *sent += 1;
        let last = parts.whole && *sent == parts.end();
        core.send(peer.peer.id, Message::Part { ballot, slot: *slot, members, number, last, bytes }, out);
    }
}

/// Maximum number of parts in memory, and so in flight to the slowest receiver.
const PARTS_KEPT_MAX: usize = 4;

impl Core {
    /// Takes a part of a snapshot and hands it to the user. Returns the number of parts received so far;
    /// `None` if this part does not continue the earlier parts.
    pub(super) fn take_part(
        &mut self,
        ballot: Ballot,
        part: SnapshotPart,
        out: &mut dyn Sink<Paxos>,
    ) -> Option<u64> {
        let SnapshotPart { slot, members, number, last, bytes } = part;
        if slot <= self.chosen {
            return None;
        }
        if number == 0 {
            self.arriving = Some(Arriving { ballot, slot, taken: 0, bytes: BytesMut::new() });
        }
        let arriving = self.arriving.as_mut()?;
        if (arriving.ballot, arriving.slot, arriving.taken) != (ballot, slot, number) {
            return None;
        }
        arriving.taken += 1;
        if self.settings.checkpoint_bytes.is_some() {
            arriving.bytes.extend_from_slice(&bytes);
        }
        out.emit(Event::InstallPart { slot, number, bytes });
        if last {
            let state =
                self.arriving.take().expect("the snapshot's last part has just arrived").bytes.freeze();
            self.taught = self.taught.max(ballot);
            self.install(slot, members.clone(), Bytes::new(), out);
            self.persist(Record::Installed { ballot, slot, members: members.into(), state }, out);
        }
        Some(number + 1)
    }
}
