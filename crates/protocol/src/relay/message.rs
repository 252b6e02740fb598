//! What processes say to each other below their protocols, and its byte form.

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
    /// Of the protocol above, between neighbours; its byte form is its own.
    Plain(M),
    /// Of the relay.
    Relay(Message),
}

/// A message of the relay. All but the last three are for the neighbour itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A sign of life.
    Beat,
    /// From here on the sender speaks on this link; a relayed session of the two is over.
    Return,
    /// End → relay: for that process.
    Carry {
        /// For whom.
        to: ProcessId,
        /// What.
        parcel: Parcel,
    },
    /// Relay → end: from that process.
    Carried {
        /// Who sent it; the relay vouches for it by the hello of its link.
        from: ProcessId,
        /// What.
        parcel: Parcel,
    },
    /// Relay → end: this relay cannot reach that process, or has lost the link to it.
    Undelivered {
        /// Whom.
        to: ProcessId,
    },
}

/// What one end sends to the other by way of a relay.
#[derive(Clone, Debug, PartialEq)]
pub enum Parcel {
    /// The sender hears nothing of the receiver, and wants a session.
    Open {
        /// The sender's name for the attempt; it is never used again.
        number: u32,
        /// Whether the sender is a router.
        router: bool,
        /// What the sender shows.
        pass: Bytes,
    },
    /// The receiver of [`Parcel::Open`] is there. Nothing has changed for it yet.
    Accept {
        /// The number of the attempt.
        number: u32,
        /// The sender's own number for it.
        own: u32,
        /// What the sender shows.
        pass: Bytes,
    },
    /// The two may not be linked.
    Refuse {
        /// The number of the attempt.
        number: u32,
    },
    /// The session stands: at the sender from now on, at the receiver from here on.
    Begin {
        /// Its name.
        session: Session,
    },
    /// A piece of a frame of messages.
    Data {
        /// Of which session.
        session: Session,
        /// How many bytes of the session came before.
        at: u64,
        /// Whether the frame ends with it.
        last: bool,
        /// The piece.
        bytes: Bytes,
    },
    /// So many bytes of the session have been taken by the receiver.
    Taken {
        /// Of which session.
        session: Session,
        /// Bytes since it began.
        bytes: u64,
    },
    /// A sign of life, from end to end.
    Alive {
        /// Of which session.
        session: Session,
    },
    /// The session is over.
    Close {
        /// Which.
        session: Session,
    },
}

/// No message of a protocol above begins with this byte.
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
            Message::Carry { to, parcel } => {
                out.put_u8(CARRY);
                put_process(out, *to);
                return parcel.encode_head(out);
            }
            Message::Carried { from, parcel } => {
                out.put_u8(CARRIED);
                put_process(out, *from);
                return parcel.encode_head(out);
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
            CARRY => Message::Carry { to: take_process(input)?, parcel: Parcel::decode(input)? },
            CARRIED => Message::Carried { from: take_process(input)?, parcel: Parcel::decode(input)? },
            UNDELIVERED => Message::Undelivered { to: take_process(input)? },
            tag => return Err(WireError::Tag(tag)),
        })
    }
}

impl Wire for Parcel {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        match self {
            Parcel::Open { number, router, pass } => {
                out.put_u8(OPEN);
                out.put_u32_le(*number);
                out.put_u8(u8::from(*router));
                put_pass(out, pass);
            }
            Parcel::Accept { number, own, pass } => {
                out.put_u8(ACCEPT);
                out.put_u32_le(*number);
                out.put_u32_le(*own);
                put_pass(out, pass);
            }
            Parcel::Refuse { number } => {
                out.put_u8(REFUSE);
                out.put_u32_le(*number);
            }
            Parcel::Begin { session } => {
                out.put_u8(BEGIN);
                out.put_u64_le(session.0);
            }
            Parcel::Data { session, at, last, bytes } => {
                out.put_u8(DATA);
                out.put_u64_le(session.0);
                out.put_u64_le(*at);
                out.put_u8(u8::from(*last));
                return put_payload(out, bytes);
            }
            Parcel::Taken { session, bytes } => {
                out.put_u8(TAKEN);
                out.put_u64_le(session.0);
                out.put_u64_le(*bytes);
            }
            Parcel::Alive { session } => {
                out.put_u8(ALIVE);
                out.put_u64_le(session.0);
            }
            Parcel::Close { session } => {
                out.put_u8(CLOSE);
                out.put_u64_le(session.0);
            }
        }
        None
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        let session = |input: &mut Bytes| take_u64(input).map(Session);
        Ok(match take_u8(input)? {
            OPEN => {
                Parcel::Open { number: take_u32(input)?, router: take_bool(input)?, pass: take_pass(input)? }
            }
            ACCEPT => {
                Parcel::Accept { number: take_u32(input)?, own: take_u32(input)?, pass: take_pass(input)? }
            }
            REFUSE => Parcel::Refuse { number: take_u32(input)? },
            BEGIN => Parcel::Begin { session: session(input)? },
            DATA => Parcel::Data {
                session: session(input)?,
                at: take_u64(input)?,
                last: take_bool(input)?,
                bytes: take_bytes(input)?,
            },
            TAKEN => Parcel::Taken { session: session(input)?, bytes: take_u64(input)? },
            ALIVE => Parcel::Alive { session: session(input)? },
            CLOSE => Parcel::Close { session: session(input)? },
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
