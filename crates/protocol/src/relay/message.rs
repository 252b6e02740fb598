//! Messages of the relay layer, and their byte form.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    id::ProcessId,
    seam::Session,
    wire::{
        Wire, WireError, encode_whole, put_pass, put_payload, put_process, take_bytes, take_pass,
        take_process, take_u8, take_u32, take_u64,
    },
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
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A sign of life.
    Beat,
    /// The sender uses this direct link from now on, so a relayed session of the two ends is over.
    Return,
    /// End → relay: a message for another process.
    Carry {
        /// The process at the other end.
        to: ProcessId,
        /// The message.
        end_message: EndMessage,
    },
    /// Relay → end: a message of another process.
    Carried {
        /// The sender. The relay vouches for its identity, which the hello of the sender's link proved.
        from: ProcessId,
        /// The message.
        end_message: EndMessage,
    },
    /// Relay → end: this relay cannot reach the process `to`, or has lost the link to it.
    Undelivered {
        /// The process.
        to: ProcessId,
    },
}

/// A message from one end to the other through a relay.
#[derive(Clone, Debug, PartialEq)]
pub enum EndMessage {
    /// The sender hears nothing from the receiver, and wants a session with it.
    Open {
        /// The sender's number for the attempt, never used again.
        number: u32,
        /// Whether the sender is a router.
        router: bool,
        /// The sender's pass.
        pass: Bytes,
    },
    /// Answers [`EndMessage::Open`]: its receiver can be reached. Nothing changes at that receiver yet.
    Accept {
        /// The number of the attempt.
        number: u32,
        /// The number that the accepting end gives the attempt.
        own: u32,
        /// The sender's pass.
        pass: Bytes,
    },
    /// Answers [`EndMessage::Open`]: the policies forbid the two processes a link.
    Refuse {
        /// The number of the attempt.
        number: u32,
    },
    /// The session begins. It already stands at the sender, and stands at the receiver from now on.
    Begin {
        /// The session's name.
        session: Session,
    },
    /// A piece of a frame of messages.
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
    Taken {
        /// The session.
        session: Session,
        /// Number of bytes since the session's beginning.
        bytes: u64,
    },
    /// A sign of life, from end to end.
    Alive {
        /// The session.
        session: Session,
    },
    /// The session ends.
    Close {
        /// The session.
        session: Session,
    },
}

/// First byte of the relay's messages; no message of a protocol above begins with it.
const RELAY: u8 = 0xf0;

const BEAT: u8 = 0;
const RETURN: u8 = 1;
const CARRY: u8 = 2;
const CARRIED: u8 = 3;
const UNDELIVERED: u8 = 4;

const OPEN: u8 = 0;
const ACCEPT: u8 = 1;
const REFUSE: u8 = 2;
const BEGIN: u8 = 3;
const DATA: u8 = 4;
const TAKEN: u8 = 5;
const ALIVE: u8 = 6;
const CLOSE: u8 = 7;

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

impl Wire for Message {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        match self {
            Message::Beat => out.put_u8(BEAT),
            Message::Return => out.put_u8(RETURN),
            Message::Carry { to, end_message } => {
                out.put_u8(CARRY);
                put_process(out, *to);
                return end_message.encode_head(out);
            }
            Message::Carried { from, end_message } => {
                out.put_u8(CARRIED);
                put_process(out, *from);
                return end_message.encode_head(out);
            }
            Message::Undelivered { to } => {
                out.put_u8(UNDELIVERED);
                put_process(out, *to);
            }
        }
        None
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        Ok(match take_u8(input)? {
            BEAT => Message::Beat,
            RETURN => Message::Return,
            CARRY => Message::Carry { to: take_process(input)?, end_message: EndMessage::decode(input)? },
            CARRIED => {
                Message::Carried { from: take_process(input)?, end_message: EndMessage::decode(input)? }
            }
            UNDELIVERED => Message::Undelivered { to: take_process(input)? },
            tag => return Err(WireError::Tag(tag)),
        })
    }
}

impl Wire for EndMessage {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        match self {
            EndMessage::Open { number, router, pass } => {
                out.put_u8(OPEN);
                out.put_u32_le(*number);
                out.put_u8(u8::from(*router));
                put_pass(out, pass);
            }
            EndMessage::Accept { number, own, pass } => {
                out.put_u8(ACCEPT);
                out.put_u32_le(*number);
                out.put_u32_le(*own);
                put_pass(out, pass);
            }
            EndMessage::Refuse { number } => {
                out.put_u8(REFUSE);
                out.put_u32_le(*number);
            }
            EndMessage::Begin { session } => {
                out.put_u8(BEGIN);
                out.put_u64_le(session.0);
            }
            EndMessage::Data { session, at, last, bytes } => {
                out.put_u8(DATA);
                out.put_u64_le(session.0);
                out.put_u64_le(*at);
                out.put_u8(u8::from(*last));
                return put_payload(out, bytes);
            }
            EndMessage::Taken { session, bytes } => {
                out.put_u8(TAKEN);
                out.put_u64_le(session.0);
                out.put_u64_le(*bytes);
            }
            EndMessage::Alive { session } => {
                out.put_u8(ALIVE);
                out.put_u64_le(session.0);
            }
            EndMessage::Close { session } => {
                out.put_u8(CLOSE);
                out.put_u64_le(session.0);
            }
        }
        None
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        let session = |input: &mut Bytes| take_u64(input).map(Session);
        Ok(match take_u8(input)? {
            OPEN => EndMessage::Open {
                number: take_u32(input)?,
                router: take_bool(input)?,
                pass: take_pass(input)?,
            },
            ACCEPT => EndMessage::Accept {
                number: take_u32(input)?,
                own: take_u32(input)?,
                pass: take_pass(input)?,
            },
            REFUSE => EndMessage::Refuse { number: take_u32(input)? },
            BEGIN => EndMessage::Begin { session: session(input)? },
            DATA => EndMessage::Data {
                session: session(input)?,
                at: take_u64(input)?,
                last: take_bool(input)?,
                bytes: take_bytes(input)?,
            },
            TAKEN => EndMessage::Taken { session: session(input)?, bytes: take_u64(input)? },
            ALIVE => EndMessage::Alive { session: session(input)? },
            CLOSE => EndMessage::Close { session: session(input)? },
            tag => return Err(WireError::Tag(tag)),
        })
    }
}

fn take_bool(input: &mut Bytes) -> Result<bool, WireError> {
    match take_u8(input)? {
        0 => Ok(false),
        1 => Ok(true),
        tag => Err(WireError::Tag(tag)),
    }
}
