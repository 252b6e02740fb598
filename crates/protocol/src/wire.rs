//! Bytes from a peer become messages, or an error; never a panic, never an unchecked length.
//!
//! Frequent messages have a hand-written little-endian form. Rare bodies are `postcard` with versioned enums,
//! after a length ([`encode_body`], [`decode_body`]). Every length is compared with the present bytes before
//! anything is allocated.

use std::ops::RangeInclusive;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;

use crate::{
    detector::Opinion,
    id::{Generation, Incarnation, ProcessId},
    policy::PASS_BYTES_MAX,
};

/// The versions of the protocols between processes that this build speaks. Two processes use the highest
/// version that both speak.
///
/// The end of the range rises with every change of a byte form, released or not, so that two builds that do
/// not understand each other report that, instead of reading garbage. The beginning of the range stays as
/// long as this build can read everything on a link of that version, and sends nothing there that a build of
/// that version cannot read.
pub const PROTOCOL_VERSIONS: RangeInclusive<u16> = 17..=17;

/// Upper bound of a frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

/// Size from which a payload is sent without a copy, in bytes. From this size on, a copy costs more than a
/// separate piece of a gathering write, and a copy of many MiB keeps its thread from all other work.
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

/// A message with a byte form.
pub trait Wire: Sized {
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

/// The empty record of a protocol without records.
impl Wire for () {
    fn encode(&self, _: &mut BytesMut) {}

    fn decode(_: &mut Bytes) -> Result<(), WireError> {
        Ok(())
    }
}

/// A number, little-endian.
impl Wire for u64 {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u64_le(*self);
    }

    fn decode(input: &mut Bytes) -> Result<u64, WireError> {
        take_u64(input)
    }
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

/// Appends the whole form of a message that has an [`Wire::encode_head`].
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
    let bytes = take_bytes(input)?;
    let (body, rest) = postcard::take_from_bytes(&bytes).map_err(|_| WireError::Body)?;
    if !rest.is_empty() {
        return Err(WireError::Trailing(rest.len()));
    }
    Ok(body)
}
