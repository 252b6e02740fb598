//! The messages between clients and replicas of a service, and their byte form.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::{
    id::{CallId, GroupId, SessionId},
    locks::LockRequest,
};
use crate::{
    id::{Peer, ProcessId},
    paxos::{self, Ballot},
    wire::{
        Wire, WireError, decode_body, encode_body, encode_whole, put_bytes, take_bytes, take_count, take_u8,
        take_u64,
    },
};

/// A message within one replica set. A process of another set ignores the message, even if both sets were
/// founded under the same name (rule S1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The replica set.
    pub group: GroupId,
    /// The content.
    pub body: Body,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A message of the log, between replicas.
    Paxos(paxos::Message),
    /// A client asks for a session.
    Open {
        /// A number of the client's choice, which the answer repeats.
        nonce: u64,
    },
    /// The answer to [`Body::Open`].
    Opened {
        /// The nonce of the request.
        nonce: u64,
        /// The session.
        session: SessionId,
    },
    /// A client calls the service.
    Calls {
        /// The client's session.
        session: SessionId,
        /// The client has the answers to all calls with lower numbers.
        done: u64,
        /// The calls, by ascending numbers.
        calls: Vec<Call>,
    },
    /// A client announces to a replica that does not lead the reads that it has called at the leader (003
    /// §VI.A.3).
    Reads {
        /// The client's session.
        session: SessionId,
        /// The numbers of the calls.
        numbers: Vec<u64>,
    },
    /// A replica confirms announced reads to the leader: after the replica learned of these reads, it
    /// followed this ballot and had promised no higher ballot.
    Told {
        /// The leader's ballot.
        ballot: Ballot,
        /// The reads.
        reads: Vec<CallId>,
    },
    /// A client gives up transactions that it has begun.
    Abandon {
        /// The client's session.
        session: SessionId,
        /// The transactions.
        transactions: Vec<u64>,
    },
    /// The leader answers calls of one session.
    Answers {
        /// The session.
        session: SessionId,
        /// The number and the outcome of each call.
        answers: Vec<(u64, CallOutcome)>,
    },
    /// The leader sends a client the list of the replicas: at the client's first call, and at every change.
    Members {
        /// The replicas.
        members: Vec<Peer>,
    },
    /// The sender does not lead, or leads no longer. The client should send its unanswered calls to the
    /// leader.
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
    /// The names of what the call touches. Two requests that share no name may be executed in any order. If
    /// the list is empty, the call touches everything.
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
    ToldRead,
    /// The call ends its transaction, whose changes take effect together. It has no request.
    Commit,
}

impl Kind {
    /// Whether the call changes nothing.
    pub fn is_read(self) -> bool {
        matches!(self, Kind::Read | Kind::ToldRead)
    }
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The call took effect once, with this reply.
    Done(Bytes),
    /// The service refused the call, with this reason. Nothing was changed.
    Rejected(Bytes),
    /// The session has ended, and its calls are forgotten. This attempt changed nothing, but an earlier
    /// attempt may have taken effect.
    Expired,
    /// The replica has no room for the call. Nothing was changed.
    Full,
    /// The call's key was already used for a different request. Nothing was changed.
    Reused,
    /// The call's transaction has ended without effect, and never takes effect.
    Aborted(Abort),
}

/// The reason why a transaction was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// The leader does not know the transaction: it began in an earlier reign, was idle for too long, or was
    /// aborted for a checkpoint.
    Gone,
    /// The transaction and other transactions would have waited for one another.
    Deadlock,
    /// The bytes of the transaction's changes exceed a limit.
    TooLarge,
    /// The client sent a call of the transaction while a previous call of it was under way.
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

/// The bytes of an outcome's number, tag and length.
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

const PAXOS: u8 = 1;
const CALLS: u8 = 2;
const ANSWERS: u8 = 3;
const RARE: u8 = 4;
const READS: u8 = 5;
const TOLD: u8 = 6;

const WRITE: u8 = 0;
const READ: u8 = 1;
const TOLD_READ: u8 = 2;
const COMMIT: u8 = 3;
/// Flags in the byte that holds the kind: keys follow, a transaction follows, and the transaction begins.
const KEYS: u8 = 0x10;
const PART: u8 = 0x20;
const FIRST: u8 = 0x40;

const DONE: u8 = 0;
const REJECTED: u8 = 1;
const EXPIRED: u8 = 2;
const FULL: u8 = 3;
const ABORTED: u8 = 4;
const REUSED: u8 = 5;

const GONE: u8 = 0;
const DEADLOCK: u8 = 1;
const TOO_LARGE: u8 = 2;
const MISUSED: u8 = 3;

/// The messages that are small and rare. New variants are appended at the end, so that stored and sent bytes
/// keep their meaning.
#[derive(Serialize, Deserialize)]
enum Rare {
    Open(u64),
    Opened(u64, SessionId),
    Redirect(Option<ProcessId>, Vec<Peer>),
    Members(Vec<Peer>),
    Abandon(SessionId, Vec<u64>),
}

impl Wire for Message {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        out.put_u64_le(self.group.0);
        match &self.body {
            Body::Paxos(message) => {
                out.put_u8(PAXOS);
                return message.encode_head(out);
            }
            Body::Calls { session, done, calls } => {
                out.put_u8(CALLS);
                out.put_u64_le(session.0);
                out.put_u64_le(*done);
                put_count(out, calls.len());
                for call in calls {
                    put_call(out, call);
                }
            }
            Body::Answers { session, answers } => {
                out.put_u8(ANSWERS);
                out.put_u64_le(session.0);
                put_count(out, answers.len());
                for (number, outcome) in answers {
                    out.put_u64_le(*number);
                    match outcome {
                        CallOutcome::Done(reply) => {
                            out.put_u8(DONE);
                            put_bytes(out, reply);
                        }
                        CallOutcome::Rejected(reason) => {
                            out.put_u8(REJECTED);
                            put_bytes(out, reason);
                        }
                        CallOutcome::Expired => out.put_u8(EXPIRED),
                        CallOutcome::Full => out.put_u8(FULL),
                        CallOutcome::Reused => out.put_u8(REUSED),
                        CallOutcome::Aborted(why) => {
                            out.put_u8(ABORTED);
                            out.put_u8(match why {
                                Abort::Gone => GONE,
                                Abort::Deadlock => DEADLOCK,
                                Abort::TooLarge => TOO_LARGE,
                                Abort::Misused => MISUSED,
                            });
                        }
                    }
                }
            }
            Body::Reads { session, numbers } => {
                out.put_u8(READS);
                out.put_u64_le(session.0);
                put_count(out, numbers.len());
                numbers.iter().for_each(|number| out.put_u64_le(*number));
            }
            Body::Told { ballot, reads } => {
                out.put_u8(TOLD);
                ballot.encode(out);
                put_count(out, reads.len());
                for id in reads {
                    out.put_u64_le(id.session.0);
                    out.put_u64_le(id.number);
                }
            }
            Body::Open { nonce } => put_rare(out, &Rare::Open(*nonce)),
            Body::Opened { nonce, session } => put_rare(out, &Rare::Opened(*nonce, *session)),
            Body::Abandon { session, transactions } => {
                put_rare(out, &Rare::Abandon(*session, transactions.clone()));
            }
            Body::Members { members } => put_rare(out, &Rare::Members(members.clone())),
            Body::Redirect { leader, members } => put_rare(out, &Rare::Redirect(*leader, members.clone())),
        }
        None
    }

    fn decode(input: &mut Bytes) -> Result<Message, WireError> {
        let group = GroupId(take_u64(input)?);
        let body = match take_u8(input)? {
            PAXOS => Body::Paxos(paxos::Message::decode(input)?),
            CALLS => Body::Calls {
                session: SessionId(take_u64(input)?),
                done: take_u64(input)?,
                calls: (0..take_count(input, 13)?).map(|_| take_call(input)).collect::<Result<_, _>>()?,
            },
            ANSWERS => Body::Answers {
                session: SessionId(take_u64(input)?),
                answers: (0..take_count(input, 9)?).map(|_| take_answer(input)).collect::<Result<_, _>>()?,
            },
            READS => Body::Reads {
                session: SessionId(take_u64(input)?),
                numbers: (0..take_count(input, 8)?).map(|_| take_u64(input)).collect::<Result<_, _>>()?,
            },
            TOLD => Body::Told {
                ballot: Ballot::decode(input)?,
                reads: (0..take_count(input, 16)?).map(|_| take_id(input)).collect::<Result<_, _>>()?,
            },
            RARE => match decode_body::<Rare>(input)? {
                Rare::Open(nonce) => Body::Open { nonce },
                Rare::Opened(nonce, session) => Body::Opened { nonce, session },
                Rare::Redirect(leader, members) => Body::Redirect { leader, members },
                Rare::Members(members) => Body::Members { members },
                Rare::Abandon(session, transactions) => Body::Abandon { session, transactions },
            },
            tag => return Err(WireError::Tag(tag)),
        };
        Ok(Message { group, body })
    }
}

fn put_rare(out: &mut BytesMut, rare: &Rare) {
    out.put_u8(RARE);
    encode_body(out, rare);
}

fn put_count(out: &mut BytesMut, count: usize) {
    out.put_u32_le(u32::try_from(count).expect("a message holds far fewer than 2^32 calls"));
}

fn put_call(out: &mut BytesMut, call: &Call) {
    out.put_u64_le(call.number);
    let kind = match call.kind {
        Kind::Write => WRITE,
        Kind::Read => READ,
        Kind::ToldRead => TOLD_READ,
        Kind::Commit => COMMIT,
    };
    match call.scope.as_deref() {
        None => out.put_u8(kind),
        Some(Scope { keys, part }) => {
            let first = if part.is_some_and(|part| part.first) { FIRST } else { 0 };
            out.put_u8(kind | KEYS | if part.is_some() { PART | first } else { 0 });
            put_count(out, keys.len());
            keys.iter().for_each(|key| out.put_u64_le(*key));
            if let Some(part) = part {
                out.put_u64_le(part.transaction);
            }
        }
    }
    put_bytes(out, &call.request);
}

fn take_call(input: &mut Bytes) -> Result<Call, WireError> {
    let number = take_u64(input)?;
    let tag = take_u8(input)?;
    let scope = match tag & (KEYS | PART | FIRST) {
        0 => None,
        flags => {
            let keys = (0..take_count(input, 8)?).map(|_| take_u64(input)).collect::<Result<_, _>>()?;
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
        // An announced read is refused in a transaction, because the transaction's commit confirms its reads.
        TOLD_READ if part.is_none() => Kind::ToldRead,
        COMMIT if part.is_some() => Kind::Commit,
        _ => return Err(WireError::Tag(tag)),
    };
    Ok(Call { number, kind, scope, request: take_bytes(input)? })
}

fn take_id(input: &mut Bytes) -> Result<CallId, WireError> {
    Ok(CallId { session: SessionId(take_u64(input)?), number: take_u64(input)? })
}

fn take_answer(input: &mut Bytes) -> Result<(u64, CallOutcome), WireError> {
    let number = take_u64(input)?;
    let outcome = match take_u8(input)? {
        DONE => CallOutcome::Done(take_bytes(input)?),
        REJECTED => CallOutcome::Rejected(take_bytes(input)?),
        EXPIRED => CallOutcome::Expired,
        FULL => CallOutcome::Full,
        REUSED => CallOutcome::Reused,
        ABORTED => CallOutcome::Aborted(match take_u8(input)? {
            GONE => Abort::Gone,
            DEADLOCK => Abort::Deadlock,
            TOO_LARGE => Abort::TooLarge,
            MISUSED => Abort::Misused,
            tag => return Err(WireError::Tag(tag)),
        }),
        tag => return Err(WireError::Tag(tag)),
    };
    Ok((number, outcome))
}
