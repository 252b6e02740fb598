//! A payload of the log: instances that one leader executed one after another during one reign.

use bytes::{BufMut, Bytes, BytesMut};

use super::{CallId, SessionId};
use crate::{
    paxos::Ballot,
    wire::{Wire, WireError, put_bytes, take_bytes, take_count, take_u8, take_u64},
};

/// Consecutive instances of one reign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The ballot of the reign in which the leader executed the instances.
    pub ballot: Ballot,
    /// The number of the first instance. The change of this instance applies to the state after the instance
    /// with the previous number.
    pub first: u64,
    /// The instances.
    pub instances: Vec<Instance>,
}

/// An executed request: its reply and its change (003 §VI.A.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instance {
    /// A session begins. The number of this instance becomes the session's name.
    Open,
    /// A session ends.
    Close(SessionId),
    /// A call.
    Call {
        /// The name of the call.
        id: CallId,
        /// The number below which the client no longer needs the session's answers. For a call with a key,
        /// the hash of its request.
        done: u64,
        /// The reply, which no other replica can compute.
        reply: Bytes,
        /// The change, if the call changed anything: a delta, a whole state or a witness, as the set's log
        /// carries it. If changes are whole states, this change is empty when a later state in the same batch
        /// replaces it.
        change: Option<Bytes>,
    },
    /// A transaction that was committed.
    Transaction {
        /// The call that committed the transaction.
        id: CallId,
        /// The number below which the client no longer needs the session's answers.
        done: u64,
        /// The transaction's changes, in the order in which they were made.
        changes: Vec<Bytes>,
    },
}

/// A batch that is being built.
#[derive(Debug, Default)]
pub(super) struct Builder {
    bytes: BytesMut,
    count: u32,
    /// The offset and the length of the last change, in bytes, if that change is a whole state.
    state: Option<(usize, usize)>,
}

/// The offset of the count of instances, which follows the ballot and the first number.
const COUNT_AT: usize = 32 + 8;

/// Size of the field before a change that holds the change's length, in bytes.
const LENGTH_BYTES: usize = 4;

const OPEN: u8 = 0;
const CALL: u8 = 1;
const CHANGE: u8 = 2;
const CLOSE: u8 = 3;
const TRANSACTION: u8 = 4;

impl Builder {
    /// Begins a batch whose first instance has this number, unless a batch is already being built.
    fn begin(&mut self, ballot: Ballot, first: u64) {
        if self.count == 0 {
            self.bytes.clear();
            ballot.encode(&mut self.bytes);
            self.bytes.put_u64_le(first);
            self.bytes.put_u32_le(0);
            self.state = None;
        }
        self.count += 1;
    }

    /// Replaces the previous whole state by the change that was added last, of `bytes` bytes.
    pub(super) fn supersede(&mut self, bytes: usize) {
        let end = self.bytes.len();
        if let Some((at, length)) = self.state.take() {
            self.bytes.copy_within(at + LENGTH_BYTES + length..end, at + LENGTH_BYTES);
            self.bytes[at..at + LENGTH_BYTES].fill(0);
            self.bytes.truncate(end - length);
        }
        self.state = Some((self.bytes.len() - bytes - LENGTH_BYTES, bytes));
    }

    pub(super) fn open(&mut self, ballot: Ballot, number: u64) {
        self.begin(ballot, number);
        self.bytes.put_u8(OPEN);
    }

    pub(super) fn close(&mut self, ballot: Ballot, number: u64, session: SessionId) {
        self.begin(ballot, number);
        self.bytes.put_u8(CLOSE);
        self.bytes.put_u64_le(session.0);
    }

    pub(super) fn call(
        &mut self,
        ballot: Ballot,
        number: u64,
        id: CallId,
        done: u64,
        reply: &[u8],
        change: Option<&[u8]>,
    ) {
        self.begin(ballot, number);
        self.bytes.put_u8(if change.is_some() { CHANGE } else { CALL });
        for number in [id.session.0, id.number, done] {
            self.bytes.put_u64_le(number);
        }
        put_bytes(&mut self.bytes, reply);
        if let Some(change) = change {
            put_bytes(&mut self.bytes, change);
        }
    }

    pub(super) fn transaction(
        &mut self,
        ballot: Ballot,
        number: u64,
        id: CallId,
        done: u64,
        changes: &[Bytes],
    ) {
        self.begin(ballot, number);
        self.bytes.put_u8(TRANSACTION);
        for number in [id.session.0, id.number, done] {
            self.bytes.put_u64_le(number);
        }
        self.bytes.put_u32_le(u32::try_from(changes.len()).expect("a transaction's changes are bounded"));
        changes.iter().for_each(|change| put_bytes(&mut self.bytes, change));
    }

    /// Returns the bytes of the instances so far, and empties the builder. Returns `None` if there are no
    /// instances.
    pub(super) fn finish(&mut self) -> Option<Bytes> {
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return None;
        }
        self.bytes[COUNT_AT..COUNT_AT + 4].copy_from_slice(&count.to_le_bytes());
        Some(self.bytes.split().freeze())
    }

    /// Returns the memory of the instances so far, in bytes.
    pub(super) fn bytes(&self) -> usize {
        if self.count == 0 { 0 } else { self.bytes.len() }
    }

    /// Returns the memory of the instances so far without the last whole state, which the next state
    /// replaces, in bytes.
    pub(super) fn bytes_apart_from_state(&self) -> usize {
        self.bytes() - self.state.filter(|_| self.count > 0).map_or(0, |(_, length)| length)
    }
}

impl Wire for Batch {
    fn encode(&self, out: &mut BytesMut) {
        let mut builder = Builder::default();
        for (number, instance) in (self.first..).zip(&self.instances) {
            match instance {
                Instance::Open => builder.open(self.ballot, number),
                Instance::Close(session) => builder.close(self.ballot, number, *session),
                Instance::Call { id, done, reply, change } => {
                    builder.call(self.ballot, number, *id, *done, reply, change.as_deref());
                }
                Instance::Transaction { id, done, changes } => {
                    builder.transaction(self.ballot, number, *id, *done, changes);
                }
            }
        }
        out.put_slice(&builder.finish().expect("a batch holds an instance"));
    }

    fn decode(input: &mut Bytes) -> Result<Batch, WireError> {
        let ballot = Ballot::decode(input)?;
        let first = take_u64(input)?;
        let count = take_count(input, 1)?;
        let mut instances = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            let tag = take_u8(input)?;
            instances.push(match tag {
                OPEN => Instance::Open,
                CLOSE => Instance::Close(SessionId(take_u64(input)?)),
                CALL | CHANGE => Instance::Call {
                    id: CallId { session: SessionId(take_u64(input)?), number: take_u64(input)? },
                    done: take_u64(input)?,
                    reply: take_bytes(input)?,
                    change: if tag == CHANGE { Some(take_bytes(input)?) } else { None },
                },
                TRANSACTION => Instance::Transaction {
                    id: CallId { session: SessionId(take_u64(input)?), number: take_u64(input)? },
                    done: take_u64(input)?,
                    changes: (0..take_count(input, 4)?)
                        .map(|_| take_bytes(input))
                        .collect::<Result<_, _>>()?,
                },
                tag => return Err(WireError::Tag(tag)),
            });
        }
        if !input.is_empty() {
            return Err(WireError::Trailing(input.len()));
        }
        Ok(Batch { ballot, first, instances })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_whole_states_the_last_alone_is_carried() {
        let ballot = Ballot::ZERO;
        let mut builder = Builder::default();
        let id = |number| CallId { session: SessionId(1), number };
        let mut add = |number, reply: &[u8], change: Option<&[u8]>| {
            builder.call(ballot, number, id(number), 0, reply, change);
            if let Some(change) = change {
                builder.supersede(change.len());
            }
        };
        add(1, b"one", Some(b"first state"));
        add(2, b"two", None);
        add(3, b"three", Some(b"second"));
        add(4, b"four", Some(b"the third"));
        add(5, b"five", None);
        for round in 0..2 {
            let batch = Batch::decode(&mut builder.finish().unwrap()).unwrap();
            let found: Vec<_> = (batch.instances.iter())
                .map(|instance| match instance {
                    Instance::Call { reply, change, .. } => (&reply[..], change.as_deref()),
                    other => panic!("{other:?}"),
                })
                .collect();
            let expected: [(&[u8], Option<&[u8]>); 5] = [
                (b"one", Some(b"")),
                (b"two", None),
                (b"three", Some(b"")),
                (b"four", Some(b"the third")),
                (b"five", None),
            ];
            match round {
                0 => assert_eq!(found, expected),
                // After `finish`, the next batch begins empty.
                _ => assert_eq!(found, [(&b"six"[..], Some(&b"fourth"[..]))]),
            }
            builder.call(ballot, 6, id(6), 0, b"six", Some(b"fourth"));
            builder.supersede(6);
        }
    }
}
