//! Journal: the records that a cell writes to its disk, and how the cell comes back from them.
//!
//! **Promise.** A cell with a disk that is killed, or loses power, comes back as the same cell. It holds
//! every write that it acknowledged and every value that it showed, and issues no stamp that it issued
//! before. So two things survive a power cut of all cells, in whatever order they come back: a write that was
//! acknowledged at a quorum, and a value that a read at a quorum returned in a map with blocking repair.
//!
//! **Source.** In DeCandia and others, *Dynamo* (2007), §4.4 and §5.2, replicas are on disk, and may
//! acknowledge a write while it is only in memory, for speed at the price of durability. Lakshman and Malik,
//! *Cassandra* (2010), §5.6, has a commit log and dumps of memory. Here a record is on disk before its
//! acknowledgement leaves, and writes share the sync (group commit).
//!
//! ```text
//!   coordinator            replica                           disk
//!     ├── Write ──────────▶ │ takes it; Merged ───────────────▶│
//!     │                     │                                  │ sync, for all that came meanwhile
//!     │◀──────── Written ── │◀─────────────────────────────────┤
//!     ├── Read ───────────▶ │ of a key whose record is on its way: behind its sync
//!     │◀────────── Entry ── │ of any other key: at once
//! ```
//!
//! **Records.**
//!
//! - *Merged:* a write that was taken, without the parts that the horizon covered. *Forgot:* deletions that
//!   were forgotten. *Reached:* the cell's own horizon. These records have the order of the cell's actions,
//!   so executing them again leads to the same entries.
//! - *Reserved:* the cell issues stamps, and announces its progress, up to this time. A cell that comes back
//!   issues only stamps above this time.
//! - *Layout:* the order's decision on cells and maps. It takes effect here once it is durable.
//! - *Submitted:* a message of this process to the order. It is sent only once the record is durable (S3).
//! - *Began, Kept …, Ended:* a checkpoint. Each Kept has the content of a stretch of a map (a run of
//!   neighbouring keys) at that moment, and replaces everything that earlier records say about the stretch.
//!   Other records come between. Once Ended is durable, the records before Began are no longer needed.
//!
//! **Invariants.**
//!
//! - *An acknowledgement leaves only after its record is durable.* The acknowledgement of a write that
//!   changed nothing leaves after the records that it relies on. An acknowledgement of a cell to its own
//!   coordinator waits just as long.
//! - *An entry is shown only after its record is durable.* Without this rule, two replicas might show a write
//!   that no disk has, and a read might return it. After a power cut the next read would return an older
//!   value, which atomicity forbids. With the rule, digests agree only if both entries have been synced, and
//!   the replicas acknowledge a read's write-back like any write. So a value that a read with blocking repair
//!   has returned is durable at a quorum. The rule also holds in maps without blocking repair, which do not
//!   need it. A replica that only reports a stamp (`HighestStamp`, `newer`) shows nothing: if that stamp
//!   vanishes, a write above it does no harm.
//! - *Nothing else waits.* Questions of reads, and answers about keys that are on disk, overtake messages
//!   that wait.
//! - *A stamp is covered before any other process sees it.* No message with a stamp above the last durable
//!   reservation leaves, and no announcement of the cell's progress above it. A reservation goes ahead by as
//!   much as a stamp may be ahead of the wall clock, so that a cell that comes back can issue at once. The
//!   cell renews the reservation before it is used up.
//! - *A cell reports a horizon only after the horizon's record is durable.* That record comes after the
//!   records of all entries on which the horizon relies. Other cells forget deletions because of this report.
//! - *A layout takes effect once it is durable.* Else a cell could copy its keys to an arriving cell, come
//!   back under the earlier layout, and acknowledge a write there that the copy lacks.
//! - *As itself or not at all.* If some durable record cannot be read, the process continues as another
//!   process. That process takes the place of the former process as an arriving cell, and copies what all
//!   other cells have.
//!
//! **Coming back when other cells wrote meanwhile.** The cell answers at once, at every level. It lacks
//! writes that it never acknowledged, like any replica that missed some. The rule R + W > N counts
//! acknowledgements, and the cell holds all writes that it acknowledged. Comparing brings the missing writes.
//! The cell does not bring back a key that was deleted meanwhile: no cell forgets a deletion that this cell's
//! horizon does not cover, and its last announcement shows how far that horizon was.
//!
//! **An older disk**, put back, lacks writes that the cell has acknowledged. Such a cell must not answer. The
//! other processes know from its earlier messages how long its journal was
//! ([`RemoteDurability`](crate::journal::RemoteDurability)), so the cell finds out, sends nothing, and ends.
//! If the cell is started with an empty directory, it is a new life, which copies its keys before it answers.
//!
//! **Counters.** A tally's states are writes, and have records as all writes have. A cell that comes back
//! does not know the last states of its former tallies. So it writes none of them before all owners have
//! these states. Its next tallies begin above the stamps that it had reserved ([`counter`](super::counter)).
//!
//! **Hints** are not on disk. A hint is a copy of a write that some owner has, or of a write that was not
//! acknowledged. It shortens the time until replicas are equal, and no promise rests on it. A hint on disk
//! would cost as much as the write itself, at a cell that may not even own the key. Hints end with the
//! process, as they do without a disk. A cell that comes back reports that
//! ([`Status::resumed`](super::Status)), and comparing finds the same writes.
//!
//! **Bounds.** A checkpoint begins when the bytes written since the last checkpoint began reach the memory
//! that the cell keeps, and at least [`Settings::checkpoint_bytes`](super::Settings). So the journal has at
//! most about three times the bytes that the cell keeps, or twice these bytes plus `checkpoint_bytes`,
//! whichever is more. Checkpoints write no more bytes than the changes did. A piece has 256 KiB, or one
//! entry. The next piece is written when the previous one is durable, so neither the protocol nor the disk
//! waits for a checkpoint.
//!
//! **Attacks considered.**
//!
//! - *A second copy of a write, while the record of the first is on its way.* It changes nothing and has no
//!   record. Its acknowledgement nevertheless waits until the last record so far is durable.
//! - *A write that the horizon covers.* The replica ignores it, and acknowledges it behind the record of the
//!   horizon.
//! - *A clock that is set back while the cell is down.* Stamps go on above the last reservation. If that
//!   reservation is too far ahead of the clock, the cell refuses to write until the clock has come near it,
//!   as after a jump back during the cell's life.
//! - *By comparing, a cell takes an entry that it wrote itself, and whose stamp is not reserved.* This cannot
//!   happen, because no such entry has left the cell.
//! - *A comparison with a cell that loses what it showed.* The asking cell has the entry, and its horizon
//!   rests on its own disk. The other cell's horizon did not cover entries that were not on that cell's disk.
//! - *A deletion that was forgotten, and comes back with the disk.* It is still a deletion, and is forgotten
//!   again.
//! - *An arriving cell loses power right after its last copy.* It announces the end of its arrival once all
//!   copies are durable. Before that it comes back as arriving, and copies from the beginning.
//! - *An answer to a request from before the power cut.* It was sent on a link that has ended. The numbers of
//!   new requests are also above the numbers of all earlier requests.
//! - *Rot in a record of a stretch that a later checkpoint contains, too.* Any rot makes the process a new
//!   process.
//! - *A place that was given away while the cell was down.* The routers tell the cell that it is out. Its
//!   host begins an empty journal.

mod past;
#[cfg(test)]
mod tests;
mod writing;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(super) use self::{past::Past, writing::CellJournal};
use super::{
    entry::Entry,
    horizon::Horizon,
    id::MapId,
    message::{put_count, take_flag},
    routing::Roster,
    stamp::{Stamp, put_stamp, take_stamp},
};
use crate::{
    ecast::Position,
    paxos,
    wire::{
        Wire, WireError, decode_body, encode_body, put_bytes, take_bytes, take_count, take_u8, take_u32,
        take_u64,
    },
};

/// A record that a cell writes to its disk, or that a router writes in a simulation of maps alone.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A record of a router's log.
    Log(paxos::Record),
    /// This process submits this change to the order, after all its earlier changes.
    Submitted {
        /// The number that this process gave the change.
        token: u64,
        /// The change.
        body: Bytes,
    },
    /// The members, cells and maps from this change on.
    Layout {
        /// The position of the change.
        at: Position,
        /// The roster after the change.
        roster: Box<Roster>,
    },
    /// The cell may issue stamps up to this time, in nanoseconds.
    Reserved(u64),
    /// The replica took this write.
    Merged {
        /// The map.
        map: MapId,
        /// The key.
        key: Bytes,
        /// The part of the write that the horizon did not cover.
        write: Entry,
    },
    /// The replica forgot the deleted and expired values of these keys.
    Forgot {
        /// The map.
        map: MapId,
        /// The horizon that all cells have reached.
        common: Horizon,
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// The cell reached this horizon.
    Reached(Horizon),
    /// A checkpoint begins.
    Began(Box<Began>),
    /// The content of a stretch of a map: all keys from one place in the map to another.
    Kept {
        /// The map.
        map: MapId,
        /// The key behind which the stretch begins, in the order of tokens. `None` if the stretch begins at
        /// the first key.
        behind: Option<Bytes>,
        /// Whether the stretch goes to the end of the map. If not, it goes to its last key.
        last: bool,
        /// All keys of the stretch with their entries.
        entries: Vec<(Bytes, Entry)>,
    },
    /// The checkpoint is complete.
    Ended,
}

/// The first record of a checkpoint: the state of a process except its entries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Began {
    /// The position of the last change that was delivered.
    pub(super) at: Position,
    /// The members, cells and maps after that change.
    pub(super) roster: Roster,
    /// The number up to which all messages that the process submitted to the order have an outcome.
    pub(super) passed: u64,
    /// The messages that the process submitted after `passed`, with their tokens.
    pub(super) submitted: Vec<(u64, Bytes)>,
    /// The time up to which stamps may be issued, in nanoseconds.
    pub(super) reserved: u64,
    /// The cell's horizon.
    pub(super) horizon: Horizon,
}

/// The reason why no process can continue a journal as the process that wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unrecoverable {
    /// A record does not decode.
    #[error("record {0} of the journal is malformed: {1}")]
    Malformed(usize, WireError),
    /// A record contradicts the records before it.
    #[error("record {0} of the journal contradicts the records before it")]
    Disconnected(usize),
    /// The journal has neither its beginning nor a complete checkpoint.
    #[error("a record that was durable is missing in the journal")]
    Missing,
    /// The other members know this process under an address other than its present one.
    #[error("the address of this process differs from {0}, at which the other processes know this process")]
    Moved(String),
}

impl From<paxos::Record> for Record {
    fn from(record: paxos::Record) -> Record {
        Record::Log(record)
    }
}

// Smaller tags belong to records of the log.
const SUBMITTED: u8 = 64;
const LAYOUT: u8 = 65;
const RESERVED: u8 = 66;
const MERGED: u8 = 67;
const FORGOT: u8 = 68;
const REACHED: u8 = 69;
const BEGAN: u8 = 70;
const KEPT: u8 = 71;
const ENDED: u8 = 72;

/// Minimum size of an entry in bytes: a length, a stamp, flags and a count of fields.
const ENTRY_BYTES_LEAST: usize = 21;
/// The approximate bytes of a record in addition to its contents.
const RECORD_BYTES: u64 = 64;

impl Record {
    /// Returns the approximate bytes of the record.
    fn bytes(&self) -> u64 {
        let content = match self {
            Record::Merged { key, write, .. } => key.len() + write.wire_bytes(),
            Record::Forgot { keys, .. } => keys.iter().map(|key| key.len() + 4).sum(),
            Record::Submitted { body, .. } => body.len(),
            _ => 0,
        };
        content as u64 + RECORD_BYTES
    }
}

impl Wire for Record {
    fn encode(&self, out: &mut BytesMut) {
        match self {
            Record::Log(record) => record.encode(out),
            Record::Submitted { token, body } => {
                out.put_u8(SUBMITTED);
                out.put_u64_le(*token);
                put_bytes(out, body);
            }
            Record::Layout { at, roster } => {
                out.put_u8(LAYOUT);
                out.put_u64_le(at.0);
                encode_body(out, roster);
            }
            Record::Reserved(time) => {
                out.put_u8(RESERVED);
                out.put_u64_le(*time);
            }
            Record::Merged { map, key, write } => {
                out.put_u8(MERGED);
                out.put_u32_le(map.0);
                put_bytes(out, key);
                write.encode(out);
            }
            Record::Forgot { map, common, keys } => {
                out.put_u8(FORGOT);
                out.put_u32_le(map.0);
                put_horizon(out, *common);
                put_count(out, keys.len());
                keys.iter().for_each(|key| put_bytes(out, key));
            }
            Record::Reached(horizon) => {
                out.put_u8(REACHED);
                put_horizon(out, *horizon);
            }
            Record::Began(began) => {
                out.put_u8(BEGAN);
                encode_body(out, began);
            }
            Record::Kept { map, behind, last, entries } => {
                out.put_u8(KEPT);
                out.put_u32_le(map.0);
                out.put_u8(behind.is_some().into());
                if let Some(behind) = behind {
                    put_bytes(out, behind);
                }
                out.put_u8((*last).into());
                put_count(out, entries.len());
                for (key, entry) in entries {
                    put_bytes(out, key);
                    entry.encode(out);
                }
            }
            Record::Ended => out.put_u8(ENDED),
        }
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        if let Record::Log(record) = self {
            return record.encode_head(out);
        }
        self.encode(out);
        None
    }

    fn decode(input: &mut Bytes) -> Result<Record, WireError> {
        if input.first().is_some_and(|tag| *tag < SUBMITTED) {
            return paxos::Record::decode(input).map(Record::Log);
        }
        Ok(match take_u8(input)? {
            SUBMITTED => Record::Submitted { token: take_u64(input)?, body: take_bytes(input)? },
            LAYOUT => {
                Record::Layout { at: Position(take_u64(input)?), roster: Box::new(decode_body(input)?) }
            }
            RESERVED => Record::Reserved(take_u64(input)?),
            MERGED => Record::Merged {
                map: MapId(take_u32(input)?),
                key: take_bytes(input)?,
                write: Entry::decode(input)?,
            },
            FORGOT => {
                let (map, common) = (MapId(take_u32(input)?), take_horizon(input)?);
                let count = take_count(input, size_of::<u32>())?;
                let keys = (0..count).map(|_| take_bytes(input)).collect::<Result<_, _>>()?;
                Record::Forgot { map, common, keys }
            }
            REACHED => Record::Reached(take_horizon(input)?),
            BEGAN => Record::Began(Box::new(decode_body(input)?)),
            KEPT => {
                let map = MapId(take_u32(input)?);
                let behind = if take_flag(input)? { Some(take_bytes(input)?) } else { None };
                let last = take_flag(input)?;
                let count = take_count(input, ENTRY_BYTES_LEAST)?;
                let entry = |_| Ok((take_bytes(input)?, Entry::decode(input)?));
                let entries = (0..count).map(entry).collect::<Result<_, WireError>>()?;
                Record::Kept { map, behind, last, entries }
            }
            ENDED => Record::Ended,
            tag => return Err(WireError::Tag(tag)),
        })
    }
}

fn put_horizon(out: &mut BytesMut, horizon: Horizon) {
    put_stamp(out, horizon.stamp());
}

fn take_horizon(input: &mut Bytes) -> Result<Horizon, WireError> {
    let Stamp { time, cell } = take_stamp(input)?;
    Ok(Horizon { time, cell })
}
