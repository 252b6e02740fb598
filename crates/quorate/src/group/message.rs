//! The messages of a group: their kinds, and the encoding of their contents.

use std::cell::Cell;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_protocol::group::SeatId;
use serde::{Serialize, de::DeserializeOwned};

use super::key::Key;

/// The kind of a message in a group, by its first byte.
pub(super) enum Kind {
    /// An update of the member with this number in its process.
    Update(SeatId),
    /// A query with this number.
    Query(u64),
    /// A claim for a lock, with this number. The lock's name follows.
    Claim(u64),
    /// A release of the claim of this number; the lock's name follows.
    Release(u64),
    /// A new key of the group, which follows.
    Rekey,
    /// A first byte that no member sends.
    Strange,
}

const UPDATE: u8 = 0;
const QUERY: u8 = 1;
const REKEY: u8 = 4;
/// The kind of an update of a process's second or later member. The member's number in its process follows.
const UPDATE_OF: u8 = 5;

/// First bytes of the messages about locks: a claim, and a release.
pub(super) const CLAIM: u8 = 2;
pub(super) const RELEASE: u8 = 3;

/// Takes the kind off a message.
pub(super) fn kind_of(body: &mut &[u8]) -> Kind {
    match body.try_get_u8() {
        Ok(UPDATE) => Kind::Update(SeatId(0)),
        Ok(UPDATE_OF) => body.try_get_u32_le().map_or(Kind::Strange, |seat| Kind::Update(SeatId(seat))),
        Ok(QUERY) => body.try_get_u64_le().map_or(Kind::Strange, Kind::Query),
        Ok(CLAIM) => body.try_get_u64_le().map_or(Kind::Strange, Kind::Claim),
        Ok(RELEASE) => body.try_get_u64_le().map_or(Kind::Strange, Kind::Release),
        Ok(REKEY) => Kind::Rekey,
        _ => Kind::Strange,
    }
}

/// Returns the number of the query if the message is a query.
pub(super) fn number_of(mut body: &[u8]) -> Option<u64> {
    match kind_of(&mut body) {
        Kind::Query(number) => Some(number),
        Kind::Update(_) | Kind::Claim(_) | Kind::Release(_) | Kind::Rekey | Kind::Strange => None,
    }
}

/// Returns the length of the part of a message that is never sealed, in bytes: the kind, and a query's
/// number.
pub(super) fn head_bytes(body: &[u8]) -> usize {
    match body.first() {
        Some(&(QUERY | CLAIM | RELEASE)) => 9,
        Some(&UPDATE_OF) => 5,
        _ => 1,
    }
}

/// Returns the message that carries a new key of the group.
pub(super) fn rekey(key: &Key) -> Vec<u8> {
    let mut body = vec![REKEY];
    body.extend_from_slice(key.as_bytes());
    body
}

pub(super) fn with_number(number: u64, query: &[u8]) -> Bytes {
    let mut body = BytesMut::with_capacity(9 + query.len());
    body.put_u8(QUERY);
    body.put_u64_le(number);
    body.put_slice(query);
    body.freeze()
}

thread_local! {
    /// The buffer in which the present thread encodes updates.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Size above which a thread frees its buffer after use, in bytes.
const SCRATCH_BYTES_MAX: usize = 64 << 10;

/// Encodes an update of the member in this seat as a message, and passes the message to `hand_over`.
pub(super) fn update<T>(
    seat: SeatId,
    update: &impl Serialize,
    hand_over: impl FnOnce(&[u8]) -> T,
) -> Result<T, String> {
    let mut scratch = SCRATCH.take();
    scratch.clear();
    if seat == SeatId(0) {
        scratch.push(UPDATE);
    } else {
        scratch.push(UPDATE_OF);
        scratch.put_u32_le(seat.0);
    }
    let bytes = postcard::to_extend(update, scratch);
    let bytes = bytes.map_err(|error| format!("the value does not serialise: {error}"))?;
    let handed = hand_over(&bytes);
    if bytes.capacity() <= SCRATCH_BYTES_MAX {
        SCRATCH.set(bytes);
    }
    Ok(handed)
}

/// Serialises a value.
pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>, String> {
    postcard::to_stdvec(value).map_err(|error| format!("the value does not serialise: {error}"))
}

/// Decodes a value that takes up all of `bytes`.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(format!("{} bytes are left over after the value", rest.len())),
        Err(error) => Err(error.to_string()),
    }
}
