//! What stands between a process and the world, and changes what passes.

use std::collections::BTreeSet;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_protocol::{
    ProcessId,
    ecast::{Message, Outcome, Position},
    paxos::{self, Ballot, Paxos, Slot},
    rubberband,
    wire::Wire,
};

use super::Mutation;
use crate::system::NUMBER_AT;

/// The adapter around one process.
pub(crate) struct Tamper {
    mutation: Mutation,
    /// Who confirmed or voted here.
    heard: BTreeSet<ProcessId>,
    /// How many submissions were lost on the way out, and from which number on.
    lost: u32,
    sent: u64,
}

impl Tamper {
    pub(crate) fn new(mutation: Mutation) -> Self {
        Tamper { mutation, heard: BTreeSet::new(), lost: 0, sent: 0 }
    }

    pub(crate) fn delivers_twice(&self) -> bool {
        self.mutation == Mutation::DeliverTwice
    }

    /// What a router that breaks the rule answers to a message, before the honest one sees it.
    pub(crate) fn votes(
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

    /// What leaves a router instead of a message.
    pub(crate) fn told(&self, message: paxos::Message) -> Option<paxos::Message> {
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

    /// What the process receives instead of a message.
    pub(crate) fn receive(
        &mut self,
        random: &mut dyn FnMut() -> u64,
        from: ProcessId,
        message: Message,
    ) -> Vec<(ProcessId, Message)> {
        let confirmation = matches!(&message, Message::Confirm { .. });
        match self.mutation {
            Mutation::ForeignConfirmation if confirmation => self.doubled(from, message),
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

    /// The message, once from its sender and once as if from another.
    fn doubled<M: Clone>(&mut self, from: ProcessId, message: M) -> Vec<(ProcessId, M)> {
        self.heard.insert(from);
        let other = self.heard.iter().copied().find(|&other| other != from);
        let forged = other.map(|other| (other, message.clone()));
        [Some((from, message)), forged].into_iter().flatten().collect()
    }

    /// What leaves instead of a message.
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
            (Mutation::ConfirmBeyond, Message::Confirm { through, executed }) => {
                Some(Message::Confirm { through: Position(through.0 + 1), executed })
            }
            (Mutation::RepairLost, Message::Repair) => None,
            (Mutation::SequenceUnchecked, Message::Route(block)) => self.renumbered(&block),
            (_, message) => Some(message),
        }
    }

    /// What leaves a process of a cluster instead of a message.
    pub(crate) fn leave(&mut self, message: rubberband::Message) -> Option<rubberband::Message> {
        match message {
            rubberband::Message::Order(message) => self.send(message).map(rubberband::Message::Order),
            direct => Some(direct),
        }
    }

    /// Loses one block of submissions in the middle, and closes the gap that it leaves in the numbers.
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

/// The same deliveries, each claiming to be the first for its destination.
fn without_previous(message: &Message) -> Message {
    let mut bytes = BytesMut::new();
    message.encode(&mut bytes);
    let senders = u32::from_le_bytes(bytes[1..5].try_into().expect("four bytes")) as usize;
    let count_at = 5 + senders * 24;
    let mut count = u32::from_le_bytes(bytes[count_at..count_at + 4].try_into().expect("four bytes"));
    let mut at = count_at + 8;
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
