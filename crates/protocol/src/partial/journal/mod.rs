//! Journal: the records that a cell writes to its disk, and how it comes back from them.
//!
//! **Promise.** A cell with a disk that is killed, or loses power, comes back as the cell that it was: it holds every write that it
//! acknowledged and every value that it showed, and issues no stamp that it issued before. So a write that was acknowledged
//! at a quorum, and a value that a read at a quorum returned in a map with blocking repair, is there after all cells have lost
//! power at once, in whatever order they come back.
//!
//! **Source.** DeCandia and others, *Dynamo* (2007), §4.4 and §5.2, has replicas on disk, and lets one of them acknowledge a write from its
//! buffer for speed, at the price of durability. Lakshman and Malik, *Cassandra* (2010), §5.6, has a commit log and
//! dumps of memory. Here a record is on disk before its acknowledgement leaves, and the sync is shared (group commit).
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
//! - *Merged:* a write that was taken, without what the horizon covered of it. *Forgot:* deletions that were forgotten. *Reached:* the cell's own horizon. They are in the
//!   order in which the cell did it, so that executing them again leads to the same entries.
//! - *Reserved:* the cell issues stamps, and tells how far it is, up to this time. A cell that comes back goes on above it.
//! - *Layout:* the order's word of who is a cell and which maps there are. It takes effect here once it is durable.
//! - *Submitted:* a message of the cell's own to the order, which is not sent before it is durable (S3).
//! - *Began, Kept …, Ended:* a checkpoint. Each Kept has a stretch of a map as it was at that moment, and takes the place of all that
//!   earlier records say of the stretch. Other records come between. Once Ended is durable, what is before Began is needed no
//!   more.
//!
//! **Invariants.**
//!
//! - *An acknowledgement leaves behind its record*, and one of a write that changed nothing behind the records that it
//!   relies on. That of a cell to its own coordinator counts as late.
//! - *An entry is shown behind its record.* Without this rule, two replicas might show a write that no disk has, and a
//!   read return it; after a power cut the next read would return an older value, which an atomic key must not. Digests agree only
//!   if both have been synced, and what a read writes back is acknowledged like any write. So what a read with blocking
//!   repair has returned is durable at a quorum. Maps without blocking repair do not need it, and have it all the same.
//!   A stamp that is only told (Told, newer) shows nothing: writes that go above it do no harm should it vanish.
//! - *Nothing else waits.* Questions of reads, and answers about keys that are on disk, go aside: they overtake what waits.
//! - *A stamp is covered before anybody else sees it.* No write with a stamp above the last durable reservation leaves, in whatever
//!   message; nor does a word that says how far the cell is. Reservations go ahead by as much as a stamp may be ahead of the wall clock,
//!   so that a cell that comes back at once can issue at once, and are renewed before they are used up.
//! - *A horizon is told behind its record*, which is behind those of all entries that it rests on. Others forget deletions by it.
//! - *A layout takes effect once it is durable.* Else a cell could copy its keys to one that arrives, come back under the layout
//!   before, and acknowledge a write there that the copy lacks.
//! - *As itself or not at all.* If not all that was durable can be read, the process is another one: it takes the place of the one
//!   before as arriving, and copies what all others have.
//!
//! **Coming back, when others wrote meanwhile.** The cell answers at once, at every level. It lacks writes that it never acknowledged,
//! as any replica does that missed some: R + W > N counts acknowledgements, and it holds all of its own. Comparing brings the rest. It brings back no
//! key that was deleted meanwhile: nobody forgets a deletion that the horizon of this cell does not cover, and its last word says
//! how far that was.
//!
//! **An older disk**, put back, lacks what the cell has acknowledged. Such a cell must not answer: it is found by
//! what others have heard of its journal ([`Hearsay`](crate::journal::Hearsay)), says nothing, and ends. With an empty
//! directory it is a new life, which arrives. So it repairs before it answers.
//!
//! **Counters.** A tally's states are writes, and have records as all writes have. A cell that comes back writes none of its former
//! tallies before all owners have their last states, which it does not know. Its next ones begin above what it had reserved ([`counter`](super::counter)).
//!
//! **Hints** are not on disk. A hint is a copy of a write that some owner has, or of one that was not acknowledged; it shortens the
//! time until replicas are equal, and no promise rests on it. On disk it would cost as much as the write itself, at a cell that
//! may not even own the key. Hints end with the process, as they do without a disk; a cell that comes back says that they have
//! ([`Status::resumed`](super::Status)), and comparing finds what they would have brought.
//!
//! **Bounds.** A checkpoint begins when as many bytes have been written since the last one began as the cell keeps, and no less than
//! [`Settings::checkpoint_bytes`](super::Settings). So the journal has at most about three times what the cell keeps, or twice that and
//! `checkpoint_bytes`; and checkpoints write no more than the changes did. A piece has 256 KiB, or one entry; the next one is written when it is durable,
//! so neither the protocol nor the disk waits for a checkpoint.
//!
//! **Attacks considered.**
//!
//! - *A second copy of a write, while the record of the first is on its way.* It changes nothing, has no record, and its acknowledgement
//!   waits all the same: for the last record that there is.
//! - *A write that the horizon covers.* It is passed over, and acknowledged behind the record of the horizon.
//! - *A clock that is set back while the cell is down.* Stamps go on above the last reservation; if that is too far ahead, the cell
//!   refuses to write until the clock comes near, as it does when a clock jumps back in its life.
//! - *A cell that takes an entry of its own by comparing, whose stamp is not reserved.* Such an entry has left nowhere.
//! - *A comparison with a cell that loses what it showed.* Who asked has it, and its horizon rests on its own disk. The other one's horizon
//!   did not cover what was not on its disk.
//! - *A deletion that was forgotten, and comes back with the disk.* It is a deletion still, and is forgotten once more.
//! - *A cell that arrives, and loses power behind its last copy.* It says that it has arrived once all copies are durable. Before that it comes
//!   back as arriving, and copies from the beginning.
//! - *An answer to a request of before the power cut.* It came on a link that has ended. Numbers of requests go on behind
//!   those of before, too.
//! - *Rot in a stretch that a later checkpoint has again.* Rot is rot: another process.
//! - *A place that was given away while the cell was down.* The routers tell it that it is out. Its host begins an empty journal.

mod past;
#[cfg(test)]
mod tests;
mod writing;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(super) use self::{past::Past, writing::Journal};
use super::{
    clock::Stamp,
    entry::{Entry, put_stamp, take_stamp},
    horizon::Horizon,
    layout::MapId,
    message::{put_count, take_flag},
    routing::Roster,
};
use crate::{
    ecast::Position,
    paxos,
    wire::{
        Wire, WireError, decode_body, encode_body, put_bytes, take_bytes, take_count, take_u8, take_u32,
        take_u64,
    },
};

/// What a process of a domain of maps writes to its disk.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A router: of its log.
    Log(paxos::Record),
    /// This process submits this change, behind all before.
    Submitted {
        /// Its own name for it.
        token: u64,
        /// The change.
        body: Bytes,
    },
    /// The members, cells and maps from here on.
    Layout {
        /// The position of the change.
        at: Position,
        /// What it led to.
        roster: Box<Roster>,
    },
    /// The cell issues stamps up to this time.
    Reserved(u64),
    /// The cell took this write.
    Merged {
        /// The map.
        map: MapId,
        /// The key.
        key: Bytes,
        /// The write, or all of it that the horizon did not cover.
        write: Entry,
    },
    /// The cell forgot what was deleted or expired, of these keys.
    Forgot {
        /// The map.
        map: MapId,
        /// All cells have everything up to here.
        common: Horizon,
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// The cell has everything up to here.
    Reached(Horizon),
    /// A checkpoint begins.
    Began(Box<Began>),
    /// A stretch of a map, as it is.
    Kept {
        /// The map.
        map: MapId,
        /// The stretch is behind this key, in the order of tokens; none: from the first one on.
        behind: Option<Bytes>,
        /// It goes to the end of the map, and else to the last of these.
        last: bool,
        /// All its keys.
        entries: Vec<(Bytes, Entry)>,
    },
    /// The checkpoint is whole.
    Ended,
}

/// The first record of a checkpoint: all that a cell has, but for its entries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Began {
    /// The last change that was delivered.
    pub(super) at: Position,
    /// The members, cells and maps behind it.
    pub(super) roster: Roster,
    /// Own messages to the order up to this number are over.
    pub(super) passed: u64,
    /// Own messages behind, with their tokens.
    pub(super) submitted: Vec<(u64, Bytes)>,
    /// Stamps are issued up to this time.
    pub(super) reserved: u64,
    /// The cell's horizon.
    pub(super) horizon: Horizon,
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
    /// Neither the beginning is there nor a whole checkpoint.
    #[error("a record that was durable is missing")]
    Missing,
    /// The others know the process elsewhere.
    #[error("the others know this process at {0}")]
    Moved(String),
}

impl From<paxos::Record> for Record {
    fn from(record: paxos::Record) -> Record {
        Record::Log(record)
    }
}

// Tags of the log's records are below.
const SUBMITTED: u8 = 64;
const LAYOUT: u8 = 65;
const RESERVED: u8 = 66;
const MERGED: u8 = 67;
const FORGOT: u8 = 68;
const REACHED: u8 = 69;
const BEGAN: u8 = 70;
const KEPT: u8 = 71;
const ENDED: u8 = 72;

/// A length, a stamp, flags and a count of fields.
const ENTRY_BYTES_LEAST: usize = 21;
/// A record takes so many bytes beside its contents.
const RECORD_BYTES: u64 = 64;

impl Record {
    /// About how many bytes it takes.
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
