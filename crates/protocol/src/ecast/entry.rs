//! Entries of the routers' log, and their bytes: blocks of messages as members submit them, stable positions,
//! expulsions, and the beginning of a generation.

use bytes::{BufMut, Bytes, BytesMut};

use super::{Class, Outcome, Refusal, recovery::Recovery};
use crate::{
    id::ProcessId,
    wire::{
        Wire, WireError, decode_body, decode_list, encode_body, encode_list, put_bytes, put_process,
        take_bytes, take_process, take_u8, take_u32, take_u64,
    },
};

/// A batch of one sender's messages with consecutive numbers: the unit of proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RouteBlock {
    /// The submitter.
    pub sender: ProcessId,
    /// The sender has handled the outcomes of all its messages up to this number.
    pub acknowledged: u64,
    /// The number of the first message.
    pub first: u64,
    /// The number of messages.
    pub count: u32,
    /// The messages: class, length, body.
    messages: Bytes,
}

/// Builds a [`RouteBlock`] in its byte form.
pub(super) struct RouteBlockBuilder {
    bytes: BytesMut,
    count: u32,
}

const ROUTE_HEADER: usize = 1 + 24 + 8 + 8 + 4;
const ROUTE_COUNT_AT: usize = ROUTE_HEADER - 4;

impl RouteBlockBuilder {
    pub(super) fn new(sender: ProcessId, acknowledged: u64, first: u64) -> Self {
        let mut bytes = BytesMut::with_capacity(4096);
        bytes.put_u8(LOG_ROUTE);
        put_process(&mut bytes, sender);
        bytes.put_u64_le(acknowledged);
        bytes.put_u64_le(first);
        bytes.put_u32_le(0);
        RouteBlockBuilder { bytes, count: 0 }
    }

    pub(super) fn push(&mut self, class: Class, body: &[u8]) {
        self.bytes.put_u8(match class {
            Class::Data => 0,
            Class::Control => 1,
        });
        put_bytes(&mut self.bytes, body);
        self.count += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn finish(mut self) -> Bytes {
        self.bytes[ROUTE_COUNT_AT..ROUTE_HEADER].copy_from_slice(&self.count.to_le_bytes());
        self.bytes.freeze()
    }
}

impl RouteBlock {
    /// Whether every message in the block decodes. A router must check this before it proposes a block from a
    /// peer, because a chosen block cannot be refused.
    pub(super) fn is_sound(&self) -> bool {
        let mut messages = self.messages();
        let whole = messages.by_ref().count() == self.count as usize;
        whole && messages.rest.is_empty()
    }

    /// Returns the messages in order.
    pub(super) fn messages(&self) -> RouteMessages {
        RouteMessages { rest: self.messages.clone(), left: self.count }
    }

    /// Returns the number of the last message.
    pub(super) fn last(&self) -> u64 {
        self.first + u64::from(self.count) - 1
    }
}

pub(super) struct RouteMessages {
    rest: Bytes,
    left: u32,
}

impl Iterator for RouteMessages {
    type Item = (Class, Bytes);

    fn next(&mut self) -> Option<(Class, Bytes)> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let class = match take_u8(&mut self.rest).ok()? {
            0 => Class::Data,
            1 => Class::Control,
            _ => return None,
        };
        Some((class, take_bytes(&mut self.rest).ok()?))
    }
}

/// An entry of the routers' log.
pub(super) enum LogEntry {
    /// Messages to append.
    Route(RouteBlock),
    /// Stable positions: runs `(first, count)`, and outcomes other than [`Outcome::Stable`].
    Stable { runs: Vec<(u64, u32)>, others: Vec<(u64, Outcome)> },
    /// The beginning of a new generation.
    Recovered(Recovery),
    /// The configuration with which the domain was founded. The founder's entry is first.
    Founded(Bytes),
    /// A member died, as far as the routers can tell. Void if more than `learned` of its messages were
    /// ordered before this entry.
    Expelled { process: ProcessId, learned: u64 },
}

const LOG_ROUTE: u8 = 1;
const LOG_STABLE: u8 = 2;
const LOG_RECOVERED: u8 = 3;
const LOG_FOUNDED: u8 = 4;
const LOG_EXPELLED: u8 = 5;

impl LogEntry {
    pub(super) fn decode(mut payload: Bytes) -> Result<LogEntry, WireError> {
        match take_u8(&mut payload)? {
            LOG_ROUTE => {
                let sender = take_process(&mut payload)?;
                let acknowledged = take_u64(&mut payload)?;
                let first = take_u64(&mut payload)?;
                let count = take_u32(&mut payload)?;
                // Numbers start at 1, a block has at least one message, and acknowledged numbers lie before
                // the block.
                if acknowledged >= first || count == 0 || first.checked_add(u64::from(count)).is_none() {
                    return Err(WireError::Body);
                }
                Ok(LogEntry::Route(RouteBlock { sender, acknowledged, first, count, messages: payload }))
            }
            LOG_STABLE => {
                let (runs, others) = (decode_list(&mut payload)?, decode_list(&mut payload)?);
                Ok(LogEntry::Stable { runs, others })
            }
            LOG_RECOVERED => Ok(LogEntry::Recovered(decode_body(&mut payload)?)),
            LOG_FOUNDED => Ok(LogEntry::Founded(payload)),
            LOG_EXPELLED => {
                let (process, learned) = (take_process(&mut payload)?, take_u64(&mut payload)?);
                Ok(LogEntry::Expelled { process, learned })
            }
            tag => Err(WireError::Tag(tag)),
        }
    }

    pub(super) fn encode_founded<C: serde::Serialize>(config: &C) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(LOG_FOUNDED);
        encode_body(&mut out, config);
        out.freeze()
    }

    pub(super) fn encode_expelled(process: ProcessId, learned: u64) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(LOG_EXPELLED);
        put_process(&mut out, process);
        out.put_u64_le(learned);
        out.freeze()
    }

    pub(super) fn encode_recovered(recovery: &Recovery) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(LOG_RECOVERED);
        encode_body(&mut out, recovery);
        out.freeze()
    }

    pub(super) fn encode_stable(runs: &[(u64, u32)], others: &[(u64, Outcome)]) -> Bytes {
        let mut out = BytesMut::with_capacity(16 + runs.len() * 12 + others.len() * 17);
        out.put_u8(LOG_STABLE);
        encode_list(&mut out, runs);
        encode_list(&mut out, others);
        out.freeze()
    }
}

/// The byte form is a tag, and a number that only a rejection uses. So all outcomes have the same length.
impl Wire for Outcome {
    const BYTES_LEAST: usize = 9;

    fn encode(&self, out: &mut BytesMut) {
        let (tag, detail) = match *self {
            Outcome::Stable => (0, 0),
            Outcome::MaybeApplied => (1, 0),
            Outcome::Rejected(Refusal(reason)) => (2, reason),
            Outcome::Wedged => (3, 0),
        };
        out.put_u8(tag);
        out.put_u64_le(detail);
    }

    fn decode(input: &mut Bytes) -> Result<Outcome, WireError> {
        match (take_u8(input)?, take_u64(input)?) {
            (0, _) => Ok(Outcome::Stable),
            (1, _) => Ok(Outcome::MaybeApplied),
            (2, detail) => Ok(Outcome::Rejected(Refusal(detail))),
            (3, _) => Ok(Outcome::Wedged),
            (tag, _) => Err(WireError::Tag(tag)),
        }
    }
}
