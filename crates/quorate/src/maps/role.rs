//! A process of a domain of maps in one of its roles, as one protocol.

use std::{convert::identity, sync::Arc};

use quorate_protocol::{
    Context, Input, Lift, Peer, Policy, Protocol, Sink, Time,
    ecast::{Router, RouterCommand, RouterEvent},
    partial::{
        Maps, Resident, Roster,
        resident::{self, Message},
    },
    paxos,
};

use super::status::Status;

/// A router or a cell.
pub enum Role {
    /// Orders changes.
    Router(Box<Router<Maps>>),
    /// Keeps keys.
    Cell(Box<Resident>),
}

/// Commands to a process.
#[derive(Clone, Debug)]
pub enum Command {
    /// Processes that may be routers. Help, which has no end of its own.
    Seeds(Vec<Peer>),
    /// Where does it stand? Answered by [`Event::Status`].
    Status {
        /// The asker's name for it.
        token: u64,
    },
    /// For a cell; to ask a router is a bug of the host.
    Cell(resident::Command),
}

/// Events of a process.
#[derive(Debug)]
pub enum Event {
    /// The answer to [`Command::Status`].
    Status {
        /// The asker's name for it.
        token: u64,
        /// Where it stands.
        status: Box<Status>,
    },
    /// From a router.
    Router(RouterEvent<Roster>),
    /// From a cell.
    Cell(resident::Event),
}

impl Protocol for Role {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut impl Sink<Self>) {
        if let Input::Command(Command::Status { token }) = input {
            let status = Box::new(self.status(cx.me));
            return out.emit(Event::Status { token, status });
        }
        match self {
            Role::Router(router) => {
                // Data never passes a router.
                if let Input::Receive { message: Message::Cell(_), .. } = input {
                    return;
                }
                let message = |message| match message {
                    Message::Order(message) => message,
                    Message::Cell(_) => unreachable!("turned away above"),
                };
                let input = input.map(message, |command| match command {
                    Command::Seeds(seeds) => RouterCommand::Seeds(seeds),
                    other => panic!("a router was asked for {other:?}"),
                });
                let mut lift = Lift::<Role, _, _, _>::new::<Router<Maps>>(
                    out,
                    |_, _, message| Some(Message::Order(message)),
                    |out, event| out.emit(Event::Router(event)),
                );
                router.handle(cx, input, &mut lift);
            }
            Role::Cell(resident) => {
                let input = input.map(identity, |command| match command {
                    Command::Seeds(seeds) => resident::Command::Seeds(seeds),
                    Command::Cell(command) => command,
                    Command::Status { .. } => unreachable!("answered above"),
                });
                let mut lift = Lift::<Role, _, _, _>::new::<Resident>(
                    out,
                    |_, _, message| Some(message),
                    |out, event| out.emit(Event::Cell(event)),
                );
                resident.handle(cx, input, &mut lift);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Role::Router(router) => router.deadline(),
            Role::Cell(resident) => resident.deadline(),
        }
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match self {
            Role::Router(router) => router.policy(),
            Role::Cell(resident) => resident.policy(),
        }
    }
}
