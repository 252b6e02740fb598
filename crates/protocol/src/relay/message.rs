//! Messages of the relay layer, and their byte form.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    id::ProcessId,
    seam::Session,
    wire::{Pass, Wire, WireError, encode_whole, take_u8},
};

/// A message of the protocol above, or of the relay itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Envelope<M> {
    /// A message of the protocol above between neighbours, in that protocol's byte form.
    Plain(M),
    /// A message of the relay.
    Relay(Message),
}

/// A message of the relay layer. `Beat` and `Return` are meant for the neighbour itself, and the last three
/// kinds carry messages between ends.
#[derive(Clone, Debug, PartialEq, Wire)]
pub enum Message {
    /// A sign of life.
    #[wire(tag = 0)]
    Beat,
    /// The sender uses this direct link from now on, so a relayed session of the two ends is over.
    #[wire(tag = 1)]
    Return,
    /// End → relay: a message for another process.
    #[wire(tag = 2)]
    Carry {
        /// The process at the other end.
        to: ProcessId,
        /// The message.
        end_message: EndMessage,
    },
    /// Relay → end: a message of another process.
    #[wire(tag = 3)]
    Carried {
        /// The sender. The relay vouches for its identity, which the hello of the sender's link proved.
        from: ProcessId,
        /// The message.
        end_message: EndMessage,
    },
    /// Relay → end: this relay cannot reach the process `to`, or has lost the link to it.
    #[wire(tag = 4)]
    Undelivered {
        /// The process.
        to: ProcessId,
    },
}

/// A message from one end to the other through a relay.
#[derive(Clone, Debug, PartialEq, Wire)]
pub enum EndMessage {
    /// The sender hears nothing from the receiver, and wants a session with it.
    #[wire(tag = 0)]
    Open {
        /// The sender's number for the attempt, never used again.
        number: u32,
        /// Whether the sender is a router.
        router: bool,
        /// The sender's pass.
        #[wire(with = Pass)]
        pass: Bytes,
    },
    /// Answers [`EndMessage::Open`]: its receiver can be reached. Nothing changes at that receiver yet.
    #[wire(tag = 1)]
    Accept {
        /// The number of the attempt.
        number: u32,
        /// The number that the accepting end gives the attempt.
        own: u32,
        /// The sender's pass.
        #[wire(with = Pass)]
        pass: Bytes,
    },
    /// Answers [`EndMessage::Open`]: the policies forbid the two processes a link.
    #[wire(tag = 2)]
    Refuse {
        /// The number of the attempt.
        number: u32,
    },
    /// The session begins. It already stands at the sender, and stands at the receiver from now on.
    #[wire(tag = 3)]
    Begin {
        /// The session's name.
        session: Session,
    },
    /// A piece of a frame of messages.
    #[wire(tag = 4)]
    Data {
        /// The session.
        session: Session,
        /// Number of bytes of the session before this piece.
        at: u64,
        /// Whether the frame ends with this piece.
        last: bool,
        /// The piece.
        bytes: Bytes,
    },
    /// The receiver has processed this many bytes of the session, which gives the sender new credit.
    #[wire(tag = 5)]
    Taken {
        /// The session.
        session: Session,
        /// Number of bytes since the session's beginning.
        bytes: u64,
    },
    /// A sign of life, from end to end.
    #[wire(tag = 6)]
    Alive {
        /// The session.
        session: Session,
    },
    /// The session ends.
    #[wire(tag = 7)]
    Close {
        /// The session.
        session: Session,
    },
}

/// First byte of the relay's messages; no message of a protocol above begins with it.
const RELAY: u8 = 0xf0;

impl<M: Wire> Wire for Envelope<M> {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        match self {
            Envelope::Plain(message) => message.encode_head(out),
            Envelope::Relay(message) => {
                out.put_u8(RELAY);
                message.encode_head(out)
            }
        }
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        if input.first() == Some(&RELAY) {
            take_u8(input)?;
            return Ok(Envelope::Relay(Message::decode(input)?));
        }
        Ok(Envelope::Plain(M::decode(input)?))
    }
}
