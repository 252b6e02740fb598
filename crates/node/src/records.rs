//! The records of all endpoints of a process, in one sequence.

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry};

use quorate_protocol::Ticket;

use crate::channel::Channel;

/// The records that are not yet durable, and the records that each endpoint still needs.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// Records that are not known to be durable, each with the slot that wrote it.
    waiting: VecDeque<(Ticket, usize)>,
    /// For each endpoint, the ticket from which on the endpoint needs all its records.
    needed: BTreeMap<Channel, Ticket>,
    /// The pairs of `needed`, in the order of their records.
    floors: BTreeSet<(Ticket, Channel)>,
    /// For each endpoint, the single earlier records that it needs in addition.
    kept: BTreeMap<Channel, Vec<Ticket>>,
    collected: Option<Ticket>,
}

impl Records {
    /// Keeps the endpoint's records from `first` on, unless earlier records are already kept.
    pub(crate) fn need(&mut self, channel: Channel, first: Ticket) {
        if let Entry::Vacant(entry) = self.needed.entry(channel) {
            entry.insert(first);
            self.floors.insert((first, channel));
        }
    }

    pub(crate) fn written(&mut self, channel: Channel, slot: usize, ticket: Ticket) {
        self.waiting.push_back((ticket, slot));
        self.need(channel, ticket);
    }

    /// Marks records up to `ticket` as durable. Returns the slots that wrote the newly durable records,
    /// ordered by the first such record of each slot.
    pub(crate) fn persisted(&mut self, ticket: Ticket) -> Vec<usize> {
        let mut slots = Vec::new();
        while let Some((_, slot)) = self.waiting.pop_front_if(|(waiting, _)| *waiting <= ticket) {
            if !slots.contains(&slot) {
                slots.push(slot);
            }
        }
        slots
    }

    /// Releases the endpoint's records before `before`, except those in `kept`. If the first record that any
    /// endpoint needs has advanced, returns that record, with the earlier records that are still needed.
    pub(crate) fn collect(
        &mut self,
        channel: Channel,
        before: Ticket,
        kept: &[Ticket],
    ) -> Option<(Ticket, Vec<Ticket>)> {
        // `needed` may equal `before`: the first record after a restore may replace all earlier records of
        // the endpoint.
        if let Some(needed) = self.needed.get_mut(&channel).filter(|needed| **needed <= before) {
            self.floors.remove(&(*needed, channel));
            *needed = before;
            self.floors.insert((before, channel));
            self.kept.insert(channel, kept.to_vec());
        }
        self.floor()
    }

    /// Forgets that a removed endpoint waits for records to become durable. The endpoint's records are still
    /// kept.
    pub(crate) fn forget_waiting(&mut self, slot: usize) {
        self.waiting.retain(|(_, waiting)| *waiting != slot);
    }

    /// Releases all records of the endpoint. If the first record that any endpoint needs has advanced,
    /// returns that record, with the earlier records that are still needed.
    pub(crate) fn release(&mut self, channel: Channel) -> Option<(Ticket, Vec<Ticket>)> {
        let needed = self.needed.remove(&channel)?;
        self.floors.remove(&(needed, channel));
        self.kept.remove(&channel);
        self.floor()
    }

    fn floor(&mut self) -> Option<(Ticket, Vec<Ticket>)> {
        let (floor, _) = *self.floors.first()?;
        if self.collected >= Some(floor) {
            return None;
        }
        self.collected = Some(floor);
        let kept: BTreeSet<Ticket> = self.kept.values().flatten().copied().collect();
        Some((floor, kept.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::DomainId;

    use super::*;
    use crate::channel::EndpointId;

    fn channel(endpoint: u64) -> Channel {
        Channel { domain: DomainId(1), endpoint: EndpointId(endpoint) }
    }

    #[test]
    fn the_first_record_of_a_life_may_keep_records_of_earlier_lives() {
        let mut records = Records::default();
        records.written(channel(1), 0, Ticket(600));
        let kept = [Ticket(517), Ticket(520)];
        assert_eq!(records.collect(channel(1), Ticket(600), &kept), Some((Ticket(600), kept.to_vec())));
        assert_eq!(records.collect(channel(1), Ticket(600), &kept), None, "no news");
        records.written(channel(1), 0, Ticket(601));
        assert_eq!(
            records.collect(channel(1), Ticket(601), &kept[..1]),
            Some((Ticket(601), vec![Ticket(517)]))
        );
    }
}
