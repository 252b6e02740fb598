//! The messages between clients and replicas of a service, and their bytes.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::{CallId, GroupId, SessionId};
use crate::{
    id::{Peer, ProcessId},
    paxos::{self, Ballot},
    wire::{
        Wire, WireError, decode_body, encode_body, encode_whole, put_bytes, take_bytes, take_count, take_u8,
        take_u64,
    },
};

/// A message of one replica set. A process of another set, founded under the same name or not, does not listen to it (rule S1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The set.
    pub group: GroupId,
    /// The content.
    pub body: Body,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Between replicas: of their log.
    Paxos(paxos::Message),
    /// A client asks for a session.
    Open {
        /// Comes back in the answer.
        nonce: u64,
    },
    /// The answer to [`Body::Open`].
    Opened {
        /// As it was asked.
        nonce: u64,
        /// The session.
        session: SessionId,
    },
    /// A client calls.
    Calls {
        /// Its session.
        session: SessionId,
        /// The client has the answers to all calls with lower numbers.
        done: u64,
        /// The calls, in rising order.
        calls: Vec<Call>,
    },
    /// A client tells a replica that does not lead of reads that it has called for at the leader (003 §VI.A.3).
    Reads {
        /// Its session.
        session: SessionId,
        /// The numbers of the calls.
        numbers: Vec<u64>,
    },
    /// A replica tells the leader that it followed this ballot, and had promised no higher one, after it was told of these reads.
    Told {
        /// The leader's ballot.
        ballot: Ballot,
        /// The reads.
        reads: Vec<CallId>,
    },
    /// The leader answers calls of one session.
    Answers {
        /// The session.
        session: SessionId,
        /// Number and outcome of each.
        answers: Vec<(u64, Outcome)>,
    },
    /// The leader tells a client which the replicas are: when the client calls it first, and when they change.
    Members {
        /// The replicas.
        members: Vec<Peer>,
    },
    /// The sender does not lead, or no longer: what it was sent and has not answered is to be sent to the leader.
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
    /// Its number in the session. Sent again it keeps it.
    pub number: u64,
    /// What it may do.
    pub kind: Kind,
    /// The request; opaque here.
    pub request: Bytes,
}

/// What a call may do, and how it is known that the leader may answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It may change the state.
    Write,
    /// It changes nothing. The leader asks the replicas whether its reign stands.
    Read,
    /// It changes nothing. The client has told the replicas of it, and they tell the leader that its reign stands.
    ToldRead,
}

impl Kind {
    /// Whether it changes nothing.
    pub fn is_read(self) -> bool {
        self != Kind::Write
    }
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect once, and this is the reply.
    Done(Bytes),
    /// The service refused it. Nothing was changed.
    Rejected(Bytes),
    /// The session is over, and what it did is forgotten. This attempt changed nothing; an earlier one may have.
    Expired,
    /// The replica has no room. Nothing was changed.
    Full,
}

impl Outcome {
    /// How much of a message it takes, about, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let reply = match self {
            Outcome::Done(reply) | Outcome::Rejected(reply) => reply.len(),
            Outcome::Expired | Outcome::Full => 0,
        };
        OUTCOME_BYTES + reply
    }
}

/// Number, tag and length of an outcome, in bytes.
const OUTCOME_BYTES: usize = 13;

impl Call {
    /// Its name.
    pub(super) fn id(&self, session: SessionId) -> CallId {
        CallId { session, number: self.number }
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

const DONE: u8 = 0;
const REJECTED: u8 = 1;
const EXPIRED: u8 = 2;
const FULL: u8 = 3;

/// The messages that are small and rare. New ones go to the end.
#[derive(Serialize, Deserialize)]
enum Rare {
    Open(u64),
    Opened(u64, SessionId),
    Redirect(Option<ProcessId>, Vec<Peer>),
    Members(Vec<Peer>),
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
                    out.put_u64_le(call.number);
                    out.put_u8(match call.kind {
                        Kind::Write => WRITE,
                        Kind::Read => READ,
                        Kind::ToldRead => TOLD_READ,
                    });
                    put_bytes(out, &call.request);
                }
            }
            Body::Answers { session, answers } => {
                out.put_u8(ANSWERS);
                out.put_u64_le(session.0);
                put_count(out, answers.len());
                for (number, outcome) in answers {
                    out.put_u64_le(*number);
                    match outcome {
                        Outcome::Done(reply) => {
                            out.put_u8(DONE);
                            put_bytes(out, reply);
                        }
                        Outcome::Rejected(reason) => {
                            out.put_u8(REJECTED);
                            put_bytes(out, reason);
                        }
                        Outcome::Expired => out.put_u8(EXPIRED),
                        Outcome::Full => out.put_u8(FULL),
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

fn take_call(input: &mut Bytes) -> Result<Call, WireError> {
    let number = take_u64(input)?;
    let kind = match take_u8(input)? {
        WRITE => Kind::Write,
        READ => Kind::Read,
        TOLD_READ => Kind::ToldRead,
        tag => return Err(WireError::Tag(tag)),
    };
    Ok(Call { number, kind, request: take_bytes(input)? })
}

fn take_id(input: &mut Bytes) -> Result<CallId, WireError> {
    Ok(CallId { session: SessionId(take_u64(input)?), number: take_u64(input)? })
}

fn take_answer(input: &mut Bytes) -> Result<(u64, Outcome), WireError> {
    let number = take_u64(input)?;
    let outcome = match take_u8(input)? {
        DONE => Outcome::Done(take_bytes(input)?),
        REJECTED => Outcome::Rejected(take_bytes(input)?),
        EXPIRED => Outcome::Expired,
        FULL => Outcome::Full,
        tag => return Err(WireError::Tag(tag)),
    };
    Ok((number, outcome))
}
