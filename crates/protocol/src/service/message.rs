//! The messages between clients and replicas of a service, and their byte form.

use bytes::{BufMut, Bytes, BytesMut};

use super::{
    id::{CallId, GroupId, SessionId},
    locks::LockRequest,
};
use crate::{
    id::{Peer, ProcessId},
    paxos::{self, Ballot},
    wire::{Wire, WireError, decode_list, encode_list, put_bytes, take_bytes, take_u8, take_u64},
};

/// A message within one replica set. A process of another set ignores the message, even if both sets were
/// founded under the same name (rule S1).
#[derive(Clone, Debug, PartialEq, Eq, Wire)]
pub struct Message {
    /// The replica set.
    pub group: GroupId,
    /// The content.
    pub body: Body,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Wire)]
#[wire(rare = 4)]
pub enum Body {
    /// A message of the log, between replicas.
    #[wire(tag = 1)]
    Paxos(paxos::Message),
    /// A client asks for a session.
    #[wire(rare = 0)]
    Open {
        /// A number of the client's choice, which the answer repeats.
        nonce: u64,
    },
    /// The answer to [`Body::Open`].
    #[wire(rare = 1)]
    Opened {
        /// The nonce of the request.
        nonce: u64,
        /// The session.
        session: SessionId,
    },
    /// A client calls the service.
    #[wire(tag = 2)]
    Calls {
        /// The client's session.
        session: SessionId,
        /// The number below which the client has the answers to all calls.
        done: u64,
        /// The calls, by ascending numbers.
        calls: Vec<Call>,
    },
    /// A client announces to a replica that does not lead the reads that it has called at the leader (003
    /// §VI.A.3).
    #[wire(tag = 5)]
    Reads {
        /// The client's session.
        session: SessionId,
        /// The numbers of the calls.
        numbers: Vec<u64>,
    },
    /// A replica confirms announced reads to the leader: after the replica learned of these reads, it
    /// followed this ballot and had promised no higher ballot.
    #[wire(tag = 6)]
    ReadsConfirmed {
        /// The leader's ballot.
        ballot: Ballot,
        /// The reads.
        reads: Vec<CallId>,
    },
    /// A client gives up transactions that it has begun.
    #[wire(rare = 4)]
    Abandon {
        /// The client's session.
        session: SessionId,
        /// The transactions.
        transactions: Vec<u64>,
    },
    /// The leader answers calls of one session.
    #[wire(tag = 3)]
    Answers {
        /// The session.
        session: SessionId,
        /// The number and the outcome of each call.
        answers: Vec<(u64, CallOutcome)>,
    },
    /// The leader sends a client the list of the replicas: at the client's first call, and at every change.
    #[wire(rare = 3)]
    Members {
        /// The replicas.
        members: Vec<Peer>,
    },
    /// The sender does not lead, or no longer leads. The client should send its unanswered calls to the
    /// leader.
    #[wire(rare = 2)]
    Redirect {
        /// The leader, if the sender knows it.
        leader: Option<ProcessId>,
        /// The replicas.
        members: Vec<Peer>,
    },
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The call's number in the session, the same for all attempts.
    pub number: u64,
    /// The effects that the call may have.
    pub kind: Kind,
    /// The keys that the call touches, and its transaction. `None` for a call that touches everything and
    /// belongs to no transaction.
    pub scope: Option<Box<Scope>>,
    /// The request, which only the service understands.
    pub request: Bytes,
}

/// The keys and the transaction of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The names of the items that the call touches. Two requests that share no name may be executed in any
    /// order. If the list is empty, the call touches everything.
    pub keys: Vec<u64>,
    /// The call's place in a transaction, if it belongs to one.
    pub part: Option<Part>,
}

/// The place of a call in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The number that the client gave to the transaction.
    pub transaction: u64,
    /// Whether the transaction begins with this call.
    pub first: bool,
}

/// The effects that a call may have, and the way in which the leader learns that it may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The call may change the state.
    Write,
    /// The call changes nothing. The leader asks the replicas whether its reign still stands.
    Read,
    /// The call changes nothing. The client has announced it to the replicas, and they confirm to the leader
    /// that its reign still stands.
    AnnouncedRead,
    /// The call ends its transaction, whose changes take effect together. It has no request.
    Commit,
}

impl Kind {
    /// Whether the call changes nothing.
    pub fn is_read(self) -> bool {
        matches!(self, Kind::Read | Kind::AnnouncedRead)
    }
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq, Wire)]
pub enum CallOutcome {
    /// The call took effect once, with this reply.
    #[wire(tag = 0)]
    Done(Bytes),
    /// The service refused the call, with this reason. Nothing was changed.
    #[wire(tag = 1)]
    Rejected(Bytes),
    /// The session has ended, and its calls are forgotten. This attempt changed nothing, but an earlier
    /// attempt may have taken effect.
    #[wire(tag = 2)]
    Expired,
    /// The replica has no room for the call. Nothing was changed.
    #[wire(tag = 3)]
    Full,
    /// The call's key was already used for a different request. Nothing was changed.
    #[wire(tag = 5)]
    Reused,
    /// The call's transaction has ended without effect, and never takes effect.
    #[wire(tag = 4)]
    Aborted(Abort),
}

/// The reason why a transaction was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Wire)]
pub enum Abort {
    /// The leader does not know the transaction: it began in an earlier reign, was idle for too long, or was
    /// aborted for a checkpoint.
    #[wire(tag = 0)]
    Gone,
    /// The transaction and other transactions would have waited for one another.
    #[wire(tag = 1)]
    Deadlock,
    /// The bytes of the transaction's changes exceed a limit.
    #[wire(tag = 2)]
    TooLarge,
    /// The client sent a call of the transaction while a previous call of it was under way.
    #[wire(tag = 3)]
    Misused,
}

impl CallOutcome {
    /// Returns the outcome's approximate length in a message, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let reply = match self {
            CallOutcome::Done(reply) | CallOutcome::Rejected(reply) => reply.len(),
            CallOutcome::Expired | CallOutcome::Full | CallOutcome::Reused | CallOutcome::Aborted(_) => 0,
        };
        OUTCOME_BYTES + reply
    }
}

/// Size of an outcome's number, tag and length, in bytes.
const OUTCOME_BYTES: usize = 13;

impl Call {
    /// Returns the call's name.
    pub(super) fn id(&self, session: SessionId) -> CallId {
        CallId { session, number: self.number }
    }

    /// Returns the call's place in a transaction.
    pub(super) fn part(&self) -> Option<Part> {
        self.scope.as_ref().and_then(|scope| scope.part)
    }

    /// Returns the keys that the call touches, and whether it shares them.
    pub(super) fn touch(&self) -> LockRequest {
        let keys = self.scope.as_ref().map(|scope| scope.keys.clone()).unwrap_or_default();
        LockRequest { keys, exclusive: !self.kind.is_read() }
    }

    /// Returns the approximate memory of the call's scope, in bytes.
    pub(super) fn scope_bytes(&self) -> usize {
        self.scope.as_ref().map_or(0, |scope| size_of::<Scope>() + 8 * scope.keys.len())
    }
}

const WRITE: u8 = 0;
const READ: u8 = 1;
const ANNOUNCED_READ: u8 = 2;
const COMMIT: u8 = 3;
/// Flags in the byte that holds the kind. They say that keys follow, that a transaction follows, and that the
/// transaction begins with the call.
const KEYS: u8 = 0x10;
const PART: u8 = 0x20;
const FIRST: u8 = 0x40;

/// The byte of the kind also says which parts of a scope follow.
impl Wire for Call {
    const BYTES_LEAST: usize = 8 + 1 + 4;

    fn encode(&self, out: &mut BytesMut) {
        out.put_u64_le(self.number);
        let kind = match self.kind {
            Kind::Write => WRITE,
            Kind::Read => READ,
            Kind::AnnouncedRead => ANNOUNCED_READ,
            Kind::Commit => COMMIT,
        };
        match self.scope.as_deref() {
            None => out.put_u8(kind),
            Some(Scope { keys, part }) => {
                let first = if part.is_some_and(|part| part.first) { FIRST } else { 0 };
                out.put_u8(kind | KEYS | if part.is_some() { PART | first } else { 0 });
                encode_list(out, keys);
                if let Some(part) = part {
                    out.put_u64_le(part.transaction);
                }
            }
        }
        put_bytes(out, &self.request);
    }

    fn decode(input: &mut Bytes) -> Result<Call, WireError> {
        let number = take_u64(input)?;
        let tag = take_u8(input)?;
        let scope = match tag & (KEYS | PART | FIRST) {
            0 => None,
            flags => {
                let keys = decode_list(input)?;
                let first = flags & FIRST != 0;
                let part = match flags & PART {
                    0 => None,
                    _ => Some(Part { transaction: take_u64(input)?, first }),
                };
                Some(Box::new(Scope { keys, part }))
            }
        };
        let part = scope.as_ref().and_then(|scope| scope.part);
        let kind = match tag & !(KEYS | PART | FIRST) {
            WRITE => Kind::Write,
            READ => Kind::Read,
            // An announced read is refused in a transaction, because the transaction's commit confirms the
            // transaction's reads.
            ANNOUNCED_READ if part.is_none() => Kind::AnnouncedRead,
            COMMIT if part.is_some() => Kind::Commit,
            _ => return Err(WireError::Tag(tag)),
        };
        Ok(Call { number, kind, scope, request: take_bytes(input)? })
    }
}
