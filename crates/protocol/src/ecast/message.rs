//! Messages between members and routers, and their bytes.

use bytes::{BufMut, Bytes, BytesMut};

use super::{
    Outcome, Position,
    block::{BLOCK_BYTES_MIN, DeliverBlock, put_block, take_block},
    entry::{put_outcomes, put_runs, take_outcomes, take_runs},
    poll::{Pledge, Witness},
    reform::Tail,
};
use crate::{
    admission::NotAdmitted,
    detector::Opinion,
    id::{Generation, Peer, ProcessId},
    paxos,
    wire::{
        Wire, WireError, decode_body, encode_body, encode_whole, put_bytes, put_generation, put_opinion,
        put_payload, put_process, take_bytes, take_count, take_generation, take_opinion, take_process,
        take_u8, take_u64,
    },
};

/// A message of the ordering layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Router → router: a message of the routers' log.
    Paxos(paxos::Message),
    /// Member → router: a block of the member's messages with consecutive numbers, which the router proposes
    /// unchanged.
    Route(Bytes),
    /// Router → member: outcomes of the member's messages.
    Notice(Notice),
    /// Router → member: messages at their positions.
    Deliver(DeliverBlock),
    /// Member → router: the member's progress.
    Confirm {
        /// The member has delivered all its messages up to this position.
        through: Position,
        /// The member has executed all its messages up to this position.
        executed: Position,
        /// No message up to this position need be sent to the member again, even after a crash.
        durable: Position,
    },
    /// Member → router: a delivery came whose `previous` the member does not have.
    Repair,
    /// Router → anyone linked: the routers, and the leader.
    Lead {
        /// The generation of the sender.
        generation: Generation,
        /// The leader, if the sender knows it.
        leader: Option<ProcessId>,
        /// All routers.
        routers: Vec<Peer>,
        /// Number of log entries that the sender has learned. Of two sets of routers, the one with the higher
        /// number is newer.
        learned: u64,
    },
    /// Member → lead router: deliver this after everything ordered so far, without ordering it (002 §6.7,
    /// snapshot reads). May be lost; E-Cast does not send it again.
    Inject {
        /// The member's own number of the message.
        token: u64,
        /// The body.
        body: Bytes,
    },
    /// Router → member: an injected message was not delivered, because the router does not lead or there is
    /// no destination.
    InjectRefused {
        /// The member's number of the message.
        token: u64,
    },
    /// Router → anyone linked: a new generation begins with the sender; report what you have delivered.
    Gather {
        /// The generation.
        generation: Generation,
    },
    /// Member → router: answers [`Message::Gather`].
    Tail(Tail),
    /// Router without knowledge → anyone linked: an operator says that all routers are gone; will you follow?
    Call,
    /// Member → router: answers [`Message::Call`].
    Pledge(Pledge),
    /// Router without knowledge → member that pledged to follow: a generation begins with the sender; report
    /// what you have delivered.
    Refound {
        /// The generation.
        generation: Generation,
    },
    /// Member → router: answers [`Message::Refound`].
    Witness(Box<Witness>),
    /// Founder that gives up → members that pledged to follow it: you may follow another founder.
    Release,
    /// Router with which a generation began → its members: the members whose answers counted. Sent before the
    /// members learn who leads.
    Counted {
        /// The generation.
        generation: Generation,
        /// The members that follow.
        members: Vec<ProcessId>,
    },
    /// Member or lead router → router: do you hear this process? The router answers with [`Message::Opinion`]
    /// at once. A router that has a way to the leader answers once more if it then hears the process.
    AskOpinion {
        /// The process in question.
        about: ProcessId,
        /// The asker's number of the second opinion.
        second_opinion: u64,
    },
    /// Router → asker: whether the router hears a process.
    Opinion {
        /// The process in question.
        about: ProcessId,
        /// The number of the second opinion, from the question.
        second_opinion: u64,
        /// The router's opinion.
        opinion: Opinion,
    },
    /// Router → member: give a sign of life, because somebody asked for one or the member is silent.
    Probe {
        /// The asker.
        asker: ProcessId,
        /// The asker's number of the second opinion.
        second_opinion: u64,
    },
    /// Member → router: answers [`Message::Probe`].
    Alive {
        /// The asker.
        asker: ProcessId,
        /// The asker's number of the second opinion.
        second_opinion: u64,
    },
    /// Router → process that is no member: its joining was refused, and will be as long as this reason holds.
    NotAdmitted(NotAdmitted),
    /// Router → next router towards the leader: a member's message.
    Up {
        /// The member.
        member: ProcessId,
        /// Number of further links that the message may cross.
        hops: u8,
        /// The member's message, in its byte form.
        message: Bytes,
    },
    /// Router → next router towards a member: the leader's message for that member.
    Down {
        /// The member.
        member: ProcessId,
        /// Number of further links that the message may cross.
        hops: u8,
        /// The leader's message, in its byte form.
        message: Bytes,
    },
    /// Router → next router towards the leader: all members that the sender reaches.
    Reach {
        /// The members.
        members: Vec<ProcessId>,
    },
}

/// Outcomes of a sender's messages.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Notice {
    /// Runs `(first, count)` of stable numbers.
    pub stable: Vec<(u64, u32)>,
    /// Other outcomes, by number.
    pub others: Vec<(u64, Outcome)>,
    /// The highest number of a data message that the sender may send.
    pub credit: u64,
    /// Whether the sender is no longer a member.
    pub wedged: bool,
}

impl Notice {
    /// Adds a stable number, to the last run if it continues that run.
    pub(super) fn push_stable(&mut self, number: u64) {
        match self.stable.last_mut() {
            Some((first, count)) if *first + u64::from(*count) == number && *count < u32::MAX => *count += 1,
            _ => self.stable.push((number, 1)),
        }
    }

    pub(super) fn push(&mut self, number: u64, outcome: Outcome) {
        match outcome {
            Outcome::Stable => self.push_stable(number),
            other => self.others.push((number, other)),
        }
    }
}

const PAXOS: u8 = 1;
const ROUTE: u8 = 2;
const NOTICE: u8 = 3;
const DELIVER: u8 = 4;
const CONFIRM: u8 = 5;
const REPAIR: u8 = 6;
const LEAD: u8 = 7;
const INJECT: u8 = 8;
const INJECT_REFUSED: u8 = 9;
const GATHER: u8 = 10;
const TAIL: u8 = 11;
const ASK_OPINION: u8 = 12;
const OPINION: u8 = 13;
const PROBE: u8 = 14;
const ALIVE: u8 = 15;
const UP: u8 = 17;
const DOWN: u8 = 18;
const REACH: u8 = 19;
const CALL: u8 = 20;
const PLEDGE: u8 = 21;
const REFOUND: u8 = 22;
const WITNESS: u8 = 23;
const COUNTED: u8 = 24;
const RELEASE: u8 = 25;

fn put_processes(out: &mut BytesMut, processes: &[ProcessId]) {
    out.put_u32_le(processes.len() as u32);
    for &process in processes {
        put_process(out, process);
    }
}

fn take_processes(input: &mut Bytes) -> Result<Vec<ProcessId>, WireError> {
    let count = take_count(input, 24)?;
    (0..count).map(|_| take_process(input)).collect()
}

fn put_tail(out: &mut BytesMut, tail: &Tail) {
    put_generation(out, tail.generation);
    put_generation(out, tail.before);
    out.put_u64_le(tail.delivered.0);
    out.put_u64_le(tail.acknowledged);
    out.put_u32_le(tail.blocks.len() as u32);
    for block in &tail.blocks {
        if let Some(payload) = put_block(out, block) {
            out.put_slice(&payload);
        }
    }
}

fn take_tail(input: &mut Bytes) -> Result<Tail, WireError> {
    Ok(Tail {
        generation: take_generation(input)?,
        before: take_generation(input)?,
        delivered: Position(take_u64(input)?),
        acknowledged: take_u64(input)?,
        blocks: {
            let count = take_count(input, BLOCK_BYTES_MIN)?;
            (0..count).map(|_| take_block(input)).collect::<Result<_, _>>()?
        },
    })
}

fn put_asked(out: &mut BytesMut, tag: u8, process: ProcessId, second_opinion: u64) {
    out.put_u8(tag);
    put_process(out, process);
    out.put_u64_le(second_opinion);
}
const NOT_ADMITTED: u8 = 16;

impl Wire for Message {
    fn encode(&self, out: &mut BytesMut) {
        encode_whole(self, out);
    }

    fn encode_head(&self, out: &mut BytesMut) -> Option<Bytes> {
        match self {
            Message::Paxos(message) => {
                out.put_u8(PAXOS);
                return message.encode_head(out);
            }
            Message::Route(block) => {
                out.put_u8(ROUTE);
                return put_payload(out, block);
            }
            Message::Notice(notice) => {
                out.put_u8(NOTICE);
                put_runs(out, &notice.stable);
                put_outcomes(out, &notice.others);
                out.put_u64_le(notice.credit);
                out.put_u8(u8::from(notice.wedged));
            }
            Message::Deliver(block) => {
                out.put_u8(DELIVER);
                return put_block(out, block);
            }
            Message::Confirm { through, executed, durable } => {
                out.put_u8(CONFIRM);
                out.put_u64_le(through.0);
                out.put_u64_le(executed.0);
                out.put_u64_le(durable.0);
            }
            Message::Repair => out.put_u8(REPAIR),
            Message::Lead { generation, leader, routers, learned } => {
                out.put_u8(LEAD);
                encode_body(out, &(generation, leader, routers, learned));
            }
            Message::Inject { token, body } => {
                out.put_u8(INJECT);
                out.put_u64_le(*token);
                return put_payload(out, body);
            }
            Message::InjectRefused { token } => {
                out.put_u8(INJECT_REFUSED);
                out.put_u64_le(*token);
            }
            Message::Gather { generation } => {
                out.put_u8(GATHER);
                put_generation(out, *generation);
            }
            Message::NotAdmitted(why) => {
                out.put_u8(NOT_ADMITTED);
                encode_body(out, why);
            }
            Message::Tail(tail) => {
                out.put_u8(TAIL);
                put_tail(out, tail);
            }
            Message::Call => out.put_u8(CALL),
            Message::Pledge(pledge) => {
                out.put_u8(PLEDGE);
                encode_body(out, pledge);
            }
            Message::Refound { generation } => {
                out.put_u8(REFOUND);
                put_generation(out, *generation);
            }
            Message::Witness(witness) => {
                out.put_u8(WITNESS);
                put_tail(out, &witness.tail);
                out.put_u64_le(witness.kept_behind.0);
                out.put_u64_le(witness.base.0);
                out.put_u64_le(witness.sent);
                put_processes(out, &witness.counted);
                put_bytes(out, &witness.config);
            }
            Message::Release => out.put_u8(RELEASE),
            Message::Counted { generation, members } => {
                out.put_u8(COUNTED);
                put_generation(out, *generation);
                put_processes(out, members);
            }
            Message::AskOpinion { about, second_opinion } => {
                put_asked(out, ASK_OPINION, *about, *second_opinion)
            }
            Message::Opinion { about, second_opinion, opinion } => {
                put_asked(out, OPINION, *about, *second_opinion);
                put_opinion(out, *opinion);
            }
            Message::Probe { asker, second_opinion } => put_asked(out, PROBE, *asker, *second_opinion),
            Message::Alive { asker, second_opinion } => put_asked(out, ALIVE, *asker, *second_opinion),
            Message::Up { member, hops, message } => return put_handed_on(out, UP, *member, *hops, message),
            Message::Down { member, hops, message } => {
                return put_handed_on(out, DOWN, *member, *hops, message);
            }
            Message::Reach { members } => {
                out.put_u8(REACH);
                put_processes(out, members);
            }
        }
        None
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        Ok(match take_u8(input)? {
            PAXOS => Message::Paxos(paxos::Message::decode(input)?),
            ROUTE => Message::Route(take_bytes(input)?),
            NOTICE => Message::Notice(Notice {
                stable: take_runs(input)?,
                others: take_outcomes(input)?,
                credit: take_u64(input)?,
                wedged: take_u8(input)? != 0,
            }),
            DELIVER => Message::Deliver(take_block(input)?),
            CONFIRM => Message::Confirm {
                through: Position(take_u64(input)?),
                executed: Position(take_u64(input)?),
                durable: Position(take_u64(input)?),
            },
            REPAIR => Message::Repair,
            LEAD => {
                let (generation, leader, routers, learned) = decode_body(input)?;
                Message::Lead { generation, leader, routers, learned }
            }
            INJECT => Message::Inject { token: take_u64(input)?, body: take_bytes(input)? },
            INJECT_REFUSED => Message::InjectRefused { token: take_u64(input)? },
            GATHER => Message::Gather { generation: take_generation(input)? },
            TAIL => Message::Tail(take_tail(input)?),
            CALL => Message::Call,
            PLEDGE => Message::Pledge(decode_body(input)?),
            REFOUND => Message::Refound { generation: take_generation(input)? },
            WITNESS => Message::Witness(Box::new(Witness {
                tail: take_tail(input)?,
                kept_behind: Position(take_u64(input)?),
                base: Position(take_u64(input)?),
                sent: take_u64(input)?,
                counted: take_processes(input)?,
                config: take_bytes(input)?,
            })),
            RELEASE => Message::Release,
            COUNTED => {
                Message::Counted { generation: take_generation(input)?, members: take_processes(input)? }
            }
            ASK_OPINION => {
                Message::AskOpinion { about: take_process(input)?, second_opinion: take_u64(input)? }
            }
            OPINION => Message::Opinion {
                about: take_process(input)?,
                second_opinion: take_u64(input)?,
                opinion: take_opinion(input)?,
            },
            PROBE => Message::Probe { asker: take_process(input)?, second_opinion: take_u64(input)? },
            ALIVE => Message::Alive { asker: take_process(input)?, second_opinion: take_u64(input)? },
            NOT_ADMITTED => Message::NotAdmitted(decode_body(input)?),
            UP => Message::Up {
                member: take_process(input)?,
                hops: take_u8(input)?,
                message: take_bytes(input)?,
            },
            DOWN => Message::Down {
                member: take_process(input)?,
                hops: take_u8(input)?,
                message: take_bytes(input)?,
            },
            REACH => Message::Reach { members: take_processes(input)? },
            tag => return Err(WireError::Tag(tag)),
        })
    }
}

fn put_handed_on(out: &mut BytesMut, tag: u8, member: ProcessId, hops: u8, message: &Bytes) -> Option<Bytes> {
    out.put_u8(tag);
    put_process(out, member);
    out.put_u8(hops);
    put_payload(out, message)
}

#[cfg(test)]
mod tests;
