//! The restoration of an earlier set's state, with which a new set begins.
//!
//! All replicas of the new set begin in the service's first state, as usual. The earlier state is the first
//! change of the log. It is cut into parts that fit into messages, so joiners and disks need no special case.
//! Only the founder's own host can put the parts into the log: it requests each part with a random number,
//! which no client knows. Calls are rejected until the last part is applied. A service whose log carries
//! whole states gets the earlier state as its first whole state.

use std::mem;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::object::{ITEM_BYTES_MAX, Refused};

/// A part of an earlier set's state, in the form of a change.
pub struct StatePart {
    number: u32,
    last: bool,
    /// The clock of the whole state, in nanoseconds since 1970.
    clock: u64,
    state: Bytes,
}

/// The complete state of an earlier set.
pub(super) struct Whole {
    pub(super) clock: u64,
    pub(super) state: Bytes,
}

impl StatePart {
    /// Whether these bytes of a change or of a checkpoint belong to a state that is being restored. Such
    /// bytes begin with a value that no clock has.
    pub fn is(bytes: &[u8]) -> bool {
        bytes.starts_with(&NO_CLOCK.to_le_bytes())
    }

    /// Cuts a state into parts, and returns the parts as changes.
    pub fn cut(clock: u64, state: &Bytes) -> Vec<Bytes> {
        let count = state.len().div_ceil(PART_BYTES).max(1);
        let part = |number: usize| {
            let end = ((number + 1) * PART_BYTES).min(state.len());
            let state = state.slice(number * PART_BYTES..end);
            StatePart { number: number as u32, last: number + 1 == count, clock, state }.encode()
        };
        (0..count).map(part).collect()
    }

    fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(PART_HEAD_BYTES + self.state.len());
        out.put_u64_le(NO_CLOCK);
        out.put_u32_le(self.number);
        out.put_u8(self.last.into());
        out.put_u64_le(self.clock);
        out.put_slice(&self.state);
        out.freeze()
    }

    pub(super) fn decode(change: &Bytes) -> Option<StatePart> {
        if change.len() < PART_HEAD_BYTES {
            return None;
        }
        let mut input = change.slice(8..);
        let (number, last) = (input.get_u32_le(), input.get_u8() == 1);
        Some(StatePart { number, last, clock: input.get_u64_le(), state: input })
    }
}

/// Length of the state's bytes in one part, so that a change fits into a message.
const PART_BYTES: usize = ITEM_BYTES_MAX / 4;
const PART_HEAD_BYTES: usize = 21;
const NO_CLOCK: u64 = u64::MAX;

/// The progress of a set in restoring an earlier set's state, with which it begins.
#[derive(Debug, Default)]
pub struct Restoring {
    /// The parts of the state, which only the founder has, and the random number by which the founder's host
    /// requests them.
    parts: Option<(u128, Vec<Bytes>)>,
    /// The parts received so far, joined.
    coming: BytesMut,
    /// Number of parts received so far.
    came: u32,
}

impl Restoring {
    /// Returns the progress of a founder that has these parts. Its host requests them by the random number
    /// `word`.
    pub fn with(word: u128, parts: Vec<Bytes>) -> Restoring {
        Restoring { parts: Some((word, parts)), ..Restoring::default() }
    }

    /// Whether the state is incomplete.
    pub(super) fn is_under_way(&self) -> bool {
        self.parts.is_some() || self.came > 0
    }

    /// Returns a checkpoint of a service whose state is incomplete: the received parts alone, because the
    /// service is still in its first state.
    pub(super) fn checkpoint(&self) -> Bytes {
        [&NO_CLOCK.to_le_bytes()[..], &self.came.to_le_bytes(), &self.coming].concat().into()
    }

    /// Decodes the progress from another replica's checkpoint.
    pub(super) fn of_checkpoint(bytes: &[u8]) -> Option<Restoring> {
        let (came, coming) = bytes.get(8..)?.split_first_chunk()?;
        Some(Restoring { parts: None, coming: coming.into(), came: u32::from_le_bytes(*came) })
    }

    /// Returns the next part, as the change for the founder's request. Refuses all other requests until the
    /// state is complete. `None` if the state is complete and requests go to the service.
    pub(super) fn answer(&self, request: &[u8]) -> Result<Option<Bytes>, Refused> {
        let Some((word, parts)) = &self.parts else {
            return match self.came {
                0 => Ok(None),
                _ => Err(Refused::Whole(String::from(
                    "the founder of this service ended before the state was restored: restore the export \
                     again, under another name",
                ))),
            };
        };
        match parts.get(self.came as usize) {
            Some(part) if request == &word.to_le_bytes()[..] => Ok(Some(part.clone())),
            _ => Err(Refused::Whole(String::from("the state of this service is still being restored"))),
        }
    }

    /// Returns the number of parts received so far.
    pub(super) fn came(&self) -> u64 {
        self.came.into()
    }

    pub(super) fn bytes(&self) -> usize {
        self.coming.len()
    }

    /// Adds a part of the state. Returns the whole state if the part was the last.
    pub(super) fn take(&mut self, part: StatePart) -> Option<Whole> {
        if part.number != self.came {
            // The part belongs to a restoration that was broken off, so it is ignored.
            return None;
        }
        self.came += 1;
        self.coming.put_slice(&part.state);
        if !part.last {
            return None;
        }
        (self.came, self.parts) = (0, None);
        Some(Whole { clock: part.clock, state: mem::take(&mut self.coming).freeze() })
    }

    /// Removes the latest part again, unless this part completed the state. `before` is the number of bytes
    /// before the part. Returns whether the part was removed.
    pub(super) fn take_back(&mut self, before: usize) -> bool {
        let is_open = self.came > 0;
        if is_open {
            self.came -= 1;
            self.coming.truncate(before);
        }
        is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_put_together_again_and_may_be_taken_back_until_the_last() {
        for bytes in [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES] {
            let state: Bytes = (0..bytes).map(|byte| (byte % 251) as u8).collect();
            let mut restoring = Restoring::with(5, StatePart::cut(11, &state));
            let mut whole = None;
            while whole.is_none() {
                assert!(restoring.answer(b"other").is_err(), "calls wait for the state");
                let Ok(Some(change)) = restoring.answer(&5_u128.to_le_bytes()) else { panic!("a part") };
                assert!(StatePart::is(&change) && restoring.is_under_way());
                let there = Restoring::of_checkpoint(&restoring.checkpoint()).unwrap();
                assert_eq!((there.came, &there.coming), (restoring.came, &restoring.coming));
                let before = restoring.bytes();
                whole = restoring.take(StatePart::decode(&change).unwrap());
                if whole.is_none() {
                    assert!(restoring.take_back(before));
                    assert!(restoring.take(StatePart::decode(&change).unwrap()).is_none());
                }
            }
            assert_eq!(whole.unwrap().state, state);
            assert!(matches!(restoring.answer(b"other"), Ok(None)));
            assert!(!restoring.take_back(0), "the state is whole");
        }
    }
}
