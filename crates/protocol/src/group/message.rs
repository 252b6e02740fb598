//! The messages between processes of a domain of groups, and their bytes.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

use super::{GroupId, Pack, stream::Soft};
use crate::{
    ecast::{self, Position},
    id::ProcessId,
    wire::{
        Wire, WireError, encode_whole, put_bytes, put_payload, put_process, take_bytes, take_count,
        take_process, take_u8, take_u64,
    },
};

/// A message of a domain of groups.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A message of the order, between routers or between a router and a process.
    Order(ecast::Message),
    /// A message between members of a group.
    Group {
        /// The group.
        group: GroupId,
        /// The sender's view, or the view at whose beginning a state was taken.
        view: Position,
        /// The content.
        direct: Direct,
    },
}

/// A direct message between members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Direct {
    /// Soft messages of one sender with consecutive numbers. They come from the sender, or from another
    /// holder as a repair.
    Soft {
        /// The original sender of the messages.
        sender: ProcessId,
        /// The number of the first update.
        first: u64,
        /// The messages.
        messages: Vec<Soft>,
    },
    /// A receipt: it names the messages that one or more members hold.
    Receipts {
        /// The members for which the receipt speaks.
        of: Holders,
        /// For each stream, a number up to which all these members hold it.
        counts: BTreeMap<ProcessId, u64>,
        /// The position up to which each of these members holds everything ordered, with the soft
        /// predecessors.
        ordered: Vec<Position>,
        /// Whether the sender requests a receipt in return.
        asks: bool,
    },
    /// A request for all messages of a stream from this number on.
    Want {
        /// The sender of the stream.
        sender: ProcessId,
        /// The first number.
        from: u64,
    },
    /// A request for a part of a stream that did not arrive, although later messages did, or the stream's
    /// sender announced more.
    Gap {
        /// The sender of the stream.
        sender: ProcessId,
        /// The number of the first missing update.
        first: u64,
        /// The number of the last missing update.
        last: u64,
    },
    /// A request for the state, from byte `offset` on.
    StateWanted {
        /// Number of bytes that have arrived.
        offset: u64,
    },
    /// Bytes from the sender's host, delivered in whatever view the receiver is.
    Word {
        /// The bytes.
        body: Bytes,
    },
    /// A piece of a state.
    State {
        /// Position of the piece's first byte.
        offset: u64,
        /// Length of the whole state, in bytes.
        total: u64,
        /// The piece.
        piece: Bytes,
    },
}

/// The members for which a receipt speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holders {
    /// Only the message's sender.
    Sender = 0,
    /// The message's sender, and all members below the sender in the tree of a large view.
    Branch = 1,
    /// All members of the view.
    Everyone = 2,
}

// The tag of messages of the order. It is the same in all parts of a domain, because routers read the tag
// before they know the part. Tag 2 belongs to messages between processes of tables.
const ORDER: u8 = 1;
const GROUP: u8 = 4;

const SOFT: u8 = 1;
const RECEIPTS: u8 = 2;
const WANT: u8 = 3;
const STATE_WANTED: u8 = 4;
const STATE: u8 = 5;
const WORD: u8 = 6;
const GAP: u8 = 7;

impl Wire for Message {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        match self {
            Message::Order(message) => {
                out.put_u8(ORDER);
                message.encode_head(out)
            }
            Message::Group { group, view, direct } => {
                out.put_u8(GROUP);
                out.put_u64_le(group.0);
                out.put_u64_le(view.0);
                direct.encode_head(out)
            }
        }
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        Ok(match take_u8(input)? {
            ORDER => Message::Order(ecast::Message::decode(input)?),
            GROUP => Message::Group {
                group: GroupId(take_u64(input)?),
                view: Position(take_u64(input)?),
                direct: Direct::decode(input)?,
            },
            tag => return Err(WireError::Tag(tag)),
        })
    }
}

impl Wire for Direct {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        match self {
            Direct::Soft { sender, first, messages } => {
                out.put_u8(SOFT);
                put_process(out, *sender);
                out.put_u64_le(*first);
                out.put_u32_le(messages.len() as u32);
                for (place, soft) in messages.iter().enumerate() {
                    out.put_u64_le(soft.after.0);
                    if place + 1 == messages.len() {
                        return put_payload(out, soft.pack.bytes());
                    }
                    put_bytes(out, soft.pack.bytes());
                }
            }
            Direct::Receipts { of, counts, ordered, asks } => {
                out.put_u8(RECEIPTS);
                out.put_u8(*of as u8);
                out.put_u8(u8::from(*asks));
                out.put_u32_le(ordered.len() as u32);
                for at in ordered {
                    out.put_u64_le(at.0);
                }
                out.put_u32_le(counts.len() as u32);
                for (sender, count) in counts {
                    put_process(out, *sender);
                    out.put_u64_le(*count);
                }
            }
            Direct::Want { sender, from } => {
                out.put_u8(WANT);
                put_process(out, *sender);
                out.put_u64_le(*from);
            }
            Direct::Gap { sender, first, last } => {
                out.put_u8(GAP);
                put_process(out, *sender);
                out.put_u64_le(*first);
                out.put_u64_le(*last);
            }
            Direct::StateWanted { offset } => {
                out.put_u8(STATE_WANTED);
                out.put_u64_le(*offset);
            }
            Direct::Word { body } => {
                out.put_u8(WORD);
                return put_payload(out, body);
            }
            Direct::State { offset, total, piece } => {
                out.put_u8(STATE);
                out.put_u64_le(*offset);
                out.put_u64_le(*total);
                return put_payload(out, piece);
            }
        }
        None
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        Ok(match take_u8(input)? {
            SOFT => Direct::Soft {
                sender: take_process(input)?,
                first: take_u64(input)?,
                messages: {
                    let count = take_count(input, 12)?;
                    let soft = |input: &mut Bytes| {
                        Ok(Soft { after: Position(take_u64(input)?), pack: Pack::take(input)? })
                    };
                    (0..count).map(|_| soft(input)).collect::<Result<_, WireError>>()?
                },
            },
            RECEIPTS => Direct::Receipts {
                of: match take_u8(input)? {
                    0 => Holders::Sender,
                    1 => Holders::Branch,
                    2 => Holders::Everyone,
                    tag => return Err(WireError::Tag(tag)),
                },
                asks: take_u8(input)? != 0,
                ordered: {
                    let count = take_count(input, 8)?;
                    (0..count).map(|_| Ok(Position(take_u64(input)?))).collect::<Result<_, WireError>>()?
                },
                counts: {
                    let count = take_count(input, 32)?;
                    let one = |input: &mut Bytes| Ok((take_process(input)?, take_u64(input)?));
                    (0..count).map(|_| one(input)).collect::<Result<_, WireError>>()?
                },
            },
            WANT => Direct::Want { sender: take_process(input)?, from: take_u64(input)? },
            GAP => {
                Direct::Gap { sender: take_process(input)?, first: take_u64(input)?, last: take_u64(input)? }
            }
            STATE_WANTED => Direct::StateWanted { offset: take_u64(input)? },
            STATE => {
                Direct::State { offset: take_u64(input)?, total: take_u64(input)?, piece: take_bytes(input)? }
            }
            WORD => Direct::Word { body: take_bytes(input)? },
            tag => return Err(WireError::Tag(tag)),
        })
    }
}
