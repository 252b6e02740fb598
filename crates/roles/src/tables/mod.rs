//! The roles of a cluster of tables, connected to the scan engine, without input and output of their own. The
//! roles need no engine by themselves: only the feature `engine` adds it.
//!
//! A [`Process`] is a router, a storage process, a super or a client (gateway), as one [`Protocol`]. All
//! links carry one message type, and the host uses one command type and one event type. The simulator and the
//! real runtime run the same value.
//!
//! | module | promise |
//! |---|---|
//! | `storage` | executes a storage process's tasks on an engine |
//! | `gateway` | makes requests with ranges from operations, and answers from parts of replies |
//! | [`health`] | checks whether a process can do its work |
//! | [`operate`] | commands of an operator, for decisions that processes do not take themselves |
//! | `rows` | reads the rows of an answer without copying them |
//! | [`status`] | the status of a process, for people |
//!
//! **One role for each member.** A process of the operating system that stores rows and serves SQL is two
//! members: a storage process and a gateway. Each member has a node number, a thread and links of its own.
//! The two die together, but each is suspected on its own. A single member would need only one thread and
//! one set of links. But then one queue would carry the messages of both, and a circle of waits could
//! close. A statement of the gateway that finds no room among the member's messages under way must wait;
//! the storage half must meanwhile send the verdicts and completions by which that room becomes free.

#[cfg(feature = "engine")]
pub mod gateway;
pub mod health;
mod observe;
pub mod operate;
mod perform;
#[cfg(feature = "engine")]
pub mod rows;
pub mod status;
#[cfg(feature = "engine")]
pub mod storage;

use std::{convert::identity, sync::Arc};

use quorate_protocol::{
    CommandId, Context, Duration, Generation, Input, Lift, NotAdmitted, Peer, Policy, ProcessId, Protocol,
    Sink, Time,
    domain::{Config, Domain, Shared},
    ecast::{self, OrderCarrier, Router, RouterCommand, RouterEvent},
    group::Roster,
    paxos,
    relay::{Counters, Relayed, leader_last},
    rubberband::{
        Client, ClientCommand, ClientEvent, Message, Record, Storage, StorageCommand, StorageEvent, Super,
        SuperCommand, SuperEvent,
    },
};

use operate::AdminOperation;
use status::Status;

/// A process in one of its roles.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one per process, and whether the lint fires varies with the build"
)]
pub enum Process {
    /// Orders and routes messages.
    Router(Router<Domain>),
    /// Holds ranges of rows and executes operations.
    Storage(Storage),
    /// Watches processes and plans the placement.
    Super(Super),
    /// Submits operations for users.
    Client(Client),
}

/// A command to a process. If the command is for another role than the process has, the answer is
/// [`Event::Unserved`].
#[derive(Clone, Debug)]
pub enum Command {
    /// Join through these processes, which may be routers. This command has no answer.
    Seeds(Vec<Peer>),
    /// Report the status. Answered by [`Event::Status`].
    Status {
        /// The token that the caller gave the request.
        token: u64,
    },
    /// List the process groups. Answered by [`Event::Groups`]. For a router.
    Groups {
        /// The token that the caller gave the request.
        token: u64,
    },
    /// Carry out an operation of an operator. Answered by [`Event::Operated`].
    Operate {
        /// The caller's name for the request.
        id: CommandId,
        /// The operation.
        operation: AdminOperation,
    },
    /// Leave the cluster. Answered by [`Event::Operated`] when the process has left, or cannot leave.
    Leave {
        /// The caller's name for the request.
        id: CommandId,
    },
    /// Prepare a short stop, so that no other process waits for this process meanwhile. Answered by
    /// [`Event::Operated`] when the process may stop, or with the reason why other processes will notice the
    /// stop.
    Pause {
        /// The caller's name for the request.
        id: CommandId,
    },
    /// A command for a router.
    Router(RouterCommand),
    /// A command for a storage process.
    Storage(StorageCommand),
    /// A command for a super.
    Super(SuperCommand),
    /// A command for a client.
    Client(ClientCommand),
}

/// Events of a process.
#[derive(Debug)]
pub enum Event {
    /// The answer to [`Command::Status`].
    Status {
        /// The token that the caller gave the request.
        token: u64,
        /// The status.
        status: Box<Status>,
    },
    /// The answer to [`Command::Groups`].
    Groups {
        /// The token that the caller gave the request.
        token: u64,
        /// The groups at the last position that the router knows.
        roster: Shared<Roster>,
    },
    /// The answer to [`Command::Operate`], [`Command::Leave`] and [`Command::Pause`].
    Operated {
        /// The caller's name for the request.
        id: CommandId,
        /// Success, or the reason for the failure.
        result: Result<(), String>,
    },
    /// An event of a router.
    Router(RouterEvent<Config>),
    /// An event of a storage process.
    Storage(StorageEvent),
    /// An event of a super.
    Super(SuperEvent),
    /// An event of a client.
    Client(ClientEvent),
    /// The domain refuses this process, for this reason. Emitted again with each refusal, as long as the
    /// process tries to join.
    NotAdmitted(NotAdmitted),
    /// The command is for another role, and was not carried out.
    Unserved(Command),
}

/// An input that the process's role does not accept.
enum Misdirected {
    Message,
    Command(Box<Command>),
}

/// Passes an input to a role, and wraps the role's messages and events.
fn run<R: Protocol<Record: Into<Record>>>(
    role: &mut R,
    cx: &mut Context<'_>,
    input: Input<R>,
    message: fn(R::Message) -> Message,
    event: fn(R::Event) -> Event,
    out: &mut dyn Sink<Process>,
) {
    let mut lift =
        Lift::<Process, _, _>::new::<R>(out, |_, _, it| Some(message(it)), |out, it| out.emit(event(it)));
    role.handle(cx, input, &mut lift);
}

/// Runs a role that accepts all messages. Reports a command that is for another role.
fn serve<R: Protocol<Message = Message, Record = Record>>(
    role: &mut R,
    cx: &mut Context<'_>,
    input: Result<Input<R>, Box<Command>>,
    event: fn(R::Event) -> Event,
    out: &mut dyn Sink<Process>,
) {
    match input {
        Ok(input) => run(role, cx, input, identity, event, out),
        Err(command) => out.emit(Event::Unserved(*command)),
    }
}

fn of_router(event: RouterEvent<Config>) -> Event {
    match event {
        RouterEvent::Ended { id, result } => ended(id, result),
        event => Event::Router(event),
    }
}

fn of_storage(event: StorageEvent) -> Event {
    match event {
        StorageEvent::Left { id, result } => ended(id, result),
        StorageEvent::Paused { id, result } => ended(id, result),
        event => Event::Storage(event),
    }
}

fn of_client(event: ClientEvent) -> Event {
    match event {
        ClientEvent::Left { id, result } => ended(id, result),
        event => Event::Client(event),
    }
}

fn of_super(event: SuperEvent) -> Event {
    match event {
        SuperEvent::Ended { id, result } => ended(id, result),
        event => Event::Super(event),
    }
}

fn ended(id: CommandId, result: Result<(), impl ToString>) -> Event {
    Event::Operated { id, result: result.map_err(|refusal| refusal.to_string()) }
}

/// Whether the input is a router's refusal to admit this process.
fn is_refusal(input: &Input<Process>) -> bool {
    let Input::Receive { message: Message::Order(message), .. } = input else { return false };
    matches!(
        message,
        ecast::Message::NotAdmitted(_) | ecast::Message::Paxos(paxos::Message::NodeInUse { .. })
    )
}

impl Process {
    /// Returns the generation of the process's domain.
    pub fn generation(&self) -> Generation {
        match self {
            Process::Router(router) => router.generation(),
            Process::Storage(storage) => storage.member().generation(),
            Process::Super(super_process) => super_process.member().generation(),
            Process::Client(client) => client.member().generation(),
        }
    }

    /// Returns the latest reason why the domain refuses this process. `None` if the domain does not refuse
    /// it.
    pub fn not_admitted(&self) -> Option<NotAdmitted> {
        match self {
            Process::Router(router) => router.log().namesake().cloned().map(NotAdmitted::NodeInUse),
            Process::Storage(storage) => storage.member().not_admitted().cloned(),
            Process::Super(super_process) => super_process.member().not_admitted().cloned(),
            Process::Client(client) => client.member().not_admitted().cloned(),
        }
    }
}

impl Protocol for Process {
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        if let Input::Command(Command::Status { token }) = input {
            let status = Box::new(self.status(cx.me));
            out.emit(Event::Status { token, status });
            return;
        }
        if let Input::Command(Command::Groups { token }) = input {
            out.emit(match self {
                Process::Router(router) => Event::Groups { token, roster: router.config().groups.clone() },
                _ => Event::Unserved(Command::Groups { token }),
            });
            return;
        }
        let input = match input {
            Input::Command(Command::Operate { id, operation }) => match self.plan(id, operation) {
                Ok(command) => Input::Command(command),
                Err(why) => return out.emit(Event::Operated { id, result: Err(why) }),
            },
            Input::Command(Command::Leave { id }) => match self.leave(id) {
                Ok(command) => Input::Command(command),
                Err(why) => return out.emit(Event::Operated { id, result: Err(why) }),
            },
            Input::Command(Command::Pause { id }) => Input::Command(self.pause(id)),
            input => input,
        };
        let refused = is_refusal(&input);
        match self {
            Process::Router(router) => {
                // Direct messages are exchanged between members only.
                let message = |message: Message| message.into_order().ok_or(Misdirected::Message);
                let own = input.try_map(message, |command| match command {
                    Command::Router(command) => Ok(command),
                    Command::Seeds(seeds) => Ok(RouterCommand::Seeds(seeds)),
                    other => Err(Misdirected::Command(Box::new(other))),
                });
                match own {
                    Ok(input) => run(router, cx, input, Message::Order, of_router, out),
                    Err(Misdirected::Message) => router.refuse(),
                    Err(Misdirected::Command(command)) => out.emit(Event::Unserved(*command)),
                }
            }
            Process::Storage(storage) => {
                let own = input.try_map(Ok, |command| match command {
                    Command::Storage(command) => Ok(command),
                    Command::Seeds(seeds) => Ok(StorageCommand::Seeds(seeds)),
                    other => Err(Box::new(other)),
                });
                serve(storage, cx, own, of_storage, out);
            }
            Process::Super(super_process) => {
                let own = input.try_map(Ok, |command| match command {
                    Command::Super(command) => Ok(command),
                    Command::Seeds(seeds) => Ok(SuperCommand::Seeds(seeds)),
                    other => Err(Box::new(other)),
                });
                serve(super_process, cx, own, of_super, out);
            }
            Process::Client(client) => {
                let own = input.try_map(Ok, |command| match command {
                    Command::Client(command) => Ok(command),
                    Command::Seeds(seeds) => Ok(ClientCommand::Seeds(seeds)),
                    other => Err(Box::new(other)),
                });
                serve(client, cx, own, of_client, out);
            }
        }
        if refused && let Some(why) = self.not_admitted() {
            out.emit(Event::NotAdmitted(why));
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Process::Router(router) => router.deadline(),
            Process::Storage(storage) => storage.deadline(),
            Process::Super(super_process) => super_process.deadline(),
            Process::Client(client) => client.deadline(),
        }
    }

    fn gathering(&self) -> Duration {
        match self {
            Process::Client(client) => client.gathering(),
            Process::Router(_) | Process::Storage(_) | Process::Super(_) => Duration::ZERO,
        }
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match self {
            Process::Router(router) => router.policy(),
            Process::Storage(storage) => storage.policy(),
            Process::Super(super_process) => super_process.policy(),
            Process::Client(client) => client.policy(),
        }
    }
}

impl Relayed for Process {
    fn is_router(&self) -> bool {
        matches!(self, Process::Router(_))
    }

    fn routers(&self) -> Vec<ProcessId> {
        match self {
            Process::Router(router) => {
                let log = router.log();
                leader_last(log.members().iter().map(|router| router.id), log.leader())
            }
            Process::Storage(storage) => storage.member().relays(),
            Process::Super(super_process) => super_process.member().relays(),
            Process::Client(client) => client.member().relays(),
        }
    }

    fn add_counters(event: &mut Event, counters: Counters) {
        if let Event::Status { status, .. } = event {
            status.relay(counters);
        }
    }
}
