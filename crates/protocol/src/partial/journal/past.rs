//! Reading a cell's journal.

use bytes::Bytes;

use super::{Began, Record, Unrecoverable};
use crate::{
    ecast::{Position, Submissions},
    id::ProcessId,
    partial::{
        entry::Entry,
        horizon::Horizon,
        replica::{Limits, MapsReplica},
        routing::{Change, Roster},
    },
    wire::decode_all,
};

/// Whether this record is the message with which a process joins.
fn joins(record: &Record) -> bool {
    let Record::Submitted { body, .. } = record else { return false };
    matches!(Change::decode(body), Some(Change::Join { .. }))
}

/// The past of a cell, reconstructed from its records.
#[derive(Debug)]
pub(in crate::partial) struct Past {
    /// The last change that was delivered, with its position and the resulting roster. `None` if the domain
    /// never admitted this process.
    pub(in crate::partial) roster: Option<(Position, Roster)>,
    /// This process's messages to the order that may have to be sent again.
    pub(in crate::partial) submissions: Submissions,
    /// The greatest time of a stamp that may have been issued, in nanoseconds.
    pub(in crate::partial) reserved: u64,
    pub(in crate::partial) horizon: Horizon,
    pub(in crate::partial) replica: MapsReplica,
    /// Bytes of records since the last whole checkpoint began.
    pub(in crate::partial) bytes: u64,
}

impl Past {
    /// Executes the records again. Returns `None` if there are no records.
    pub(in crate::partial) fn read(
        records: Vec<Bytes>,
        limits: Limits,
    ) -> Result<Option<Past>, Unrecoverable> {
        if records.is_empty() {
            return Ok(None);
        }
        let decode = |(number, bytes): (usize, Bytes)| {
            decode_all(bytes).map_err(|error| Unrecoverable::Malformed(number, error))
        };
        let records: Vec<Record> =
            records.into_iter().enumerate().map(decode).collect::<Result<_, Unrecoverable>>()?;
        let began = |records: &[Record]| records.iter().rposition(|it| matches!(it, Record::Began(_)));
        let first = match records.iter().rposition(|record| *record == Record::Ended) {
            Some(ended) => began(&records[..ended]).ok_or(Unrecoverable::Missing)?,
            // The first message of a process is its request to join. A journal that lost its beginning starts
            // with a later message.
            None if joins(&records[0]) => 0,
            None => return Err(Unrecoverable::Missing),
        };
        let mut past = Past {
            roster: None,
            submissions: Submissions::default(),
            reserved: 0,
            horizon: Horizon::default(),
            replica: MapsReplica::new(limits),
            bytes: 0,
        };
        for (number, record) in records.into_iter().enumerate().skip(first) {
            past.execute(record, number == first).ok_or(Unrecoverable::Disconnected(number))?;
        }
        if let Some((_, roster)) = &past.roster {
            past.replica.adopt(roster.layout());
        }
        past.replica.reach(past.horizon);
        Ok(Some(past))
    }

    /// Returns the address at which the other members know this process.
    pub(in crate::partial) fn address(&self, me: ProcessId) -> Option<String> {
        if let Some((_, roster)) = &self.roster {
            return roster.members().find(|(id, _)| *id == me).map(|(_, seat)| seat.address.clone());
        }
        match Change::decode(&self.submissions.messages.first()?.1)? {
            Change::Join { address, .. } => Some(address),
            _ => None,
        }
    }

    fn execute(&mut self, record: Record, is_first: bool) -> Option<()> {
        if !matches!(record, Record::Kept { .. }) {
            self.bytes += record.bytes();
        }
        match record {
            Record::Log(_) => return None,
            Record::Submitted { token, body } => self.submissions.messages.push((token, body)),
            Record::Layout { at, roster } => {
                if self.roster.as_ref().is_some_and(|(before, _)| at <= *before) {
                    return None;
                }
                self.roster = Some((at, *roster));
            }
            Record::Reserved(time) => self.reserved = self.reserved.max(time),
            Record::Merged { map, key, write } => {
                self.note(&write);
                self.replica.restore(map, key, |entry| {
                    entry.merge(&write);
                });
            }
            Record::Forgot { map, common, keys } => {
                for key in keys {
                    self.replica.restore(map, key, |entry| {
                        entry.forget(common);
                    });
                }
            }
            Record::Reached(horizon) => self.horizon = horizon,
            Record::Began(began) if is_first => {
                let Began { at, roster, passed, submitted, reserved, horizon } = *began;
                self.roster = Some((at, roster));
                self.submissions = Submissions { passed, messages: submitted };
                self.reserved = self.reserved.max(reserved);
                self.horizon = horizon;
            }
            Record::Kept { map, behind, last, entries } => {
                entries.iter().for_each(|(_, entry)| self.note(entry));
                self.replica.restore_stretch(map, behind.as_ref(), last, entries);
            }
            // These records belong to a checkpoint that was not completed.
            Record::Began(_) | Record::Ended => {}
        }
        Some(())
    }

    /// Raises the reservation to an entry's newest stamp, so that the clock does not fall behind it.
    fn note(&mut self, entry: &Entry) {
        self.reserved = self.reserved.max(entry.newest().time);
    }
}
