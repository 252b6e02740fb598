//! What clients and storage processes send through E-Cast (data) and to each other directly.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{Range, config::TAG};
use crate::{
    detector::Opinion,
    ecast::{self, Position},
    id::{MADE_UP, ProcessId, RequestId},
    time::Duration,
    wire::{
        Wire, WireError, decode_body, encode_body, encode_whole, need, put_bytes, put_opinion, put_payload,
        put_process, take_bytes, take_count, take_opinion, take_process, take_u8, take_u32, take_u64,
        take_u128,
    },
};

/// What a write is sent under: its id, and what tells it from another write under the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriteName {
    /// The id.
    pub request: RequestId,
    /// A hash of the statement. The ranges remember it, and refuse another statement under a known id.
    pub print: u64,
    /// Whether the id may have been used before. The number of a write that is not repeated was given out by its own
    /// gateway for this write alone, so nothing that is known of that number is about it.
    pub repeated: bool,
}

impl WriteName {
    /// The name of a write that nobody can repeat, under an id given out for it.
    pub fn nameless(request: RequestId) -> WriteName {
        WriteName { request, print: 0, repeated: false }
    }
}

/// What a data message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DataKind {
    /// Reads.
    Read,
    /// Writes, and can not fail at run time.
    Write,
    /// Writes, and can fail at run time: verdicts are exchanged when it spans ranges (S15).
    FallibleWrite,
}

/// What stands before the operation in a data message: all that routing needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// What it does.
    pub kind: DataKind,
    /// What the client calls it; answers carry it.
    pub token: u64,
    /// A write's name; of no meaning for reads.
    pub name: WriteName,
    /// Which replica answers, among equals.
    pub offset: u32,
    /// The table, or [`DataHeader::NO_TABLE`].
    pub table: u32,
    /// The ring keys concerned; disjoint.
    pub ranges: SmallVec<[Range; 2]>,
}

const HEADER_BYTES: usize = 1 + 1 + 8 + 16 + 8 + 8 + 4 + 4 + 4;
/// Where the session begins: behind tag, kind and token.
const SESSION_AT: usize = 1 + 1 + 8;
/// Beside the kind, in one byte: the write is repeated.
const REPEATED: u8 = 1 << 7;

impl DataHeader {
    /// For messages about no table.
    pub const NO_TABLE: u32 = 0;

    /// A data message: header and operation.
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

    /// Takes the header off the front; what is left is the operation.
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

    /// The name of a write under a made-up id; `None` of all other messages, at the cost of a look at eight bytes.
    pub(super) fn peek_made_up(body: &Bytes) -> Option<WriteName> {
        let upper = body.get(SESSION_AT + 8..SESSION_AT + 16)?;
        if upper != &((MADE_UP >> 64) as u64).to_le_bytes()[..] {
            return None;
        }
        let header = DataHeader::peek(body)?;
        (header.kind != DataKind::Read).then_some(header.name)
    }

    /// Whether no key is named twice; a write would take effect there twice.
    pub(super) fn is_disjoint(&self) -> bool {
        let mut ranges = self.ranges.clone();
        ranges.sort_unstable();
        ranges.windows(2).all(|pair| pair[0].high < pair[1].low)
    }

    /// The header of a message, or `None` if it has none.
    pub fn peek(body: &Bytes) -> Option<DataHeader> {
        DataHeader::take(&mut body.clone()).ok()
    }
}

/// A message of a Rubberband process: of the ordering layer, or direct.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// To or from a router, or between routers.
    Order(ecast::Message),
    /// Past the routers.
    Direct(Direct),
}

/// A direct message between a client and a storage process, between storage processes, or to a super.
#[derive(Clone, Debug, PartialEq)]
pub enum Direct {
    /// Anyone → super: alive; and what it has executed, for the operators.
    Alive {
        /// The last position executed.
        executed: Position,
    },
    /// Client → storage: a read of what this replica has, valid under one placement only.
    Basic {
        /// The read's name.
        token: u64,
        /// The placement version that the client computed the ranges with.
        placement: u64,
        /// What to read.
        ranges: SmallVec<[Range; 2]>,
        /// The operation.
        operation: Bytes,
    },
    /// Storage → client: part of an answer.
    Reply(Reply),
    /// Client → storage: this many bytes of the answers to `token` have been consumed; go on.
    Consumed {
        /// Which request.
        token: u64,
        /// Bytes consumed in all.
        bytes: u64,
    },
    /// Client → storage: nobody waits for the answer to `token` any more.
    Cancel {
        /// Which request.
        token: u64,
    },
    /// Client → storage: the answer to this write did not come; what became of it here?
    Ask {
        /// Which write.
        name: WriteName,
        /// What the client calls it.
        token: u64,
        /// The ranges that lack an answer.
        ranges: SmallVec<[Range; 2]>,
    },
    /// Client → storage: there is no news of this read; is it waiting or under way here?
    AskRead {
        /// The read's name.
        token: u64,
    },
    /// Storage → storage: how a fallible write fared here.
    Verdict {
        /// Its position.
        at: Position,
        /// What was evaluated.
        ranges: Vec<Range>,
        /// Why it failed (the answer's byte form); `None` if it did not. Without bytes: the id is another statement's.
        failure: Option<Bytes>,
    },
    /// Storage → storage: how did the write at this position fare, or how was it settled?
    AskVerdict {
        /// Which write.
        at: Position,
        /// Its name, by which it may be remembered from an earlier position.
        name: WriteName,
    },
    /// Standby → storage: the next rows of these ranges as of a pinned position.
    Fetch {
        /// The placement change that gave the ranges to the sender.
        change: Position,
        /// Which.
        ranges: Vec<Range>,
        /// Where to go on.
        cursor: TransferCursor,
    },
    /// Storage → standby: some rows, or some of what the ranges remember.
    Chunk {
        /// The placement change.
        change: Position,
        /// The cursor that it answers.
        asked: TransferCursor,
        /// What was asked for, opaque here.
        content: Bytes,
        /// Where to go on; `None` when this was the last.
        next: Option<TransferCursor>,
    },
    /// Storage → standby: it can not send (it does not hold the pinned position).
    FetchRefused {
        /// The placement change.
        change: Position,
    },
    /// Storage → storage: beyond the verdicts told before, nothing is known of the write, by one that has delivered so much.
    NoVerdict {
        /// Where the write is.
        at: Position,
        /// What the sender has delivered.
        through: Position,
    },
    /// Super → super: do you hear this member?
    AskOpinion {
        /// Whom the question is about.
        about: ProcessId,
        /// The asker's name for this hearing.
        hearing: u64,
    },
    /// Super → super: the answer.
    Opinion {
        /// Whom it is about.
        about: ProcessId,
        /// The hearing in which it was asked for.
        hearing: u64,
        /// What the sender can say.
        opinion: Opinion,
    },
}

/// Where the transfer of a range goes on: first its rows, then what it remembers of writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransferCursor {
    /// At these rows; `None` is the first.
    Rows(Option<Bytes>),
    /// Behind these replies; `None` is the first.
    Replies(Option<Bytes>),
}

impl TransferCursor {
    pub(super) fn rows(cursor: Bytes) -> TransferCursor {
        TransferCursor::Rows(Some(cursor))
    }
}

/// Part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request, as its client calls it.
    pub token: u64,
    /// The position that the answer stands for. Parts with different positions are never combined.
    pub at: Position,
    /// What the answer covers.
    pub ranges: SmallVec<[Range; 2]>,
    /// Which piece of this process's answer, counted from 0.
    pub piece: u32,
    /// Whether it is the last piece.
    pub last: bool,
    /// What it cost.
    pub spent: Spent,
    /// What it says.
    pub content: ReplyContent,
}

/// How long a read took at a storage process, to the microsecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// From its arrival until the batch that it was part of began.
    pub waited: Duration,
    /// That batch.
    pub took: Duration,
}

fn put_micros(out: &mut BytesMut, duration: Duration) {
    out.put_u32_le(u32::try_from(duration.as_micros()).unwrap_or(u32::MAX));
}

fn take_micros(input: &mut Bytes) -> Result<Duration, WireError> {
    Ok(Duration::from_micros(u64::from(take_u32(input)?)))
}

/// What a reply says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyContent {
    /// The operation's answer, or a piece of it; opaque here.
    Answer(Bytes),
    /// Not answered: another placement, another position. Ask anew.
    Retry,
    /// Not answered: the request's session is over.
    Expired,
    /// The request is not known here (asked about).
    Unknown,
    /// The read waits here, or is under way, and will be answered (asked about).
    Underway,
    /// Not executed: the id is that of another statement.
    OtherStatement,
    /// The write took effect, or failed and changed nothing; what it answered is no longer known.
    Forgotten {
        /// Whether it took effect.
        applied: bool,
    },
    /// The read was done, and its answer dropped: too much is held here for clients that are slow.
    NoRoom,
    /// The rest of the answer was dropped: the client did not take it in time.
    Untaken,
}

fn put_ranges(out: &mut BytesMut, ranges: &[Range]) {
    out.put_u32_le(ranges.len() as u32);
    for range in ranges {
        out.put_u64_le(range.low);
        out.put_u64_le(range.high);
    }
}

fn take_ranges<C: FromIterator<Range>>(input: &mut Bytes) -> Result<C, WireError> {
    let count = take_count(input, 16)?;
    (0..count)
        .map(|_| {
            let range = Range { low: take_u64(input)?, high: take_u64(input)? };
            if range.low <= range.high { Ok(range) } else { Err(WireError::Body) }
        })
        .collect()
}

fn put_name(out: &mut BytesMut, name: WriteName) {
    out.put_u128_le(name.request.session);
    out.put_u64_le(name.request.number);
    out.put_u64_le(name.print);
    out.put_u8(u8::from(name.repeated));
}

fn take_name(input: &mut Bytes) -> Result<WriteName, WireError> {
    let request = RequestId { session: take_u128(input)?, number: take_u64(input)? };
    Ok(WriteName { request, print: take_u64(input)?, repeated: take_u8(input)? != 0 })
}

fn put_option(out: &mut BytesMut, bytes: Option<&Bytes>) {
    out.put_u8(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        put_bytes(out, bytes);
    }
}

fn take_option(input: &mut Bytes) -> Result<Option<Bytes>, WireError> {
    Ok(if take_u8(input)? == 0 { None } else { Some(take_bytes(input)?) })
}

impl Wire for Direct {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        match self {
            Direct::Alive { executed } => {
                out.put_u8(1);
                out.put_u64_le(executed.0);
            }
            Direct::Basic { token, placement, ranges, operation } => {
                out.put_u8(2);
                out.put_u64_le(*token);
                out.put_u64_le(*placement);
                put_ranges(out, ranges);
                return put_payload(out, operation);
            }
            Direct::Reply(reply) => {
                out.put_u8(3);
                out.put_u64_le(reply.token);
                out.put_u64_le(reply.at.0);
                put_ranges(out, &reply.ranges);
                out.put_u32_le(reply.piece);
                out.put_u8(u8::from(reply.last));
                put_micros(out, reply.spent.waited);
                put_micros(out, reply.spent.took);
                match &reply.content {
                    ReplyContent::Answer(bytes) => {
                        out.put_u8(0);
                        return put_payload(out, bytes);
                    }
                    ReplyContent::Retry => out.put_u8(1),
                    ReplyContent::Expired => out.put_u8(2),
                    ReplyContent::Unknown => out.put_u8(3),
                    ReplyContent::Underway => out.put_u8(4),
                    ReplyContent::OtherStatement => out.put_u8(5),
                    ReplyContent::Forgotten { applied: true } => out.put_u8(6),
                    ReplyContent::Forgotten { applied: false } => out.put_u8(7),
                    ReplyContent::NoRoom => out.put_u8(8),
                    ReplyContent::Untaken => out.put_u8(9),
                }
            }
            Direct::Consumed { token, bytes } => {
                out.put_u8(4);
                out.put_u64_le(*token);
                out.put_u64_le(*bytes);
            }
            Direct::Cancel { token } => {
                out.put_u8(5);
                out.put_u64_le(*token);
            }
            Direct::Ask { name, token, ranges } => {
                out.put_u8(6);
                put_name(out, *name);
                out.put_u64_le(*token);
                put_ranges(out, ranges);
            }
            Direct::Verdict { at, ranges, failure } => {
                out.put_u8(7);
                out.put_u64_le(at.0);
                put_ranges(out, ranges);
                put_option(out, failure.as_ref());
            }
            Direct::AskVerdict { at, name } => {
                out.put_u8(8);
                out.put_u64_le(at.0);
                put_name(out, *name);
            }
            Direct::Fetch { change, ranges, cursor } => {
                out.put_u8(9);
                encode_body(out, &(change, ranges, cursor));
            }
            Direct::Chunk { change, asked, content, next } => {
                out.put_u8(10);
                encode_body(out, &(change, asked, next));
                return put_payload(out, content);
            }
            Direct::FetchRefused { change } => {
                out.put_u8(11);
                out.put_u64_le(change.0);
            }
            Direct::NoVerdict { at, through } => {
                out.put_u8(12);
                out.put_u64_le(at.0);
                out.put_u64_le(through.0);
            }
            Direct::AskRead { token } => {
                out.put_u8(13);
                out.put_u64_le(*token);
            }
            Direct::AskOpinion { about, hearing } => {
                out.put_u8(14);
                put_process(out, *about);
                out.put_u64_le(*hearing);
            }
            Direct::Opinion { about, hearing, opinion } => {
                out.put_u8(15);
                put_process(out, *about);
                out.put_u64_le(*hearing);
                put_opinion(out, *opinion);
            }
        }
        None
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        Ok(match take_u8(input)? {
            1 => Direct::Alive { executed: Position(take_u64(input)?) },
            2 => Direct::Basic {
                token: take_u64(input)?,
                placement: take_u64(input)?,
                ranges: take_ranges(input)?,
                operation: take_bytes(input)?,
            },
            3 => Direct::Reply(Reply {
                token: take_u64(input)?,
                at: Position(take_u64(input)?),
                ranges: take_ranges(input)?,
                piece: take_u32(input)?,
                last: take_u8(input)? != 0,
                spent: Spent { waited: take_micros(input)?, took: take_micros(input)? },
                content: match take_u8(input)? {
                    0 => ReplyContent::Answer(take_bytes(input)?),
                    1 => ReplyContent::Retry,
                    2 => ReplyContent::Expired,
                    3 => ReplyContent::Unknown,
                    4 => ReplyContent::Underway,
                    5 => ReplyContent::OtherStatement,
                    6 => ReplyContent::Forgotten { applied: true },
                    7 => ReplyContent::Forgotten { applied: false },
                    8 => ReplyContent::NoRoom,
                    9 => ReplyContent::Untaken,
                    tag => return Err(WireError::Tag(tag)),
                },
            }),
            4 => Direct::Consumed { token: take_u64(input)?, bytes: take_u64(input)? },
            5 => Direct::Cancel { token: take_u64(input)? },
            6 => {
                Direct::Ask { name: take_name(input)?, token: take_u64(input)?, ranges: take_ranges(input)? }
            }
            7 => Direct::Verdict {
                at: Position(take_u64(input)?),
                ranges: take_ranges(input)?,
                failure: take_option(input)?,
            },
            8 => Direct::AskVerdict { at: Position(take_u64(input)?), name: take_name(input)? },
            9 => {
                let (change, ranges, cursor) = decode_body(input)?;
                Direct::Fetch { change, ranges, cursor }
            }
            10 => {
                let (change, asked, next) = decode_body(input)?;
                Direct::Chunk { change, asked, content: take_bytes(input)?, next }
            }
            11 => Direct::FetchRefused { change: Position(take_u64(input)?) },
            12 => Direct::NoVerdict { at: Position(take_u64(input)?), through: Position(take_u64(input)?) },
            13 => Direct::AskRead { token: take_u64(input)? },
            14 => Direct::AskOpinion { about: take_process(input)?, hearing: take_u64(input)? },
            15 => Direct::Opinion {
                about: take_process(input)?,
                hearing: take_u64(input)?,
                opinion: take_opinion(input)?,
            },
            tag => return Err(WireError::Tag(tag)),
        })
    }
}

impl Wire for Message {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        match self {
            Message::Order(message) => {
                out.put_u8(1);
                message.encode_head(out)
            }
            Message::Direct(message) => {
                out.put_u8(2);
                message.encode_head(out)
            }
        }
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        match take_u8(input)? {
            1 => Ok(Message::Order(ecast::Message::decode(input)?)),
            2 => Ok(Message::Direct(Direct::decode(input)?)),
            tag => Err(WireError::Tag(tag)),
        }
    }
}
