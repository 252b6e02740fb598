//! The reading of a journal after a crash.

use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
};

use bytes::{Buf, Bytes};
use thiserror::Error;

use super::{
    FRAME_HEAD, HEADER, JOURNAL_VERSION, Journal, Key, NOTE, Owner, RECORD, RemoteDurability, SEAL, Segment,
    Settings, checksum, tag,
};
use crate::{
    id::DomainId,
    seam::Ticket,
    wire::{Wire, WireError, take_process, take_u32, take_u128},
};

/// The contents of a journal, read at startup.
#[derive(Debug)]
pub struct Recovered {
    /// The journal, ready to continue.
    pub journal: Journal,
    /// The kept records, in order.
    pub records: Vec<(Ticket, Bytes)>,
    /// Number of bytes of torn tails that were left out, without zeros at their end.
    pub torn_bytes: u64,
    /// Segments without contents, which the host must remove.
    pub empty: Vec<u64>,
    /// Kept segments, each with its size in bytes. Bytes after that size are a torn tail, or were never
    /// written, and may be cut off.
    pub lengths: Vec<(u64, u64)>,
    /// Number of hashed bytes. Clients cannot raise it: only the sizes of the segments determine it, whatever
    /// the contents.
    pub hashed_bytes: u64,
}

/// The reason why a journal cannot be continued. The process that wrote the journal must not come back under
/// the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Damage {
    /// A durable record cannot be read.
    #[error("record {} of the journal was durable and cannot be read: segment {segment}, at byte {offset}", .ticket.0)]
    Rotten {
        /// The record.
        ticket: Ticket,
        /// The number of the segment in which the record should be.
        segment: u64,
        /// The offset in the segment, in bytes.
        offset: u64,
    },
    /// A segment is missing although earlier and later segments exist.
    #[error("segment {0} of the journal is missing")]
    Missing(u64),
    /// The journal belongs to a process or domain other than the reader's.
    #[error("the journal belongs to another process or domain: {owner:?}")]
    Foreign {
        /// The owner of the journal.
        owner: Owner,
    },
    /// The journal was written by a later version.
    #[error("the journal has version {0}, and this build reads version {JOURNAL_VERSION}")]
    Newer(u32),
}

/// A frame that was read completely.
struct RecordFrame {
    magic: u32,
    ticket: Ticket,
    durable: Ticket,
    contents: Bytes,
    /// Offset of the next frame, in bytes.
    next: usize,
}

/// The head of a frame. The frame itself may be torn.
struct RecordHead {
    magic: u32,
    length: u32,
    sum: u64,
    ticket: Ticket,
    durable: Ticket,
}

/// A segment that is being read.
#[derive(Clone, Copy)]
struct SegmentReader<'a> {
    number: u64,
    bytes: &'a Bytes,
    /// The secret of the segment's frames; `None` for version 3.
    secret: Option<u64>,
    /// Number of bytes hashed so far, in all segments.
    hashed: &'a Cell<u64>,
}

impl SegmentReader<'_> {
    /// Returns the head at `offset`, if it can be the head of a frame. In the present version, only the
    /// process itself can have written such a head.
    fn head(&self, offset: usize) -> Option<RecordHead> {
        let bytes = self.bytes.get(offset..offset.checked_add(FRAME_HEAD)?)?;
        let mut head = bytes;
        let (magic, length, sum) = (head.get_u32_le(), head.get_u32_le(), head.get_u64_le());
        if ![RECORD, HEADER, SEAL, NOTE].contains(&magic) {
            return None;
        }
        let ticket = head.get_u64_le();
        let durable = match self.secret {
            None => head.get_u64_le(),
            Some(secret) => {
                let behind = head.get_u32_le();
                if head.get_u32_le() != tag(secret, self.number, bytes) {
                    return None;
                }
                ticket.checked_sub(behind.into())?
            }
        };
        Some(RecordHead { magic, length, sum, ticket: Ticket(ticket), durable: Ticket(durable) })
    }

    /// Returns the frame with this head at `offset`, if it is whole.
    fn whole(&self, offset: usize, head: RecordHead) -> Option<RecordFrame> {
        let RecordHead { magic, length, sum, ticket, durable } = head;
        let end = (offset + FRAME_HEAD).checked_add(length as usize)?;
        let rest = self.bytes.get(offset + 16..end)?;
        self.hashed.set(self.hashed.get() + rest.len() as u64);
        if checksum(self.secret.unwrap_or(0), self.number, magic, length, rest) != sum {
            return None;
        }
        let contents = self.bytes.slice(offset + FRAME_HEAD..end);
        Some(RecordFrame { magic, ticket, durable, contents, next: end.next_multiple_of(8) })
    }

    /// Returns the whole frame at `offset`, if there is one.
    fn frame(&self, offset: usize) -> Option<RecordFrame> {
        self.whole(offset, self.head(offset)?)
    }

    /// Returns the frame of the segment's header, if it is whole. Reading a header needs no secret.
    fn header(&self) -> Option<RecordFrame> {
        let in_form =
            |secret| SegmentReader { secret, ..*self }.frame(0).filter(|first| first.magic == HEADER);
        in_form(Some(0)).or_else(|| in_form(None))
    }

    /// Whether a whole frame at or after `offset` shows that record `ticket` was durable.
    fn proves(&self, ticket: Ticket, offset: usize) -> bool {
        if offset == 0 && self.header().is_some_and(|first| first.durable >= ticket) {
            return true;
        }
        let heads = (offset..self.bytes.len()).step_by(8).filter_map(|at| Some((at, self.head(at)?)));
        let mut heads = heads.filter(|(_, head)| head.durable >= ticket && head.ticket >= head.durable);
        if self.secret.is_some() {
            return heads.any(|(at, head)| self.whole(at, head).is_some());
        }
        // In version 3, clients can make such heads too, so the number of hashed bytes is limited. Heads of
        // real frames are short or few, so the shortest frames are tried first.
        let end =
            |(at, head): &(usize, RecordHead)| at + FRAME_HEAD + head.length as usize <= self.bytes.len();
        let mut heads: Vec<(u32, usize)> = heads.filter(end).map(|(at, head)| (head.length, at)).collect();
        heads.sort_unstable();
        let most = self.hashed.get() + self.bytes.len() as u64 * OLDER_HASHED_MAX;
        let mut found = heads.into_iter().take_while(|_| self.hashed.get() < most);
        found.any(|(_, at)| self.frame(at).is_some())
    }
}

/// Maximum number of bytes that a search in a segment of version 3 hashes, as a multiple of the segment's
/// size.
const OLDER_HASHED_MAX: u64 = 16;

fn header(contents: &mut Bytes) -> Result<(u32, Owner), WireError> {
    let version = take_u32(contents)?;
    take_u32(contents)?;
    let domain = DomainId(take_u128(contents)?);
    Ok((version, Owner { domain, process: take_process(contents)? }))
}

impl Journal {
    /// Returns the owner of these segments, from the first readable header.
    pub fn owner(segments: &BTreeMap<u64, Bytes>) -> Option<Owner> {
        let hashed = Cell::new(0);
        segments.iter().find_map(|(&number, bytes)| {
            let mut first = SegmentReader { number, bytes, secret: None, hashed: &hashed }.header()?;
            header(&mut first.contents).ok().map(|(_, owner)| owner)
        })
    }

    /// Reads the segments of a journal, by number, after its process has ended. If there are no segments, the
    /// journal is new. The host must have made durable all bytes that it read, and must remove
    /// [`Recovered::empty`] before it writes anything.
    ///
    /// # Errors
    ///
    /// Returns the reason why the journal cannot be continued.
    pub fn recover(
        owner: Owner,
        settings: Settings,
        segments: &BTreeMap<u64, Bytes>,
    ) -> Result<Recovered, Damage> {
        let hashed = Cell::new(0);
        let mut reader = JournalReader {
            segments,
            gaps: settings.gaps,
            key: settings.key,
            hashed: &hashed,
            records: Vec::new(),
            kept: VecDeque::new(),
            lengths: Vec::new(),
            last: None,
            remote_durability: RemoteDurability::default(),
            torn_bytes: 0,
        };
        for (&number, bytes) in segments {
            if !reader.segment(owner, number, bytes)? {
                break;
            }
        }
        let JournalReader { records, kept, lengths, last, remote_durability, torn_bytes, .. } = reader;
        let newest = kept.back().map_or(0, |it| it.number);
        let empty = segments.range(newest + 1..).map(|(number, _)| *number).collect();
        let last = last.unwrap_or(Ticket(0));
        let journal = Journal::begin((owner, settings), kept, newest + 1, last, remote_durability);
        Ok(Recovered { journal, records, torn_bytes, empty, lengths, hashed_bytes: hashed.get() })
    }
}

/// Returns the number of bytes that may have been written. Zeros at the end are reserved space, and do not
/// count.
fn written(bytes: &[u8]) -> u64 {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

struct JournalReader<'a> {
    segments: &'a BTreeMap<u64, Bytes>,
    gaps: bool,
    key: Key,
    hashed: &'a Cell<u64>,
    records: Vec<(Ticket, Bytes)>,
    kept: VecDeque<Segment>,
    lengths: Vec<(u64, u64)>,
    last: Option<Ticket>,
    remote_durability: RemoteDurability,
    torn_bytes: u64,
}

impl<'a> JournalReader<'a> {
    fn pages(&self, number: u64, bytes: &'a Bytes) -> SegmentReader<'a> {
        SegmentReader { number, bytes, secret: self.key.secret_of(number), hashed: self.hashed }
    }

    fn expected(&self) -> Ticket {
        Ticket(self.last.map_or(1, |last| last.0 + 1))
    }

    /// Reads one segment. Returns whether another segment may follow. No segment follows a segment whose
    /// header was never whole.
    fn segment(&mut self, owner: Owner, number: u64, bytes: &'a Bytes) -> Result<bool, Damage> {
        let gap = self.kept.back().filter(|before| number != before.number + 1);
        if let Some(before) = gap.filter(|_| !self.gaps) {
            return Err(Damage::Missing(before.number + 1));
        }
        let gap = gap.is_some();
        let pages = self.pages(number, bytes);
        let first = pages.header();
        if let Some(mut first) = first.as_ref().map(|first| first.contents.clone()) {
            match header(&mut first) {
                Ok((version, _)) if version > JOURNAL_VERSION => return Err(Damage::Newer(version)),
                Ok((_, found)) if found != owner => return Err(Damage::Foreign { owner: found }),
                Ok(_) => {}
                Err(_) => return Err(self.rotten(number, 0)),
            }
        }
        // Records before the oldest segment were no longer needed, so a gap is allowed there.
        let fits = |first: &RecordFrame| {
            let expected = self.expected();
            self.last.is_none() || first.ticket == expected || gap && first.ticket > expected
        };
        let Some(first) = first.filter(fits) else {
            // Either this segment was never begun, or a segment before it was lost.
            self.prove_torn(number, 0)?;
            self.torn_bytes += self.segments.range(number..).map(|(_, bytes)| written(bytes)).sum::<u64>();
            return Ok(false);
        };
        self.last = Some(Ticket(first.ticket.0 - 1));
        let before = Ticket(first.ticket.0 - 1);
        self.kept.push_back(Segment { number, first: first.ticket, last: before });
        let mut offset = first.next;
        while offset < bytes.len() {
            match pages.frame(offset) {
                Some(it) if it.magic == RECORD && it.ticket == self.expected() => {
                    self.last = Some(it.ticket);
                    self.records.push((it.ticket, it.contents));
                    offset = it.next;
                }
                Some(it) if it.magic == SEAL => offset = it.next,
                Some(mut it) if it.magic == NOTE => {
                    // The checksum is correct, so the journal itself wrote these bytes.
                    self.remote_durability = RemoteDurability::decode(&mut it.contents)
                        .map_err(|_| self.rotten(number, offset))?;
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

    /// Checks that the expected record, of which no whole frame is at its place, was never durable. An
    /// `offset` of 0 means that the segment's header is not whole; then later segments are not read.
    fn prove_torn(&self, segment: u64, offset: usize) -> Result<(), Damage> {
        let expected = self.expected();
        let goes_on = |number| {
            let next = self.segments.get(&number).and_then(|bytes| self.pages(number, bytes).header());
            next.is_some_and(|first| first.ticket <= expected)
        };
        let mut before = segment;
        for (&number, bytes) in self.segments.range(segment..) {
            if number > before + 1 {
                // The next records were collected, and the owner checks whether it lacks any of them.
                return Ok(());
            }
            before = number;
            if offset > 0 && goes_on(number + 1) {
                // Rule 1: the record is in the next segment, because the journal continued there, perhaps
                // after an earlier crash. The tail that was torn in that crash does not matter.
                return Ok(());
            }
            let behind = if number == segment { offset } else { 0 };
            if self.pages(number, bytes).proves(expected, behind) {
                return Err(self.rotten(segment, offset));
            }
        }
        Ok(())
    }
}
