//! Journal: what a storage process writes to its disk, and how it comes back.
//!
//! **Promise.** A storage process with a disk that is killed, or loses power, comes back as the process that it was, with every
//! row, reply and verdict of what was durable; the routers send what came after. What a client was told is kept: also if all
//! processes lose power at once, as long as a majority of the routers' disks and one holder's disk of each range are good.
//!
//! **Source.** 002 §5.6 says that recovery from disk "could be added", and no more. The form is that of Gray and Reuter (1993, ch. 11):
//! a redo journal of what was executed, which is deterministic, and checkpoints taken while the work goes on. That the order
//! keeps what is not durable where it is executed, so that no answer waits for a second disk, is ours.
//!
//! **Roles.** Routers keep a message until every destination that lives has it durable. A storage process writes down what
//! is delivered, and now and then all that it has.
//!
//! ```text
//!  routers                storage process                       disk
//!    ├── Deliver @7, @8 ────▶│ Delivered @7, @8 ──────────────────▶│
//!    │◀─ Confirm 8, dur. 4 ──┤ executes, answers                   │ sync
//!    │                       │◀────────────────────────────────────┤ durable through @8
//!    │◀─ Confirm 8, dur. 8 ──┤                                     │
//!    │  may forget @7, @8    │ Began @8 ──────────────────────────▶│ a checkpoint
//!    │                       │ Fragments, Outline, …, Replies, Ended ─▶│ of what is before Began, only the fragments
//!    │                       │                                     │ that the outline names are needed
//!
//!                            ╳ power cut
//!    │                       │ named fragments, Replies, then what was delivered behind @8, up to @11
//!    │◀── Confirm through 11 ┤ as the process that it was
//!    ├── Deliver @12, … ────▶│
//! ```
//!
//! **Records** are of what comes in, not of what comes of it: executing is deterministic.
//! - *Delivered:* a message of the order. Of a read, from which nothing comes, the position alone (*Passed*).
//! - *Submitted:* a control message of the process's own. It is not sent before it is durable, so that none of its numbers is
//!   ever used twice (S3).
//! - *Decided:* the verdict on a write that ranges judge together (S15): those who told it may have forgotten it.
//! - *Began … Ended:* a checkpoint. Began has the configuration and the position that all of it is of; then come *Fragments* and
//!   *Outline*, what ranges remember (S6) and decisions. It is of a version that the engine keeps meanwhile, and goes to disk piece
//!   by piece, each once the one before is durable: neither protocol nor engine waits. Other records come between its pieces.
//! - *Fragments* are columns of blocks and runs of dictionaries, as the engine has them, loads included; only those that have changed
//!   since they were written before. The *Outline* names all that make up the version, whichever record they are in. *Named*,
//!   right before Ended, says which records these are. Fragments of which few neighbours are named are written again, so that the
//!   journal stays short (`storage/shelf`).
//! - *Rows:* the form of checkpoints of earlier versions, which is read and not written.
//!
//! **Invariants.**
//! - *What is executed can be executed again.* All that the engine did is in the last whole checkpoint, or was delivered
//!   behind its position and is in the journal, or comes from the routers again.
//! - *An answer waits for no disk of a storage process.* What was delivered is chosen, and so durable at a majority of the
//!   routers, who keep it.
//! - *Durable is said of positions, cumulatively:* everything destined here up to it can be read again. Reads count, too: a
//!   message that was said to be durable is never sent again, and the next one names it as the one before (S4).
//! - *Complete is said behind a checkpoint.* Rows that come from other processes are in no record until the next checkpoint. A process
//!   with a disk says that it has taken ranges over once such a one is durable.
//! - *Fragments are kept by name.* A record of fragments may be collected once a whole checkpoint is durable that does not name it, and
//!   never before: the one that names it is the one to come back from. So fragments of a checkpoint that did not become whole
//!   stay until the next does, and may be named by it.
//! - *Nothing is missing.* From Began on, tickets follow each other, and every record that Named lists is there. Before Began
//!   there may be gaps. Whoever lacks a record is another process ([`Unrecoverable::Missing`]).
//! - *As itself or not at all.* If not all that was durable can be read, or rows from others were still coming in, the process is
//!   another one: it joins, and is fed by replicas ([`Unrecoverable`]).
//!
//! **When.** A checkpoint begins when as much was written down as the last one took, and no less than a stated number of bytes: disks write
//! everything twice, at most. Executing takes many times longer than reading what came of it, so a disk that has had little to do
//! does not wait for that: a quarter of the bytes is enough once the last checkpoint, spread over the time since then, comes
//! to a small pace. What was read back after a crash counts as written, or a process that crashes often would read more each time.
//!
//! **Recovery.** The newest whole checkpoint is read; its fragments go to the engine, which takes them as they are, column by column, then
//! what was delivered behind its position is executed as it was. Clients are answered, and hear nothing, since no link stands. Meanwhile the process joins nobody: it *is* a member,
//! tells the leader how far it has come, and is sent what is behind that. If the others voted it out, it hears so, and goes
//! the way of every process that was cut off ([`keeping`](super::keeping)).
//!
//! **A checkpoint waits** while the process takes ranges over or keeps a version for one that does, keeps rows of a former life, or
//! has passed over a submission. None of it lasts: until then the journal grows.
//!
//! **Attacks considered.**
//! - *Confirmed, and lost in the crash:* the leader has it still, since it was not durable here. It hears that less is here than was
//!   confirmed, and sends from there. A new leader sends all that the log does not call stable, which is said of what is durable
//!   everywhere.
//! - *The power fails in a checkpoint:* the one before is whole, and what came since is there, because it is collected only when the
//!   next is durable. Fragments that it had written already are there, too, and none has a number that is given again: numbers go on
//!   behind all that are found.
//! - *Rot in a fragment that nobody names:* it is in a segment that is kept, and rot is rot: another process. Only in the last records
//!   of a segment behind which others were collected the journal does not tell rot from a torn tail. Then a named record
//!   is missing, or nothing is.
//! - *A process that is out keeps its engine and begins an empty journal:* what its engine knows to be on disk is not on this
//!   one. The new life says from which number on records count, and its first checkpoint writes everything.
//! - *Two crashes at once, one of them with rot:* who has rot is a new process and is fed. A range whose last holder's disk
//!   has rot is lost, as one whose last holder dies without a disk.
//! - *A held write whose verdicts were known before the crash:* Decided is read, or the write was not settled durably; then the others
//!   are asked, who remember it or evaluate it again, alike.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Config;
use crate::{
    ecast::{Class, MessageId, Position, Submissions},
    paxos,
    seam::Ticket,
    wire::{
        Wire, WireError, decode_all, decode_body, encode_body, encode_whole, put_bytes, put_payload,
        put_process, take_bytes, take_process, take_u8, take_u32, take_u64,
    },
};

/// What a process of a domain of tables writes to its disk.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A router: of its log.
    Log(paxos::Record),
    /// This process submits this control message, behind all before.
    Submitted {
        /// Its own name for it.
        token: u64,
        /// The message.
        body: Bytes,
    },
    /// The order delivered this here.
    Delivered {
        /// Where.
        at: Position,
        /// Which message.
        id: MessageId,
        /// Its class.
        class: Class,
        /// What routing added to it.
        attachment: Option<Bytes>,
        /// The message.
        body: Bytes,
    },
    /// The order delivered something here from which nothing comes.
    Passed {
        /// Where.
        at: Position,
    },
    /// All ranges have judged the write at this position.
    Decided {
        /// Where it is.
        at: Position,
        /// Why it failed, if it did.
        failure: Option<Bytes>,
    },
    /// A checkpoint begins.
    Began(Box<Began>),
    /// Rows of a checkpoint, as earlier versions wrote them.
    Rows(Bytes),
    /// Fragments of a version of the engine.
    Fragments {
        /// Its number, which no other has.
        number: u64,
        /// How many there are.
        count: u32,
        /// The fragments.
        fragments: Bytes,
    },
    /// A piece of what says which fragments a checkpoint is made of.
    Outline(Bytes),
    /// The records whose fragments a checkpoint is made of, and how many of each.
    Named(Vec<(u64, u32)>),
    /// What ranges remember as of a checkpoint.
    Replies(Bytes),
    /// Verdicts on writes up to a checkpoint, as told to those who ask.
    Verdicts(Bytes),
    /// The checkpoint is whole.
    Ended,
}

/// What a checkpoint begins with: all that a storage process has, but for its engine and what its ranges remember.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Began {
    /// What was delivered up to here is in it, and nothing behind.
    pub(super) at: Position,
    /// The configuration.
    pub(super) config: Config,
    /// Own messages up to this number are over.
    pub(super) passed: u64,
    /// Own messages behind, with their tokens.
    pub(super) submitted: Vec<(u64, Bytes)>,
    /// Where a member departed last.
    pub(super) departed: Position,
    /// The change whose rows are all here.
    pub(super) received: Option<Position>,
}

/// Why no process can go on from a journal as the one that wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unrecoverable {
    /// A record does not decode.
    #[error("record {0} is malformed: {1}")]
    Malformed(usize, WireError),
    /// One contradicts those before it.
    #[error("record {0} does not follow from those before it")]
    Disconnected(usize),
    /// The others know the process elsewhere.
    #[error("the others know this process at {0}")]
    Moved(String),
    /// A record that is needed is not there.
    #[error("a record that was durable is missing")]
    Missing,
    /// Rows were coming in from others, or were kept from a former life, and are in no record.
    #[error("it ended while it had rows that it had not written down yet")]
    Unfinished,
}

impl From<paxos::Record> for Record {
    fn from(record: paxos::Record) -> Record {
        Record::Log(record)
    }
}

// Tags of the log's records are below.
const SUBMITTED: u8 = 64;
const DELIVERED_DATA: u8 = 65;
const DELIVERED_CONTROL: u8 = 66;
const PASSED: u8 = 67;
const DECIDED: u8 = 68;
const BEGAN: u8 = 69;
const ROWS: u8 = 70;
const REPLIES: u8 = 71;
const VERDICTS: u8 = 72;
const ENDED: u8 = 73;
const FRAGMENTS: u8 = 74;
const OUTLINE: u8 = 75;
const NAMED: u8 = 76;

impl Wire for Record {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        match self {
            Record::Log(record) => return record.encode_head(out),
            Record::Submitted { token, body } => {
                out.put_u8(SUBMITTED);
                out.put_u64_le(*token);
                return put_payload(out, body);
            }
            Record::Delivered { at, id, class, attachment, body } => {
                out.put_u8(if *class == Class::Data { DELIVERED_DATA } else { DELIVERED_CONTROL });
                out.put_u64_le(at.0);
                put_process(out, id.sender);
                out.put_u64_le(id.number);
                put_option(out, attachment.as_ref());
                return put_payload(out, body);
            }
            Record::Passed { at } => {
                out.put_u8(PASSED);
                out.put_u64_le(at.0);
            }
            Record::Decided { at, failure } => {
                out.put_u8(DECIDED);
                out.put_u64_le(at.0);
                put_option(out, failure.as_ref());
            }
            Record::Began(began) => {
                out.put_u8(BEGAN);
                encode_body(out, began);
            }
            Record::Rows(rows) => {
                out.put_u8(ROWS);
                return put_payload(out, rows);
            }
            Record::Replies(section) => {
                out.put_u8(REPLIES);
                return put_payload(out, section);
            }
            Record::Verdicts(section) => {
                out.put_u8(VERDICTS);
                return put_payload(out, section);
            }
            Record::Ended => out.put_u8(ENDED),
            Record::Fragments { number, count, fragments } => {
                out.put_u8(FRAGMENTS);
                out.put_u64_le(*number);
                out.put_u32_le(*count);
                return put_payload(out, fragments);
            }
            Record::Outline(piece) => {
                out.put_u8(OUTLINE);
                return put_payload(out, piece);
            }
            Record::Named(records) => {
                out.put_u8(NAMED);
                encode_body(out, records);
            }
        }
        None
    }

    fn decode(input: &mut Bytes) -> Result<Record, WireError> {
        if input.first().is_some_and(|tag| *tag < SUBMITTED) {
            return paxos::Record::decode(input).map(Record::Log);
        }
        Ok(match take_u8(input)? {
            SUBMITTED => Record::Submitted { token: take_u64(input)?, body: take_bytes(input)? },
            tag @ (DELIVERED_DATA | DELIVERED_CONTROL) => Record::Delivered {
                at: Position(take_u64(input)?),
                id: MessageId { sender: take_process(input)?, number: take_u64(input)? },
                class: if tag == DELIVERED_DATA { Class::Data } else { Class::Control },
                attachment: take_option(input)?,
                body: take_bytes(input)?,
            },
            PASSED => Record::Passed { at: Position(take_u64(input)?) },
            DECIDED => Record::Decided { at: Position(take_u64(input)?), failure: take_option(input)? },
            BEGAN => Record::Began(decode_body(input)?),
            ROWS => Record::Rows(take_bytes(input)?),
            REPLIES => Record::Replies(take_bytes(input)?),
            VERDICTS => Record::Verdicts(take_bytes(input)?),
            ENDED => Record::Ended,
            FRAGMENTS => Record::Fragments {
                number: take_u64(input)?,
                count: take_u32(input)?,
                fragments: take_bytes(input)?,
            },
            OUTLINE => Record::Outline(take_bytes(input)?),
            NAMED => Record::Named(decode_body(input)?),
            tag => return Err(WireError::Tag(tag)),
        })
    }
}

fn put_option(out: &mut BytesMut, bytes: Option<&Bytes>) {
    out.put_u8(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        put_bytes(out, bytes);
    }
}

fn take_option(input: &mut Bytes) -> Result<Option<Bytes>, WireError> {
    match take_u8(input)? {
        0 => Ok(None),
        1 => take_bytes(input).map(Some),
        tag => Err(WireError::Tag(tag)),
    }
}

/// Reads records, all of each.
pub(super) fn read(records: Vec<(Ticket, Bytes)>) -> Result<Vec<(Ticket, Record)>, Unrecoverable> {
    let read = |(number, (ticket, bytes)): (usize, (Ticket, Bytes))| {
        let record = decode_all(bytes).map_err(|error| Unrecoverable::Malformed(number, error))?;
        Ok((ticket, record))
    };
    records.into_iter().enumerate().map(read).collect()
}

/// What is delivered here goes to the journal; how much of it is durable.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// What is delivered was read from the journal, and what comes of it was submitted before.
    pub(super) replaying: bool,
    /// Submitted, and not written down yet.
    pub(super) unsaid: Vec<(u64, Bytes)>,
    /// Delivered, and not written down because nothing comes of it.
    pub(super) passed: Option<Position>,
    /// Written, and not known to be durable: the records of deliveries.
    pub(super) written: VecDeque<(Ticket, Position)>,
    /// Bytes written since the last checkpoint began, in earlier lives too: as many are executed again after a crash.
    pub(super) bytes: u64,
    /// Bytes written in this life.
    pub(super) all_bytes: u64,
}

impl Journal {
    /// Everything up to this record is durable: up to which position, if that is news.
    pub(super) fn persisted(&mut self, ticket: Ticket) -> Option<Position> {
        let mut durable = None;
        while let Some((_, at)) = self.written.pop_front_if(|(written, _)| *written <= ticket) {
            durable = Some(at);
        }
        durable
    }

    /// Notes a delivery that an earlier life wrote down.
    pub(super) fn read(&mut self, bytes: usize) {
        self.bytes += bytes as u64 + RECORD_BYTES;
    }

    /// Notes a record of a delivery.
    pub(super) fn wrote(&mut self, record: Ticket, at: Position, bytes: usize) {
        self.passed = None;
        self.written.push_back((record, at));
        self.bytes += bytes as u64 + RECORD_BYTES;
        self.all_bytes += bytes as u64 + RECORD_BYTES;
    }
}

/// A record takes so many bytes beside its message.
const RECORD_BYTES: u64 = 80;

impl Record {
    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> u64 {
        let content = match self {
            Record::Submitted { body, .. } | Record::Delivered { body, .. } => body.len(),
            Record::Rows(bytes)
            | Record::Replies(bytes)
            | Record::Verdicts(bytes)
            | Record::Outline(bytes) => bytes.len(),
            Record::Fragments { fragments, .. } => fragments.len(),
            _ => 0,
        };
        content as u64 + RECORD_BYTES
    }
}

impl Began {
    /// Own messages that may have to be sent again.
    pub(super) fn submissions(&self) -> Submissions {
        Submissions { passed: self.passed, messages: self.submitted.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rubberband::sample::process;

    fn check(record: &Record, hex: &str) {
        let mut bytes = BytesMut::new();
        record.encode(&mut bytes);
        let told: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(told, hex.split_whitespace().collect::<String>(), "{record:?}");
        let read = |bytes| read(vec![(Ticket(1), bytes)]);
        assert_eq!(read(bytes.clone().freeze()), Ok(vec![(Ticket(1), record.clone())]));
        for end in 0..bytes.len() {
            let short = bytes.clone().freeze().slice(..end);
            assert!(matches!(read(short), Err(Unrecoverable::Malformed(0, _))), "{record:?} at {end}");
        }
        bytes.put_u8(0);
        assert!(read(bytes.freeze()).is_err(), "{record:?} and one byte more");
    }

    /// What is on disk is read by later builds.
    #[test]
    fn records_have_their_bytes() {
        let (at, bytes) = (Position(7), Bytes::from_static(b"ab"));
        let id = MessageId { sender: process(3), number: 9 };
        check(&Record::Submitted { token: 5, body: bytes.clone() }, "40 0500000000000000 02000000 6162");
        let delivered =
            |class, attachment| Record::Delivered { at, id, class, attachment, body: bytes.clone() };
        let sender = "0300000000000000 03000000000000000000000000000000 0900000000000000";
        check(&delivered(Class::Data, None), &format!("41 0700000000000000 {sender} 00 02000000 6162"));
        check(
            &delivered(Class::Control, Some(Bytes::from_static(b"c"))),
            &format!("42 0700000000000000 {sender} 01 01000000 63 02000000 6162"),
        );
        check(&Record::Passed { at }, "43 0700000000000000");
        check(&Record::Decided { at, failure: None }, "44 0700000000000000 00");
        let failure = Some(bytes.clone());
        check(&Record::Decided { at, failure }, "44 0700000000000000 01 02000000 6162");
        check(&Record::Rows(bytes.clone()), "46 02000000 6162");
        check(&Record::Replies(bytes.clone()), "47 02000000 6162");
        check(&Record::Verdicts(bytes.clone()), "48 02000000 6162");
        let fragments = Record::Fragments { number: 5, count: 3, fragments: bytes.clone() };
        check(&fragments, "4a 0500000000000000 03000000 02000000 6162");
        check(&Record::Outline(bytes), "4b 02000000 6162");
        check(&Record::Named(vec![(300, 2), (1, 1)]), "4c 06000000 02 ac0202 0101");
        check(&Record::Ended, "49");
        let ballot = paxos::Ballot::ZERO;
        let mut log = BytesMut::new();
        paxos::Record::Promised(ballot).encode(&mut log);
        let read = |bytes| read(vec![(Ticket(1), bytes)]);
        let promised = Record::Log(paxos::Record::Promised(ballot));
        assert_eq!(read(log.freeze()), Ok(vec![(Ticket(1), promised)]));
        assert_eq!(read(Bytes::from_static(&[99])), Err(Unrecoverable::Malformed(0, WireError::Tag(99))));
    }
}
