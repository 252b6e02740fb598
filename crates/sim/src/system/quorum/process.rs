//! A process: a router or a cell, and the adapter that tampers with it.

use std::sync::Arc;

use quorate_protocol::{
    Context, Input, Lift, Policy, Protocol, Sink, Time,
    domain::{self, Domain},
    ecast::{Router, RouterCommand, RouterEvent},
    partial::{
        Record, Resident,
        resident::{Command, Event, Message},
    },
};

use super::tamper::Tamper;

pub(crate) struct Process {
    pub(crate) role: Role,
    tamper: Option<Tamper>,
}

pub(crate) enum Role {
    Router(Box<Router<Domain>>),
    Cell(Box<Resident>),
}

pub(crate) enum QuorumCommand {
    Router(RouterCommand),
    Cell(Command),
}

#[derive(Debug)]
pub(crate) enum QuorumEvent {
    Router(RouterEvent<domain::Config>),
    Cell(Event),
}

impl Process {
    pub(super) fn router(router: Router<Domain>) -> Self {
        Process { role: Role::Router(Box::new(router)), tamper: None }
    }

    pub(super) fn cell(resident: Resident, tamper: Option<Tamper>) -> Self {
        Process { role: Role::Cell(Box::new(resident)), tamper }
    }
}

impl Protocol for Process {
    type Message = Message;
    type Record = Record;
    type Command = QuorumCommand;
    type Event = QuorumEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        let Process { role, tamper } = self;
        match (role, input) {
            // Cells send routers only the messages of the order.
            (Role::Router(_), Input::Receive { message: Message::Cell(_), .. }) => {}
            (Role::Router(router), input) => {
                let order = |message| match message {
                    Message::Order(message) => message,
                    Message::Cell(_) => unreachable!("passed over above"),
                };
                let input = input.map(order, |ask| match ask {
                    QuorumCommand::Router(command) => command,
                    QuorumCommand::Cell(_) => unreachable!("only a router receives the commands of routers"),
                });
                let mut lift = Lift::<Process, _, _>::new::<Router<Domain>>(
                    out,
                    |_, _, message| Some(Message::Order(message)),
                    |out, event| out.emit(QuorumEvent::Router(event)),
                );
                router.handle(cx, input, &mut lift);
            }
            (Role::Cell(resident), Input::Receive { from, message }) => {
                let inputs = match tamper {
                    Some(tamper) => tamper.received(cx, (from, message), resident, out),
                    None => vec![(from, message)],
                };
                for (from, message) in inputs {
                    give(resident, tamper, cx, Input::Receive { from, message }, out);
                }
            }
            (Role::Cell(resident), input) => {
                let input = input.map(std::convert::identity, |ask| match ask {
                    QuorumCommand::Cell(command) => command,
                    QuorumCommand::Router(_) => unreachable!("only a cell receives the commands of cells"),
                });
                give(resident, tamper, cx, input, out);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        match &self.role {
            Role::Router(router) => router.deadline(),
            Role::Cell(resident) => resident.deadline(),
        }
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match &self.role {
            Role::Router(router) => router.policy(),
            Role::Cell(resident) => resident.policy(),
        }
    }
}

fn give(
    resident: &mut Resident,
    tamper: &mut Option<Tamper>,
    cx: &mut Context<'_>,
    input: Input<Resident>,
    out: &mut dyn Sink<Process>,
) {
    let mut lift = Lift::<Process, _, _>::new::<Resident>(
        out,
        |_, _, message| match tamper {
            Some(tamper) => Some(tamper.sent(message)),
            None => Some(message),
        },
        |out, event| out.emit(QuorumEvent::Cell(event)),
    );
    resident.handle(cx, input, &mut lift);
    if let Some(tamper) = tamper {
        tamper.turned(resident);
    }
}
