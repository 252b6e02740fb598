//! Channels, and the byte form of envelopes and records.
//!
//! ```text
//! ┌──────────┬────────┬──────────────────────────┬───────┐
//! │ endpoint │ domain │ length, and a bit: signal │ body… │
//! │ u64      │ u32    │ u32                      │       │
//! └──────────┴────────┴──────────────────────────┴───────┘
//! ```
//!
//! The header is the same for all receivers, so a message to several receivers is encoded only once. The
//! header holds the length of the body, so a receiver can skip a message without decoding it. The header
//! holds only a 32-bit fold of the domain; a session opens only if all 128 bits are equal ([`Signal::Open`]),
//! and without a session no message is accepted.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protocol::{
    DomainId, Ticket,
    wire::{self, Wire, WireError},
};

/// The name of an endpoint in its domain. Endpoints that talk with one another have the same name in all
/// their processes. The platform assigns small numbers; an endpoint that is founded at run time draws 64
/// random bits as its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u64);

impl EndpointId {
    /// The name of the endpoints of a domain's routers, and of the processes for which they order: processes
    /// of tables, of groups and of maps.
    pub const TABLES: EndpointId = EndpointId(1);
    /// The name of the endpoints that earlier builds used in clusters of cells alone. Journals may contain
    /// it.
    pub const FORMER_MAPS: EndpointId = EndpointId(2);
}

/// An endpoint's address in a process: its domain and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// The endpoint's domain.
    pub domain: DomainId,
    /// The endpoint's name in the domain.
    pub endpoint: EndpointId,
}

/// The short form of a channel in headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tag {
    pub(crate) endpoint: u64,
    pub(crate) domain: u32,
}

impl Channel {
    pub(crate) fn tag(self) -> Tag {
        Tag { endpoint: self.endpoint.0, domain: fold(self.domain) }
    }
}

pub(crate) fn fold(DomainId(id): DomainId) -> u32 {
    (id ^ (id >> 32) ^ (id >> 64) ^ (id >> 96)) as u32
}

/// An encoded message: all its bytes, or a head and a large payload that follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    pub(crate) head: Bytes,
    pub(crate) payload: Option<Bytes>,
}

impl Encoded {
    pub(crate) fn of(message: &impl Wire) -> Encoded {
        let mut head = BytesMut::new();
        let payload = message.encode_head(&mut head);
        Encoded { head: head.freeze(), payload }
    }

    /// Returns all bytes of the message in one piece.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self.payload {
            None => self.head,
            Some(payload) => [&self.head[..], &payload[..]].concat().into(),
        }
    }

    /// Decodes the message. All bytes must belong to it.
    pub(crate) fn decode_as<M: Wire>(self) -> Result<M, WireError> {
        let mut bytes = self.into_bytes();
        let message = M::decode(&mut bytes)?;
        if bytes.is_empty() { Ok(message) } else { Err(WireError::Trailing(bytes.len())) }
    }
}

/// The byte form does not contain its own length, so the form around it has to mark its end.
impl Wire for Encoded {
    fn encode(&self, out: &mut BytesMut) {
        wire::encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        out.put_slice(&self.head);
        self.payload.clone()
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        Ok(Encoded { head: std::mem::take(input), payload: None })
    }
}

/// A message from node to node: a message of an endpoint, or a signal about a session of two endpoints. `M`
/// is the message type of typed endpoints. A message of that type is encoded directly into the link's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<M> {
    pub(crate) tag: Tag,
    pub(crate) content: EnvelopeContent<M>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EnvelopeContent<M> {
    /// A message of a typed endpoint, before it is encoded, or for this process itself. A link never decodes
    /// to this form.
    Typed(M),
    Encoded(Encoded),
    Signal(Signal),
}

/// A step in opening or ending a session between two endpoints; see [`session`](crate::session).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Asks for a session, or agrees to a session that the other end asked for.
    Open {
        /// The number that the sender gives the session.
        number: u32,
        /// The number of the receiver's request that this signal answers, or 0 for a request.
        answers: u32,
        /// The full id of the domain.
        domain: DomainId,
        /// The pass of the sender's policy.
        pass: Bytes,
    },
    /// Ends the session to which the sender gave this number.
    Bye { number: u32 },
    /// Refuses the receiver's request of this number, because no endpoint is at the channel, or because the
    /// endpoint's policy does not admit the receiver's pass. `pass` is the refusing endpoint's pass.
    Refuse { number: u32, pass: Bytes },
}

/// Length of the header in front of each body, in bytes.
pub const HEADER_BYTES: usize = 16;
const LENGTH_AT: usize = 12;
const SIGNAL: u32 = 1 << 31;

impl<M: Wire> Wire for Envelope<M> {
    fn encode(&self, out: &mut BytesMut) {
        wire::encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        let start = out.len();
        out.put_u64_le(self.tag.endpoint);
        out.put_u32_le(self.tag.domain);
        out.put_u32_le(0);
        let (payload, kind) = match &self.content {
            EnvelopeContent::Typed(message) => (message.encode_head(out), 0),
            EnvelopeContent::Encoded(message) => (message.encode_head(out), 0),
            EnvelopeContent::Signal(signal) => {
                signal.encode(out);
                (None, SIGNAL)
            }
        };
        let length = out.len() - start - HEADER_BYTES + payload.as_ref().map_or(0, Bytes::len);
        let length = u32::try_from(length).ok().filter(|length| length & SIGNAL == 0);
        let length = length.expect("no frame holds a message of 2^31 bytes") | kind;
        out[start + LENGTH_AT..start + HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
        payload
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        wire::need(input, HEADER_BYTES)?;
        let endpoint = wire::take_u64(input)?;
        let domain = wire::take_u32(input)?;
        let length = wire::take_u32(input)?;
        let (is_signal, length) = (length & SIGNAL != 0, (length & !SIGNAL) as usize);
        wire::need(input, length)?;
        let mut body = input.split_to(length);
        let content = if is_signal {
            let signal = Signal::decode(&mut body)?;
            if !body.is_empty() {
                return Err(WireError::Trailing(body.len()));
            }
            EnvelopeContent::Signal(signal)
        } else {
            EnvelopeContent::Encoded(Encoded { head: body, payload: None })
        };
        Ok(Envelope { tag: Tag { endpoint, domain }, content })
    }
}

impl Wire for Signal {
    fn encode(&self, out: &mut BytesMut) {
        match self {
            Signal::Open { number, answers, domain, pass } => {
                out.put_u8(OPEN);
                out.put_u32_le(*number);
                out.put_u32_le(*answers);
                out.put_u128_le(domain.0);
                wire::put_pass(out, pass);
            }
            Signal::Bye { number } => {
                out.put_u8(BYE);
                out.put_u32_le(*number);
            }
            Signal::Refuse { number, pass } => {
                out.put_u8(REFUSE);
                out.put_u32_le(*number);
                wire::put_pass(out, pass);
            }
        }
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        let signal = match wire::take_u8(input)? {
            OPEN => Signal::Open {
                number: take_number(input)?,
                answers: wire::take_u32(input)?,
                domain: DomainId(wire::take_u128(input)?),
                pass: wire::take_pass(input)?,
            },
            BYE => Signal::Bye { number: take_number(input)? },
            REFUSE => Signal::Refuse { number: take_number(input)?, pass: wire::take_pass(input)? },
            other => return Err(WireError::Tag(other)),
        };
        Ok(signal)
    }
}

/// Reads a session's number, which is never 0.
fn take_number(input: &mut Bytes) -> Result<u32, WireError> {
    match wire::take_u32(input)? {
        0 => Err(WireError::Body),
        number => Ok(number),
    }
}

const OPEN: u8 = 0;
const BYE: u8 = 1;
const REFUSE: u8 = 2;

/// A record of an endpoint, together with the endpoint's channel. The journal of a process holds the records
/// of all endpoints in one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry<R> {
    /// The channel of the endpoint that wrote the record.
    pub channel: Channel,
    pub(crate) record: RecordContent<R>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordContent<R> {
    /// A record that is not encoded yet. If the process has no disk, it is never encoded.
    Typed(R),
    Encoded(Bytes),
}

impl<R: Wire> JournalEntry<R> {
    /// Decodes the record as a `T`, for the endpoint that is restored from it.
    pub fn record<T: Wire>(&self) -> Result<T, WireError> {
        let mut bytes = match &self.record {
            RecordContent::Typed(record) => {
                let mut bytes = BytesMut::new();
                record.encode(&mut bytes);
                bytes.freeze()
            }
            RecordContent::Encoded(bytes) => bytes.clone(),
        };
        let record = T::decode(&mut bytes)?;
        if bytes.is_empty() { Ok(record) } else { Err(WireError::Trailing(bytes.len())) }
    }
}

/// Extracts the encoded records of one endpoint, with their tickets and in order, from the records of a
/// process.
pub fn records_of(
    channel: Channel,
    entries: impl IntoIterator<Item = (Ticket, Bytes)>,
) -> Result<Vec<(Ticket, Bytes)>, WireError> {
    Ok(records_by_channel(entries)?.remove(&channel).unwrap_or_default())
}

/// Groups the encoded records of a process by endpoint, with their tickets and in order.
pub fn records_by_channel(
    entries: impl IntoIterator<Item = (Ticket, Bytes)>,
) -> Result<BTreeMap<Channel, Vec<(Ticket, Bytes)>>, WireError> {
    let mut records = BTreeMap::<_, Vec<(Ticket, Bytes)>>::new();
    for (ticket, mut entry) in entries {
        let (of, record) = split_entry(&mut entry)?;
        records.entry(of).or_default().push((ticket, record));
    }
    Ok(records)
}

/// Splits an encoded record into its channel and its body.
fn split_entry(entry: &mut Bytes) -> Result<(Channel, Bytes), WireError> {
    let domain = DomainId(wire::take_u128(entry)?);
    let endpoint = EndpointId(wire::take_u64(entry)?);
    Ok((Channel { domain, endpoint }, std::mem::take(entry)))
}

/// The byte form is the domain, the endpoint's name, and the record. The form around it has to mark its end.
impl<R: Wire> Wire for JournalEntry<R> {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u128_le(self.channel.domain.0);
        out.put_u64_le(self.channel.endpoint.0);
        match &self.record {
            RecordContent::Typed(record) => record.encode(out),
            RecordContent::Encoded(bytes) => out.put_slice(bytes),
        }
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        let (channel, record) = split_entry(input)?;
        Ok(JournalEntry { channel, record: RecordContent::Encoded(record) })
    }
}
