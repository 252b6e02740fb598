//! Leading: the leader opens slots, feeds followers, and chooses slots that a majority holds.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{
    Ballot, Core, Event, Message, Paxos, Slot, SlotValue,
    reign::{FollowerPhase, Progress, Reign, Rounds},
};
use crate::{
    id::{Peer, ProcessId},
    quorum,
    seam::{Sink, Ticket},
    time::Time,
};

impl Reign {
    /// Begins a reign over the log that results from phase 1. `ticket` belongs to that log's record.
    pub(super) fn begin(core: &Core, ballot: Ballot, ticket: Ticket, out: &mut dyn Sink<Paxos>) -> Reign {
        assert!(
            core.accepted == ballot && core.promised == ballot,
            "a leader accepts its own proposal first"
        );
        // Processes that an open change would make members are fed already, because a majority of the new
        // members must hold the change.
        let would_be = core.members_open().map(|open| open.iter()).into_iter().flatten();
        let peers = core.members.iter().chain(would_be).filter(|peer| peer.id != core.me.id);
        let open: VecDeque<_> =
            core.log.range(core.chosen, core.log.last()).iter().map(SlotValue::bytes).collect();
        out.emit(Event::Reign { ballot, start: core.log.last() });
        Reign {
            ballot,
            peers: peers
                .map(|peer| (peer.id, Progress::new(peer.clone(), core.is_member(peer.id))))
                .collect(),
            start: core.log.last(),
            settled: false,
            rounds: Rounds::default(),
            own: core.chosen,
            tickets: VecDeque::from([(ticket, core.log.last())]),
            pending: VecDeque::new(),
            pending_bytes: 0,
            window: core.settings.window_min.max(1),
            open_bytes: open.iter().sum(),
            open,
            announced: core.chosen,
            announce_at: None,
            snapshot: None,
            asked: None,
            removals: VecDeque::new(),
            leaving: Vec::new(),
        }
    }

    /// Takes proposals. Returns `false` if there was no room for some of them. If no proposal waits, even a
    /// proposal that is larger than the whole room is taken, because it could never be proposed otherwise.
    pub(super) fn propose(
        &mut self,
        core: &mut Core,
        payloads: impl IntoIterator<Item = Bytes>,
        out: &mut dyn Sink<Paxos>,
    ) -> bool {
        for payload in payloads {
            if self.pending_bytes > 0 && self.pending_bytes + payload.len() > core.settings.pending_bytes_max
            {
                return false;
            }
            self.pending_bytes += payload.len();
            self.pending.push_back(payload);
        }
        if self.pending_bytes >= core.settings.batch_bytes_max {
            self.open_slots(core, out, true);
        }
        true
    }

    /// Opens slots for waiting proposals, as far as the window allows. With `full`, only full batches get
    /// slots.
    pub(super) fn open_slots(&mut self, core: &mut Core, out: &mut dyn Sink<Paxos>, full: bool) {
        let batch_max = core.settings.batch_bytes_max;
        while !self.pending.is_empty()
            && (!full || self.pending_bytes >= batch_max)
            && self.open_bytes < core.settings.in_flight_bytes_max
            && core.members_open().is_none()
            && core.is_member(core.me.id)
        {
            if self.open.len() >= self.window {
                // Full batches wait behind a full window, so the window is the limit, and grows.
                if self.pending_bytes < batch_max || self.window >= core.settings.window_max {
                    break;
                }
                self.window += 1;
            } else if self.pending_bytes * 8 < batch_max && self.open.len() * 2 > self.window {
                // Batches are small although the window is half empty, so the window shrinks, to make batches
                // larger.
                self.window = (self.window - 1).max(core.settings.window_min.max(1));
            }
            let mut bytes = 0;
            let mut count = 0;
            for payload in &self.pending {
                if count > 0 && bytes + payload.len() > batch_max {
                    break;
                }
                bytes += payload.len();
                count += 1;
            }
            self.pending_bytes -= bytes;
            let payloads = self.pending.drain(..count).collect();
            self.append(core, SlotValue::Payloads(payloads), out);
        }
    }

    /// Proposes a value for the next slot (phase 2a).
    pub(super) fn append(&mut self, core: &mut Core, value: SlotValue, out: &mut dyn Sink<Paxos>) {
        assert!(core.members_open().is_none(), "no value is proposed behind an open change of the members");
        self.open.push_back(value.bytes());
        self.open_bytes += value.bytes();
        let ticket = core.append(self.ballot, vec![value.clone()], out);
        let slot = core.log.last();
        self.tickets.push_back((ticket, slot));
        let accept = Message::Accept { ballot: self.ballot, slot, chosen: core.chosen, value };
        self.note_announced(core);
        core.send_all(self.streaming(), accept, out);
    }

    pub(super) fn persisted(&mut self, ticket: Ticket) {
        while let Some((_, slot)) = self.tickets.pop_front_if(|(written, _)| *written <= ticket) {
            self.own = self.own.max(slot);
        }
    }

    /// Handles phase 2b of a follower, which holds the leader's log up to slot `through`.
    pub(super) fn accepted(&mut self, core: &Core, from: ProcessId, through: Slot) {
        if let Some(peer) = self.peers.get_mut(&from)
            && through <= core.log.last()
        {
            peer.acked = peer.acked.max(through);
        }
    }

    /// Returns the last slot that may be chosen, because a majority holds it. The last slot of the log may be
    /// a change of the members. It needs a majority of the new members, so that the new members hold the
    /// whole chosen prefix before they decide anything. Earlier slots need a majority of the old members.
    fn choosable(&self, core: &Core) -> Slot {
        let through = self.held_by_majority(core, &core.members);
        let last = core.log.last();
        match core.members_open() {
            Some(open) if self.held_by_majority(core, open) >= last => last,
            Some(_) => through.min(Slot(last.0 - 1)),
            None => through,
        }
    }

    /// Whether a majority of the members holds the log with which this reign began, in the reign's ballot.
    /// Without that ground, two reigns could propose two changes of the same members, and each find a
    /// majority that knows nothing of the other reign.
    pub(super) fn has_ground(&self, core: &Core) -> bool {
        self.held_by_majority(core, &core.members) >= self.start
    }

    fn held_by_majority(&self, core: &Core, members: &[Peer]) -> Slot {
        if members.is_empty() {
            // The founder's first record is not durable yet.
            return core.chosen;
        }
        let mut held: Vec<Slot> = members
            .iter()
            .map(|peer| match self.peers.get(&peer.id) {
                Some(progress) => progress.acked,
                None if peer.id == core.me.id => self.own,
                None => Slot::ZERO,
            })
            .collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        held[quorum::majority(members.len()) - 1]
    }

    /// Learns the slots that a majority holds.
    pub(super) fn advance(&mut self, core: &mut Core, out: &mut dyn Sink<Paxos>) {
        let through = self.choosable(core);
        if through > core.chosen {
            for _ in core.chosen.0..through.0 {
                self.open_bytes -= self.open.pop_front().expect("every slot behind the chosen ones is open");
            }
            core.learn(through, out);
        }
    }

    fn streaming(&self) -> Vec<ProcessId> {
        self.peers
            .iter()
            .filter(|(_, peer)| peer.phase == FollowerPhase::Streaming)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Tells the followers which slots are chosen if they do not know it, and if the news has waited long
    /// enough for another message to carry it.
    pub(super) fn announce_chosen(&mut self, core: &Core, now: Time, out: &mut dyn Sink<Paxos>) {
        if self.announced < core.chosen
            && *self.announce_at.get_or_insert(now + core.settings.chosen_after) <= now
        {
            self.note_announced(core);
            let message = Message::Chosen { ballot: self.ballot, through: core.chosen };
            core.send_all(self.streaming(), message, out);
        }
    }

    /// Notes that a message to the followers carries the last chosen slot.
    fn note_announced(&mut self, core: &Core) {
        self.announced = core.chosen;
        self.announce_at = None;
    }

    /// Sends a sign of life.
    pub(super) fn heartbeat(&mut self, core: &Core, out: &mut dyn Sink<Paxos>) {
        self.note_announced(core);
        core.send_all(self.streaming(), self.beat(core, core.log.last()), out);
        let probed = self
            .peers
            .iter()
            .filter(|(id, peer)| peer.phase != FollowerPhase::Streaming && core.links.contains(id))
            .map(|(id, _)| *id)
            .collect();
        core.send_all(probed, self.beat(core, Slot::ZERO), out);
    }

    fn beat(&self, core: &Core, sent: Slot) -> Message {
        Message::Heartbeat { ballot: self.ballot, chosen: core.chosen, collect: self.everybody(core), sent }
    }

    /// Returns the last slot that every follower holds, or will hold once it has installed a snapshot.
    pub(super) fn everybody(&self, core: &Core) -> Slot {
        let asked = self.asked.as_ref().map(|(slot, _)| *slot);
        let snapshot = self.snapshot.as_ref().map(|held| held.slot).or(asked);
        let least = self.peers.values().map(|peer| match peer.phase {
            FollowerPhase::Installing { slot, .. } => slot,
            FollowerPhase::Waiting => snapshot.unwrap_or(core.chosen),
            _ => peer.chosen,
        });
        least.min().unwrap_or(core.chosen).min(core.chosen)
    }

    /// Asks `peer` to report its log, because its link is new or lost something.
    pub(super) fn probe(&mut self, core: &Core, peer: ProcessId, out: &mut dyn Sink<Paxos>) {
        if let Some(progress) = self.peers.get_mut(&peer) {
            progress.phase = FollowerPhase::Probing;
            if core.links.contains(&peer) {
                core.send(peer, self.beat(core, Slot::ZERO), out);
            }
        }
    }

    /// Handles a follower's report of its log.
    pub(super) fn following(
        &mut self,
        core: &mut Core,
        from: ProcessId,
        through: Option<Slot>,
        chosen: Slot,
        lacks: bool,
        out: &mut dyn Sink<Paxos>,
    ) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if through.unwrap_or(chosen).max(chosen) > core.log.last() {
            return;
        }
        peer.chosen = peer.chosen.max(chosen);
        peer.acked = peer.acked.max(through.unwrap_or(Slot::ZERO));
        let feed = match peer.phase {
            FollowerPhase::Probing => true,
            FollowerPhase::CatchingUp(sent) => lacks || chosen >= sent,
            FollowerPhase::Waiting => false,
            FollowerPhase::Installing { slot, .. } => lacks || chosen >= slot,
            FollowerPhase::Streaming => lacks,
        };
        if feed {
            self.feed(core, from, through.unwrap_or(chosen).max(chosen), out);
        }
    }

    /// Sends the log after `position`.
    pub(super) fn feed(&mut self, core: &mut Core, to: ProcessId, position: Slot, out: &mut dyn Sink<Paxos>) {
        let ballot = self.ballot;
        let Some(peer) = self.peers.get_mut(&to) else { return };
        if position < core.log.start() {
            peer.phase = FollowerPhase::Waiting;
            self.offer_snapshot(core, out);
            return;
        }
        let part = core.log.reach(position, core.chosen.max(position), core.settings.chunk_bytes);
        if part < core.chosen {
            peer.phase = FollowerPhase::CatchingUp(part);
            let values = core.log.range(position, part);
            core.send(to, Message::CatchUp { ballot, start: position, values }, out);
        } else {
            peer.phase = FollowerPhase::Streaming;
            let values = core.log.range(position, core.log.last());
            core.send(to, Message::Sync { ballot, start: position, chosen: core.chosen, values }, out);
        }
    }
}
