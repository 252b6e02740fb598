//! The bytes of a state on its way to another replica: the clock, the number of changes, and the object's
//! bytes.

use bytes::Bytes;

/// Joins the clock, the number of changes in a state, and the state's bytes.
pub fn join_state(clock: u64, changes: u64, state: &[u8]) -> Bytes {
    [&clock.to_le_bytes()[..], &changes.to_le_bytes(), state].concat().into()
}

/// Splits bytes into the clock, the number of changes and the state. `None` if the bytes are cut off.
pub fn split_state(bytes: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (clock, rest) = split_clock(bytes)?;
    let (changes, state) = split_clock(rest)?;
    Some((clock, changes, state))
}

/// Splits off the clock with which the bytes of a change or a state begin. `None` if the bytes are cut off.
pub fn split_clock(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (clock, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*clock), rest))
}
