//! The roles of a cluster of tables, wired to the scan engine, still pure.
//!
//! A [`Process`] is a router, a storage process, a super or a client (gateway), as one [`Protocol`]: one message type on
//! every link, one command and event type for whoever hosts it. The same value runs in the simulator and in the real
//! runtime.
//!
//! | module | promise |
//! |---|---|
//! | [`storage`] | a storage process's tasks, done on an engine |
//! | [`gateway`] | operations become requests with ranges, parts become answers |
//! | [`health`] | whether a process can do its work |
//! | [`operate`] | what an operator may ask beyond what processes do by themselves |
//! | [`rows`] | rows of an answer, read where they lie |
//! | [`status`] | where a process stands, for people |

pub mod gateway;
pub mod health;
pub mod operate;
pub mod rows;
pub mod status;
pub mod storage;

use std::{convert::identity, sync::Arc};

use quorate_protocol::{
    CommandId, Context, Duration, Generation, Input, Lift, NotAdmitted, Peer, Policy, ProcessId, Protocol,
    Sink, Time,
    domain::{Config, Domain, Shared},
    ecast::{self, Member, Router, RouterCommand, RouterEvent},
    group::Roster,
    paxos,
    relay::{Figures, Relayed},
    rubberband::{
        Client, ClientCommand, ClientEvent, Message, Record, Storage, StorageCommand, StorageEvent, Super,
        SuperCommand, SuperEvent,
    },
};

use operate::Operation;
use status::Status;

/// A process in one of its roles.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one per process, and whether the lint fires varies with the build"
)]
pub enum Process {
    /// Orders and routes.
    Router(Router<Domain>),
    /// Holds ranges and executes.
    Storage(Storage),
    /// Watches and reconfigures.
    Super(Super),
    /// Submits for users.
    Client(Client),
}

/// What a process may be asked. One in another role than the command's answers with [`Event::Unserved`].
#[derive(Clone, Debug)]
pub enum Command {
    /// Processes that may be routers, to join through. Help, which has no end of its own.
    Seeds(Vec<Peer>),
    /// Where does it stand? Answered by [`Event::Status`].
    Status {
        /// The asker's name for it.
        token: u64,
    },
    /// Tell which process groups there are. Answered by [`Event::Groups`]. For a router.
    Groups {
        /// The asker's name for it.
        token: u64,
    },
    /// Do what an operator asks. Answered by [`Event::Operated`].
    Operate {
        /// The asker's name for it.
        id: CommandId,
        /// What.
        operation: Operation,
    },
    /// Leave the cluster. Answered by [`Event::Operated`] once the process is out, or will not be.
    Leave {
        /// The asker's name for it.
        id: CommandId,
    },
    /// Have it stop for a moment, so that nobody waits for it. Answered by [`Event::Operated`] once it may stop, or with the reason
    /// why others will notice.
    Pause {
        /// The asker's name for it.
        id: CommandId,
    },
    /// For a router.
    Router(RouterCommand),
    /// For a storage process.
    Storage(StorageCommand),
    /// For a super.
    Super(SuperCommand),
    /// For a client.
    Client(ClientCommand),
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
    /// The answer to [`Command::Groups`].
    Groups {
        /// The asker's name for it.
        token: u64,
        /// The groups at the last position that the router knows of.
        roster: Shared<Roster>,
    },
    /// The answer to [`Command::Operate`], [`Command::Leave`] and [`Command::Pause`].
    Operated {
        /// The asker's name for it.
        id: CommandId,
        /// It has come about, or why it does not.
        result: Result<(), String>,
    },
    /// From a router.
    Router(RouterEvent<Config>),
    /// From a storage process.
    Storage(StorageEvent),
    /// From a super.
    Super(SuperEvent),
    /// From a client.
    Client(ClientEvent),
    /// The domain does not take this process in, and says why. Told again as long as the process tries.
    NotAdmitted(NotAdmitted),
    /// This command is of another role, and was not done.
    Unserved(Command),
}

/// An input that the process's role does not understand.
enum Astray {
    Message,
    Command(Box<Command>),
}

/// Has a role handle an input; its messages and events leave wrapped.
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

/// The same for a role that takes all messages as they are.
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

/// Whether it says why this process is not taken in.
fn is_refusal(input: &Input<Process>) -> bool {
    let Input::Receive { message: Message::Order(message), .. } = input else { return false };
    matches!(
        message,
        ecast::Message::NotAdmitted(_) | ecast::Message::Paxos(paxos::Message::NodeInUse { .. })
    )
}

impl Process {
    /// The generation of the domain that it belongs to.
    pub fn generation(&self) -> Generation {
        match self {
            Process::Router(router) => router.generation(),
            Process::Storage(storage) => storage.member().generation(),
            Process::Super(superior) => superior.member().generation(),
            Process::Client(client) => client.member().generation(),
        }
    }

    /// Why the domain does not take this process in, as it was told last.
    pub fn not_admitted(&self) -> Option<NotAdmitted> {
        match self {
            Process::Router(router) => router.log().namesake().cloned().map(NotAdmitted::NodeInUse),
            Process::Storage(storage) => storage.member().not_admitted().cloned(),
            Process::Super(superior) => superior.member().not_admitted().cloned(),
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
                // Only members speak past the routers.
                let message = |message| match message {
                    Message::Order(message) => Ok(message),
                    Message::Direct(_) => Err(Astray::Message),
                };
                let own = input.try_map(message, |command| match command {
                    Command::Router(command) => Ok(command),
                    Command::Seeds(seeds) => Ok(RouterCommand::Seeds(seeds)),
                    other => Err(Astray::Command(Box::new(other))),
                });
                match own {
                    Ok(input) => run(router, cx, input, Message::Order, of_router, out),
                    Err(Astray::Message) => router.refuse(),
                    Err(Astray::Command(command)) => out.emit(Event::Unserved(*command)),
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
            Process::Super(superior) => {
                let own = input.try_map(Ok, |command| match command {
                    Command::Super(command) => Ok(command),
                    Command::Seeds(seeds) => Ok(SuperCommand::Seeds(seeds)),
                    other => Err(Box::new(other)),
                });
                serve(superior, cx, own, of_super, out);
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
            Process::Super(superior) => superior.deadline(),
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
            Process::Super(superior) => superior.policy(),
            Process::Client(client) => client.policy(),
        }
    }
}

impl Relayed for Process {
    fn is_router(&self) -> bool {
        matches!(self, Process::Router(_))
    }

    fn routers(&self) -> Vec<ProcessId> {
        let of_member = |member: &Member| (member.leader(), member.routers().collect());
        let (leader, mut routers): (_, Vec<ProcessId>) = match self {
            Process::Router(router) => {
                let log = router.log();
                (log.leader(), log.members().iter().map(|router| router.id).collect())
            }
            Process::Storage(storage) => of_member(storage.member()),
            Process::Super(superior) => of_member(superior.member()),
            Process::Client(client) => of_member(client.member()),
        };
        // The leader has enough to do.
        routers.sort_by_key(|router| (Some(*router) == leader, *router));
        routers
    }

    fn figure(event: &mut Event, figures: Figures) {
        if let Event::Status { status, .. } = event {
            status.relay(figures);
        }
    }
}
