//! A process: a router or a member, and the adapter that reports on it and tampers with it.

use std::sync::Arc;

use bytes::BytesMut;
use quorate_protocol::{
    Context, Destination, Input, Lift, Policy, Protocol, Sink, Time,
    ecast::{
        Class, Member, MemberCommand, MemberEvent, Message, Ordered, Position, RouterEvent, Routing, Station,
        StationCommand, StationEvent,
    },
    paxos,
    wire::{decode_body, encode_body},
};

use crate::{
    check::order::submissions,
    mutation::Tamper,
    system::rooms::{Floor, Rooms},
};

/// A router or a member.
pub(crate) type Kind = Station<Rooms, Member>;
pub(crate) type EcastCommand = StationCommand<MemberCommand>;

/// A process, and the adapter that reports on it and tampers with it.
pub(crate) struct Process {
    pub(crate) kind: Kind,
    /// The last position that a router reported.
    told: Position,
    /// The configuration at the last delivery to a member.
    floor: Option<Floor>,
    /// Number of submissions that the process has sent.
    submitted: u64,
    tamper: Option<Tamper>,
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
        Process { kind, told: Position(0), floor: None, submitted: 0, tamper }
    }

    fn give(&mut self, cx: &mut Context<'_>, input: Input<Kind>, out: &mut dyn Sink<Process>) {
        let Process { kind, told, floor, submitted, tamper } = self;
        let twice = tamper.as_ref().is_some_and(Tamper::delivers_twice);
        let (mut events, mut founder) = (Vec::new(), None);
        let mut lift = Lift::<Process, _, _>::new::<Kind>(
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
            |out, event| match event {
                StationEvent::Router(event) => events.push(event),
                StationEvent::Member(event) => {
                    follow(floor, &event);
                    if let MemberEvent::WitnessWanted { founder: asks } = event {
                        founder = Some(asks);
                    }
                    if twice && matches!(event, MemberEvent::Deliver { .. }) {
                        out.emit(EcastEvent::Member(event.clone()));
                    }
                    out.emit(EcastEvent::Member(event));
                }
            },
        );
        kind.handle(cx, input, &mut lift);
        match kind {
            // The position that the router learned is reported now, and not at the end of the batch: if it is
            // the only router, a message may be stable and dropped by then.
            Station::Router(router) if router.position() > *told => {
                let learned = router.live_after(*told).map(|(at, ordered)| (at, ordered.clone())).collect();
                *told = router.position();
                out.emit(EcastEvent::Learned(*told, learned));
            }
            Station::Router(_) => {}
            Station::Member(member) => {
                if let Some(founder) = founder {
                    let mut config = BytesMut::new();
                    if let Some(floor) = floor {
                        encode_body(&mut config, floor);
                    }
                    let witness = member.witness(config.freeze());
                    let sent = match tamper {
                        Some(tamper) => tamper.send(witness),
                        None => Some(witness),
                    };
                    sent.into_iter().for_each(|it| out.send(Destination::One(founder), it, None));
                }
            }
        }
        events.into_iter().for_each(|event| out.emit(EcastEvent::Router(event)));
    }
}

impl Protocol for Process {
    type Message = Message;
    type Record = paxos::Record;
    type Command = EcastCommand;
    type Event = EcastEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match (input.map(std::convert::identity, std::convert::identity), &mut self.tamper) {
            (Input::Receive { from, message }, Some(tamper)) => {
                for (from, message) in tamper.receive(cx.random, from, message) {
                    self.give(cx, Input::Receive { from, message }, out);
                }
            }
            (input, _) => self.give(cx, input, out),
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.kind.deadline()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.kind.policy()
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
