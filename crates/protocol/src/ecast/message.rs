//! Messages between members and routers, and their bytes.

use bytes::Bytes;

use super::{
    Outcome, Position,
    block::DeliverBlock,
    poll::{Pledge, Witness},
    reform::Tail,
};
use crate::{
    admission::NotAdmitted,
    detector::Opinion,
    id::{Generation, Peer, ProcessId},
    paxos,
    wire::{AnyFlag, Wire},
};

/// A message of the ordering layer.
#[derive(Clone, Debug, PartialEq, Wire)]
pub enum Message {
    /// Router → router: a message of the routers' log.
    #[wire(tag = 1)]
    Paxos(paxos::Message),
    /// Member → router: a block of the member's messages with consecutive numbers, which the router proposes
    /// unchanged.
    #[wire(tag = 2)]
    Route(Bytes),
    /// Router → member: outcomes of the member's messages.
    #[wire(tag = 3)]
    Notice(Notice),
    /// Router → member: messages at their positions.
    #[wire(tag = 4)]
    Deliver(DeliverBlock),
    /// Member → router: the member's progress.
    #[wire(tag = 5)]
    Confirm {
        /// The member has delivered all its messages up to this position.
        through: Position,
        /// The member has executed all its messages up to this position.
        executed: Position,
        /// No message up to this position need be sent to the member again, even after a crash.
        durable: Position,
    },
    /// Member → router: a delivery came whose `previous` the member does not have.
    #[wire(tag = 6)]
    Repair,
    /// Router → anyone linked: the routers, and the leader.
    #[wire(tag = 7)]
    Lead {
        /// The generation of the sender.
        #[wire(body)]
        generation: Generation,
        /// The leader, if the sender knows it.
        #[wire(body)]
        leader: Option<ProcessId>,
        /// All routers.
        #[wire(body)]
        routers: Vec<Peer>,
        /// Number of log entries that the sender has learned. Of two sets of routers, the set with the higher
        /// number is newer.
        #[wire(body)]
        learned: u64,
    },
    /// Member → lead router: deliver this message after everything ordered so far, without ordering it (002
    /// §6.7, snapshot reads). The message may be lost; E-Cast does not send it again.
    #[wire(tag = 8)]
    Inject {
        /// The member's own number of the message.
        token: u64,
        /// The body.
        body: Bytes,
    },
    /// Router → member: an injected message was not delivered, because the router does not lead or there is
    /// no destination.
    #[wire(tag = 9)]
    InjectRefused {
        /// The member's number of the message.
        token: u64,
    },
    /// Member → lead router: like [`Message::Inject`], and confirm by [`Message::Latest`] that the stamp
    /// covers everything that was stable when this message was sent.
    #[wire(tag = 26)]
    InjectLatest {
        /// The member's own number of the message.
        token: u64,
        /// The body.
        body: Bytes,
    },
    /// Router → member: answers [`Message::InjectLatest`] if the router still led afterwards.
    #[wire(tag = 27)]
    Latest {
        /// The member's numbers of the messages.
        tokens: Vec<u64>,
    },
    /// Router → anyone linked: a new generation begins with the sender. The receiver must report its
    /// deliveries.
    #[wire(tag = 10)]
    Gather {
        /// The generation.
        generation: Generation,
    },
    /// Member → router: answers [`Message::Gather`].
    #[wire(tag = 11)]
    Tail(Tail),
    /// Founder (a router that has just started) → anyone linked: an operator says that all routers are gone.
    /// The sender asks whether the receiver will follow it.
    #[wire(tag = 20)]
    Call,
    /// Member → router: answers [`Message::Call`].
    #[wire(tag = 21)]
    Pledge(#[wire(body)] Pledge),
    /// Founder → member that pledged to follow: a generation begins with the sender. The receiver must report
    /// its deliveries.
    #[wire(tag = 22)]
    Refound {
        /// The generation.
        generation: Generation,
    },
    /// Member → router: answers [`Message::Refound`].
    #[wire(tag = 23)]
    Witness(Box<Witness>),
    /// Founder that gives up → members that pledged to follow it: the members may follow another founder.
    #[wire(tag = 25)]
    Release,
    /// Router with which a generation began → its members: the members whose answers counted. Sent before the
    /// members learn who leads.
    #[wire(tag = 24)]
    Counted {
        /// The generation.
        generation: Generation,
        /// The members that followed into the generation.
        members: Vec<ProcessId>,
    },
    /// Member or lead router → router: a question whether the router hears a process. The router answers with
    /// [`Message::Opinion`] at once. A router that has a way to the leader answers once more if it then hears
    /// the process.
    #[wire(tag = 12)]
    AskOpinion {
        /// The process that the question is about.
        about: ProcessId,
        /// The asker's number of the second opinion.
        second_opinion: u64,
    },
    /// Router → asker: whether the router hears a process.
    #[wire(tag = 13)]
    Opinion {
        /// The process that the opinion is about.
        about: ProcessId,
        /// The number of the second opinion, from the question.
        second_opinion: u64,
        /// The router's opinion.
        opinion: Opinion,
    },
    /// Router → member: a request for a sign of life, because some process asked for one or the member is
    /// silent.
    #[wire(tag = 14)]
    Probe {
        /// The process that asked for the second opinion.
        asker: ProcessId,
        /// The asker's number of the second opinion.
        second_opinion: u64,
    },
    /// Member → router: answers [`Message::Probe`].
    #[wire(tag = 15)]
    Alive {
        /// The process that asked for the second opinion.
        asker: ProcessId,
        /// The asker's number of the second opinion.
        second_opinion: u64,
    },
    /// Router → process that is no member: its joining was refused, and will be as long as this reason holds.
    #[wire(tag = 16)]
    NotAdmitted(#[wire(body)] NotAdmitted),
    /// Router → next router towards the leader: a member's message.
    #[wire(tag = 17)]
    Up {
        /// The member.
        member: ProcessId,
        /// Number of further links that the message may cross.
        hops: u8,
        /// The member's message, in its byte form.
        message: Bytes,
    },
    /// Router → next router towards a member: the leader's message for that member.
    #[wire(tag = 18)]
    Down {
        /// The member.
        member: ProcessId,
        /// Number of further links that the message may cross.
        hops: u8,
        /// The leader's message, in its byte form.
        message: Bytes,
    },
    /// Router → next router towards the leader: all members that the sender reaches.
    #[wire(tag = 19)]
    Reach {
        /// The members.
        members: Vec<ProcessId>,
    },
}

/// Outcomes of a sender's messages.
#[derive(Clone, Debug, PartialEq, Eq, Default, Wire)]
pub struct Notice {
    /// Runs `(first, count)` of stable numbers.
    pub stable: Vec<(u64, u32)>,
    /// Other outcomes, by number.
    pub others: Vec<(u64, Outcome)>,
    /// The highest number of a data message that the sender may send.
    pub credit: u64,
    /// Whether the sender is no longer a member.
    #[wire(with = AnyFlag)]
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

#[cfg(test)]
mod tests;
