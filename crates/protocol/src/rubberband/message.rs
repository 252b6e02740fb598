//! The messages of clients and storage processes: data messages, which go through E-Cast, and direct
//! messages.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::range::Range;
use crate::{
    detector::Opinion,
    ecast::{self, Position},
    id::{MADE_UP, ProcessId, RequestId},
    time::Duration,
    wire::{AnyFlag, Form, Wire, WireError, need, take_count, take_u8, take_u32, take_u64, take_u128},
};

/// First byte of all ordered messages of tables.
pub(super) const TAG: u8 = 1;

/// The name under which a write is sent: its id, and the hash that tells this write from a different write
/// under the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Wire)]
pub struct WriteName {
    /// The id.
    pub request: RequestId,
    /// Hash of the statement. The ranges remember it, and refuse a different statement under a known id.
    pub print: u64,
    /// Whether an earlier attempt may have used the id. If not, the gateway gave the number to this write
    /// alone, so anything that a range already remembers under the number belongs to some other write.
    #[wire(with = AnyFlag)]
    pub repeated: bool,
}

impl WriteName {
    /// Returns the name of a write that nobody repeats. The gateway gave the id `request` to this write
    /// alone.
    pub fn nameless(request: RequestId) -> WriteName {
        WriteName { request, print: 0, repeated: false }
    }
}

/// The effect of a data message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DataKind {
    /// A read.
    Read,
    /// A write that cannot fail at run time.
    Write,
    /// A write that can fail at run time. If it spans several ranges, the ranges exchange verdicts (S15).
    FallibleWrite,
}

/// The part of a data message before its operation: all that routing needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// The effect of the operation.
    pub kind: DataKind,
    /// The attempt of the client that sends the message; answers carry the same number.
    pub token: u64,
    /// The name of a write; without meaning for reads.
    pub name: WriteName,
    /// Number that selects, among the complete replicas of each range, the replica that answers.
    pub offset: u32,
    /// Number of the table, or [`DataHeader::NO_TABLE`].
    pub table: u32,
    /// The ring keys that the operation touches; disjoint.
    pub ranges: SmallVec<[Range; 2]>,
}

const HEADER_BYTES: usize = 1 + 1 + 8 + 16 + 8 + 8 + 4 + 4 + 4;
/// Offset in bytes of the session in a message: after tag, kind and token.
const SESSION_AT: usize = 1 + 1 + 8;
/// Flag in the kind's byte: the write is a repetition.
const REPEATED: u8 = 1 << 7;

impl DataHeader {
    /// The table number of messages that concern no table.
    pub const NO_TABLE: u32 = 0;

    /// Encodes a data message: this header, then the operation.
    pub fn encode(&self, operation: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(HEADER_BYTES + self.ranges.len() * 16 + operation.len());
        let kind = match self.kind {
            DataKind::Read => 0,
            DataKind::Write => 1,
            DataKind::FallibleWrite => 2,
        };
        out.put_u8(TAG);
        out.put_u8(kind | if self.name.repeated { REPEATED } else { 0 });
        out.put_u64_le(self.token);
        out.put_u128_le(self.name.request.session);
        out.put_u64_le(self.name.request.number);
        out.put_u64_le(self.name.print);
        out.put_u32_le(self.offset);
        out.put_u32_le(self.table);
        out.put_u32_le(self.ranges.len() as u32);
        for range in &self.ranges {
            out.put_u64_le(range.low);
            out.put_u64_le(range.high);
        }
        out.put_slice(operation);
        out.freeze()
    }

    /// Takes the header off the front of `body`, so that the operation remains.
    pub fn take(body: &mut Bytes) -> Result<DataHeader, WireError> {
        match take_u8(body)? {
            TAG => {}
            tag => return Err(WireError::Tag(tag)),
        }
        let first = take_u8(body)?;
        let kind = match first & !REPEATED {
            0 => DataKind::Read,
            1 => DataKind::Write,
            2 => DataKind::FallibleWrite,
            tag => return Err(WireError::Tag(tag)),
        };
        let token = take_u64(body)?;
        let request = RequestId { session: take_u128(body)?, number: take_u64(body)? };
        let name = WriteName { request, print: take_u64(body)?, repeated: first & REPEATED != 0 };
        let (offset, table) = (take_u32(body)?, take_u32(body)?);
        let count = take_count(body, 16)?;
        let mut ranges = SmallVec::with_capacity(count);
        for _ in 0..count {
            need(body, 16)?;
            let range = Range { low: body.get_u64_le(), high: body.get_u64_le() };
            if range.low > range.high {
                return Err(WireError::Body);
            }
            ranges.push(range);
        }
        if ranges.is_empty() {
            return Err(WireError::Body);
        }
        Ok(DataHeader { kind, token, name, offset, table, ranges })
    }

    /// Returns the name of a write under a made-up id, `None` for all other messages. Of most messages,
    /// this function reads only eight bytes, so that routers can call it for each message.
    pub(super) fn peek_made_up(body: &Bytes) -> Option<WriteName> {
        let upper = body.get(SESSION_AT + 8..SESSION_AT + 16)?;
        if upper != &((MADE_UP >> 64) as u64).to_le_bytes()[..] {
            return None;
        }
        let header = DataHeader::peek(body)?;
        (header.kind != DataKind::Read).then_some(header.name)
    }

    /// Whether no key is listed twice. At a key that is listed twice, a write would take effect twice.
    pub(super) fn is_disjoint(&self) -> bool {
        let mut ranges = self.ranges.clone();
        ranges.sort_unstable();
        ranges.windows(2).all(|pair| pair[0].high < pair[1].low)
    }

    /// Returns the header of a message, or `None` if the message has no header.
    pub fn peek(body: &Bytes) -> Option<DataHeader> {
        DataHeader::take(&mut body.clone()).ok()
    }
}

/// A message of a Rubberband process: through the routers, or direct.
#[derive(Clone, Debug, PartialEq, Wire)]
pub enum Message {
    /// A message to or from a router.
    #[wire(tag = 1)]
    Order(ecast::Message),
    /// A message that bypasses the routers.
    #[wire(tag = 2)]
    Direct(Direct),
}

impl ecast::OrderCarrier for Message {
    fn of_order(message: ecast::Message) -> Self {
        Message::Order(message)
    }

    fn into_order(self) -> Option<ecast::Message> {
        match self {
            Message::Order(message) => Some(message),
            Message::Direct(_) => None,
        }
    }
}

/// A direct message between a client and a storage process, between storage processes, or to a super.
#[derive(Clone, Debug, PartialEq, Wire)]
pub enum Direct {
    /// Anyone → super: a sign of life, with the sender's progress for operators.
    #[wire(tag = 1)]
    Alive {
        /// The last position that the sender executed.
        executed: Position,
    },
    /// Client → storage: a read of this replica's current rows, valid under one placement only.
    #[wire(tag = 2)]
    Basic {
        /// The client's attempt, which answers carry.
        token: u64,
        /// The placement version with which the client computed the ranges.
        placement: u64,
        /// The ring keys to read.
        ranges: SmallVec<[Range; 2]>,
        /// The operation, opaque here.
        operation: Bytes,
    },
    /// Storage → client: a piece of an answer.
    #[wire(tag = 3)]
    Reply(Reply),
    /// Client → storage: the user has consumed this much of the answers to `token`, so the storage process
    /// may send more.
    #[wire(tag = 4)]
    Consumed {
        /// The token of the client's attempt.
        token: u64,
        /// Bytes consumed since the answer's beginning.
        bytes: u64,
    },
    /// Client → storage: nobody waits for the answer to `token` any longer.
    #[wire(tag = 5)]
    Cancel {
        /// The token of the client's attempt.
        token: u64,
    },
    /// Client → storage: the answer to this write is missing; the storage process should answer from memory.
    #[wire(tag = 6)]
    Ask {
        /// The write's name.
        name: WriteName,
        /// The token of the client's attempt.
        token: u64,
        /// The ranges that lack an answer.
        ranges: SmallVec<[Range; 2]>,
    },
    /// Client → storage: asks whether a read without news waits or runs at the receiver.
    #[wire(tag = 13)]
    AskRead {
        /// The token of the client's attempt.
        token: u64,
    },
    /// Storage → storage: the sender's verdict on a fallible write.
    #[wire(tag = 7)]
    Verdict {
        /// The write's position.
        at: Position,
        /// The ranges that the sender evaluated.
        ranges: Vec<Range>,
        /// The reason of the failure (an answer's byte form), `None` if the write can take effect. Empty if
        /// the id belongs to a different statement.
        #[wire(with = AnyFlag)]
        failure: Option<Bytes>,
        /// The sender has all its decisions up to this position on disk, and will ask for none of them again.
        settled: Position,
    },
    /// Storage → storage: asks for the receiver's verdict on a write, or for the decision.
    #[wire(tag = 8)]
    AskVerdict {
        /// The write's position.
        at: Position,
        /// The write's name. The receiver may remember the write from an earlier position.
        name: WriteName,
    },
    /// Standby → storage: asks for the next rows of these ranges, as of a pinned position.
    #[wire(tag = 9)]
    Fetch {
        /// The placement change that gave the ranges to the sender.
        #[wire(body)]
        change: Position,
        /// The ranges.
        #[wire(body)]
        ranges: Vec<Range>,
        /// The place from which the transfer continues.
        #[wire(body)]
        cursor: TransferCursor,
    },
    /// Storage → standby: some rows, or a part of the ranges' memory of writes.
    #[wire(tag = 10)]
    Chunk {
        /// The placement change.
        #[wire(body)]
        change: Position,
        /// The cursor of the request that this chunk answers.
        #[wire(body)]
        asked: TransferCursor,
        /// The place from which the transfer continues, `None` if it is complete.
        #[wire(body)]
        next: Option<TransferCursor>,
        /// The rows or the memory, opaque here.
        content: Bytes,
    },
    /// Storage → standby: the sender cannot send, because it does not hold the pinned position.
    #[wire(tag = 11)]
    FetchRefused {
        /// The placement change.
        change: Position,
    },
    /// Storage → storage: the sender knows nothing of a write beyond the verdicts it has sent.
    #[wire(tag = 12)]
    NoVerdict {
        /// The write's position.
        at: Position,
        /// The last position that the sender has delivered.
        through: Position,
    },
    /// Super → super: asks whether the receiver hears this member.
    #[wire(tag = 14)]
    AskOpinion {
        /// The member that the question is about.
        about: ProcessId,
        /// The asker's number for this second opinion.
        second_opinion: u64,
    },
    /// Super → super: answers [`Direct::AskOpinion`].
    #[wire(tag = 15)]
    Opinion {
        /// The member that the opinion is about.
        about: ProcessId,
        /// The number of the second opinion, from the question.
        second_opinion: u64,
        /// The sender's opinion.
        opinion: Opinion,
    },
}

/// The place at which the transfer of a range continues. Rows come first, then the range's memory of writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransferCursor {
    /// The transfer continues at these rows; with `None` it begins with the first row.
    Rows(Option<Bytes>),
    /// The transfer continues after these replies; with `None` it begins with the first reply.
    Replies(Option<Bytes>),
}

impl TransferCursor {
    pub(super) fn rows(cursor: Bytes) -> TransferCursor {
        TransferCursor::Rows(Some(cursor))
    }
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Wire)]
pub struct Reply {
    /// The token of the client's attempt.
    pub token: u64,
    /// The position at which the answer is valid. The client never combines pieces with different positions.
    pub at: Position,
    /// The ranges that the answer covers.
    pub ranges: SmallVec<[Range; 2]>,
    /// The number of this piece within the process's answer, counted from 0.
    pub piece: u32,
    /// Whether this is the process's last piece.
    #[wire(with = AnyFlag)]
    pub last: bool,
    /// The read's cost at the process that replies.
    pub spent: ReadCost,
    /// The content.
    pub content: ReplyContent,
}

/// Time that a read took at a storage process, sent in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Wire)]
pub struct ReadCost {
    /// Time from the read's arrival to the start of its batch.
    #[wire(with = Micros)]
    pub waited: Duration,
    /// Duration of the batch that executed the read.
    #[wire(with = Micros)]
    pub took: Duration,
}

/// The byte form of a duration: a number of microseconds in 32 bits. A longer duration is encoded as the
/// largest number.
struct Micros;

impl Form<Duration> for Micros {
    const BYTES_LEAST: usize = u32::BYTES_LEAST;

    fn put(duration: &Duration, out: &mut BytesMut) {
        out.put_u32_le(u32::try_from(duration.as_micros()).unwrap_or(u32::MAX));
    }

    fn take(input: &mut Bytes) -> Result<Duration, WireError> {
        Ok(Duration::from_micros(u64::from(take_u32(input)?)))
    }
}

/// The content of a reply.
#[derive(Clone, Debug, PartialEq, Eq, Wire)]
pub enum ReplyContent {
    /// The operation's answer, or a piece of it; opaque here.
    #[wire(tag = 0)]
    Answer(Bytes),
    /// The read was not answered, because the placement or the position differs. The client tries again.
    #[wire(tag = 1)]
    Retry,
    /// The request was not answered, because its session has ended.
    #[wire(tag = 2)]
    Expired,
    /// The storage process does not know the request that the client asked about.
    #[wire(tag = 3)]
    Unknown,
    /// The read that the client asked about waits or runs at this storage process, and will be answered.
    #[wire(tag = 4)]
    Underway,
    /// The write was not executed, because the id belongs to a different statement.
    #[wire(tag = 5)]
    OtherStatement,
    /// The write took effect, or failed and changed nothing; its answer is no longer known.
    #[wire(tag = 6, applied = true)]
    #[wire(tag = 7, applied = false)]
    Forgotten {
        /// Whether the write took effect.
        applied: bool,
    },
    /// The read was executed, but its answer was dropped, because unsent answers for slow clients fill the
    /// memory of the storage process.
    #[wire(tag = 8)]
    NoRoom,
    /// The rest of the answer was dropped, because the client did not take it in time.
    #[wire(tag = 9)]
    Untaken,
}
