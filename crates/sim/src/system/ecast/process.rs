//! A process: a router or a member, and the adapter that tampers with it.

use std::sync::Arc;

use bytes::BytesMut;
use quorate_protocol::{
    Context, Destination, Input, Lift, Policy, Protocol, Sink, Time,
    ecast::{
        Class, Member, MemberCommand, MemberEvent, Message, Ordered, Position, Router, RouterCommand,
        RouterEvent, Routing,
    },
    paxos,
    wire::{decode_body, encode_body},
};

use crate::{
    check::order::submissions,
    mutation::Tamper,
    system::rooms::{Floor, Rooms},
};

/// A process, and the adapter that tampers with it.
pub(crate) struct Process {
    pub(crate) kind: Kind,
    /// Number of submissions that the process has sent.
    submitted: u64,
    tamper: Option<Tamper>,
}

/// The kinds of process.
pub(crate) enum Kind {
    /// A router, with the last position that it reported.
    Router(Box<Router<Rooms>>, Position),
    /// A member, with the configuration at its last delivery.
    Member(Box<Member>, Option<Floor>),
}

pub(crate) enum EcastCommand {
    Router(RouterCommand),
    Member(MemberCommand),
}

#[derive(Debug)]
pub(crate) enum EcastEvent {
    Router(RouterEvent<Floor>),
    /// The router has learned everything up to the position; the list has the new messages that are not
    /// stable yet.
    Learned(Position, Vec<(Position, Ordered)>),
    Member(MemberEvent),
    /// The member sent its next submission, which has this hash.
    Submitted(u64),
}

impl Process {
    pub(crate) fn new(kind: Kind, tamper: Option<Tamper>) -> Self {
        Process { kind, submitted: 0, tamper }
    }
}

impl Protocol for Process {
    type Message = Message;
    type Record = paxos::Record;
    type Command = EcastCommand;
    type Event = EcastEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        let Process { kind, submitted, tamper } = self;
        let inputs = match (input, &mut *tamper) {
            (Input::Receive { from, message }, Some(tamper)) => {
                let messages = tamper.receive(cx.random, from, message);
                messages.into_iter().map(|(from, message)| Input::Receive { from, message }).collect()
            }
            (other, _) => vec![other],
        };
        let twice = tamper.as_ref().is_some_and(Tamper::delivers_twice);
        for input in inputs {
            let mut lift = Lift::<Process, _, _>::new::<Process>(
                out,
                |out, _, message| {
                    if let Message::Route(block) = &message {
                        for (number, content) in submissions(block) {
                            // A repeated submission was reported before.
                            if number == *submitted + 1 {
                                *submitted = number;
                                out.emit(EcastEvent::Submitted(content));
                            }
                        }
                    }
                    match tamper {
                        Some(tamper) => tamper.send(message),
                        None => Some(message),
                    }
                },
                |out, event| {
                    if let EcastEvent::Member(event @ MemberEvent::Deliver { .. }) = &event
                        && twice
                    {
                        out.emit(EcastEvent::Member(event.clone()));
                    }
                    out.emit(event);
                },
            );
            kind.handle(cx, input, &mut lift);
        }
    }

    fn deadline(&self) -> Option<Time> {
        match &self.kind {
            Kind::Router(router, _) => router.deadline(),
            Kind::Member(member, _) => member.deadline(),
        }
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match &self.kind {
            Kind::Router(router, _) => router.policy(),
            Kind::Member(member, _) => member.policy(),
        }
    }
}

impl Kind {
    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Process>, out: &mut dyn Sink<Process>) {
        match self {
            Kind::Router(router, told) => {
                let mut events = Vec::new();
                let input = input.map(std::convert::identity, |ask| match ask {
                    EcastCommand::Router(command) => command,
                    EcastCommand::Member(_) => {
                        unreachable!("only a router receives the commands of routers")
                    }
                });
                let mut lift = Lift::<Process, _, _>::new::<Router<Rooms>>(
                    out,
                    |_, _, message| Some(message),
                    |_, event| events.push(event),
                );
                router.handle(cx, input, &mut lift);
                // The position that the router learned is reported now, and not at the end of the batch: if
                // it is the only router, a message may be stable and dropped by then.
                if router.position() > *told {
                    let learned =
                        router.live_after(*told).map(|(at, ordered)| (at, ordered.clone())).collect();
                    *told = router.position();
                    out.emit(EcastEvent::Learned(*told, learned));
                }
                events.into_iter().for_each(|event| out.emit(EcastEvent::Router(event)));
            }
            Kind::Member(member, floor) => {
                let mut founder = None;
                let input = input.map(std::convert::identity, |ask| match ask {
                    EcastCommand::Member(command) => command,
                    EcastCommand::Router(_) => {
                        unreachable!("only a member receives the commands of members")
                    }
                });
                let mut lift = Lift::<Process, _, _>::new::<Member>(
                    out,
                    |_, _, message| Some(message),
                    |out, event| {
                        follow(floor, &event);
                        if let MemberEvent::WitnessWanted { founder: asks } = event {
                            founder = Some(asks);
                        }
                        out.emit(EcastEvent::Member(event));
                    },
                );
                member.handle(cx, input, &mut lift);
                if let Some(founder) = founder {
                    let mut config = BytesMut::new();
                    if let Some(floor) = floor {
                        encode_body(&mut config, floor);
                    }
                    let witness = member.witness(config.freeze());
                    out.send(Destination::One(founder), witness, None);
                }
            }
        }
    }
}

/// Updates a member's configuration by a delivery.
fn follow(floor: &mut Option<Floor>, event: &MemberEvent) {
    if let MemberEvent::Deliver { at, id, class: Class::Control, body, attachment } = event {
        let changed = match (&*floor, attachment) {
            (Some(floor), _) => Rooms::apply(floor, *at, id.sender, body).ok().flatten(),
            (None, Some(attachment)) => decode_body(&mut attachment.clone()).ok(),
            (None, None) => None,
        };
        if changed.is_some() {
            *floor = changed;
        }
    }
}
