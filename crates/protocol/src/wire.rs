//! Bytes from a peer become messages, or an error; never a panic, never an unchecked length.
//!
//! Messages have a little-endian form: a tag, then fixed fields and lengths ([`trait@Wire`]). Rare bodies are
//! `postcard` with versioned enums, after a length ([`encode_body`], [`decode_body`]). Every length is
//! compared with the present bytes before anything is allocated.
//!
//! Most messages derive their form from their declaration. The headers that the routers' log, deliveries and
//! statements carry are written by hand, and so are forms in which one byte says several things. The fields
//! of a message, in order, are its bytes:
//!
//! ```
//! use bytes::{Bytes, BytesMut};
//! use quorate_protocol::wire::{Pass, Wire, WireError, decode_all};
//!
//! /// A message of another protocol, which begins with 64 or more.
//! #[derive(Clone, Debug, PartialEq, Wire)]
//! enum Other {
//!     #[wire(tag = 64)]
//!     Beat,
//! }
//!
//! #[derive(Clone, Debug, PartialEq, Wire)]
//! #[wire(rare = 9)]
//! enum Message {
//!     #[wire(tag = 1)]
//!     Write { at: u64, keys: Vec<u32>, payload: Bytes },
//!     // The tag says also whether the operation is done.
//!     #[wire(tag = 2, done = true)]
//!     #[wire(tag = 3, done = false)]
//!     Ended { done: bool, at: u64 },
//!     #[wire(tag = 4)]
//!     Hello {
//!         // Neighbours with this attribute share one body.
//!         #[wire(body)]
//!         names: Vec<String>,
//!         #[wire(body)]
//!         address: Option<String>,
//!         #[wire(with = Pass)]
//!         pass: Bytes,
//!     },
//!     // Rare variants share a tag. A new one takes the next number.
//!     #[wire(rare = 0)]
//!     Refused { reason: String },
//!     #[wire(rare = 1)]
//!     Away,
//!     #[wire(first = 64..=255)]
//!     Other(Other),
//! }
//!
//! let (payload, pass) = (Bytes::from_static(b"ab"), Bytes::from_static(b"p"));
//! let (names, address) = (vec!["n".to_owned()], None);
//! for (message, bytes) in [
//!     (
//!         Message::Write { at: 7, keys: vec![5], payload },
//!         &[1, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, b'a', b'b'][..],
//!     ),
//!     (Message::Ended { done: false, at: 7 }, &[3, 7, 0, 0, 0, 0, 0, 0, 0]),
//!     (
//!         Message::Hello { names, address, pass },
//!         &[4, 4, 0, 0, 0, 1, 1, b'n', 0, 1, 0, 0, 0, b'p'],
//!     ),
//!     (Message::Refused { reason: "r".to_owned() }, &[9, 3, 0, 0, 0, 0, 1, b'r']),
//!     (Message::Away, &[9, 1, 0, 0, 0, 1]),
//!     (Message::Other(Other::Beat), &[64]),
//! ] {
//!     let mut out = BytesMut::new();
//!     message.encode(&mut out);
//!     assert_eq!(out, bytes);
//!     assert_eq!(decode_all(out.freeze()), Ok(message));
//! }
//! // A count that the bytes behind it cannot hold is refused before anything is allocated.
//! let forged = Bytes::from_static(&[1, 7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0]);
//! assert_eq!(decode_all::<Message>(forged), Err(WireError::Length { length: 3, limit: 2 }));
//! assert_eq!(decode_all::<Message>(Bytes::from_static(&[5])), Err(WireError::Tag(5)));
//! ```

use std::ops::RangeInclusive;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;

mod values;

pub use quorate_macros::Wire;

pub use self::values::{AnyFlag, Pass};
use crate::{
    detector::Opinion,
    id::{Generation, Incarnation, ProcessId},
    policy::PASS_BYTES_MAX,
};

/// The versions of the protocols between processes that this build speaks. Two processes use the highest
/// version that both speak.
///
/// The end of the range rises with every change of a byte form, released or not, so that two builds that do
/// not understand each other report the difference, instead of reading garbage. The beginning of the range is
/// the oldest version whose links this build serves: it can read everything on such a link, and sends nothing
/// there that a build of that version cannot read.
pub const PROTOCOL_VERSIONS: RangeInclusive<u16> = 17..=17;

/// Upper bound of a frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

/// A payload of this size in bytes, or larger, is sent without a copy. From this size on, a copy costs more
/// than a separate piece of a gathering write, and a copy of many MiB keeps its thread from all other work.
pub const PAYLOAD_BYTES_SHARED: usize = 16 << 10;

/// The fault in bytes from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The bytes end inside a value.
    #[error("the bytes end inside a value: {wanted} more bytes are needed, {left} are left")]
    Short {
        /// Number of bytes that the value needs.
        wanted: usize,
        /// Number of bytes that are left.
        left: usize,
    },
    /// A tag that no message has.
    #[error("the tag {0} is unknown")]
    Tag(u8),
    /// A length beyond its limit.
    #[error("length {length} is over the limit {limit}")]
    Length {
        /// The claimed length.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// A body that does not decode.
    #[error("the body of the message or record does not decode")]
    Body,
    /// Bytes are left after the last value.
    #[error("{0} bytes are left over after the last value")]
    Trailing(usize),
}

/// A message with a byte form. The derive of the same name implements it.
pub trait Wire: Sized {
    /// Minimum size of a value, in bytes. [`take_count`] needs it to bound counts that come from outside.
    const BYTES_LEAST: usize = 0;

    /// Appends the byte form.
    fn encode(&self, out: &mut BytesMut);
    /// Appends the byte form without a final payload of [`PAYLOAD_BYTES_SHARED`] bytes or more. Returns that
    /// payload, which then need not be copied.
    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        self.encode(out);
        None
    }
    /// Takes one value off the front of `input`; payloads share its memory.
    fn decode(input: &mut Bytes) -> Result<Self, WireError>;
}

/// A byte form of `T` that differs from the form of its type. A field names it by `#[wire(with = …)]`.
pub trait Form<T> {
    /// Minimum size of a value, in bytes.
    const BYTES_LEAST: usize = 0;

    /// Appends the byte form.
    fn put(value: &T, out: &mut BytesMut);
    /// Takes one value off the front of `input`.
    fn take(input: &mut Bytes) -> Result<T, WireError>;
}

/// Checks that `wanted` bytes are left.
pub fn need(input: &Bytes, wanted: usize) -> Result<(), WireError> {
    if input.remaining() < wanted {
        return Err(WireError::Short { wanted, left: input.remaining() });
    }
    Ok(())
}

/// Takes a byte.
pub fn take_u8(input: &mut Bytes) -> Result<u8, WireError> {
    need(input, 1)?;
    Ok(input.get_u8())
}

/// Takes a little-endian number of 32 bits.
pub fn take_u32(input: &mut Bytes) -> Result<u32, WireError> {
    need(input, 4)?;
    Ok(input.get_u32_le())
}

/// Takes a little-endian number of 64 bits.
pub fn take_u64(input: &mut Bytes) -> Result<u64, WireError> {
    need(input, 8)?;
    Ok(input.get_u64_le())
}

/// Takes a little-endian number of 128 bits.
pub fn take_u128(input: &mut Bytes) -> Result<u128, WireError> {
    need(input, 16)?;
    Ok(input.get_u128_le())
}

/// Takes a count of items of at least `least` bytes each, so that a forged count cannot cause a large
/// allocation.
pub fn take_count(input: &mut Bytes, least: usize) -> Result<usize, WireError> {
    let count = take_u32(input)? as usize;
    let limit = input.remaining() / least.max(1);
    if count > limit {
        return Err(WireError::Length { length: count as u64, limit: limit as u64 });
    }
    Ok(count)
}

/// Appends a count of items.
pub fn put_count(out: &mut BytesMut, count: usize) {
    out.put_u32_le(u32::try_from(count).expect("messages and records are bounded far below 4 GiB"));
}

/// Appends a count and the items.
pub fn encode_list<T: Wire>(out: &mut BytesMut, items: &[T]) {
    put_count(out, items.len());
    items.iter().for_each(|item| item.encode(out));
}

/// Takes a list that [`encode_list`] wrote.
pub fn decode_list<T: Wire, C: FromIterator<T>>(input: &mut Bytes) -> Result<C, WireError> {
    let count = take_count(input, T::BYTES_LEAST)?;
    (0..count).map(|_| T::decode(input)).collect()
}

/// Appends a length and the bytes.
pub fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32_le(u32::try_from(bytes.len()).expect("payloads are bounded far below 4 GiB"));
    out.put_slice(bytes);
}

/// Appends a length, and the bytes if they are few. Otherwise returns the bytes, for a caller that can share
/// them.
pub fn put_payload(out: &mut BytesMut, bytes: &Bytes) -> Option<Bytes> {
    if bytes.len() < PAYLOAD_BYTES_SHARED {
        put_bytes(out, bytes);
        return None;
    }
    out.put_u32_le(u32::try_from(bytes.len()).expect("payloads are bounded far below 4 GiB"));
    Some(bytes.clone())
}

/// Appends the whole form of a message, with the payload that [`Wire::encode_head`] leaves out.
pub fn encode_whole(message: &impl Wire, out: &mut BytesMut) {
    if let Some(payload) = message.encode_head(out) {
        out.put_slice(&payload);
    }
}

/// Takes a message that uses up all of `input`.
pub fn decode_all<T: Wire>(mut input: Bytes) -> Result<T, WireError> {
    let message = T::decode(&mut input)?;
    if input.is_empty() { Ok(message) } else { Err(WireError::Trailing(input.len())) }
}

/// Takes a length, and returns that many bytes, which share the memory of `input`.
pub fn take_bytes(input: &mut Bytes) -> Result<Bytes, WireError> {
    let length = take_u32(input)? as usize;
    need(input, length)?;
    Ok(input.split_to(length))
}

/// Appends a pass ([`Policy`](crate::Policy)).
pub fn put_pass(out: &mut BytesMut, pass: &[u8]) {
    assert!(pass.len() <= PASS_BYTES_MAX, "a pass is within its limit, but has {} bytes", pass.len());
    put_bytes(out, pass);
}

/// Takes a pass. The result is a copy: a pass lives as long as its link, and must not keep the buffer of
/// `input` in memory.
pub fn take_pass(input: &mut Bytes) -> Result<Bytes, WireError> {
    let pass = take_bytes(input)?;
    if pass.len() > PASS_BYTES_MAX {
        return Err(WireError::Length { length: pass.len() as u64, limit: PASS_BYTES_MAX as u64 });
    }
    Ok(Bytes::copy_from_slice(&pass))
}

/// Appends an opinion.
pub fn put_opinion(out: &mut BytesMut, opinion: Opinion) {
    out.put_u8(match opinion {
        Opinion::Unlinked => 0,
        Opinion::Linked => 1,
        Opinion::Heard => 2,
    });
}

/// Takes an opinion.
pub fn take_opinion(input: &mut Bytes) -> Result<Opinion, WireError> {
    match take_u8(input)? {
        0 => Ok(Opinion::Unlinked),
        1 => Ok(Opinion::Linked),
        2 => Ok(Opinion::Heard),
        tag => Err(WireError::Tag(tag)),
    }
}

/// Appends a process id: 24 bytes.
pub fn put_process(out: &mut BytesMut, process: ProcessId) {
    out.put_u64_le(process.node);
    out.put_u128_le(process.incarnation.0);
}

/// Takes a process id.
pub fn take_process(input: &mut Bytes) -> Result<ProcessId, WireError> {
    need(input, 24)?;
    Ok(ProcessId { node: input.get_u64_le(), incarnation: Incarnation(input.get_u128_le()) })
}

/// Appends a generation: 20 bytes.
pub fn put_generation(out: &mut BytesMut, generation: Generation) {
    out.put_u32_le(generation.number);
    out.put_u128_le(generation.survivor.0);
}

/// Takes a generation.
pub fn take_generation(input: &mut Bytes) -> Result<Generation, WireError> {
    need(input, 20)?;
    Ok(Generation { number: input.get_u32_le(), survivor: Incarnation(input.get_u128_le()) })
}

/// Appends a length and the `postcard` form of a rare body.
pub fn encode_body<T: Serialize>(out: &mut BytesMut, body: &T) {
    let bytes = postcard::to_stdvec(body).expect("every type of this crate serialises");
    put_bytes(out, &bytes);
}

/// Takes a body that [`encode_body`] wrote.
pub fn decode_body<T: DeserializeOwned>(input: &mut Bytes) -> Result<T, WireError> {
    read_body(&take_bytes(input)?)
}

/// Reads a whole body without its length.
pub fn read_body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let (body, rest) = postcard::take_from_bytes(bytes).map_err(|_| WireError::Body)?;
    if !rest.is_empty() {
        return Err(WireError::Trailing(rest.len()));
    }
    Ok(body)
}

/// Appends a rare message: the tag of all rare messages of a type, and a body with the message's number and
/// its fields. The body has the form of an enum whose variants have these numbers.
pub fn encode_rare<T: Serialize>(out: &mut BytesMut, tag: u8, number: u32, fields: &T) {
    out.put_u8(tag);
    encode_body(out, &(number, fields));
}

/// Takes the body of a rare message after its tag: the number, and the fields for [`read_body`].
pub fn decode_rare(input: &mut Bytes) -> Result<(u32, Bytes), WireError> {
    let bytes = take_bytes(input)?;
    let (number, rest) = postcard::take_from_bytes(&bytes).map_err(|_| WireError::Body)?;
    let fields = bytes.slice(bytes.len() - rest.len()..);
    Ok((number, fields))
}

/// Returns the smallest of these sizes in bytes, or 0 if the list is empty.
pub const fn least(bytes: &[usize]) -> usize {
    let Some((mut least, mut rest)) = bytes.split_first() else { return 0 };
    while let Some((next, others)) = rest.split_first() {
        if *next < *least {
            least = next;
        }
        rest = others;
    }
    *least
}
