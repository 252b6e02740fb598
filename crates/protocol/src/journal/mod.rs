//! Journal: records as bytes in segments, and their recovery after a crash.
//!
//! **Promise.** Durable records are read again, in order and complete, or the reader learns that some records
//! cannot be read ([`Damage`]). Records that were written but not yet durable may be lost from the end: a
//! torn tail is cut off, and does not count as damage.
//!
//! **Source.** Alagappan et al., *Protocol-Aware Recovery for Consensus-Based Storage*, FAST 2018: a log that
//! takes rot for a torn tail forgets acknowledged records, and breaks agreement. A log that takes every torn
//! tail for rot is useless after a power cut. So a reader must distinguish the two.
//!
//! **Form.** A journal is a sequence of segments, numbered from 1; a host keeps each in a file. A segment is
//! a sequence of frames, each at a multiple of eight bytes:
//!
//! ```text
//! ┌───────┬────────┬──────────┬────────┬────────┬─────┬───────────┬─────────┐
//! │ magic │ length │ checksum │ ticket │ behind │ tag │ contents… │ padding │
//! │ u32   │ u32    │ u64      │ u64    │ u32    │ u32 │ length    │ 0 to 7  │
//! └───────┴────────┴──────────┴────────┴────────┴─────┴───────────┴─────────┘
//! ```
//!
//! The magic gives the kind of a frame. A *header* begins each segment and names the owner of the journal. A
//! *record* has the ticket after that of the previous record. A *note* holds the reports about other
//! processes' journals ([`RemoteDurability`]), and also follows each header. A *seal* has no contents.
//! `behind` counts the tickets that were not known to be durable when the frame was written. The tag covers
//! the rest of the head except the checksum, and the checksum covers everything else. Both depend on the
//! number of the segment and on the journal's *secret*.
//!
//! **The secret.** A search for frames looks at every eighth byte. Contents come from clients, and a segment
//! may be written over an older one. So a client can put any bytes where the search looks. Bytes that look
//! like the head of a long frame would make the search hash their whole claimed length: hours, for a file of
//! 64 MiB. A complete frame made by a client would count as a proof of rot, and all replicas would give up
//! their journals at the next restart. No client knows the secret ([`Key`]), so no client can make such heads
//! or frames. The host keeps it outside the journal, because rot in a header must not make the frames behind
//! it unreadable. Only headers do not depend on the secret: they stand at the first byte of a segment, which
//! no client writes.
//!
//! **Torn or rotten.** Reading ends at the first frame that is not whole. Let `e` be the ticket of the record
//! that was expected there. A whole frame further on with `durable ≥ e` proves that record `e` was durable,
//! so this is rot. Without such a frame the tail is torn: it was written, but was not durable. A seal is
//! written when there is nothing else to write, so that the last records have a frame behind them. A seal
//! that is itself torn or rotten costs nothing.
//!
//! **Rules.**
//! 1. *A recovered journal continues in a new segment.* Its header gives its first ticket, so bytes behind a
//!    torn tail in an older segment are never taken for records again.
//! 2. *A segment is removed* once none of its records is needed. An owner may keep single records before the
//!    one from which it needs all ([`Settings::gaps`]); then segments between others are removed, too. The
//!    journal then vouches for the records of each segment up to its last whole one. The owner must check
//!    that no record that it needs is missing, because the journal does not know which records these are.
//! 3. *The owner*, domain and process, stands in each header: the journal of another process is refused.
//!
//! **Bounds.** A segment has at most [`Settings::segment_bytes`], unless one record is longer. The first
//! segments of each life are shorter ([`Settings::segment_length`]). A record has at most
//! [`RECORD_BYTES_MAX`] bytes; owners check the size before they write a record. A record that panics while
//! it is written leaves nothing in the journal, which others may share. Reading hashes each byte of a segment
//! at most twice: once as a record, and once in a search for a proof of rot.
//!
//! **Earlier versions.** Segments before [`Key::since`] are of version 3, without a secret: their heads end
//! with `durable`, a u64, in place of `behind` and `tag`. They are read and never written. A search in such a
//! segment ends after a fixed number of hashed bytes per byte of the segment, shortest frames first. If the
//! search has found no proof by then, the tail counts as torn.
//!
//! **Undetected.** If the last records rot after a crash that came before their seal was durable, they count
//! as torn. This happens only if two faults come within one sync.

mod read;
mod remote_durability;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use self::{
    read::{Damage, Recovered},
    remote_durability::{DurabilityReport, RemoteDurability, STARTS_MAX, Start, StartHistory},
};
use crate::{
    id::{DomainId, ProcessId},
    seam::Ticket,
    wire::{Wire, put_process},
};

/// The version of the byte form of headers, frames and records.
pub const JOURNAL_VERSION: u32 = 4;

/// Maximum size of a record in bytes. Where users choose the size, the owner of the journal checks the size
/// before it writes the record.
pub const RECORD_BYTES_MAX: usize = u32::MAX as usize;

/// The process that writes a journal, and its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The domain.
    pub domain: DomainId,
    /// The process, incarnation included.
    pub process: ProcessId,
}

/// Settings of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Size in bytes at which a segment ends.
    pub segment_bytes: u64,
    /// Whether segments between kept segments may be collected. If they may, the owner checks that no record
    /// that it needs is missing. If they may not, a missing segment between others counts as damage.
    pub gaps: bool,
    /// The journal's secret, and the first segment that uses it.
    pub key: Key,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { segment_bytes: 64 << 20, gaps: false, key: Key::default() }
    }
}

/// The key that makes a journal's frames unforgeable. Only the process and its directory know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// The secret, drawn at random.
    pub secret: u64,
    /// The first segment whose frames depend on the secret. Earlier segments are of version 3.
    pub since: u64,
}

impl Key {
    /// Returns the key for a journal of version 3, with this secret. The next segment is the first that uses
    /// it.
    pub fn of_older(secret: u64) -> Key {
        Key { secret, since: u64::MAX }
    }

    /// Returns the secret of a segment's frames; `None` for version 3.
    fn secret_of(self, segment: u64) -> Option<u64> {
        (segment >= self.since).then_some(self.secret)
    }
}

impl Settings {
    /// Returns the size in bytes at which the `nth` segment of a life ends, counted from 0. The first segment
    /// is short, and each next segment is twice as long, because hosts reserve segments ahead, and a process
    /// with little data should take little disk space.
    pub fn segment_length(&self, nth: u64) -> u64 {
        let doublings = nth.min(FIRST_SEGMENT_BYTES.leading_zeros().into());
        (FIRST_SEGMENT_BYTES << doublings).min(self.segment_bytes)
    }
}

/// Maximum size of the first segment of a life, in bytes.
const FIRST_SEGMENT_BYTES: u64 = 4 << 20;

/// Bytes to be written. Writes must become durable in the order in which [`Journal::take_writes`] returned
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The segment's number.
    pub segment: u64,
    /// The offset in the segment, in bytes. A write at offset 0 begins the segment.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    owner: Owner,
    settings: Settings,
    /// The kept segments, oldest first. The last one is being written.
    segments: VecDeque<Segment>,
    /// The number of the first segment of this life.
    begun: u64,
    /// Size of the last segment in bytes, including bytes that [`Journal::take_writes`] has not returned yet.
    length: u64,
    /// The last record that was appended.
    last: Ticket,
    durable: Ticket,
    /// The newest record that any frame marks as durable.
    said: Ticket,
    /// The reports of other processes that the journal noted last.
    remote_durability: RemoteDurability,
    /// Bytes that [`Journal::take_writes`] has not returned yet. `offset` is the place of their first byte in
    /// the last segment.
    buffer: BytesMut,
    offset: u64,
    writes: Vec<Write>,
}

/// A segment, and the range of its records.
#[derive(Clone, Copy, Debug)]
struct Segment {
    number: u64,
    first: Ticket,
    /// The segment's last record, or the record before `first` if the segment has none.
    last: Ticket,
}

const RECORD: u32 = 0x4352_4a51;
const HEADER: u32 = 0x4844_4a51;
const SEAL: u32 = 0x4c53_4a51;
const NOTE: u32 = 0x544e_4a51;

const FRAME_HEAD: usize = 32;

impl Journal {
    /// Creates a new journal. Its first segment is written with its first record.
    pub fn create(owner: Owner, settings: Settings) -> Journal {
        Journal::begin((owner, settings), VecDeque::new(), 1, Ticket(0), RemoteDurability::default())
    }

    /// Begins segment `number`, whose first record follows the durable record `last`.
    fn begin(
        (owner, mut settings): (Owner, Settings),
        segments: VecDeque<Segment>,
        number: u64,
        last: Ticket,
        remote_durability: RemoteDurability,
    ) -> Journal {
        settings.key.since = settings.key.since.min(number);
        let mut journal = Journal {
            owner,
            settings,
            segments,
            begun: number,
            length: 0,
            last,
            durable: last,
            said: last,
            remote_durability,
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
        if !self.remote_durability.is_empty() {
            // The new segment repeats the note, because the earlier segments that hold it may be removed.
            self.put_note();
        }
    }

    /// Returns the last record appended.
    pub fn last(&self) -> Ticket {
        self.last
    }

    /// Returns the last record that is known to be durable.
    pub fn durable(&self) -> Ticket {
        self.durable
    }

    /// Returns the key. The host must make the key durable before it writes any bytes of the journal.
    pub fn key(&self) -> Key {
        self.settings.key
    }

    /// Returns the number of segments.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Appends a record. From now on [`Journal::take_writes`] includes its bytes.
    pub fn append(&mut self, record: &impl Wire) -> Ticket {
        let number = self.writing().number;
        if self.length >= self.settings.segment_length(number - self.begun) {
            self.begin_segment(number + 1);
        }
        // A record that panics must not use up a ticket.
        let ticket = Ticket(self.last.0 + 1);
        self.frame(RECORD, ticket, |out| record.encode(out));
        self.last = ticket;
        self.segments.back_mut().expect("a journal always has a segment").last = ticket;
        ticket
    }

    /// Returns the bytes that have yet to be written, in order.
    pub fn take_writes(&mut self) -> Vec<Write> {
        self.hand_out();
        std::mem::take(&mut self.writes)
    }

    /// Returns the number of bytes that [`Journal::take_writes`] would return.
    pub fn unwritten_bytes(&self) -> usize {
        self.buffer.len() + self.writes.iter().map(|write| write.bytes.len()).sum::<usize>()
    }

    /// Notes that all records up to `through` are durable.
    pub fn synced(&mut self, through: Ticket) {
        assert!(through <= self.last, "a record is appended before it is durable");
        self.durable = self.durable.max(through);
    }

    /// Appends a seal, unless a frame already marks the last durable record. Meant for a host that has
    /// nothing else to write.
    pub fn seal(&mut self) {
        if !self.is_sealed() {
            self.frame(SEAL, self.last, |_| {});
        }
    }

    /// Returns the reports of other processes that the journal noted last.
    pub fn remote_durability(&self) -> &RemoteDurability {
        &self.remote_durability
    }

    /// Notes the reports of other processes, unless they equal the last note. The host makes the note durable
    /// with its next write or separately, because no output waits for it.
    pub fn note(&mut self, remote_durability: &RemoteDurability) {
        if self.remote_durability != *remote_durability {
            self.remote_durability = remote_durability.clone();
            self.put_note();
        }
    }

    fn put_note(&mut self) {
        let mut contents = BytesMut::new();
        self.remote_durability.encode(&mut contents);
        self.frame(NOTE, self.last, |out| out.put_slice(&contents));
    }

    /// Whether some frame marks the last durable record as durable.
    pub fn is_sealed(&self) -> bool {
        self.said >= self.durable
    }

    /// Drops records before `before`, except the records in `kept`, which must be in ascending order. Returns
    /// the segments to remove, oldest first.
    pub fn collect(&mut self, before: Ticket, kept: &[Ticket]) -> Vec<u64> {
        assert!(
            before <= self.durable,
            "older records go only after the records that replace them are durable"
        );
        assert!(self.settings.gaps || kept.is_empty(), "a journal without gaps is collected from the front");
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
        *self.segments.back().expect("a journal always has a segment")
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
        // A header has no secret: no client can write in its place, and the owner must be readable without
        // the secret.
        let secret = if magic == HEADER { 0 } else { self.settings.key.secret };
        let behind = u32::try_from(ticket.0 - self.durable.0)
            .expect("the number of records that wait for the disk is bounded");
        let mut unfinished = Unfinished { buffer: &mut self.buffer, begin, whole: false };
        let buffer = &mut *unfinished.buffer;
        buffer.put_u32_le(magic);
        buffer.put_slice(&[0; 12]);
        buffer.put_u64_le(ticket.0);
        buffer.put_u32_le(behind);
        buffer.put_u32_le(0);
        contents(buffer);
        let length = buffer.len() - begin - FRAME_HEAD;
        assert!(length <= RECORD_BYTES_MAX, "a record is within the limit of its size: {length} bytes");
        let length = length as u32;
        let frame = &mut buffer[begin..];
        frame[4..8].copy_from_slice(&length.to_le_bytes());
        let tag = tag(secret, segment, frame);
        frame[28..32].copy_from_slice(&tag.to_le_bytes());
        let sum = checksum(secret, segment, magic, length, &frame[16..]);
        frame[8..16].copy_from_slice(&sum.to_le_bytes());
        let padding = (length as usize).next_multiple_of(8) - length as usize;
        buffer.put_bytes(0, padding);
        unfinished.whole = true;
        drop(unfinished);
        self.length += (self.buffer.len() - begin) as u64;
        self.said = self.durable;
    }
}

/// A frame that is being written. The frame is removed if its contents panic, because other owners write to
/// the same journal.
struct Unfinished<'a> {
    buffer: &'a mut BytesMut,
    begin: usize,
    whole: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.whole {
            self.buffer.truncate(self.begin);
        }
    }
}

/// Returns the tag of a frame's head, which covers all of the head except the checksum and the tag itself.
fn tag(secret: u64, segment: u64, head: &[u8]) -> u32 {
    let mut covered = [0; 28];
    covered[..8].copy_from_slice(&segment.to_le_bytes());
    covered[8..16].copy_from_slice(&head[..8]);
    covered[16..].copy_from_slice(&head[16..28]);
    xxh3_64_with_seed(&covered, secret) as u32
}

fn checksum(secret: u64, segment: u64, magic: u32, length: u32, rest: &[u8]) -> u64 {
    xxh3_64_with_seed(rest, secret ^ segment ^ u64::from(magic).rotate_left(32) ^ u64::from(length))
}
