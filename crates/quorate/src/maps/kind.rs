//! A process of a domain of maps, of either kind, as one protocol.

use std::sync::Arc;

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
pub enum Kind {
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
    /// For a cell; a router answers with [`Event::Unserved`].
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
    /// This command is for the other kind, and was not done.
    Unserved(Command),
}

impl Protocol for Kind {
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
            Kind::Router(router) => {
                // Data never passes a router.
                let message = |message| match message {
                    Message::Order(message) => Ok(message),
                    Message::Cell(_) => Err(None),
                };
                let own = input.try_map(message, |command| match command {
                    Command::Seeds(seeds) => Ok(RouterCommand::Seeds(seeds)),
                    other => Err(Some(other)),
                });
                let input = match own {
                    Ok(input) => input,
                    Err(None) => return router.refuse(),
                    Err(Some(command)) => return out.emit(Event::Unserved(command)),
                };
                let mut lift = Lift::<Kind, _, _, _>::new::<Router<Maps>>(
                    out,
                    |_, _, message| Some(Message::Order(message)),
                    |out, event| out.emit(Event::Router(event)),
                );
                router.handle(cx, input, &mut lift);
            }
            Kind::Cell(resident) => {
                let own = input.try_map(Ok, |command| match command {
                    Command::Seeds(seeds) => Ok(resident::Command::Seeds(seeds)),
                    Command::Cell(command) => Ok(command),
                    other @ Command::Status { .. } => Err(other),
                });
                let input = match own {
                    Ok(input) => input,
                    Err(command) => return out.emit(Event::Unserved(command)),
                };
                let mut lift = Lift::<Kind, _, _, _>::new::<Resident>(
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
            Kind::Router(router) => router.deadline(),
            Kind::Cell(resident) => resident.deadline(),
        }
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match self {
            Kind::Router(router) => router.policy(),
            Kind::Cell(resident) => resident.policy(),
        }
    }
}
