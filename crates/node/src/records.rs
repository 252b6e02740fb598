//! Records: one row for all endpoints of a process.

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry};

use quorate_protocol::Ticket;

use crate::channel::Channel;

/// Whose records wait for the disk, and from where on each endpoint needs its own.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// Records that are not known to be durable, and the seats that wrote them.
    waiting: VecDeque<(Ticket, usize)>,
    /// The first record that an endpoint needs, and the same the other way round.
    needed: BTreeMap<Channel, Ticket>,
    floors: BTreeSet<(Ticket, Channel)>,
    /// Records before that which it needs all the same.
    kept: BTreeMap<Channel, Vec<Ticket>>,
    collected: Option<Ticket>,
}

impl Records {
    /// An endpoint needs its records from `first` on, unless it needs earlier ones.
    pub(crate) fn need(&mut self, channel: Channel, first: Ticket) {
        if let Entry::Vacant(entry) = self.needed.entry(channel) {
            entry.insert(first);
            self.floors.insert((first, channel));
        }
    }

    pub(crate) fn written(&mut self, channel: Channel, seat: usize, ticket: Ticket) {
        self.waiting.push_back((ticket, seat));
        self.need(channel, ticket);
    }

    /// Everything up to `ticket` is durable: the seats that wrote some of it, in the order of their first.
    pub(crate) fn persisted(&mut self, ticket: Ticket) -> Vec<usize> {
        let mut seats = Vec::new();
        while let Some((_, seat)) = self.waiting.pop_front_if(|(waiting, _)| *waiting <= ticket) {
            if !seats.contains(&seat) {
                seats.push(seat);
            }
        }
        seats
    }

    /// An endpoint needs nothing before `before` but what is `kept`. Returns the record before which nobody needs any, if that
    /// is news, and which ones are needed all the same.
    pub(crate) fn collect(
        &mut self,
        channel: Channel,
        before: Ticket,
        kept: &[Ticket],
    ) -> Option<(Ticket, Vec<Ticket>)> {
        // Not only where more may go: the first record of this life may be what takes the place of those of earlier ones.
        if let Some(needed) = self.needed.get_mut(&channel).filter(|needed| **needed <= before) {
            self.floors.remove(&(*needed, channel));
            *needed = before;
            self.floors.insert((before, channel));
            self.kept.insert(channel, kept.to_vec());
        }
        self.floor()
    }

    /// A seat is empty: nobody waits for its records. They are needed as before.
    pub(crate) fn vacate(&mut self, seat: usize) {
        self.waiting.retain(|(_, waiting)| *waiting != seat);
    }

    /// The records of an endpoint are needed no more.
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
    fn the_first_record_of_a_life_may_keep_those_of_earlier_ones() {
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
