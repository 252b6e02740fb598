//! A process with groups, and the adapter that tampers with it.

use std::{collections::BTreeMap, sync::Arc};

use quorate_protocol::{
    Context, Input, Lift, Policy, ProcessId, Protocol, Sink, Time,
    ecast::Position,
    group::{self, Command, Direct, Event, Failure, GroupId, Holders, Message, Place, Soft},
    paxos,
    relay::Wrapper,
};

use crate::mutation::Mutation;

/// A process with groups, with the adapter that tampers with it in some runs.
pub(crate) struct TamperedMember {
    pub(super) process: group::Process,
    mutation: Option<Mutation>,
    /// Deliveries kept back by a mutation.
    late: Vec<Event>,
    /// For a mutation, the number behind the last received message of each stream.
    next: Streams,
}

type Streams = BTreeMap<(GroupId, Position, ProcessId), u64>;

impl TamperedMember {
    pub(super) fn new(process: group::Process, mutation: Option<Mutation>) -> Self {
        TamperedMember { process, mutation, late: Vec::new(), next: Streams::new() }
    }

    /// Returns the message that a process with this mutation receives instead of `message`.
    fn taken(mutation: Option<Mutation>, next: &mut Streams, mut message: Message) -> Message {
        if mutation == Some(Mutation::ReceiptOverrated)
            && let Message::Group { direct: Direct::Receipts { ordered, .. }, .. } = &mut message
        {
            ordered.fill(Position(u64::MAX));
        }
        let Message::Group { group, view, direct: Direct::Soft { sender, mut first, messages } } = message
        else {
            return message;
        };
        let next = next.entry((group, view, sender)).or_insert(1);
        let count = messages.iter().map(Soft::count).sum::<u64>();
        let behind = first + count;
        let forges = match mutation {
            Some(Mutation::AheadTakenForNext) => first > *next,
            Some(Mutation::DoubleTaken) => behind <= *next,
            _ => false,
        };
        if forges {
            first = *next;
        }
        *next = (*next).max(first + count);
        Message::Group { group, view, direct: Direct::Soft { sender, first, messages } }
    }

    /// Changes a soft message of a group to which this process does not belong: the message then looks like
    /// its sender's next message in a group to which both processes belong.
    fn naturalised(member: &group::Process, next: &Streams, message: Message) -> Message {
        let Message::Group { group, view, direct: Direct::Soft { sender, first, messages } } = message else {
            return message;
        };
        let own = [GroupId(0), GroupId(1)].into_iter().find_map(|own| {
            let view = member.view(own).filter(|view| view.entry(sender).is_some())?;
            Some((own, view.number))
        });
        let (group, view, first) = match own {
            Some((own, view)) if member.view(group).is_none() => {
                (own, view, next.get(&(own, view, sender)).copied().unwrap_or(1))
            }
            _ => (group, view, first),
        };
        Message::Group { group, view, direct: Direct::Soft { sender, first, messages } }
    }

    fn is_quit(input: &Input<group::Process>) -> bool {
        let quits = |command: &Command| matches!(command, Command::Quit { .. });
        matches!(input, Input::Command(Command::Several(commands)) if commands.iter().any(quits))
    }

    /// Returns the message that a process with this mutation sends instead of `message`.
    fn tamper(mutation: Option<Mutation>, random: u64, next: &Streams, message: Message) -> Message {
        let Message::Group { group, view, direct } = message else { return message };
        let direct = match (mutation, direct) {
            (Some(Mutation::ReceiptForged), Direct::Receipts { of, counts, ordered, asks }) => {
                let counts = counts.into_keys().map(|sender| (sender, u64::MAX)).collect();
                let ordered = vec![Position(u64::MAX); ordered.len()];
                Direct::Receipts { of, counts, ordered, asks }
            }
            (
                Some(Mutation::BranchForgotten),
                Direct::Receipts { of: Holders::Branch, mut counts, ordered, asks },
            ) => {
                for ((.., sender), next) in next.iter().filter(|((of, at, _), _)| (*of, *at) == (group, view))
                {
                    counts.insert(*sender, next - 1);
                }
                Direct::Receipts { of: Holders::Branch, counts, ordered, asks }
            }
            (Some(Mutation::PredecessorsForgotten), Direct::Soft { sender, first, mut messages }) => {
                messages.iter_mut().for_each(|soft| soft.after = Position(0));
                Direct::Soft { sender, first, messages }
            }
            (Some(Mutation::StreamTorn), Direct::Soft { sender, first, mut messages })
                if messages.len() > 1 && random.is_multiple_of(4) =>
            {
                messages.remove(0);
                Direct::Soft { sender, first, messages }
            }
            (_, same) => same,
        };
        Message::Group { group, view, direct }
    }
}

impl Wrapper for TamperedMember {
    type Inner = group::Process;

    fn inner(&self) -> &group::Process {
        &self.process
    }

    fn inner_mut(&mut self) -> &mut group::Process {
        &mut self.process
    }
}

impl Protocol for TamperedMember {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        let TamperedMember { process, mutation, late, next } = self;
        let input = match input {
            Input::Cast { from, message } if *mutation == Some(Mutation::ForeignGroupTaken) => {
                Input::Cast { from, message: Self::naturalised(process, next, message) }
            }
            input => input,
        };
        let input = input.map(|message| Self::taken(*mutation, next, message), std::convert::identity);
        let denies = *mutation == Some(Mutation::SendsDenied) && Self::is_quit(&input);
        let chance = (cx.random)();
        let mut lift = Lift::<TamperedMember, _, _>::new::<group::Process>(
            out,
            |_, _, message| Some(Self::tamper(*mutation, chance, next, message)),
            |out, event| match event {
                Event::Done { id, result: Err(Failure::MaybeApplied) } if denies => {
                    out.emit(Event::Done { id, result: Err(Failure::NotSent) });
                }
                Event::Deliver { ref updates, .. }
                    if *mutation == Some(Mutation::DeliversLate)
                        && updates.iter().any(|(place, _)| match place {
                            Place::Soft(number) => !late.is_empty() || number.is_multiple_of(16),
                            Place::Ordered(..) => false,
                        }) =>
                {
                    late.push(event);
                }
                Event::View { .. } => {
                    out.emit(event);
                    late.drain(..).for_each(|event| out.emit(event));
                }
                event => out.emit(event),
            },
        );
        process.handle(cx, input, &mut lift);
    }

    fn deadline(&self) -> Option<Time> {
        self.process.deadline()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.process.policy()
    }
}
