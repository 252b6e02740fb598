//! The messages between processes of a domain of groups, and their bytes.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{GroupId, stream::Soft};
use crate::{
    ecast::{self, Position},
    id::ProcessId,
    wire::{AnyFlag, Wire},
};

/// A message of a domain of groups. The tag of messages of the order is the same in all parts of a domain,
/// because routers read the tag before they know the part. Tag 2 belongs to messages between processes of
/// tables.
#[derive(Clone, Debug, PartialEq, Wire)]
pub enum Message {
    /// A message of the order, between routers or between a router and a process.
    #[wire(tag = 1)]
    Order(ecast::Message),
    /// A message between members of a group.
    #[wire(tag = 4)]
    Group {
        /// The group.
        group: GroupId,
        /// The sender's view; for messages about a state, the view at whose beginning the state was taken.
        view: Position,
        /// The content.
        direct: Direct,
    },
}

impl ecast::OrderCarrier for Message {
    fn of_order(message: ecast::Message) -> Self {
        Message::Order(message)
    }

    fn into_order(self) -> Option<ecast::Message> {
        match self {
            Message::Order(message) => Some(message),
            Message::Group { .. } => None,
        }
    }
}

/// A direct message between members of a group.
#[derive(Clone, Debug, PartialEq, Eq, Wire)]
pub enum Direct {
    /// Soft messages of one sender with consecutive numbers. They come from the sender, or from another
    /// holder as a repair.
    #[wire(tag = 1)]
    Soft {
        /// The original sender of the messages.
        sender: ProcessId,
        /// The number of the first update.
        first: u64,
        /// The messages.
        messages: Vec<Soft>,
    },
    /// A receipt: it names the messages that one or more members hold.
    #[wire(tag = 2)]
    Receipts {
        /// The members for which the receipt speaks.
        of: Holders,
        /// Whether the sender requests a receipt in return.
        #[wire(with = AnyFlag)]
        asks: bool,
        /// The position up to which each of the members in `of` holds everything ordered, with the soft
        /// predecessors.
        ordered: Vec<Position>,
        /// For each stream, a number up to which all members in `of` hold it.
        counts: BTreeMap<ProcessId, u64>,
    },
    /// A request for all messages of a stream, from a given number on.
    #[wire(tag = 3)]
    Want {
        /// The sender of the stream.
        sender: ProcessId,
        /// The number of the first message that is requested.
        from: u64,
    },
    /// A request for a part of a stream that did not arrive, although later messages did, or the stream's
    /// sender announced more.
    #[wire(tag = 7)]
    Gap {
        /// The sender of the stream.
        sender: ProcessId,
        /// The number of the first missing update.
        first: u64,
        /// The number of the last missing update.
        last: u64,
    },
    /// A request for the state, from byte `offset` on.
    #[wire(tag = 4)]
    StateWanted {
        /// Number of bytes of the state that have arrived.
        offset: u64,
    },
    /// Bytes from the sender's host, delivered in whatever view the receiver is.
    #[wire(tag = 6)]
    Word {
        /// The bytes.
        body: Bytes,
    },
    /// A piece of a state.
    #[wire(tag = 5)]
    State {
        /// Offset of the piece's first byte in the state, in bytes.
        offset: u64,
        /// Length of the whole state, in bytes.
        total: u64,
        /// The piece.
        piece: Bytes,
    },
}

/// The members for which a receipt speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Wire)]
pub enum Holders {
    /// Only the message's sender.
    #[wire(tag = 0)]
    Sender,
    /// The message's sender, and all members below the sender in the tree of a large view.
    #[wire(tag = 1)]
    Branch,
    /// All members of the view.
    #[wire(tag = 2)]
    Everyone,
}
