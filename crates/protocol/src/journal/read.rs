//! Reading a journal after a crash.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, Bytes};
use thiserror::Error;

use super::{
    FRAME_HEAD, HEADER, Hearsay, JOURNAL_VERSION, Journal, NOTE, Owner, RECORD, SEAL, Segment, Settings,
    checksum,
};
use crate::{
    id::DomainId,
    seam::Ticket,
    wire::{Wire, WireError, take_process, take_u32, take_u128},
};

/// A journal as it was read.
#[derive(Debug)]
pub struct Recovered {
    /// The journal, to go on with.
    pub journal: Journal,
    /// The records that are kept, in order.
    pub records: Vec<(Ticket, Bytes)>,
    /// How many bytes of a torn tail were left out, without zeros at its end.
    pub torn_bytes: u64,
    /// Segments that hold nothing any more, to be removed.
    pub empty: Vec<u64>,
    /// How long each segment is that is kept: what lies behind is a torn tail, or was never written, and may be cut off.
    pub lengths: Vec<(u64, u64)>,
}

/// Why a journal cannot be gone on with. The process that wrote it must not come back as the one it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Damage {
    /// A record that was durable cannot be read.
    #[error("record {} of the journal was durable and cannot be read: segment {segment}, at byte {offset}", .ticket.0)]
    Rotten {
        /// Which record.
        ticket: Ticket,
        /// Where it should be.
        segment: u64,
        /// At which byte.
        offset: u64,
    },
    /// A segment between others is not there.
    #[error("segment {0} of the journal is missing")]
    Missing(u64),
    /// It is the journal of another process or domain.
    #[error("the journal belongs to another: {owner:?}")]
    Foreign {
        /// Whose it is.
        owner: Owner,
    },
    /// It was written by a later version.
    #[error("the journal has version {0}, and this build reads version {JOURNAL_VERSION}")]
    Newer(u32),
}

/// A frame that is whole.
struct Frame {
    magic: u32,
    ticket: Ticket,
    durable: Ticket,
    contents: Bytes,
    /// Where the next one begins.
    next: usize,
}

/// The frame that begins at `offset`, if one does that is whole.
fn frame(segment: u64, bytes: &Bytes, offset: usize) -> Option<Frame> {
    let mut head = bytes.get(offset..offset.checked_add(FRAME_HEAD)?)?;
    let (magic, length, sum) = (head.get_u32_le(), head.get_u32_le(), head.get_u64_le());
    let (ticket, durable) = (Ticket(head.get_u64_le()), Ticket(head.get_u64_le()));
    if ![RECORD, HEADER, SEAL, NOTE].contains(&magic) {
        return None;
    }
    let end = (offset + FRAME_HEAD).checked_add(length as usize)?;
    let rest = bytes.get(offset + 16..end)?;
    if checksum(segment, magic, length, rest) != sum {
        return None;
    }
    let contents = bytes.slice(offset + FRAME_HEAD..end);
    Some(Frame { magic, ticket, durable, contents, next: end.next_multiple_of(8) })
}

/// The header of a segment, if it is whole.
fn header_frame(segment: u64, bytes: &Bytes) -> Option<Frame> {
    frame(segment, bytes, 0).filter(|first| first.magic == HEADER)
}

/// The newest ticket that a whole frame at or behind `offset` says to be durable.
fn durable_behind(segment: u64, bytes: &Bytes, offset: usize) -> Option<Ticket> {
    (offset..bytes.len()).step_by(8).filter_map(|at| frame(segment, bytes, at)).map(|it| it.durable).max()
}

fn header(contents: &mut Bytes) -> Result<(u32, Owner), WireError> {
    let version = take_u32(contents)?;
    take_u32(contents)?;
    let domain = DomainId(take_u128(contents)?);
    Ok((version, Owner { domain, process: take_process(contents)? }))
}

impl Journal {
    /// Whose journal these segments are, as the first header that can be read says.
    pub fn owner(segments: &BTreeMap<u64, Bytes>) -> Option<Owner> {
        segments.iter().find_map(|(&number, bytes)| {
            let mut first = header_frame(number, bytes)?;
            header(&mut first.contents).ok().map(|(_, owner)| owner)
        })
    }

    /// Reads the segments of a journal, by their numbers, after its process has ended. Without any it is a new one.
    ///
    /// The host has made durable what it read, and removes [`Recovered::empty`] before it writes anything.
    pub fn recover(
        owner: Owner,
        settings: Settings,
        segments: &BTreeMap<u64, Bytes>,
    ) -> Result<Recovered, Damage> {
        let mut reader = Reader {
            segments,
            gaps: settings.gaps,
            records: Vec::new(),
            kept: VecDeque::new(),
            lengths: Vec::new(),
            last: None,
            hearsay: Hearsay::default(),
            torn_bytes: 0,
        };
        for (&number, bytes) in segments {
            if !reader.segment(owner, number, bytes)? {
                break;
            }
        }
        let Reader { records, kept, lengths, last, hearsay, torn_bytes, .. } = reader;
        let newest = kept.back().map_or(0, |it| it.number);
        let empty = segments.range(newest + 1..).map(|(number, _)| *number).collect();
        let last = last.unwrap_or(Ticket(0));
        let journal = Journal::begin((owner, settings), kept, newest + 1, last, hearsay);
        Ok(Recovered { journal, records, torn_bytes, empty, lengths })
    }
}

/// How many of these bytes may have been written: zeros at the end are what a file reserves.
fn written(bytes: &[u8]) -> u64 {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

struct Reader<'a> {
    segments: &'a BTreeMap<u64, Bytes>,
    gaps: bool,
    records: Vec<(Ticket, Bytes)>,
    kept: VecDeque<Segment>,
    lengths: Vec<(u64, u64)>,
    last: Option<Ticket>,
    hearsay: Hearsay,
    torn_bytes: u64,
}

impl Reader<'_> {
    fn expected(&self) -> Ticket {
        Ticket(self.last.map_or(1, |last| last.0 + 1))
    }

    /// Reads one segment. Whether another may follow: not behind one that was never whole.
    fn segment(&mut self, owner: Owner, number: u64, bytes: &Bytes) -> Result<bool, Damage> {
        let gap = self.kept.back().filter(|before| number != before.number + 1);
        if let Some(before) = gap.filter(|_| !self.gaps) {
            return Err(Damage::Missing(before.number + 1));
        }
        let gap = gap.is_some();
        let first = header_frame(number, bytes);
        if let Some(mut first) = first.as_ref().map(|first| first.contents.clone()) {
            match header(&mut first) {
                Ok((version, _)) if version > JOURNAL_VERSION => return Err(Damage::Newer(version)),
                Ok((_, found)) if found != owner => return Err(Damage::Foreign { owner: found }),
                Ok(_) => {}
                Err(_) => return Err(self.rotten(number, 0)),
            }
        }
        // Records before the oldest segment were not needed any more.
        let fits = |first: &Frame| {
            let expected = self.expected();
            self.last.is_none() || first.ticket == expected || gap && first.ticket > expected
        };
        let Some(first) = first.filter(fits) else {
            // It was not begun, or what came before it was lost.
            self.prove_torn(number, 0)?;
            self.torn_bytes += self.segments.range(number..).map(|(_, bytes)| written(bytes)).sum::<u64>();
            return Ok(false);
        };
        self.last = Some(Ticket(first.ticket.0 - 1));
        let before = Ticket(first.ticket.0 - 1);
        self.kept.push_back(Segment { number, first: first.ticket, last: before });
        let mut offset = first.next;
        while offset < bytes.len() {
            match frame(number, bytes, offset) {
                Some(it) if it.magic == RECORD && it.ticket == self.expected() => {
                    self.last = Some(it.ticket);
                    self.records.push((it.ticket, it.contents));
                    offset = it.next;
                }
                Some(it) if it.magic == SEAL => offset = it.next,
                Some(mut it) if it.magic == NOTE => {
                    // The checksum was right, so it is what was written.
                    self.hearsay =
                        Hearsay::decode(&mut it.contents).map_err(|_| self.rotten(number, offset))?;
                    offset = it.next;
                }
                _ => {
                    self.prove_torn(number, offset)?;
                    self.torn_bytes += written(&bytes[offset..]);
                    break;
                }
            }
        }
        if let (Some(kept), Some(last)) = (self.kept.back_mut(), self.last) {
            kept.last = last;
        }
        self.lengths.push((number, offset.min(bytes.len()) as u64));
        Ok(true)
    }

    fn rotten(&self, segment: u64, offset: usize) -> Damage {
        Damage::Rotten { ticket: self.expected(), segment, offset: offset as u64 }
    }

    /// The next record is not whole where it should be: was it ever durable?
    fn prove_torn(&self, segment: u64, offset: usize) -> Result<(), Damage> {
        let expected = self.expected();
        let mut before = segment;
        for (&number, bytes) in self.segments.range(segment..) {
            if number > before + 1 {
                // What came next was collected, and the owner looks whether it lacks anything.
                return Ok(());
            }
            before = number;
            if number > segment && header_frame(number, bytes).is_some_and(|first| first.ticket <= expected) {
                // Rule 1: the journal went on here after an earlier crash. What was torn then is of no account.
                return Ok(());
            }
            let behind = if number == segment { offset } else { 0 };
            if durable_behind(number, bytes, behind).is_some_and(|durable| durable >= expected) {
                return Err(self.rotten(segment, offset));
            }
        }
        Ok(())
    }
}
