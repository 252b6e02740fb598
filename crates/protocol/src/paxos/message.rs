//! Messages between routers, and their bytes.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Ballot, Pulse, Slot, SlotValue};
use crate::{
    id::{Peer, ProcessId},
    wire::{
        Wire, WireError, decode_body, encode_body, encode_whole, put_bytes, put_payload, take_bytes,
        take_count, take_u8, take_u64,
    },
};

/// A message between routers. The first eight kinds are frequent and have byte forms of their own. Kinds with
/// values or state, whose memory is shared, also have byte forms of their own. The other kinds are small and
/// rare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// To the leader of `ballot`: propose these payloads, in this order.
    Forward {
        /// The reign that the sender means; the leader of any other reign drops the message.
        ballot: Ballot,
        /// The payloads.
        payloads: Vec<Bytes>,
    },
    /// Phase 2: the value of the slot after the last slot sent in this ballot.
    Accept {
        /// The leader's ballot.
        ballot: Ballot,
        /// The slot.
        slot: Slot,
        /// Everything up to this slot is chosen.
        chosen: Slot,
        /// The value.
        value: SlotValue,
    },
    /// The sender holds the proposals of the leader of `ballot`, from the beginning of the log through this
    /// slot.
    Accepted {
        /// The ballot.
        ballot: Ballot,
        /// The last slot held.
        through: Slot,
    },
    /// Everything up to this slot is chosen; sent if no [`Message::Accept`] carries it.
    Chosen {
        /// The leader's ballot.
        ballot: Ballot,
        /// The last slot chosen.
        through: Slot,
    },
    /// A leader's sign of life.
    Heartbeat {
        /// The leader's ballot.
        ballot: Ballot,
        /// Everything up to this slot is chosen.
        chosen: Slot,
        /// Every member holds the log up to this slot, so nobody needs it any longer.
        collect: Slot,
        /// The last slot sent to the receiver in this session and ballot; zero before the [`Message::Sync`].
        sent: Slot,
    },
    /// Answers [`Message::Heartbeat`], or tells the leader that the sender lacks something.
    Following {
        /// The leader's ballot.
        ballot: Ballot,
        /// The last slot that the sender holds in this ballot; `None` before the first [`Message::Sync`].
        through: Option<Slot>,
        /// The last slot that the sender has learned.
        chosen: Slot,
        /// Whether the sender lacks something that was sent to it.
        lacks: bool,
    },
    /// Asks whether the receiver has promised no higher ballot.
    Confirm {
        /// The leader's ballot.
        ballot: Ballot,
        /// Number of the round within the reign.
        round: u64,
    },
    /// The sender had promised no higher ballot when the round began.
    Confirmed {
        /// The leader's ballot.
        ballot: Ballot,
        /// The last round received.
        round: u64,
    },
    /// Replaces the receiver's whole log after `start` by the leader's whole log after `start`, in one
    /// step. Phase 2 begins with this message.
    Sync {
        /// The leader's ballot.
        ballot: Ballot,
        /// The slot before the first value.
        start: Slot,
        /// Everything up to this slot is chosen.
        chosen: Slot,
        /// The leader's log after `start`.
        values: Vec<SlotValue>,
    },
    /// A part of the chosen log, for a process that is far behind.
    CatchUp {
        /// The leader's ballot.
        ballot: Ballot,
        /// The slot before the first value.
        start: Slot,
        /// The values, all chosen.
        values: Vec<SlotValue>,
    },
    /// A part of a snapshot, for a process that lacks more than the kept log.
    Chunk {
        /// The leader's ballot.
        ballot: Ballot,
        /// The snapshot is the state after this slot.
        slot: Slot,
        /// The members after this slot.
        members: Vec<Peer>,
        /// Size of the state in bytes.
        total: u64,
        /// Offset of `bytes` in the state.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// A part of a snapshot whose length is not known yet.
    Part {
        /// The leader's ballot.
        ballot: Ballot,
        /// The snapshot is the state after this slot.
        slot: Slot,
        /// The members after this slot.
        members: Vec<Peer>,
        /// Number of the part, counted from 0.
        number: u64,
        /// Whether this is the last part.
        last: bool,
        /// The bytes.
        bytes: Bytes,
    },
    /// Acknowledges the received part of a snapshot.
    ChunkTaken {
        /// The leader's ballot.
        ballot: Ballot,
        /// The snapshot's slot.
        slot: Slot,
        /// Number of bytes from the beginning, or number of parts.
        offset: u64,
    },
    /// Phase 1b: the sender takes part in no lower ballot. Carries values that the candidate may lack.
    Promise {
        /// The candidate's ballot.
        ballot: Ballot,
        /// The ballot in which the sender's log was accepted.
        accepted: Ballot,
        /// The end of the sender's log.
        last: Slot,
        /// The last slot that the sender has learned. If the sender's log does not beat the candidate's, and
        /// the sender no longer keeps the values, the slot is `start` instead.
        chosen: Slot,
        /// The slot before the first value, which is the candidate's `chosen`.
        start: Slot,
        /// The values of the sender's log after `start`. They end at `chosen`, or at `last` if the sender's
        /// log beats the candidate's.
        values: Vec<SlotValue>,
    },
    /// Asks before phase 1 whether the receiver would promise.
    PreVote(Prepare),
    /// The sender would promise this ballot.
    PreVoted {
        /// The ballot.
        ballot: Ballot,
        /// The sender's log, if it beats the candidate's.
        better: Option<Better>,
    },
    /// Phase 1a.
    Prepare(Prepare),
    /// Refuses a candidacy.
    Refused {
        /// The candidate's ballot.
        ballot: Ballot,
        /// The ballot that the sender has promised.
        promised: Ballot,
        /// The reason.
        refusal: Refusal,
    },
    /// The leader steps down: the receivers should elect another leader now.
    Resign {
        /// The leader's ballot.
        ballot: Ballot,
    },
    /// The leader steps down in favour of `successor`, a router that lacks nothing. The other routers let
    /// `successor` stand first.
    HandOver {
        /// The leader's ballot.
        ballot: Ballot,
        /// The router that should lead next.
        successor: ProcessId,
    },
    /// The sender, a router with a disk, stops before a restart and comes back. The other routers must not
    /// vote it out because of the stop.
    Away,
    /// The sender asks to become a router.
    Join {
        /// The sender and its address.
        peer: Peer,
    },
    /// Answers [`Message::Join`] and [`Message::Change`] from a router that does not lead: the asker should
    /// ask the leader.
    Refer {
        /// The leader, if known.
        leader: Option<ProcessId>,
        /// The members, as far as the sender has learned.
        members: Vec<Peer>,
    },
    /// A change of the members, forwarded to the leader.
    Change(Change),
    /// The leader refuses a change.
    ChangeRefused {
        /// The change.
        change: Change,
        /// The reason.
        reason: ChangeRefusal,
    },
    /// The leader had no room for the sender's forwarded proposals.
    Dropped {
        /// The leader's ballot.
        ballot: Ballot,
    },
    /// Answers [`Message::Join`]: another process with the sender's node number is a router, or a member, and
    /// seems well.
    NodeInUse {
        /// The process with the same node number.
        by: Peer,
    },
    /// The receiver is no member.
    NotMember {
        /// The last slot that the sender has learned.
        chosen: Slot,
        /// The members after that slot.
        members: Vec<Peer>,
    },
    /// The sender's connections.
    Pulse(Pulse),
}

/// A candidate's description of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// The ballot for which the candidate stands.
    pub ballot: Ballot,
    /// The ballot in which the candidate's log was accepted.
    pub accepted: Ballot,
    /// The end of the candidate's log.
    pub last: Slot,
    /// The last slot that the candidate has learned.
    pub chosen: Slot,
    /// Number of members with which the candidate talks, itself included.
    pub reach: u32,
}

/// A log that beats a candidate's, and the members that would vote on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Better {
    /// The ballot in which the log was accepted.
    pub accepted: Ballot,
    /// The end of the log.
    pub last: Slot,
    /// The members of the newest change in the log, chosen or not.
    pub members: Vec<Peer>,
}

/// The reason why a candidacy was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The sender promised a higher ballot.
    Outbid,
    /// The leader seems well.
    LeaderLives,
    /// The sender's log beats the candidate's. But the part that the candidate lacks is no longer kept whole,
    /// or is more than a message carries.
    Behind,
    /// The sender currently helps another candidate.
    Rival,
}

/// A change of the members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Adds a router.
    Add(Peer),
    /// Removes a router.
    Remove(ProcessId),
}

/// The reason why a change of the members was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum ChangeRefusal {
    /// No router leads.
    #[error("no router leads at the moment: try again when a router leads")]
    NoLeader,
    /// The change is already in effect.
    #[error("the change is already in effect")]
    AlreadySo,
    /// Too few routers would remain, or too few of them seem well.
    #[error("too few routers that are well would be left: add or repair a router first")]
    TooFew,
    /// The process to add does not answer, or it was voted out, and only a new incarnation of its node may
    /// join.
    #[error(
        "the leader cannot reach the process to add, or that process was removed before and has to start as \
         a new process"
    )]
    Unreachable,
}

const FORWARD: u8 = 1;
const ACCEPT: u8 = 2;
const ACCEPTED: u8 = 3;
const CHOSEN: u8 = 4;
const HEARTBEAT: u8 = 5;
const FOLLOWING: u8 = 6;
const SYNC: u8 = 7;
const CATCH_UP: u8 = 8;
const CHUNK: u8 = 9;
const CHUNK_TAKEN: u8 = 10;
const PROMISE: u8 = 11;
const RARE: u8 = 12;
const CONFIRM: u8 = 13;
const CONFIRMED: u8 = 14;
const PART: u8 = 15;

const PAYLOADS: u8 = 0;
const MEMBERS: u8 = 1;

/// The small and rare messages, in `postcard` form. New kinds must be added at the end.
#[derive(Serialize, Deserialize)]
enum Rare {
    PreVote(Prepare),
    PreVoted(Ballot, Option<Better>),
    Prepare(Prepare),
    Refused(Ballot, Ballot, Refusal),
    Resign(Ballot),
    Join(Peer),
    Refer(Option<ProcessId>, Vec<Peer>),
    Change(Change),
    ChangeRefused(Change, ChangeRefusal),
    Dropped(Ballot),
    NotMember(Slot, Vec<Peer>),
    NodeInUse(Peer),
    Pulse(Pulse),
    HandOver(Ballot, ProcessId),
    Away,
}

impl Wire for Message {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        // One match lists the bytes of all messages of the log.
        match self {
            Message::Forward { ballot, payloads } => {
                out.put_u8(FORWARD);
                ballot.encode(out);
                return put_payloads(out, payloads);
            }
            Message::Accept { ballot, slot, chosen, value } => {
                out.put_u8(ACCEPT);
                ballot.encode(out);
                put_slots(out, [slot, chosen]);
                return put_value(out, value);
            }
            Message::Accepted { ballot, through } => {
                out.put_u8(ACCEPTED);
                ballot.encode(out);
                put_slots(out, [through]);
            }
            Message::Chosen { ballot, through } => {
                out.put_u8(CHOSEN);
                ballot.encode(out);
                put_slots(out, [through]);
            }
            Message::Heartbeat { ballot, chosen, collect, sent } => {
                out.put_u8(HEARTBEAT);
                ballot.encode(out);
                put_slots(out, [chosen, collect, sent]);
            }
            Message::Following { ballot, through, chosen, lacks } => {
                out.put_u8(FOLLOWING);
                ballot.encode(out);
                out.put_u8(u8::from(through.is_some()));
                if let Some(through) = through {
                    put_slots(out, [through]);
                }
                put_slots(out, [chosen]);
                out.put_u8(u8::from(*lacks));
            }
            Message::Confirm { ballot, round } => {
                out.put_u8(CONFIRM);
                ballot.encode(out);
                out.put_u64_le(*round);
            }
            Message::Confirmed { ballot, round } => {
                out.put_u8(CONFIRMED);
                ballot.encode(out);
                out.put_u64_le(*round);
            }
            Message::Sync { ballot, start, chosen, values } => {
                out.put_u8(SYNC);
                ballot.encode(out);
                put_slots(out, [start, chosen]);
                return put_values(out, values);
            }
            Message::CatchUp { ballot, start, values } => {
                out.put_u8(CATCH_UP);
                ballot.encode(out);
                put_slots(out, [start]);
                return put_values(out, values);
            }
            Message::Chunk { ballot, slot, members, total, offset, bytes } => {
                out.put_u8(CHUNK);
                ballot.encode(out);
                put_slots(out, [slot]);
                encode_body(out, members);
                out.put_u64_le(*total);
                out.put_u64_le(*offset);
                return put_payload(out, bytes);
            }
            Message::Part { ballot, slot, members, number, last, bytes } => {
                out.put_u8(PART);
                ballot.encode(out);
                put_slots(out, [slot]);
                encode_body(out, members);
                out.put_u64_le(*number);
                out.put_u8(u8::from(*last));
                return put_payload(out, bytes);
            }
            Message::ChunkTaken { ballot, slot, offset } => {
                out.put_u8(CHUNK_TAKEN);
                ballot.encode(out);
                put_slots(out, [slot]);
                out.put_u64_le(*offset);
            }
            Message::Promise { ballot, accepted, last, chosen, start, values } => {
                out.put_u8(PROMISE);
                ballot.encode(out);
                accepted.encode(out);
                put_slots(out, [last, chosen, start]);
                return put_values(out, values);
            }
            Message::PreVote(prepare) => put_rare(out, &Rare::PreVote(*prepare)),
            Message::PreVoted { ballot, better } => put_rare(out, &Rare::PreVoted(*ballot, better.clone())),
            Message::Prepare(prepare) => put_rare(out, &Rare::Prepare(*prepare)),
            Message::Refused { ballot, promised, refusal } => {
                put_rare(out, &Rare::Refused(*ballot, *promised, *refusal))
            }
            Message::Resign { ballot } => put_rare(out, &Rare::Resign(*ballot)),
            Message::HandOver { ballot, successor } => put_rare(out, &Rare::HandOver(*ballot, *successor)),
            Message::Away => put_rare(out, &Rare::Away),
            Message::Join { peer } => put_rare(out, &Rare::Join(peer.clone())),
            Message::Refer { leader, members } => put_rare(out, &Rare::Refer(*leader, members.clone())),
            Message::Change(change) => put_rare(out, &Rare::Change(change.clone())),
            Message::ChangeRefused { change, reason } => {
                put_rare(out, &Rare::ChangeRefused(change.clone(), *reason))
            }
            Message::Dropped { ballot } => put_rare(out, &Rare::Dropped(*ballot)),
            Message::NodeInUse { by } => put_rare(out, &Rare::NodeInUse(by.clone())),
            Message::NotMember { chosen, members } => {
                put_rare(out, &Rare::NotMember(*chosen, members.clone()))
            }
            Message::Pulse(pulse) => put_rare(out, &Rare::Pulse(pulse.clone())),
        }
        None
    }

    fn decode(input: &mut Bytes) -> Result<Message, WireError> {
        Ok(match take_u8(input)? {
            FORWARD => Message::Forward { ballot: Ballot::decode(input)?, payloads: take_payloads(input)? },
            ACCEPT => Message::Accept {
                ballot: Ballot::decode(input)?,
                slot: take_slot(input)?,
                chosen: take_slot(input)?,
                value: take_value(input)?,
            },
            ACCEPTED => Message::Accepted { ballot: Ballot::decode(input)?, through: take_slot(input)? },
            CHOSEN => Message::Chosen { ballot: Ballot::decode(input)?, through: take_slot(input)? },
            HEARTBEAT => Message::Heartbeat {
                ballot: Ballot::decode(input)?,
                chosen: take_slot(input)?,
                collect: take_slot(input)?,
                sent: take_slot(input)?,
            },
            FOLLOWING => Message::Following {
                ballot: Ballot::decode(input)?,
                through: if take_bool(input)? { Some(take_slot(input)?) } else { None },
                chosen: take_slot(input)?,
                lacks: take_bool(input)?,
            },
            SYNC => Message::Sync {
                ballot: Ballot::decode(input)?,
                start: take_slot(input)?,
                chosen: take_slot(input)?,
                values: take_values(input)?,
            },
            CATCH_UP => Message::CatchUp {
                ballot: Ballot::decode(input)?,
                start: take_slot(input)?,
                values: take_values(input)?,
            },
            CHUNK => Message::Chunk {
                ballot: Ballot::decode(input)?,
                slot: take_slot(input)?,
                members: decode_body(input)?,
                total: take_u64(input)?,
                offset: take_u64(input)?,
                bytes: take_bytes(input)?,
            },
            CHUNK_TAKEN => Message::ChunkTaken {
                ballot: Ballot::decode(input)?,
                slot: take_slot(input)?,
                offset: take_u64(input)?,
            },
            PROMISE => Message::Promise {
                ballot: Ballot::decode(input)?,
                accepted: Ballot::decode(input)?,
                last: take_slot(input)?,
                chosen: take_slot(input)?,
                start: take_slot(input)?,
                values: take_values(input)?,
            },
            CONFIRM => Message::Confirm { ballot: Ballot::decode(input)?, round: take_u64(input)? },
            CONFIRMED => Message::Confirmed { ballot: Ballot::decode(input)?, round: take_u64(input)? },
            PART => Message::Part {
                ballot: Ballot::decode(input)?,
                slot: take_slot(input)?,
                members: decode_body(input)?,
                number: take_u64(input)?,
                last: take_bool(input)?,
                bytes: take_bytes(input)?,
            },
            RARE => decode_body::<Rare>(input)?.into(),
            tag => return Err(WireError::Tag(tag)),
        })
    }
}

impl From<Rare> for Message {
    fn from(rare: Rare) -> Message {
        match rare {
            Rare::PreVote(prepare) => Message::PreVote(prepare),
            Rare::PreVoted(ballot, better) => Message::PreVoted { ballot, better },
            Rare::Prepare(prepare) => Message::Prepare(prepare),
            Rare::Refused(ballot, promised, refusal) => Message::Refused { ballot, promised, refusal },
            Rare::Resign(ballot) => Message::Resign { ballot },
            Rare::HandOver(ballot, successor) => Message::HandOver { ballot, successor },
            Rare::Away => Message::Away,
            Rare::Join(peer) => Message::Join { peer },
            Rare::Refer(leader, members) => Message::Refer { leader, members },
            Rare::Change(change) => Message::Change(change),
            Rare::ChangeRefused(change, reason) => Message::ChangeRefused { change, reason },
            Rare::Dropped(ballot) => Message::Dropped { ballot },
            Rare::NotMember(chosen, members) => Message::NotMember { chosen, members },
            Rare::NodeInUse(by) => Message::NodeInUse { by },
            Rare::Pulse(pulse) => Message::Pulse(pulse),
        }
    }
}

fn put_rare(out: &mut BytesMut, rare: &Rare) {
    out.put_u8(RARE);
    encode_body(out, rare);
}

fn put_slots<const N: usize>(out: &mut BytesMut, slots: [&Slot; N]) {
    for slot in slots {
        out.put_u64_le(slot.0);
    }
}

pub(super) fn take_slot(input: &mut Bytes) -> Result<Slot, WireError> {
    Ok(Slot(take_u64(input)?))
}

fn take_bool(input: &mut Bytes) -> Result<bool, WireError> {
    match take_u8(input)? {
        0 => Ok(false),
        1 => Ok(true),
        tag => Err(WireError::Tag(tag)),
    }
}

/// Appends the payloads. If the last payload is large, it is not appended but returned, so that its memory is
/// shared.
fn put_payloads(out: &mut BytesMut, payloads: &[Bytes]) -> Option<Bytes> {
    out.put_u32_le(u32::try_from(payloads.len()).expect("a slot holds far fewer than 2^32 payloads"));
    let (last, before) = payloads.split_last()?;
    out.reserve(before.iter().map(|payload| 4 + payload.len()).sum::<usize>());
    for payload in before {
        put_bytes(out, payload);
    }
    put_payload(out, last)
}

fn take_payloads<C: FromIterator<Bytes>>(input: &mut Bytes) -> Result<C, WireError> {
    let count = take_count(input, 4)?;
    (0..count).map(|_| take_bytes(input)).collect()
}

pub(super) fn put_value(out: &mut BytesMut, value: &SlotValue) -> Option<Bytes> {
    match value {
        SlotValue::Payloads(payloads) => {
            out.put_u8(PAYLOADS);
            put_payloads(out, payloads)
        }
        SlotValue::Members(members) => {
            out.put_u8(MEMBERS);
            encode_body(out, members);
            None
        }
    }
}

fn take_value(input: &mut Bytes) -> Result<SlotValue, WireError> {
    match take_u8(input)? {
        PAYLOADS => Ok(SlotValue::Payloads(take_payloads(input)?)),
        MEMBERS => Ok(SlotValue::Members(decode_body(input)?)),
        tag => Err(WireError::Tag(tag)),
    }
}

fn put_values(out: &mut BytesMut, values: &[SlotValue]) -> Option<Bytes> {
    out.put_u32_le(u32::try_from(values.len()).expect("a message holds far fewer than 2^32 slots"));
    let (last, before) = values.split_last()?;
    for value in before {
        if let Some(payload) = put_value(out, value) {
            out.put_slice(&payload);
        }
    }
    put_value(out, last)
}

pub(super) fn take_values(input: &mut Bytes) -> Result<Vec<SlotValue>, WireError> {
    let count = take_count(input, 5)?;
    (0..count).map(|_| take_value(input)).collect()
}
