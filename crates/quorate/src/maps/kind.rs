//! A process of a domain of maps, router or cell, as one protocol.

use std::sync::Arc;

use quorate_protocol::{
    CommandId, Context, Destination, Input, Lift, Peer, Policy, ProcessId, Protocol, Sink, Ticket, Time,
    ecast::{Router, RouterCommand, RouterEvent},
    partial::{
        Maps, Record, Resident, Roster,
        resident::{self, Message},
    },
};

use super::{distances::Distances, status::Status, strategy::Outcome};

/// A router or a cell.
pub enum Kind {
    /// A router, which orders changes.
    Router(Box<Router<Maps>>),
    /// A cell, which keeps keys.
    Cell(Box<Resident>, Distances),
}

/// Commands to a process.
#[derive(Clone, Debug)]
pub enum Command {
    /// Processes that may be routers. It is a hint without an end of its own.
    Seeds(Vec<Peer>),
    /// Asks for the status. Answered by [`Event::Status`].
    Status {
        /// The asker's name for the command.
        token: u64,
    },
    /// Announces that a router is about to stop before a restart. If it leads, another router takes over.
    /// Ends in [`RouterEvent::Ended`]. A cell answers with [`Event::Unserved`].
    Pause {
        /// The asker's name for the command.
        id: CommandId,
    },
    /// A command for a cell. A router answers with [`Event::Unserved`].
    Cell(resident::Command),
    /// The end of a request to a map of another strategy than partial quorums. Passed on as
    /// [`Event::Answered`].
    Answered {
        /// The asker's name for the request.
        id: u64,
        /// The outcome.
        outcome: Box<Outcome>,
    },
}

/// Events of a process.
#[derive(Debug)]
pub enum Event {
    /// The answer to [`Command::Status`].
    Status {
        /// The asker's name for the command.
        token: u64,
        /// The status.
        status: Box<Status>,
    },
    /// An event of a router.
    Router(RouterEvent<Roster>),
    /// An event of a cell.
    Cell(resident::Event),
    /// The end of a request to a map of another strategy.
    Answered {
        /// The asker's name for the request.
        id: u64,
        /// The outcome.
        outcome: Box<Outcome>,
    },
    /// A command for the other kind of process, which was not executed.
    Unserved(Command),
}

impl Protocol for Kind {
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
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
                    Command::Pause { id } => Ok(RouterCommand::Pause { id }),
                    other => Err(Some(other)),
                });
                let input = match own {
                    Ok(input) => input,
                    Err(None) => return router.refuse(),
                    Err(Some(command)) => return out.emit(Event::Unserved(command)),
                };
                let mut lift = Lift::<Kind, _, _>::new::<Router<Maps>>(
                    out,
                    |_, _, message| Some(Message::Order(message)),
                    |out, event| out.emit(Event::Router(event)),
                );
                router.handle(cx, input, &mut lift);
            }
            Kind::Cell(resident, distances) => {
                distances.follow(resident.roster());
                while let Some((to, message, after)) = distances.due(cx.now) {
                    out.send(Destination::One(to), message, after);
                }
                match &input {
                    Input::Deadline if resident.deadline().is_none_or(|due| due > cx.now) => return,
                    Input::Unlinked { peer } => distances.lose(*peer),
                    _ => {}
                }
                let (now, chance) = (cx.now, if distances.has_jitter() { (cx.random)() } else { 0 });
                let own = input.try_map(Ok, |command| match command {
                    Command::Seeds(seeds) => Ok(resident::Command::Seeds(seeds)),
                    Command::Cell(command) => Ok(command),
                    other @ (Command::Status { .. } | Command::Pause { .. } | Command::Answered { .. }) => {
                        Err(other)
                    }
                });
                let input = match own {
                    Ok(input) => input,
                    Err(Command::Answered { id, outcome }) => {
                        return out.emit(Event::Answered { id, outcome });
                    }
                    Err(command) => return out.emit(Event::Unserved(command)),
                };
                resident.handle(cx, input, &mut AtCell { out, distances, now, chance });
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Kind::Router(router) => router.deadline(),
            Kind::Cell(resident, distances) => {
                [resident.deadline(), distances.deadline()].into_iter().flatten().min()
            }
        }
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match self {
            Kind::Router(router) => router.policy(),
            Kind::Cell(resident, _) => resident.policy(),
        }
    }
}

/// The sink of a cell: messages to cells of other sites may leave later.
struct AtCell<'a> {
    out: &'a mut dyn Sink<Kind>,
    distances: &'a mut Distances,
    now: Time,
    chance: u64,
}

impl AtCell<'_> {
    /// Returns the receivers to which a message goes at once, if there are any.
    fn near(&mut self, to: Destination, message: &Message, after: Option<Ticket>) -> Option<Destination> {
        if !self.distances.reach_any() {
            return Some(to);
        }
        let near = self.distances.hold(&to, message, after, self.now, self.chance);
        (!near.is_empty()).then_some(Destination::Many(near))
    }
}

impl Sink<Resident> for AtCell<'_> {
    fn send(&mut self, to: Destination, message: Message, after: Option<Ticket>) {
        if let Some(near) = self.near(to, &message, after) {
            self.out.send(near, message, after);
        }
    }

    fn send_aside(&mut self, to: Destination, message: Message) {
        if let Some(near) = self.near(to, &message, None) {
            self.out.send_aside(near, message);
        }
    }

    fn persist(&mut self, record: Record) -> Ticket {
        self.out.persist(record)
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        self.out.collect(before, kept);
    }

    fn emit(&mut self, event: resident::Event) {
        self.out.emit(Event::Cell(event));
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.out.reach(peer, address);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.out.forget(peer);
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        self.out.adopt(policy);
    }
}
