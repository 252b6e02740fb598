//! Channels, and the byte form of everything that travels on them.
//!
//! ```text
//! ┌──────────┬────────┬──────────────────────────┬───────┐
//! │ endpoint │ domain │ length, and a bit: signal │ body… │
//! │ u64      │ u32    │ u32                      │       │
//! └──────────┴────────┴──────────────────────────┴───────┘
//! ```
//!
//! The header is the same for all receivers, so a message to several is encoded once. It says how long the body is, so a
//! message that nobody takes can be passed over. The domain is folded to 32 bits there; a session opens only if all 128 are
//! the same ([`Signal::Hail`]), and nothing is taken without a session.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protocol::{
    DomainId, Ticket,
    wire::{self, Wire, WireError},
};

/// The name of an endpoint in its domain. Endpoints that talk with each other have the same name in all their processes.
/// Small numbers are given by the platform; a name for one founding of something is 64 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u64);

impl EndpointId {
    /// The routers of a domain, its tables and whoever reads and writes them.
    pub const TABLES: EndpointId = EndpointId(1);
    /// The routers of a domain of maps, and its cells.
    pub const MAPS: EndpointId = EndpointId(2);
}

/// An endpoint's address in a process: its domain and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// The domain.
    pub domain: DomainId,
    /// The name in it.
    pub endpoint: EndpointId,
}

/// A channel as headers name it.
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

/// A message in bytes: all of it, or all but a large payload that it ends with.
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

    /// The bytes in one piece.
    pub(crate) fn whole(self) -> Bytes {
        match self.payload {
            None => self.head,
            Some(payload) => [&self.head[..], &payload[..]].concat().into(),
        }
    }

    /// The message, if these bytes are one and nothing else.
    pub(crate) fn decode_as<M: Wire>(self) -> Result<M, WireError> {
        let mut bytes = self.whole();
        let message = M::decode(&mut bytes)?;
        if bytes.is_empty() { Ok(message) } else { Err(WireError::Trailing(bytes.len())) }
    }
}

/// All the bytes there are: whatever holds them says where they end.
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

/// What one node sends another: a message of an endpoint, or a signal about a session of two of them. `M` are the messages
/// of home endpoints, which are written straight to where they leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter<M> {
    pub(crate) tag: Tag,
    pub(crate) content: Content<M>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content<M> {
    /// Not encoded yet, or from this process to itself. Never read from a link.
    Home(M),
    Encoded(Encoded),
    Signal(Signal),
}

/// How sessions between two endpoints begin and end; see [`session`](crate::session).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Asks for a session, or agrees to one.
    Hail {
        /// The sender's number for it.
        number: u32,
        /// The receiver's number, if this answers its hail; else 0.
        answers: u32,
        /// The whole id of the domain.
        domain: DomainId,
        /// What the sender's policy has to show.
        pass: Bytes,
    },
    /// The sender's session of this number has ended.
    Bye { number: u32 },
    /// The receiver's hail of this number is not agreed to: nobody is there, or the policy of whoever is shows this pass and
    /// does not admit the receiver's.
    Refuse { number: u32, pass: Bytes },
}

/// Bytes in front of each body.
pub const HEADER_BYTES: usize = 16;
const LENGTH_AT: usize = 12;
const SIGNAL: u32 = 1 << 31;

impl<M: Wire> Wire for Letter<M> {
    fn encode(&self, out: &mut BytesMut) {
        wire::encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        let start = out.len();
        out.put_u64_le(self.tag.endpoint);
        out.put_u32_le(self.tag.domain);
        out.put_u32_le(0);
        let (payload, kind) = match &self.content {
            Content::Home(message) => (message.encode_head(out), 0),
            Content::Encoded(message) => (message.encode_head(out), 0),
            Content::Signal(signal) => {
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
            Content::Signal(signal)
        } else {
            Content::Encoded(Encoded { head: body, payload: None })
        };
        Ok(Letter { tag: Tag { endpoint, domain }, content })
    }
}

impl Wire for Signal {
    fn encode(&self, out: &mut BytesMut) {
        match self {
            Signal::Hail { number, answers, domain, pass } => {
                out.put_u8(HAIL);
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
            HAIL => Signal::Hail {
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

/// No session has the number 0.
fn take_number(input: &mut Bytes) -> Result<u32, WireError> {
    match wire::take_u32(input)? {
        0 => Err(WireError::Body),
        number => Ok(number),
    }
}

const HAIL: u8 = 0;
const BYE: u8 = 1;
const REFUSE: u8 = 2;

/// A record of an endpoint, and whose it is. In a journal, all endpoints of a process stand in one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<R> {
    /// Whose.
    pub channel: Channel,
    pub(crate) record: Written<R>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written<R> {
    /// Encoded only if there is a disk.
    Home(R),
    Encoded(Bytes),
}

impl<R: Wire> Entry<R> {
    /// The record as one of `T`, for the endpoint that is made again from it.
    pub fn record<T: Wire>(&self) -> Result<T, WireError> {
        let mut bytes = match &self.record {
            Written::Home(record) => {
                let mut bytes = BytesMut::new();
                record.encode(&mut bytes);
                bytes.freeze()
            }
            Written::Encoded(bytes) => bytes.clone(),
        };
        let record = T::decode(&mut bytes)?;
        if bytes.is_empty() { Ok(record) } else { Err(WireError::Trailing(bytes.len())) }
    }
}

/// The records of one endpoint with their tickets, in order and in bytes, among those of all endpoints of a process.
pub fn records_of(
    channel: Channel,
    entries: impl IntoIterator<Item = (Ticket, Bytes)>,
) -> Result<Vec<(Ticket, Bytes)>, WireError> {
    Ok(records_by_channel(entries)?.remove(&channel).unwrap_or_default())
}

/// The records of each endpoint of a process with their tickets, in order and in bytes.
pub fn records_by_channel(
    entries: impl IntoIterator<Item = (Ticket, Bytes)>,
) -> Result<BTreeMap<Channel, Vec<(Ticket, Bytes)>>, WireError> {
    let mut records = BTreeMap::<_, Vec<(Ticket, Bytes)>>::new();
    for (ticket, mut entry) in entries {
        let (of, record) = opened(&mut entry)?;
        records.entry(of).or_default().push((ticket, record));
    }
    Ok(records)
}

/// Whose a record is, and its bytes.
fn opened(entry: &mut Bytes) -> Result<(Channel, Bytes), WireError> {
    let domain = DomainId(wire::take_u128(entry)?);
    let endpoint = EndpointId(wire::take_u64(entry)?);
    Ok((Channel { domain, endpoint }, std::mem::take(entry)))
}

/// The domain, the name, and all the bytes behind them; whatever holds an entry says where it ends.
impl<R: Wire> Wire for Entry<R> {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u128_le(self.channel.domain.0);
        out.put_u64_le(self.channel.endpoint.0);
        match &self.record {
            Written::Home(record) => record.encode(out),
            Written::Encoded(bytes) => out.put_slice(bytes),
        }
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        let (channel, record) = opened(input)?;
        Ok(Entry { channel, record: Written::Encoded(record) })
    }
}
