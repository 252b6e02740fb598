//! The recovery of a router from the records on its disk, and the checkpoint that replaces earlier records.

use bytes::Bytes;

use super::{Corrupt, Event, Paxos, Record, Settings, Slot, State, core::Core, log::Log};
use crate::{
    id::{Peer, ProcessId},
    seam::{Destination, Sink, Ticket},
    time::Time,
    wire::Wire,
};

/// Collects the events that result from the records, for the user.
#[derive(Default)]
struct Replay(Vec<Event>);

impl Sink<Paxos> for Replay {
    fn send(&mut self, _: Destination, _: super::Message, _: Option<Ticket>) {
        unreachable!("nothing is sent while records are read");
    }

    fn send_aside(&mut self, _: Destination, _: super::Message) {
        unreachable!("nothing is sent while records are read");
    }

    fn persist(&mut self, _: Record) -> Ticket {
        // The record is on disk already, so it needs no ticket of its own.
        Ticket(0)
    }

    fn collect(&mut self, _: Ticket, _: &[Ticket]) {}

    fn emit(&mut self, event: Event) {
        self.0.push(event);
    }

    fn reach(&mut self, _: ProcessId, _: &str) {}

    fn forget(&mut self, _: ProcessId) {}
}

impl Paxos {
    /// Creates a router that continues from its durable records; `None` if there are no records. In that case
    /// no process has ever relied on the router, so it may join like a new one.
    ///
    /// The router keeps its promises and its log, and waits for a leader or stands for election like any
    /// follower. Messages that the router had sent without a record count as lost on the way.
    ///
    /// # Errors
    ///
    /// The first record that does not decode or contradicts earlier records.
    pub fn recover(
        me: Peer,
        settings: Settings,
        records: impl IntoIterator<Item = Bytes>,
        now: Time,
    ) -> Result<Option<Paxos>, Corrupt> {
        let mut decoded = Vec::new();
        for mut bytes in records {
            let record = Record::decode(&mut bytes);
            decoded.push(record.map_err(|error| Corrupt::Malformed(decoded.len(), error))?);
        }
        if decoded.is_empty() {
            return Ok(None);
        }
        // A segment may begin with records that a later checkpoint has made unnecessary.
        let begin = decoded.iter().rposition(|record| matches!(record, Record::Checkpoint { .. }));
        let mut core = Core::new(me, settings);
        let mut replay = Replay::default();
        for (number, record) in decoded.into_iter().enumerate().skip(begin.unwrap_or(0)) {
            if !core.replay(record, &mut replay) {
                return Err(Corrupt::Disconnected(number));
            }
        }
        // The user learns of the members at the first input.
        core.members_changed = false;
        let state = if core.concerns(core.me.id) {
            State::Follower
        } else {
            State::Joining { seeds: core.members.clone(), ask_at: now }
        };
        let mut paxos = Paxos::new(core.me.clone(), state, core.settings.clone(), now);
        paxos.core = core;
        paxos.core.count_others_as_away(now);
        paxos.recovered = Some(replay.0);
        Ok(Some(paxos))
    }
}

impl Core {
    /// Applies a record. Returns whether the record follows from earlier records.
    fn replay(&mut self, record: Record, out: &mut Replay) -> bool {
        match record {
            Record::Promised(ballot) => {
                self.promised = self.promised.max(ballot);
            }
            Record::Accepted { ballot, start, chosen, values } => {
                let fits = if ballot == self.accepted { start == self.log.last() } else { start == chosen };
                if !fits || ballot < self.accepted || chosen > start || start > self.log.last() {
                    return false;
                }
                self.learn(chosen, out);
                self.log.truncate(start);
                values.into_iter().for_each(|value| self.log.push(value));
                self.accepted = ballot;
                self.promised = self.promised.max(ballot);
            }
            Record::Learned { ballot, start, values } => {
                if start < self.chosen || start > self.log.last() {
                    return false;
                }
                // The router knew that the slot `start` was chosen when it wrote the record.
                self.learn(start, out);
                if !self.are_steps(start, &values) {
                    return false;
                }
                self.learn_from(ballot, start, &values, out);
            }
            Record::Installed { ballot, slot, members, state } => {
                if slot <= self.chosen {
                    return false;
                }
                self.taught = self.taught.max(ballot);
                self.install(slot, members.to_vec(), state, out);
            }
            Record::Checkpoint { promised, accepted, taught, slot, chosen, members, state, values } => {
                if promised < self.promised
                    || accepted < self.accepted
                    || slot < self.chosen
                    || chosen < slot
                    || chosen.0 - slot.0 > values.len() as u64
                {
                    return false;
                }
                (self.promised, self.accepted, self.taught) = (promised, accepted, taught);
                let known = self.chosen;
                self.log = Log::new(slot);
                self.chosen = slot;
                self.members = members.to_vec();
                if !self.are_steps(slot, &values[..(chosen.0 - slot.0) as usize]) {
                    return false;
                }
                values.into_iter().for_each(|value| self.log.push(value));
                if slot > known {
                    out.emit(Event::Install { slot, state });
                    out.emit(Event::Members(self.members.clone()));
                }
                self.learn(chosen, out);
            }
        }
        self.round = self.round.max(self.promised.round);
        true
    }

    /// Writes everything in one record. `state` is the user's state after `slot`, and `members` are the
    /// members after `slot`.
    pub(super) fn checkpoint(
        &mut self,
        slot: Slot,
        members: &[Peer],
        state: Bytes,
        out: &mut dyn Sink<Paxos>,
    ) -> Ticket {
        let record = Record::Checkpoint {
            promised: self.promised,
            accepted: self.accepted,
            taught: self.taught,
            slot,
            chosen: self.chosen,
            members: members.into(),
            state,
            values: self.log.range(slot, self.log.last()),
        };
        self.journaled = 0;
        out.persist(record)
    }
}
