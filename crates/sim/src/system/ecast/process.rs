//! A process: a router or a member, and what tampers with it.

use std::{sync::Arc, time::Duration};

use bytes::BytesMut;
use quorate_protocol::{
    Context, Destination, Generation, Input, Lift, Peer, Policy, ProcessId, Protocol, Sink, Time,
    ecast::{
        Class, Fence, Member, MemberCommand, MemberEvent, MemberSettings, Message, Ordered, Position, Router,
        RouterCommand, RouterEvent, RouterSettings, Routing,
    },
    paxos::{self, Paxos},
    wire::{decode_body, encode_body},
};

use super::{People, Stage, Timer, World};
use crate::{
    check::order::submissions,
    mutation::Tamper,
    system::rooms::{Floor, Rooms},
};

/// A process, and what tampers with it.
pub(crate) struct Process {
    pub(crate) kind: Kind,
    /// How many of its submissions were seen.
    submitted: u64,
    tamper: Option<Tamper>,
}

/// The kinds of process.
pub(crate) enum Kind {
    /// With the last position that it told of.
    Router(Box<Router<Rooms>>, Position),
    /// With the configuration at its last delivery.
    Member(Box<Member>, Option<Floor>),
}

pub(crate) enum Ask {
    Router(RouterCommand),
    Member(MemberCommand),
}

#[derive(Debug)]
pub(crate) enum Told {
    Router(RouterEvent<Floor>),
    /// It has learned everything up to here, and this of it is new and not stable yet.
    Learned(Position, Vec<(Position, Ordered)>),
    Member(MemberEvent),
    /// It submitted its next message, of which this is the hash.
    Submitted(u64),
}

impl People {
    /// The process of a new life of `machine`.
    pub(super) fn process(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        machine: usize,
        id: ProcessId,
    ) -> Process {
        if self.members.contains(&machine) {
            let settings = MemberSettings { executes: true, ..MemberSettings::default() };
            // Its first submission makes it a member; it is asked as soon as it runs.
            stage.after(world, Duration::ZERO, Timer::Join(machine));
            let kind = Kind::Member(Box::new(Member::new(id, settings)), None);
            return Process::new(kind, stage.mutation.map(Tamper::new));
        }
        let (paxos, generation) = self.router_log(stage, world, machine, id);
        let settings = RouterSettings { generation, ..self.router_settings.clone() };
        let router = Router::new(paxos, Floor::default(), settings);
        Process::new(Kind::Router(Box::new(router), Position(0)), stage.mutation.map(Tamper::new))
    }

    /// The log of the router that starts on `machine`, from its disk if there is one, and its generation.
    fn router_log(
        &mut self,
        stage: &mut Stage,
        world: &mut World,
        machine: usize,
        id: ProcessId,
    ) -> (Paxos, Generation) {
        let settings = self.router_settings.paxos.clone();
        let me = Peer { id, address: World::address(machine) };
        let records = world.records(machine);
        let recovered = Paxos::recover(me, settings.clone(), records, world.clock(machine));
        if let Some(paxos) = recovered.expect("what was durable follows from itself") {
            world.count("recovered from disk");
            return (paxos, generation(world, machine));
        }
        if self.founder == Some(machine) && !stage.routers.begun() {
            // Nobody has ever heard of the domain.
            stage.routers.found_again();
        }
        if !stage.routers.founded() {
            self.founder = Some(machine);
        }
        // It finds out which generation others belong to before it joins them.
        let known = (0..world.machines()).filter_map(|machine| match kind(world, machine)? {
            Kind::Router(router, _) => Some(router.generation()),
            Kind::Member(..) => None,
        });
        let generation = known.max().unwrap_or_default();
        (stage.routers.start(world, machine, id, settings), generation)
    }
}

impl Process {
    pub(crate) fn new(kind: Kind, tamper: Option<Tamper>) -> Self {
        Process { kind, submitted: 0, tamper }
    }
}

impl Protocol for Process {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Ask;
    type Event = Told;

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
                            // What is sent again was seen before.
                            if number == *submitted + 1 {
                                *submitted = number;
                                out.emit(Told::Submitted(content));
                            }
                        }
                    }
                    match tamper {
                        Some(tamper) => tamper.send(message),
                        None => Some(message),
                    }
                },
                |out, event| {
                    if let Told::Member(event @ MemberEvent::Deliver { .. }) = &event
                        && twice
                    {
                        out.emit(Told::Member(event.clone()));
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
                    Ask::Router(command) => command,
                    Ask::Member(_) => unreachable!("a router is asked as a router"),
                });
                let mut lift = Lift::<Process, _, _>::new::<Router<Rooms>>(
                    out,
                    |_, _, message| Some(message),
                    |_, event| events.push(event),
                );
                router.handle(cx, input, &mut lift);
                // Told at once: when the batch ends, what one router alone agrees on may be done with.
                if router.position() > *told {
                    let learned =
                        router.live_after(*told).map(|(at, ordered)| (at, ordered.clone())).collect();
                    *told = router.position();
                    out.emit(Told::Learned(*told, learned));
                }
                events.into_iter().for_each(|event| out.emit(Told::Router(event)));
            }
            Kind::Member(member, floor) => {
                let mut founder = None;
                let input = input.map(std::convert::identity, |ask| match ask {
                    Ask::Member(command) => command,
                    Ask::Router(_) => unreachable!("a member is asked as a member"),
                });
                let mut lift = Lift::<Process, _, _>::new::<Member>(
                    out,
                    |_, _, message| Some(message),
                    |out, event| {
                        follow(floor, &event);
                        if let MemberEvent::WitnessWanted { founder: asks } = event {
                            founder = Some(asks);
                        }
                        out.emit(Told::Member(event));
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

/// What a delivery makes of the configuration that a member has.
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

/// What the process on `machine` shows to others, also when it has ended.
pub(crate) fn fence(world: &World, machine: usize) -> Option<Fence> {
    Fence::of_pass(&world.pass(machine)?)
}

/// The generation of the domain that the process on `machine` belongs to.
pub(crate) fn generation(world: &World, machine: usize) -> Generation {
    fence(world, machine).map_or(Generation::FIRST, |it| it.generation)
}

/// What the process on `machine` is, while one runs.
pub(crate) fn kind(world: &World, machine: usize) -> Option<&Kind> {
    world.process(machine).map(|process| &process.kind)
}
