//! A process: a router or a member, and what tampers with it.

use quorate_protocol::{
    Context, Input, Peer, Protocol, Sink, Time,
    ecast::{Member, MemberCommand, MemberEvent, Message, Router, RouterCommand, RouterEvent},
    paxos,
};

use crate::{
    mutation::Tamper,
    system::{
        Within, child,
        rooms::{Floor, Rooms},
    },
    world::World,
};

/// A process, and what tampers with it.
pub(crate) struct Process {
    pub(super) role: Role,
    pub(super) tamper: Option<Tamper>,
}

/// The roles.
pub(crate) enum Role {
    Router(Box<Router<Rooms>>),
    Member { member: Box<Member>, seeds: Vec<Peer> },
}

pub(crate) enum Ask {
    Router(RouterCommand),
    Member(MemberCommand),
    /// Routers to look for.
    Seeds(Vec<Peer>),
}

#[derive(Debug)]
pub(crate) enum Told {
    Router(RouterEvent<Floor>),
    Member(MemberEvent),
}

impl Protocol for Process {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Ask;
    type Event = Told;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut impl Sink<Self>) {
        let Some(tamper) = &mut self.tamper else { return self.role.handle(cx, input, out) };
        let inputs = match input {
            Input::Receive { from, message } => {
                let messages = tamper.receive(cx.random, from, message);
                messages.into_iter().map(|(from, message)| Input::Receive { from, message }).collect()
            }
            other => vec![other],
        };
        let twice = tamper.delivers_twice();
        for input in inputs {
            let mut within = Within::<Process, _, _, _>::new::<Process>(
                out,
                |_, _, message| tamper.send(message),
                |out, event| {
                    if let Told::Member(event @ MemberEvent::Deliver { .. }) = &event
                        && twice
                    {
                        out.emit(Told::Member(event.clone()));
                    }
                    out.emit(event);
                },
            );
            self.role.handle(cx, input, &mut within);
        }
    }

    fn deadline(&self) -> Option<Time> {
        match &self.role {
            Role::Router(router) => router.deadline(),
            Role::Member { member, .. } => member.deadline(),
        }
    }
}

impl Role {
    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Process>, out: &mut impl Sink<Process>) {
        match self {
            Role::Router(router) => {
                let input = child(input, |ask| match ask {
                    Ask::Router(command) => command,
                    Ask::Member(_) | Ask::Seeds(_) => unreachable!("a router is asked as a router"),
                });
                let mut within = Within::<Process, _, _, _>::new::<Router<Rooms>>(
                    out,
                    |_, _, message| Some(message),
                    |out, event| out.emit(Told::Router(event)),
                );
                router.handle(cx, input, &mut within);
            }
            Role::Member { member, seeds } => {
                if let Input::Command(Ask::Seeds(more)) = input {
                    more.iter().for_each(|seed| out.reach(seed.id, &seed.address));
                    return;
                }
                for seed in seeds.drain(..) {
                    out.reach(seed.id, &seed.address);
                }
                let input = child(input, |ask| match ask {
                    Ask::Member(command) => command,
                    Ask::Router(_) | Ask::Seeds(_) => unreachable!("a member is asked as a member"),
                });
                let mut within = Within::<Process, _, _, _>::new::<Member>(
                    out,
                    |_, _, message| Some(message),
                    |out, event| out.emit(Told::Member(event)),
                );
                member.handle(cx, input, &mut within);
            }
        }
    }
}

/// The role of the process on `machine`, while one runs.
pub(super) fn role(world: &World<Process>, machine: usize) -> Option<&Role> {
    world.process(machine).map(|process| &process.role)
}
