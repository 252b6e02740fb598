//! Writing a cell's journal: the records that are durable, and the answers that wait for other records.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::{Began, Record};
use crate::{
    partial::{
        id::MapId,
        message::{Answer, Round},
        replica::{EntryRun, MapsReplica},
    },
    seam::{Protocol, Sink, Ticket},
};

/// The write side of a cell's journal: the records that are durable, and the answers that wait for other
/// records.
#[derive(Debug)]
pub(in crate::partial) struct CellJournal {
    last: Ticket,
    durable: Ticket,
    /// The keys whose newest record may not be durable, with that record.
    fresh: BTreeMap<(MapId, Bytes), Ticket>,
    /// The keys and records of `fresh`, in the order of the records.
    order: VecDeque<(Ticket, (MapId, Bytes))>,
    /// The greatest time that a durable reservation covers, in nanoseconds. Stamps up to it may leave the
    /// cell.
    covered: u64,
    /// Reservations that are not durable yet, each with its record and its time in nanoseconds.
    reservations: VecDeque<(Ticket, u64)>,
    /// Time by which a reservation goes beyond the last issued stamp, in nanoseconds.
    ahead: u64,
    /// Answers of the cell to its own coordinator, by the record that each waits for.
    answers: BTreeMap<Ticket, Vec<(Round, Answer)>>,
    /// The record after which an arriving cell has all its copies on disk. `None` if nothing waits for it.
    arrived: Option<Ticket>,
    /// Bytes written since the last checkpoint began.
    bytes: u64,
    /// Number of bytes after which a checkpoint begins. If the cell keeps more bytes than that, the
    /// checkpoint begins after as many bytes as the cell keeps.
    checkpoint_bytes: u64,
    checkpoint: Option<Checkpoint>,
}

/// A checkpoint that is being written.
#[derive(Debug)]
struct Checkpoint {
    began: Ticket,
    /// The checkpoint's last record so far. The next piece waits until this record is durable.
    written: Ticket,
    /// The map and the key behind which the next stretch begins. `None` once all stretches are written.
    next: Option<(MapId, Option<Bytes>)>,
}

impl CellJournal {
    /// Returns the journal of a new cell. Reservations go `ahead` nanoseconds beyond the last issued stamp.
    pub(in crate::partial) fn new(ahead: u64, checkpoint_bytes: u64) -> CellJournal {
        CellJournal {
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

    /// Continues an earlier journal: stamps up to `covered` may have been issued, and `bytes` were written
    /// since the last checkpoint began.
    pub(in crate::partial) fn resume(&mut self, covered: u64, bytes: u64) {
        (self.covered, self.bytes) = (covered, bytes);
    }

    /// Writes a record.
    pub(in crate::partial) fn write<P: Protocol<Record = Record>>(
        &mut self,
        record: Record,
        out: &mut dyn Sink<P>,
    ) {
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

    /// Records that everything up to `through` is durable. Returns the answers that waited for it.
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

    /// Returns the last record, or `None` if everything is durable.
    pub(in crate::partial) fn unsynced(&self) -> Option<Ticket> {
        (self.last > self.durable).then_some(self.last)
    }

    /// Returns the newest record of a key, or `None` if that record is durable.
    pub(in crate::partial) fn record_of(&self, map: MapId, key: &Bytes) -> Option<Ticket> {
        if self.fresh.is_empty() {
            return None;
        }
        self.fresh.get(&(map, key.clone())).copied()
    }

    /// Reserves further stamps once half of the reserve is used. `issued` is the time of the last issued
    /// stamp.
    pub(in crate::partial) fn reserve<P: Protocol<Record = Record>>(
        &mut self,
        issued: u64,
        out: &mut dyn Sink<P>,
    ) {
        if issued > 0 && issued.saturating_add(self.ahead / 2) > self.reserved() {
            let through = issued.saturating_add(self.ahead);
            self.write(Record::Reserved(through), out);
            self.reservations.push_back((self.last, through));
        }
    }

    /// Returns the record that covers the issued stamps, or `None` if it is durable.
    pub(in crate::partial) fn cover(&self, issued: u64) -> Option<Ticket> {
        if issued <= self.covered {
            return None;
        }
        let covers = self.reservations.iter().find(|(_, time)| *time >= issued);
        Some(covers.expect("stamps are reserved as they are issued").0)
    }

    /// Returns the time up to which stamps are reserved, durably or not.
    pub(in crate::partial) fn reserved(&self) -> u64 {
        self.reservations.back().map_or(self.covered, |(_, time)| *time)
    }

    /// Keeps an answer to the cell's own coordinator until a record is durable.
    pub(in crate::partial) fn hold(&mut self, ticket: Ticket, round: Round, answer: Answer) {
        self.answers.entry(ticket).or_default().push((round, answer));
    }

    /// Records that the cell has copied everything. Returns whether all copies are durable.
    pub(in crate::partial) fn arrive(&mut self) -> bool {
        let arrived = self.arrived.unwrap_or(self.last);
        self.arrived = (arrived > self.durable).then_some(arrived);
        self.arrived.is_none()
    }

    /// Whether the copies that an arrival waited for have become durable. Returns `true` only once.
    pub(in crate::partial) fn has_arrived(&mut self) -> bool {
        self.arrived.take_if(|arrived| *arrived <= self.durable).is_some()
    }

    /// Whether a checkpoint should begin. `kept` is the memory of the cell's entries, in bytes.
    pub(in crate::partial) fn is_due(&self, kept: usize) -> bool {
        self.checkpoint.is_none() && self.bytes >= self.checkpoint_bytes.max(kept as u64)
    }

    /// Begins a checkpoint with its first record.
    pub(in crate::partial) fn begin<P: Protocol<Record = Record>>(
        &mut self,
        began: Began,
        out: &mut dyn Sink<P>,
    ) {
        self.last = out.persist(Record::Began(Box::new(began)));
        self.bytes = 0;
        let next = Some((MapId(0), None));
        self.checkpoint = Some(Checkpoint { began: self.last, written: self.last, next });
    }

    /// Writes the next piece of a checkpoint once the previous piece is durable. When the whole checkpoint is
    /// durable, lets the disk drop the records before it.
    pub(in crate::partial) fn proceed<P: Protocol<Record = Record>>(
        &mut self,
        replica: &MapsReplica,
        out: &mut dyn Sink<P>,
    ) {
        let durable = self.durable;
        let Some(checkpoint) = self.checkpoint.as_mut().filter(|it| it.written <= durable) else { return };
        let Some((from, behind)) = checkpoint.next.take() else {
            out.collect(checkpoint.began, &[]);
            self.checkpoint = None;
            return;
        };
        let record = match replica.stretch(from, behind) {
            None => Record::Ended,
            Some(EntryRun { map, behind, entries, next }) => {
                let last = next.is_none();
                checkpoint.next = Some(if last { (MapId(map.0 + 1), None) } else { (map, next) });
                Record::Kept { map, behind, last, entries }
            }
        };
        checkpoint.written = out.persist(record);
        self.last = checkpoint.written;
    }
}
