//! The roles of a cluster of tables, wired to the scan engine, still pure.
//!
//! A [`Role`] is a router, a storage process, a super or a client (gateway), as one [`Protocol`]: one message type on
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
    domain::{Config, Domain},
    ecast::{self, Member, Router, RouterCommand, RouterEvent},
    paxos,
    relay::{Figures, Relayed},
    rubberband::{
        Client, ClientCommand, ClientEvent, Message, Storage, StorageCommand, StorageEvent, Super,
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
pub enum Role {
    /// Orders and routes.
    Router(Router<Domain>),
    /// Holds ranges and executes.
    Storage(Storage),
    /// Watches and reconfigures.
    Super(Super),
    /// Submits for users.
    Client(Client),
}

/// What a process may be asked. A command for another role is a bug of the host.
#[derive(Clone, Debug)]
pub enum Command {
    /// Processes that may be routers, to join through. Help, which has no end of its own.
    Seeds(Vec<Peer>),
    /// Where does it stand? Answered by [`Event::Status`].
    Status {
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
    /// The answer to [`Command::Operate`] and [`Command::Leave`].
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
}

/// Has a role handle an input; its messages and events leave wrapped.
fn run<R: Protocol<Record = paxos::Record>>(
    role: &mut R,
    cx: &mut Context<'_>,
    input: Input<R>,
    message: fn(R::Message) -> Message,
    event: fn(R::Event) -> Event,
    out: &mut impl Sink<Role>,
) {
    let mut lift =
        Lift::<Role, _, _, _>::new::<R>(out, |_, _, it| Some(message(it)), |out, it| out.emit(event(it)));
    role.handle(cx, input, &mut lift);
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
fn is_refusal(input: &Input<Role>) -> bool {
    let Input::Receive { message: Message::Order(message), .. } = input else { return false };
    matches!(
        message,
        ecast::Message::NotAdmitted(_) | ecast::Message::Paxos(paxos::Message::NodeInUse { .. })
    )
}

impl Role {
    /// The generation of the domain that it belongs to.
    pub fn generation(&self) -> Generation {
        match self {
            Role::Router(router) => router.generation(),
            Role::Storage(storage) => storage.member().generation(),
            Role::Super(superior) => superior.member().generation(),
            Role::Client(client) => client.member().generation(),
        }
    }

    /// Why the domain does not take this process in, as it was told last.
    pub fn not_admitted(&self) -> Option<NotAdmitted> {
        match self {
            Role::Router(router) => router.log().namesake().cloned().map(NotAdmitted::NodeInUse),
            Role::Storage(storage) => storage.member().not_admitted().cloned(),
            Role::Super(superior) => superior.member().not_admitted().cloned(),
            Role::Client(client) => client.member().not_admitted().cloned(),
        }
    }
}

impl Protocol for Role {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut impl Sink<Self>) {
        if let Input::Command(Command::Status { token }) = input {
            let status = Box::new(self.status(cx.me));
            out.emit(Event::Status { token, status });
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
            input => input,
        };
        let refused = is_refusal(&input);
        match self {
            Role::Router(router) => {
                // Only members speak past the routers; to one of them it is a stray message.
                if let Input::Receive { message: Message::Direct(_), .. } = input {
                    return;
                }
                let message = |message| match message {
                    Message::Order(message) => message,
                    Message::Direct(_) => unreachable!("turned away above"),
                };
                let input = input.map(message, |command| match command {
                    Command::Router(command) => command,
                    Command::Seeds(seeds) => RouterCommand::Seeds(seeds),
                    other => panic!("a router was asked for {other:?}"),
                });
                run(router, cx, input, Message::Order, of_router, out);
            }
            Role::Storage(storage) => {
                let input = input.map(identity, |command| match command {
                    Command::Storage(command) => command,
                    Command::Seeds(seeds) => StorageCommand::Seeds(seeds),
                    other => panic!("a storage process was asked for {other:?}"),
                });
                run(storage, cx, input, identity, of_storage, out);
            }
            Role::Super(superior) => {
                let input = input.map(identity, |command| match command {
                    Command::Super(command) => command,
                    Command::Seeds(seeds) => SuperCommand::Seeds(seeds),
                    other => panic!("a super was asked for {other:?}"),
                });
                run(superior, cx, input, identity, of_super, out);
            }
            Role::Client(client) => {
                let input = input.map(identity, |command| match command {
                    Command::Client(command) => command,
                    Command::Seeds(seeds) => ClientCommand::Seeds(seeds),
                    other => panic!("a client was asked for {other:?}"),
                });
                run(client, cx, input, identity, of_client, out);
            }
        }
        if refused && let Some(why) = self.not_admitted() {
            out.emit(Event::NotAdmitted(why));
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Role::Router(router) => router.deadline(),
            Role::Storage(storage) => storage.deadline(),
            Role::Super(superior) => superior.deadline(),
            Role::Client(client) => client.deadline(),
        }
    }

    fn gathering(&self) -> Duration {
        match self {
            Role::Client(client) => client.gathering(),
            Role::Router(_) | Role::Storage(_) | Role::Super(_) => Duration::ZERO,
        }
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match self {
            Role::Router(router) => router.policy(),
            Role::Storage(storage) => storage.policy(),
            Role::Super(superior) => superior.policy(),
            Role::Client(client) => client.policy(),
        }
    }
}

impl Relayed for Role {
    fn is_router(&self) -> bool {
        matches!(self, Role::Router(_))
    }

    fn routers(&self) -> Vec<ProcessId> {
        let of_member = |member: &Member| (member.leader(), member.routers().collect());
        let (leader, mut routers): (_, Vec<ProcessId>) = match self {
            Role::Router(router) => {
                let log = router.log();
                (log.leader(), log.members().iter().map(|router| router.id).collect())
            }
            Role::Storage(storage) => of_member(storage.member()),
            Role::Super(superior) => of_member(superior.member()),
            Role::Client(client) => of_member(client.member()),
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
