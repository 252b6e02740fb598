//! Journal: records as bytes in segments, and how they are read after a crash.
//!
//! **Promise.** What was durable is read again, in order and whole, or it is told that some of it cannot be ([`Damage`]). What
//! was written and not yet durable may be lost, from the end: a torn tail is cut off and is no damage.
//!
//! **Source.** Alagappan et al., *Protocol-Aware Recovery for Consensus-Based Storage*, FAST 2018: a log that takes rot for a
//! torn tail forgets what it has acknowledged, and agreement with it. One that takes every torn tail for rot is of no use
//! after a power cut. So each must be told from the other.
//!
//! **Form.** A journal is a row of segments, numbered from 1; a host keeps each in a file. A segment is a row of frames,
//! each at a multiple of eight bytes:
//!
//! ```text
//! ┌───────┬────────┬──────────┬────────┬─────────┬───────────┬─────────┐
//! │ magic │ length │ checksum │ ticket │ durable │ contents… │ padding │
//! │ u32   │ u32    │ u64      │ u64    │ u64     │ length    │ 0 to 7  │
//! └───────┴────────┴──────────┴────────┴─────────┴───────────┴─────────┘
//! ```
//!
//! The magic says what it is: a *header*, which begins each segment and says whose journal it is; a *record*; a *note*, which
//! says what is known of the journals of others ([`Hearsay`]) and stands behind each header, too; or a *seal*, which has no
//! contents. The checksum covers the rest of the frame and the number of the segment. A record has the ticket
//! after the record before it. `durable` is the newest ticket known to be durable when the frame was written.
//!
//! **Torn or rotten.** Reading ends at the first frame that is not whole. If `e` is the ticket that was expected there, then
//! a whole frame further on that says `durable ≥ e` proves that record `e` was durable: it is rot. Without such a frame the
//! tail is torn: it was written and not durable. A seal is written once nothing else is, so that the last records have a
//! frame behind them; a seal that is torn or rotten itself costs nothing.
//!
//! **Rules.**
//! 1. *A recovered journal goes on in a new segment.* Its header says with which ticket it begins, so what lies behind a torn
//!    tail in an older segment is never taken for records again.
//! 2. *A segment is removed* once none of its records is needed. Where the owner keeps records before one from which on it
//!    needs all ([`Settings::gaps`]), segments between others go, too. Then the journal vouches for the records of each segment
//!    up to its last one that is whole, and the owner for their being all that it needs: it knows which.
//! 3. *The owner*, domain and process, stands in each header: a journal of somebody else is refused.
//!
//! **Bounds.** A segment is at most [`Settings::segment_bytes`] long, unless one record is longer; the first ones of each life
//! are shorter ([`Settings::segment_length`]). A record has fewer than 2^32 bytes.
//!
//! **What is not told.** If the last records rot after a crash that came before their seal was durable, they are taken for
//! torn. That takes two faults within one sync.

mod hearsay;
mod read;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use self::{
    hearsay::{Hearsay, STARTS_MAX, Start, Starts, Told},
    read::{Damage, Recovered},
};
use crate::{
    id::{DomainId, ProcessId},
    seam::Ticket,
    wire::{Wire, put_process},
};

/// The version of the byte form of headers, frames and records.
pub const JOURNAL_VERSION: u32 = 3;

/// The process that writes a journal, and its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The domain.
    pub domain: DomainId,
    /// The process, incarnation included.
    pub process: ProcessId,
}

/// How large things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A segment ends behind the record with which it reaches this length.
    pub segment_bytes: u64,
    /// Records between others may be collected, and the owner looks whether those are there that it needs. Without it a
    /// segment that is missing between others is damage.
    pub gaps: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { segment_bytes: 64 << 20, gaps: false }
    }
}

impl Settings {
    /// The length at which the `nth` segment of a life ends, counted from 0. The first one is short and each next one twice as
    /// long: hosts reserve segments ahead, and a process with little to keep takes little room.
    pub fn segment_length(&self, nth: u64) -> u64 {
        let doublings = nth.min(FIRST_SEGMENT_BYTES.leading_zeros().into());
        (FIRST_SEGMENT_BYTES << doublings).min(self.segment_bytes)
    }
}

/// No first segment of a life is longer.
const FIRST_SEGMENT_BYTES: u64 = 4 << 20;

/// Bytes to be written, and made durable in the order in which they are handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// To which segment.
    pub segment: u64,
    /// At which offset; zero begins the segment.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    owner: Owner,
    settings: Settings,
    /// The segments that are kept, oldest first. The last one is being written.
    segments: VecDeque<Segment>,
    /// The first segment of this life.
    begun: u64,
    /// The length of the last segment, with what has not been handed out yet.
    length: u64,
    /// The last record.
    last: Ticket,
    durable: Ticket,
    /// The newest durable record that any frame names.
    said: Ticket,
    /// Of the journals of others, as it was noted last.
    hearsay: Hearsay,
    /// Bytes that are not handed out yet, and where they go.
    buffer: BytesMut,
    offset: u64,
    writes: Vec<Write>,
}

/// A segment, and its records.
#[derive(Clone, Copy, Debug)]
struct Segment {
    number: u64,
    first: Ticket,
    /// Before the first if there are none.
    last: Ticket,
}

const RECORD: u32 = 0x4352_4a51;
const HEADER: u32 = 0x4844_4a51;
const SEAL: u32 = 0x4c53_4a51;
const NOTE: u32 = 0x544e_4a51;

const FRAME_HEAD: usize = 32;

impl Journal {
    /// A new journal. Its first segment is written with its first record.
    pub fn create(owner: Owner, settings: Settings) -> Journal {
        Journal::begin((owner, settings), VecDeque::new(), 1, Ticket(0), Hearsay::default())
    }

    /// Begins with segment `number`, behind `last`, which is durable.
    fn begin(
        (owner, settings): (Owner, Settings),
        segments: VecDeque<Segment>,
        number: u64,
        last: Ticket,
        hearsay: Hearsay,
    ) -> Journal {
        let mut journal = Journal {
            owner,
            settings,
            segments,
            begun: number,
            length: 0,
            last,
            durable: last,
            said: last,
            hearsay,
            buffer: BytesMut::new(),
            offset: 0,
            writes: Vec::new(),
        };
        journal.begin_segment(number);
        journal
    }

    fn begin_segment(&mut self, number: u64) {
        self.hand_out();
        let first = Ticket(self.last.0 + 1);
        self.segments.push_back(Segment { number, first, last: self.last });
        (self.length, self.offset) = (0, 0);
        let mut contents = BytesMut::new();
        contents.put_u32_le(JOURNAL_VERSION);
        contents.put_u32_le(0);
        contents.put_u128_le(self.owner.domain.0);
        put_process(&mut contents, self.owner.process);
        self.frame(HEADER, Ticket(self.last.0 + 1), |out| out.put_slice(&contents));
        if !self.hearsay.is_empty() {
            // Segments before this one may be removed.
            self.put_note();
        }
    }

    /// The last record that was appended.
    pub fn last(&self) -> Ticket {
        self.last
    }

    /// The last record known to be durable.
    pub fn durable(&self) -> Ticket {
        self.durable
    }

    /// How many segments there are.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Appends a record. It may be handed out from now on.
    pub fn append(&mut self, record: &impl Wire) -> Ticket {
        let number = self.writing().number;
        if self.length >= self.settings.segment_length(number - self.begun) {
            self.begin_segment(number + 1);
        }
        self.last = Ticket(self.last.0 + 1);
        self.segments.back_mut().expect("there is always one").last = self.last;
        self.frame(RECORD, self.last, |out| record.encode(out));
        self.last
    }

    /// Hands out what is to be written, in order.
    pub fn take_writes(&mut self) -> Vec<Write> {
        self.hand_out();
        std::mem::take(&mut self.writes)
    }

    /// Everything handed out up to `through` is durable.
    pub fn synced(&mut self, through: Ticket) {
        assert!(through <= self.last, "what is durable was appended");
        self.durable = self.durable.max(through);
    }

    /// Appends a seal if no frame says yet how much is durable. For a host that has nothing else to write.
    pub fn seal(&mut self) {
        if !self.is_sealed() {
            self.frame(SEAL, self.last, |_| {});
        }
    }

    /// What was noted last of the journals of others.
    pub fn hearsay(&self) -> &Hearsay {
        &self.hearsay
    }

    /// Notes what is known of the journals of others, if that is not what was noted last. A host makes it durable with what
    /// it writes next, or for its own sake: nothing waits for it.
    pub fn note(&mut self, hearsay: &Hearsay) {
        if self.hearsay != *hearsay {
            self.hearsay = hearsay.clone();
            self.put_note();
        }
    }

    fn put_note(&mut self) {
        let mut contents = BytesMut::new();
        self.hearsay.encode(&mut contents);
        self.frame(NOTE, self.last, |out| out.put_slice(&contents));
    }

    /// Whether a frame says of every durable record that it is.
    pub fn is_sealed(&self) -> bool {
        self.said >= self.durable
    }

    /// Records before this one are needed no more, but for those that are `kept`, in ascending order: tells which segments to
    /// remove, oldest first.
    pub fn collect(&mut self, before: Ticket, kept: &[Ticket]) -> Vec<u64> {
        assert!(before <= self.durable, "what takes the place of older records is durable first");
        assert!(self.settings.gaps || kept.is_empty(), "records are collected from the front");
        let newest = self.writing().number;
        let holds = |it: &Segment| {
            kept.get(kept.partition_point(|kept| *kept < it.first)).is_some_and(|kept| *kept <= it.last)
        };
        let (gone, stay): (VecDeque<Segment>, _) = std::mem::take(&mut self.segments)
            .into_iter()
            .partition(|it| it.number != newest && it.last < before && !holds(it));
        self.segments = stay;
        gone.into_iter().map(|it| it.number).collect()
    }

    fn writing(&self) -> Segment {
        *self.segments.back().expect("there is always one")
    }

    fn hand_out(&mut self) {
        if !self.buffer.is_empty() {
            let segment = self.writing().number;
            let bytes = self.buffer.split().freeze();
            let offset = self.offset;
            self.offset += bytes.len() as u64;
            self.writes.push(Write { segment, offset, bytes });
        }
    }

    fn frame(&mut self, magic: u32, ticket: Ticket, contents: impl FnOnce(&mut BytesMut)) {
        let segment = self.writing().number;
        let begin = self.buffer.len();
        self.buffer.put_u32_le(magic);
        self.buffer.put_slice(&[0; 12]);
        self.buffer.put_u64_le(ticket.0);
        self.buffer.put_u64_le(self.durable.0);
        contents(&mut self.buffer);
        let length = self.buffer.len() - begin - FRAME_HEAD;
        let length = u32::try_from(length).expect("a record has fewer than 2^32 bytes");
        let frame = &mut self.buffer[begin..];
        frame[4..8].copy_from_slice(&length.to_le_bytes());
        let sum = checksum(segment, magic, length, &frame[16..]);
        frame[8..16].copy_from_slice(&sum.to_le_bytes());
        let padding = (length as usize).next_multiple_of(8) - length as usize;
        self.buffer.put_bytes(0, padding);
        self.length += (self.buffer.len() - begin) as u64;
        self.said = self.durable;
    }
}

fn checksum(segment: u64, magic: u32, length: u32, rest: &[u8]) -> u64 {
    xxh3_64_with_seed(rest, segment ^ u64::from(magic).rotate_left(32) ^ u64::from(length))
}
