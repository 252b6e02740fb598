//! Records that a router writes to its disk, and their bytes.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use super::{
    Ballot, Slot, SlotValue,
    message::{put_value, take_slot, take_values},
};
use crate::{
    id::Peer,
    wire::{Wire, WireError, decode_body, encode_body, put_bytes, take_bytes, take_u8},
};

/// A record that must be durable before certain messages may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The router takes part in no ballot below this ballot.
    Promised(Ballot),
    /// The log after `start`, as the leader of `ballot` has it.
    Accepted {
        /// The leader's ballot.
        ballot: Ballot,
        /// The slot before the first value. Nothing follows the last value.
        start: Slot,
        /// The last slot known to be chosen.
        chosen: Slot,
        /// The values.
        values: Vec<SlotValue>,
    },
    /// Chosen values after a slot. Later slots of the router's log stay if the log agrees with these values.
    Learned {
        /// The ballot of the log with these values.
        ballot: Ballot,
        /// The slot before the first value.
        start: Slot,
        /// The values.
        values: Vec<SlotValue>,
    },
    /// A snapshot replaced the log up to this slot.
    Installed {
        /// The ballot of the sender's log.
        ballot: Ballot,
        /// The slot.
        slot: Slot,
        /// The members after the slot.
        members: Arc<[Peer]>,
        /// The state after the slot.
        state: Bytes,
    },
    /// The whole state: no earlier record is needed.
    Checkpoint {
        /// The highest ballot promised: the router takes part in no lower ballot.
        promised: Ballot,
        /// The ballot in which the values were accepted.
        accepted: Ballot,
        /// The ballot of the newest log from which the router learned chosen slots without following that
        /// log's leader.
        taught: Ballot,
        /// The slot of the state; everything up to it is chosen.
        slot: Slot,
        /// The last slot known to be chosen: the slot of the state, or a later one if the user took time to
        /// give the state.
        chosen: Slot,
        /// The members after the slot of the state.
        members: Arc<[Peer]>,
        /// The state after `slot`.
        state: Bytes,
        /// The values chosen and accepted after `slot`.
        values: Vec<SlotValue>,
    },
}

impl Record {
    /// Returns the approximate size on disk in bytes.
    pub(super) fn bytes(&self) -> usize {
        let sum = |values: &[SlotValue]| values.iter().map(SlotValue::bytes).sum::<usize>();
        64 + match self {
            Record::Promised(_) => 0,
            Record::Accepted { values, .. } | Record::Learned { values, .. } => sum(values),
            Record::Installed { state, .. } => state.len(),
            Record::Checkpoint { state, values, .. } => state.len() + sum(values),
        }
    }
}

/// The reason why a router's records cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Corrupt {
    /// A record does not decode.
    #[error("record {0} of the journal is malformed: {1}")]
    Malformed(usize, WireError),
    /// A record contradicts earlier records.
    #[error("record {0} of the journal contradicts the records before it")]
    Disconnected(usize),
}

const PROMISED: u8 = 1;
const ACCEPTED: u8 = 2;
const LEARNED: u8 = 3;
const INSTALLED: u8 = 4;
const CHECKPOINT: u8 = 5;
/// Tag of a checkpoint whose state lags behind the chosen slots.
const CHECKPOINT_BEHIND: u8 = 6;

fn put_values(out: &mut BytesMut, values: &[SlotValue]) {
    out.put_u32_le(u32::try_from(values.len()).expect("a record holds far fewer than 2^32 slots"));
    for value in values {
        if let Some(payload) = put_value(out, value) {
            out.put_slice(&payload);
        }
    }
}

impl Wire for Record {
    fn encode(&self, out: &mut BytesMut) {
        match self {
            Record::Promised(ballot) => {
                out.put_u8(PROMISED);
                ballot.encode(out);
            }
            Record::Accepted { ballot, start, chosen, values } => {
                out.put_u8(ACCEPTED);
                ballot.encode(out);
                out.put_u64_le(start.0);
                out.put_u64_le(chosen.0);
                put_values(out, values);
            }
            Record::Learned { ballot, start, values } => {
                out.put_u8(LEARNED);
                ballot.encode(out);
                out.put_u64_le(start.0);
                put_values(out, values);
            }
            Record::Installed { ballot, slot, members, state } => {
                out.put_u8(INSTALLED);
                ballot.encode(out);
                out.put_u64_le(slot.0);
                encode_body(out, members);
                put_bytes(out, state);
            }
            Record::Checkpoint { promised, accepted, taught, slot, chosen, members, state, values } => {
                out.put_u8(if chosen == slot { CHECKPOINT } else { CHECKPOINT_BEHIND });
                for ballot in [promised, accepted, taught] {
                    ballot.encode(out);
                }
                out.put_u64_le(slot.0);
                if chosen != slot {
                    out.put_u64_le(chosen.0);
                }
                encode_body(out, members);
                put_bytes(out, state);
                put_values(out, values);
            }
        }
    }

    fn decode(input: &mut Bytes) -> Result<Record, WireError> {
        let record = match take_u8(input)? {
            PROMISED => Record::Promised(Ballot::decode(input)?),
            ACCEPTED => Record::Accepted {
                ballot: Ballot::decode(input)?,
                start: take_slot(input)?,
                chosen: take_slot(input)?,
                values: take_values(input)?,
            },
            LEARNED => Record::Learned {
                ballot: Ballot::decode(input)?,
                start: take_slot(input)?,
                values: take_values(input)?,
            },
            INSTALLED => Record::Installed {
                ballot: Ballot::decode(input)?,
                slot: take_slot(input)?,
                members: decode_body(input)?,
                state: take_bytes(input)?,
            },
            tag @ (CHECKPOINT | CHECKPOINT_BEHIND) => {
                let ballots = [Ballot::decode(input)?, Ballot::decode(input)?, Ballot::decode(input)?];
                let [promised, accepted, taught] = ballots;
                let slot = take_slot(input)?;
                let chosen = if tag == CHECKPOINT { slot } else { take_slot(input)? };
                let (members, state) = (decode_body(input)?, take_bytes(input)?);
                let values = take_values(input)?;
                Record::Checkpoint { promised, accepted, taught, slot, chosen, members, state, values }
            }
            tag => return Err(WireError::Tag(tag)),
        };
        if !input.is_empty() {
            return Err(WireError::Trailing(input.len()));
        }
        Ok(record)
    }
}
