//! The adapter between a process and the world that changes its messages.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Destination, Duration, ProcessId, Time,
    ecast::{Message, Outcome, Position, Tail},
    paxos::{self, Ballot, Paxos, Slot},
    rubberband::{self, Control, Direct, Range, ReplyContent, TransferCursor},
    wire::Wire,
};
use quorate_table::engine::Answer;

use super::Mutation;
use crate::check::order::NUMBER_AT;

/// The adapter around one process.
pub(crate) struct Tamper {
    mutation: Mutation,
    /// The processes whose confirmation or vote reached this process.
    heard: BTreeSet<ProcessId>,
    /// Number of submissions in the block that the adapter dropped before the block left the process; 0 until
    /// the adapter drops a block.
    lost: u32,
    /// Number of blocks of submissions that the process has sent.
    sent: u64,
    /// The ranges of direct reads that arrived, by asker and token.
    asked: BTreeMap<(ProcessId, u64), Vec<Range>>,
    /// The time of the last input to the process.
    last: Option<Time>,
}

impl Tamper {
    pub(crate) fn new(mutation: Mutation) -> Self {
        Tamper { mutation, heard: BTreeSet::new(), lost: 0, sent: 0, asked: BTreeMap::new(), last: None }
    }

    pub(crate) fn delivers_twice(&self) -> bool {
        self.mutation == Mutation::DeliverTwice
    }

    /// Whether the process forgets its proposals when the leader changes.
    pub(crate) fn proposes_once(&self) -> bool {
        self.mutation == Mutation::NotProposedAgain
    }

    /// Returns the ticks that a process missed while it slept.
    pub(crate) fn slept(&mut self, now: Time) -> Vec<Time> {
        let last = self.last.replace(now).unwrap_or(now);
        let missed = now.since(last).as_nanos() / TICK.as_nanos();
        match self.mutation {
            Mutation::LateTickCounts if missed > 3 => {
                (1..u32::try_from(missed).unwrap_or(u32::MAX)).map(|tick| last + TICK * tick).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the answers that a router which breaks the rule gives to a message. The correct router behind
    /// the adapter gets the message only afterwards.
    pub(crate) fn forged_votes(
        &self,
        me: ProcessId,
        log: &Paxos,
        message: &paxos::Message,
    ) -> Vec<(ProcessId, paxos::Message)> {
        let paxos::Message::Accept { ballot, slot, .. } = message else { return Vec::new() };
        let vote = |through| (ballot.router, paxos::Message::Accepted { ballot: *ballot, through });
        match self.mutation {
            Mutation::VoteWithoutHolding if ballot.router != me => {
                (1..4).map(|beyond| vote(Slot(slot.0 + beyond))).collect()
            }
            Mutation::AcceptBelowPromise if *ballot < log.status().promised => vec![vote(*slot)],
            _ => Vec::new(),
        }
    }

    /// Returns the message that leaves a router instead of `message`.
    pub(crate) fn replaced_outgoing(&self, message: paxos::Message) -> Option<paxos::Message> {
        match (self.mutation, message) {
            (Mutation::AcceptBelowPromise, paxos::Message::Refused { .. }) => None,
            (Mutation::PromiseEmptied, paxos::Message::Promise { ballot, chosen, start, mut values, .. }) => {
                values.truncate(chosen.0.saturating_sub(start.0) as usize);
                let (accepted, last) = (Ballot::ZERO, chosen);
                Some(paxos::Message::Promise { ballot, accepted, last, chosen, start, values })
            }
            (_, message) => Some(message),
        }
    }

    /// Returns the messages that the process receives instead of `message`.
    pub(crate) fn receive(
        &mut self,
        random: &mut dyn FnMut() -> u64,
        from: ProcessId,
        message: Message,
    ) -> Vec<(ProcessId, Message)> {
        let confirmation = matches!(&message, Message::Confirm { .. });
        match self.mutation {
            Mutation::ForeignConfirmation if confirmation => self.doubled(from, message),
            Mutation::TailUnheard if matches!(message, Message::Tail(_)) => Vec::new(),
            Mutation::RepairLost | Mutation::PreviousUnchecked
                if matches!(message, Message::Deliver(_)) && random().is_multiple_of(50) =>
            {
                Vec::new()
            }
            Mutation::PreviousUnchecked if matches!(message, Message::Deliver(_)) => {
                vec![(from, without_previous(&message))]
            }
            _ => vec![(from, message)],
        }
    }

    /// Returns the message twice: once from its sender, and once as if from another process.
    fn doubled<M: Clone>(&mut self, from: ProcessId, message: M) -> Vec<(ProcessId, M)> {
        self.heard.insert(from);
        let other = self.heard.iter().copied().find(|&other| other != from);
        let forged = other.map(|other| (other, message.clone()));
        [Some((from, message)), forged].into_iter().flatten().collect()
    }

    /// Returns the message that leaves instead of `message`.
    pub(crate) fn send(&mut self, message: Message) -> Option<Message> {
        match (self.mutation, message) {
            (Mutation::StableTooEarly, Message::Notice(mut notice)) => {
                if let Some((_, count)) = notice.stable.last_mut() {
                    *count += 4;
                }
                Some(Message::Notice(notice))
            }
            (Mutation::OutcomeForged, Message::Notice(mut notice)) => {
                for (number, outcome) in std::mem::take(&mut notice.others) {
                    if outcome != Outcome::Wedged {
                        notice.stable.push((number, 1));
                    }
                }
                Some(Message::Notice(notice))
            }
            (Mutation::HearsEverybody, Message::Paxos(paxos::Message::Pulse(mut pulse))) => {
                pulse.reach = pulse.contacts.len() as u32 + 1;
                pulse.contacts.iter_mut().for_each(|contact| contact.heard = true);
                Some(Message::Paxos(paxos::Message::Pulse(pulse)))
            }
            (Mutation::GoesNoWayRound, Message::Up { .. } | Message::Down { .. } | Message::Reach { .. }) => {
                None
            }
            (Mutation::ConfirmBeyond, Message::Confirm { through, executed, durable }) => {
                Some(Message::Confirm { through: Position(through.0 + 1), executed, durable })
            }
            (Mutation::CreditsOnConfirmation, Message::Confirm { through, durable, .. }) => {
                Some(Message::Confirm { through, executed: through, durable })
            }
            (Mutation::RepairLost, Message::Repair) => None,
            (Mutation::TailKeptBack, Message::Tail(tail)) => Some(without_blocks(tail)),
            (Mutation::BaseForged, Message::Witness(mut witness)) => {
                witness.base.0 += 8;
                Some(Message::Witness(witness))
            }
            (Mutation::NumbersForgotten, Message::Witness(mut witness)) => {
                witness.sent = witness.tail.acknowledged;
                Some(Message::Witness(witness))
            }
            (Mutation::SequenceUnchecked, Message::Route(block)) => self.renumbered(&block),
            (_, message) => Some(message),
        }
    }

    /// Notes a message that a process of a cluster receives.
    pub(crate) fn arrive(&mut self, from: ProcessId, message: &rubberband::Message) {
        if let rubberband::Message::Direct(Direct::Basic { token, ranges, .. }) = message {
            self.asked.insert((from, *token), ranges.to_vec());
        }
    }

    /// Returns the message that leaves a process of a cluster, to `to`, instead of `message`.
    pub(crate) fn leave(
        &mut self,
        to: &Destination,
        message: rubberband::Message,
    ) -> Option<rubberband::Message> {
        Some(match (self.mutation, message) {
            // A verdict goes to a single process only as the answer to a question.
            (Mutation::VerdictUnanswered, rubberband::Message::Direct(Direct::Verdict { .. }))
                if matches!(to, Destination::One(_)) =>
            {
                return None;
            }
            (
                Mutation::CollectedBeforeDurable,
                rubberband::Message::Order(Message::Confirm { through, executed, .. }),
            ) => rubberband::Message::Order(Message::Confirm { through, executed, durable: through }),
            (Mutation::StaleSuspicionObeyed, rubberband::Message::Order(Message::Route(block))) => {
                let block = without_refutations(&block);
                rubberband::Message::Order(Message::Route(block))
            }
            (
                Mutation::RepliesLost,
                rubberband::Message::Direct(Direct::Chunk {
                    change,
                    asked: asked @ TransferCursor::Replies(_),
                    next,
                    ..
                }),
            ) => {
                // These are the bytes of an empty list.
                let content = Bytes::from_static(&[0]);
                rubberband::Message::Direct(Direct::Chunk { change, asked, content, next })
            }
            (Mutation::RetryAnswered, rubberband::Message::Direct(Direct::Reply(mut reply))) => {
                if let (ReplyContent::Retry, Destination::One(to)) = (&reply.content, to)
                    && let Some(ranges) = self.asked.get(&(*to, reply.token))
                {
                    let nothing = postcard::to_stdvec(&Answer::Rows(Vec::new()));
                    reply.ranges = ranges.iter().copied().collect();
                    reply.content = ReplyContent::Answer(nothing.expect("an answer serialises").into());
                }
                rubberband::Message::Direct(Direct::Reply(reply))
            }
            (_, message) => message,
        })
    }

    /// Drops one block of submissions in the middle, and renumbers the later blocks to close the gap.
    fn renumbered(&mut self, block: &Bytes) -> Option<Message> {
        let mut rest = block.slice(NUMBER_AT..);
        let first = rest.get_u64_le();
        let count = rest.get_u32_le();
        self.sent += 1;
        if self.lost == 0 && self.sent == 6 && first > 1 {
            self.lost = count;
            return None;
        }
        let mut forged = BytesMut::from(&block[..NUMBER_AT]);
        forged.put_u64_le(first - u64::from(self.lost));
        forged.put_slice(&block[NUMBER_AT + 8..]);
        Some(Message::Route(forged.freeze()))
    }
}

/// Returns the same submissions, in which each refutation is void because it names a position without a
/// suspicion.
fn without_refutations(block: &Bytes) -> Bytes {
    let mut rest = block.slice(NUMBER_AT + 8..);
    let mut forged = BytesMut::from(&block[..NUMBER_AT + 12]);
    for _ in 0..rest.get_u32_le() {
        let class = rest.get_u8();
        forged.put_u8(class);
        let length = rest.get_u32_le() as usize;
        let body = rest.split_to(length);
        let body = match Control::decode(&body) {
            Some(Control::Refute { .. }) if class == CONTROL => {
                Control::Refute { suspected: Position(0) }.encode()
            }
            _ => body,
        };
        forged.put_u32_le(body.len() as u32);
        forged.put_slice(&body);
    }
    forged.freeze()
}

/// Returns the tail of a member as if it had delivered nothing.
fn without_blocks(mut tail: Tail) -> Message {
    tail.delivered = Position(0);
    let mut bytes = BytesMut::new();
    Message::Tail(tail).encode(&mut bytes);
    bytes.truncate(TAIL_BLOCKS_AT);
    bytes.put_u32_le(0);
    Message::decode(&mut bytes.freeze()).expect("blocks are left out, and that none are there is said")
}

/// Returns the same deliveries, each marked as the first for its destination.
fn without_previous(message: &Message) -> Message {
    let mut bytes = BytesMut::new();
    message.encode(&mut bytes);
    let senders = u32::from_le_bytes(bytes[1..5].try_into().expect("four bytes")) as usize;
    let count_at = 5 + senders * 24;
    let mut count = u32::from_le_bytes(bytes[count_at..count_at + 4].try_into().expect("four bytes"));
    let mut at = count_at + 16;
    while count > 0 {
        let attached = bytes[at] & 0x10 != 0;
        bytes[at + 11..at + 19].fill(0);
        at += 27;
        for _ in 0..1 + usize::from(attached) {
            let length = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
            at += 4 + length as usize;
        }
        count -= 1;
    }
    Message::decode(&mut bytes.freeze()).expect("only numbers were changed")
}

/// The offset of the block count in the answer to a survivor, in bytes: behind tag, two generations, and two
/// numbers.
const TAIL_BLOCKS_AT: usize = 1 + 2 * 20 + 16;
/// The class of control messages in a block of submissions.
const CONTROL: u8 = 1;
/// Interval at which a detector reads the clock.
const TICK: Duration = Duration::from_millis(50);
