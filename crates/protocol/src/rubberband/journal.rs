//! Journal: the records that a storage process writes to its disk, and its recovery from them.
//!
//! **Promise.** A storage process with a disk that is killed, or loses power, comes back under the same id,
//! with every durable row, reply and verdict. The routers send the messages that came later. Answers to
//! clients stay true, even if all processes lose power at once, as long as the disks of a majority of the
//! routers and of one replica of each range are good.
//!
//! **Source.** 002 §5.6 says only that recovery from disk "could be added". The form is that of Gray and
//! Reuter (1993, ch. 11): a redo journal of the executed messages, whose execution is deterministic, and
//! checkpoints that are taken while the work goes on. Our own addition: routers keep each message until it is
//! durable at its executors, so that no answer waits for a second disk.
//!
//! **Roles.** Routers keep a message until it is durable at every live destination. A storage process writes
//! down each message that is delivered to it, and from time to time a checkpoint of its whole state.
//!
//! ```text
//!  routers                storage process                   disk
//!    ├── Deliver @7, @8 ────▶│ Delivered @7, @8 ──────────────▶│
//!    │◀─ Confirm 8, dur. 4 ──┤ executes, answers               │ sync
//!    │                       │◀────────────────────────────────┤ durable through @8
//!    │◀─ Confirm 8, dur. 8 ──┤                                 │
//!    │  may forget @7, @8    │ Began @8 ──────────────────────▶│ a checkpoint
//!    │                       │ Fragments, Outline, … ─────────▶│
//!    │                       │ Replies, Verdicts, Named, Ended▶│ of the records before Began, only those
//!    │                       │                                 │ are needed that Named lists
//!                            ╳ power cut
//!    │                       │ reads the named fragments, Replies, and the deliveries @9 … @11
//!    │◀── Confirm through 11 ┤ under the same id
//!    ├── Deliver @12, … ────▶│
//! ```
//!
//! **Records** hold inputs, not results, because execution is deterministic.
//! - *Delivered:* an ordered message. For a read, which changes nothing, only its position (*Passed*).
//! - *Submitted:* a control message that the process itself submits. It is sent only once it is durable, so
//!   that the process never uses its number for another message (S3).
//! - *Decided:* the decision on a write that several ranges judge together (S15). The processes that sent
//!   their verdicts may have forgotten them.
//! - *Began … Ended:* a checkpoint. *Began* holds the configuration and the position of the checkpoint.
//!   *Fragments* and *Outline* follow, then the ranges' memory of replies (S6) and the decisions. The engine
//!   pins the checkpoint's version until *Ended*. The process writes one piece after the other, each once the
//!   piece before is durable, so neither protocol nor engine waits. Other records come between the pieces.
//! - *Fragments:* columns of blocks and runs of dictionaries in the engine's form, loads included. Only
//!   fragments that changed since they were last written are written. The *Outline* names all fragments of
//!   the version, in whichever records they lie. *Named*, just before *Ended*, lists those records. Fragments
//!   in a record of which the outline names few are written again, so that the journal stays short
//!   (`storage/fragment_index`).
//! - *Rows:* the form of checkpoints of earlier versions. The process reads it and never writes it.
//!
//! **Invariants.**
//! - *All that was executed can be executed again.* An effect on the engine is in the last whole checkpoint,
//!   or its message is in the journal after it, or the routers send the message again.
//! - *An answer waits for no disk of a storage process.* A delivered message is chosen, and therefore durable
//!   at a majority of the routers, which keep it.
//! - *Durability is cumulative.* "Durable through a position" means that every message for this process up to
//!   it can be read back. Reads count, too: a message that was reported durable is never sent again, and the
//!   next message names it as its predecessor (S4).
//! - *`Complete` follows a checkpoint.* Rows from other processes are in no record until the next checkpoint.
//!   So a process with a disk reports that it has taken over ranges only when such a checkpoint is durable.
//! - *Fragments stay while a checkpoint may need them.* A record of fragments is collected only once a
//!   whole, durable checkpoint does not name it. Until then, recovery starts from a checkpoint that names
//!   it. So fragments of an unfinished checkpoint stay until a later checkpoint is whole, because that
//!   checkpoint may name them.
//! - *No gap is overlooked.* From *Began* on, tickets are consecutive, and every record that *Named* lists is
//!   present. Before *Began* there may be gaps. A process that lacks a record comes back as another process
//!   ([`Unrecoverable::Missing`]).
//! - *The same process, or another process.* A durable record may be unreadable, or rows from other processes
//!   may still have been arriving. Then the process comes back as another process, joins, and is fed by
//!   replicas ([`Unrecoverable`]).
//!
//! **When.** A checkpoint begins when the journal has grown by the size of the last checkpoint, and by at
//! least a fixed number of bytes. So a disk writes everything at most twice. On a disk that is mostly idle, a
//! checkpoint begins earlier, because executing a message again takes many times longer than reading its
//! effect. A quarter of the bytes then suffices. A disk counts as mostly idle if the last checkpoint, spread
//! over the time since then, needs only a small rate of it. Bytes read back after a crash count as written;
//! otherwise a process that crashes often would read more each time.
//!
//! **Recovery.** The process reads the newest whole checkpoint. The engine takes its fragments column by
//! column, as they are. Then the process executes again the messages delivered after that position. It
//! produces answers for clients, but no link exists yet, so nobody receives them. It does not join again,
//! because it *is* a member. It reports its position to the leader, which sends what follows. If the other
//! processes have voted it out, it learns so, and takes the way of every process that was cut off
//! ([`keeping`](super::keeping)).
//!
//! **A checkpoint waits** while the process takes over ranges, or pins a version for a process that does. It
//! also waits while the process keeps rows of a former life, or has skipped one of its own submissions. None
//! of these lasts; until they end, the journal grows.
//!
//! **Attacks considered.**
//! - *A message is confirmed, and lost in the crash:* the leader still has it, because it was not durable
//!   here. The process reports a lower position than it had confirmed, and the leader sends from there. A new
//!   leader sends every message that the log does not call stable; the log calls a message stable only when
//!   it is durable everywhere.
//! - *The power fails during a checkpoint:* the previous checkpoint is whole, and all later records are
//!   there, because they are collected only when the next checkpoint is durable. Fragments of the unfinished
//!   checkpoint are there, too. No later record gets one of their numbers, because numbering continues after
//!   the highest number found.
//! - *A fragment that no outline names is damaged:* its segment is still kept, and any damage there makes the
//!   process a new process. Only in the last records of a segment whose successors were collected can the
//!   journal not tell damage from a torn tail. In that case either a named record is missing, which is
//!   noticed, or nothing needed is.
//! - *A process that was voted out keeps its engine and begins an empty journal:* the fragments that the
//!   engine knows as written are not in this journal. The new life states from which number on records count,
//!   and its first checkpoint writes everything.
//! - *Two processes crash at once, one with a damaged disk:* the process with the damaged disk comes back as
//!   a new process, and replicas feed it. A range whose last replica has a damaged disk is lost, like a range
//!   whose last replica dies without a disk.
//! - *A held write's verdicts were known before the crash:* either *Decided* is read, or the decision was not
//!   durable. In the second case the process asks the other processes, which remember the decision or
//!   evaluate the write again, with the same result. Each of them keeps a decision until every member reports
//!   that it has the decision on disk, however long this process was gone and however many writes came
//!   meanwhile.
//! - *Clients cause long, or many, reasons of failures:* each reason has a bound in bytes where it enters,
//!   and all reasons together have a bound, too. No record grows with the history: a checkpoint writes its
//!   decisions in pieces.

use std::collections::VecDeque;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Config;
use crate::{
    ecast::{Class, MessageId, Position, Submissions},
    paxos,
    seam::Ticket,
    wire::{Wire, WireError, decode_all},
};

/// A record on the disk of a process of a domain of tables. The tags below 64 are those of the log's records.
#[derive(Clone, Debug, PartialEq, Wire)]
pub enum Record {
    /// A record of a router's log.
    #[wire(first = 0..=63)]
    Log(paxos::Record),
    /// A control message that this process submits, after all earlier ones.
    #[wire(tag = 64)]
    Submitted {
        /// The process's own token for the submission.
        token: u64,
        /// The encoded control message.
        body: Bytes,
    },
    /// An ordered message that was delivered here.
    #[wire(tag = 65, class = Class::Data)]
    #[wire(tag = 66, class = Class::Control)]
    Delivered {
        /// The position.
        at: Position,
        /// The message's name.
        id: MessageId,
        /// The message's class.
        class: Class,
        /// Data that routing added to the message.
        attachment: Option<Bytes>,
        /// The message's bytes.
        body: Bytes,
    },
    /// A delivered message that changes nothing here.
    #[wire(tag = 67)]
    Passed {
        /// The position.
        at: Position,
    },
    /// All ranges have judged a write.
    #[wire(tag = 68)]
    Decided {
        /// The write's position.
        at: Position,
        /// The reason of the failure, `None` if the write took effect.
        failure: Option<Bytes>,
    },
    /// The beginning of a checkpoint, with the checkpoint's head.
    #[wire(tag = 69)]
    Began(#[wire(body)] Box<Began>),
    /// Rows of a checkpoint, in the form of earlier versions.
    #[wire(tag = 70)]
    Rows(Bytes),
    /// Fragments of a version of the engine.
    #[wire(tag = 74)]
    Fragments {
        /// The number of the record among all records of fragments.
        number: u64,
        /// Number of fragments in the record.
        count: u32,
        /// The fragments, encoded.
        fragments: Bytes,
    },
    /// A piece of the list of fragments that make up a checkpoint.
    #[wire(tag = 75)]
    Outline(Bytes),
    /// The records that hold a checkpoint's fragments, as pairs of record number and count of fragments.
    #[wire(tag = 76)]
    Named(#[wire(body)] Vec<(u64, u32)>),
    /// The ranges' memory of replies, as of a checkpoint.
    #[wire(tag = 71)]
    Replies(Bytes),
    /// A piece of the decisions on writes up to a checkpoint, in the form in which verdicts are sent to other
    /// processes.
    #[wire(tag = 72)]
    Verdicts(Bytes),
    /// The end of a checkpoint, which is whole.
    #[wire(tag = 73)]
    Ended,
}

/// The head of a checkpoint: the whole state of a storage process, except its engine and the ranges' memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Began {
    /// Last position whose effects the checkpoint contains.
    pub(super) at: Position,
    pub(super) config: Config,
    /// Number up to which all of the process's own messages have an outcome.
    pub(super) passed: u64,
    /// The process's messages after `passed` without an outcome, each with its token.
    pub(super) submitted: Vec<(u64, Bytes)>,
    /// Position at which a member last departed.
    pub(super) departed: Position,
    /// The placement change whose rows have all been imported, if there was one.
    pub(super) received: Option<Position>,
}

/// The reason why no process can continue from a journal under the same id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unrecoverable {
    /// A record does not decode.
    #[error("record {0} of the journal is malformed: {1}")]
    Malformed(usize, WireError),
    /// A record contradicts earlier records.
    #[error("record {0} of the journal contradicts the records before it")]
    Disconnected(usize),
    /// The other processes know this process at another address.
    #[error("the other processes know this process at {0}, but it has another address now")]
    Moved(String),
    /// A needed record is missing.
    #[error("a record that was durable is missing in the journal")]
    Missing,
    /// Rows from other processes, or rows kept from a former life, are in no record yet.
    #[error("the process ended while it held rows that were not on its disk yet")]
    Unfinished,
}

impl From<paxos::Record> for Record {
    fn from(record: paxos::Record) -> Record {
        Record::Log(record)
    }
}

/// Decodes all records, each completely.
pub(super) fn read(records: Vec<(Ticket, Bytes)>) -> Result<Vec<(Ticket, Record)>, Unrecoverable> {
    let read = |(number, (ticket, bytes)): (usize, (Ticket, Bytes))| {
        let record = decode_all(bytes).map_err(|error| Unrecoverable::Malformed(number, error))?;
        Ok((ticket, record))
    };
    records.into_iter().enumerate().map(read).collect()
}

/// The bookkeeping of a process's journal: which deliveries were written, and which are durable.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// Whether deliveries come from the journal. The earlier life has already made the submissions that
    /// follow from them.
    pub(super) replaying: bool,
    /// Submissions that have not been written yet, with their tokens.
    pub(super) unwritten_submissions: Vec<(u64, Bytes)>,
    /// Position of the last delivery that changed nothing and has not been written yet.
    pub(super) passed: Option<Position>,
    /// Records of deliveries that are not known to be durable, in the order of writing.
    pub(super) written: VecDeque<(Ticket, Position)>,
    /// Bytes written since the last checkpoint began, in this life and earlier ones. After a crash, the
    /// process has to execute these again.
    pub(super) bytes: u64,
    /// Bytes written in this life.
    pub(super) all_bytes: u64,
}

impl Journal {
    /// Notes that all records up to `ticket` are durable. Returns the new durable position, if it has
    /// advanced.
    pub(super) fn persisted(&mut self, ticket: Ticket) -> Option<Position> {
        let mut durable = None;
        while let Some((_, at)) = self.written.pop_front_if(|(written, _)| *written <= ticket) {
            durable = Some(at);
        }
        durable
    }

    /// Counts the bytes of a delivery that was read back from the journal.
    pub(super) fn read(&mut self, bytes: usize) {
        self.bytes += bytes as u64 + RECORD_BYTES;
    }

    /// Counts a record of a delivery that was written just now.
    pub(super) fn wrote(&mut self, record: Ticket, at: Position, bytes: usize) {
        self.passed = None;
        self.written.push_back((record, at));
        self.bytes += bytes as u64 + RECORD_BYTES;
        self.all_bytes += bytes as u64 + RECORD_BYTES;
    }
}

/// Estimated overhead of a record in bytes, in addition to its message.
const RECORD_BYTES: u64 = 80;

impl Record {
    /// Returns the approximate size of the record in bytes.
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
    /// Returns the process's own messages that may have to be sent to the routers again.
    pub(super) fn submissions(&self) -> Submissions {
        Submissions { passed: self.passed, messages: self.submitted.clone() }
    }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};

    use super::*;
    use crate::rubberband::sample::process;

    fn check(record: &Record, hex: &str) {
        let mut bytes = BytesMut::new();
        record.encode(&mut bytes);
        let written: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(written, hex.split_whitespace().collect::<String>(), "{record:?}");
        let read = |bytes| read(vec![(Ticket(1), bytes)]);
        assert_eq!(read(bytes.clone().freeze()), Ok(vec![(Ticket(1), record.clone())]));
        for end in 0..bytes.len() {
            let short = bytes.clone().freeze().slice(..end);
            assert!(matches!(read(short), Err(Unrecoverable::Malformed(0, _))), "{record:?} at {end}");
        }
        bytes.put_u8(0);
        assert!(read(bytes.freeze()).is_err(), "{record:?} and one byte more");
    }

    /// The bytes of a record must not change, because later builds read today's disks.
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
