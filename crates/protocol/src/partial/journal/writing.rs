//! Writing a cell's journal: what of it is durable, and what waits for that.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::{Began, Record};
use crate::{
    partial::{
        cell::Cell,
        layout::MapId,
        message::{Answer, Round},
        replica::{Replica, Stretch},
    },
    seam::{Sink, Ticket},
};

/// The records of a cell that are durable, and the answers that wait for others.
#[derive(Debug)]
pub(in crate::partial) struct Journal {
    last: Ticket,
    durable: Ticket,
    /// The keys whose newest records may not be durable, and these records.
    fresh: BTreeMap<(MapId, Bytes), Ticket>,
    /// The same, in the order of the records.
    order: VecDeque<(Ticket, (MapId, Bytes))>,
    /// Stamps up to this time are covered by a durable record.
    covered: u64,
    /// Further reservations, and their records.
    reservations: VecDeque<(Ticket, u64)>,
    /// By how much they go ahead.
    ahead: u64,
    /// Answers of the cell to its own coordinator, by the record that each waits for.
    answers: BTreeMap<Ticket, Vec<(Round, Answer)>>,
    /// The record behind which a cell that was arriving has everything on its disk.
    arrived: Option<Ticket>,
    /// Bytes written since the last checkpoint began.
    bytes: u64,
    /// A checkpoint begins when there are so many, or as many as the cell keeps.
    checkpoint_bytes: u64,
    checkpoint: Option<Checkpoint>,
}

/// A checkpoint that is being written.
#[derive(Debug)]
struct Checkpoint {
    began: Ticket,
    /// The last record of it, which is waited for.
    written: Ticket,
    /// Where the next stretch begins; none: it is whole.
    next: Option<(MapId, Option<Bytes>)>,
}

impl Journal {
    /// The journal of a new cell, which reserves stamps by `ahead` beyond the last one.
    pub(in crate::partial) fn new(ahead: u64, checkpoint_bytes: u64) -> Journal {
        Journal {
            last: Ticket(0),
            durable: Ticket(0),
            fresh: BTreeMap::new(),
            order: VecDeque::new(),
            covered: 0,
            reservations: VecDeque::new(),
            ahead,
            answers: BTreeMap::new(),
            arrived: None,
            bytes: 0,
            checkpoint_bytes,
            checkpoint: None,
        }
    }

    /// The cell goes on: stamps up to `covered` were issued before, and so many bytes were written since the last checkpoint.
    pub(in crate::partial) fn resume(&mut self, covered: u64, bytes: u64) {
        (self.covered, self.bytes) = (covered, bytes);
    }

    /// Writes a record.
    pub(in crate::partial) fn write(&mut self, record: Record, out: &mut dyn Sink<Cell>) {
        self.bytes += record.bytes();
        let at = match &record {
            Record::Merged { map, key, .. } => Some((*map, key.clone())),
            _ => None,
        };
        self.last = out.persist(record);
        if let Some(at) = at {
            self.fresh.insert(at.clone(), self.last);
            self.order.push_back((self.last, at));
        }
    }

    /// Everything up to this record is durable. Returns the answers that waited for it.
    pub(in crate::partial) fn persisted(&mut self, through: Ticket) -> Vec<(Round, Answer)> {
        self.durable = self.durable.max(through);
        while let Some((ticket, at)) = self.order.pop_front_if(|(ticket, _)| *ticket <= through) {
            if self.fresh.get(&at) == Some(&ticket) {
                self.fresh.remove(&at);
            }
        }
        while let Some((_, time)) = self.reservations.pop_front_if(|(ticket, _)| *ticket <= through) {
            self.covered = self.covered.max(time);
        }
        let later = self.answers.split_off(&Ticket(through.0 + 1));
        std::mem::replace(&mut self.answers, later).into_values().flatten().collect()
    }

    /// The last record, unless everything is durable.
    pub(in crate::partial) fn unsynced(&self) -> Option<Ticket> {
        (self.last > self.durable).then_some(self.last)
    }

    /// The record that has what is held of a key, unless it is durable.
    pub(in crate::partial) fn record_of(&self, map: MapId, key: &Bytes) -> Option<Ticket> {
        if self.fresh.is_empty() {
            return None;
        }
        self.fresh.get(&(map, key.clone())).copied()
    }

    /// Reserves further stamps if that is due: the last one issued is `issued`.
    pub(in crate::partial) fn reserve(&mut self, issued: u64, out: &mut dyn Sink<Cell>) {
        if issued > 0 && issued.saturating_add(self.ahead / 2) > self.reserved() {
            let through = issued.saturating_add(self.ahead);
            self.write(Record::Reserved(through), out);
            self.reservations.push_back((self.last, through));
        }
    }

    /// The record that covers the stamps issued, unless it is durable.
    pub(in crate::partial) fn cover(&self, issued: u64) -> Option<Ticket> {
        if issued <= self.covered {
            return None;
        }
        let covers = self.reservations.iter().find(|(_, time)| *time >= issued);
        Some(covers.expect("stamps are reserved as they are issued").0)
    }

    /// The time up to which stamps are reserved, durably or not.
    pub(in crate::partial) fn reserved(&self) -> u64 {
        self.reservations.back().map_or(self.covered, |(_, time)| *time)
    }

    /// An answer to the cell's own coordinator waits for a record.
    pub(in crate::partial) fn hold(&mut self, ticket: Ticket, round: Round, answer: Answer) {
        self.answers.entry(ticket).or_default().push((round, answer));
    }

    /// The cell has copied everything. Says whether all of it is durable.
    pub(in crate::partial) fn arrive(&mut self) -> bool {
        let arrived = self.arrived.unwrap_or(self.last);
        self.arrived = (arrived > self.durable).then_some(arrived);
        self.arrived.is_none()
    }

    /// Whether copies that were waited for are durable now.
    pub(in crate::partial) fn has_arrived(&mut self) -> bool {
        self.arrived.take_if(|arrived| *arrived <= self.durable).is_some()
    }

    /// Whether a checkpoint should begin, of a cell that keeps so many bytes.
    pub(in crate::partial) fn is_due(&self, kept: usize) -> bool {
        self.checkpoint.is_none() && self.bytes >= self.checkpoint_bytes.max(kept as u64)
    }

    /// Begins a checkpoint.
    pub(in crate::partial) fn begin(&mut self, began: Began, out: &mut dyn Sink<Cell>) {
        self.last = out.persist(Record::Began(Box::new(began)));
        self.bytes = 0;
        let next = Some((MapId(0), None));
        self.checkpoint = Some(Checkpoint { began: self.last, written: self.last, next });
    }

    /// Writes the next piece of a checkpoint once the one before is durable. What the last whole one makes needless is collected.
    pub(in crate::partial) fn proceed(&mut self, replica: &Replica, out: &mut dyn Sink<Cell>) {
        let durable = self.durable;
        let Some(checkpoint) = self.checkpoint.as_mut().filter(|it| it.written <= durable) else { return };
        let Some((from, behind)) = checkpoint.next.take() else {
            out.collect(checkpoint.began, &[]);
            self.checkpoint = None;
            return;
        };
        let record = match replica.stretch(from, behind) {
            None => Record::Ended,
            Some(Stretch { map, behind, entries, next }) => {
                let last = next.is_none();
                checkpoint.next = Some(if last { (MapId(map.0 + 1), None) } else { (map, next) });
                Record::Kept { map, behind, last, entries }
            }
        };
        checkpoint.written = out.persist(record);
        self.last = checkpoint.written;
    }
}
