//! One process of a cluster, still pure: its roles wired together.
//!
//! A [`Node`] is a router, a storage process, a super or a client (gateway), as one [`Protocol`]: one message type on
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

use quorate_protocol::{
    Context, Destination, Duration, Generation, Input, NotAdmitted, Peer, ProcessId, Protocol, Sink, Ticket,
    Time,
    ecast::{self, Member, Router, RouterCommand, RouterEvent},
    paxos,
    relay::{Figures, Relayed},
    rubberband::{
        Client, ClientCommand, ClientEvent, Config, Message, Rubberband, Storage, StorageCommand,
        StorageEvent, Super, SuperCommand, SuperEvent,
    },
};

use operate::Operation;
use status::Status;

/// A process in one of its roles.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one per process, and whether the lint fires varies with the build"
)]
pub enum Node {
    /// Orders and routes.
    Router(Router<Rubberband>),
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
    /// Processes that may be routers, to join through.
    Seeds(Vec<Peer>),
    /// Where does it stand? Answered by [`Event::Status`].
    Status {
        /// The asker's name for it.
        token: u64,
    },
    /// Do what an operator asks. Answered by [`Event::Operated`].
    Operate {
        /// The asker's name for it.
        token: u64,
        /// What.
        operation: Operation,
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

/// What a process tells.
#[derive(Clone, Debug)]
pub enum Event {
    /// The answer to [`Command::Status`].
    Status {
        /// The asker's name for it.
        token: u64,
        /// Where it stands.
        status: Box<Status>,
    },
    /// The answer to [`Command::Operate`].
    Operated {
        /// The asker's name for it.
        token: u64,
        /// It was taken on, or why it cannot be.
        taken: Result<(), String>,
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

/// Passes a role's outputs on, its messages and events wrapped.
struct RoleSink<'a, S, M, E> {
    out: &'a mut S,
    message: fn(M) -> Message,
    event: fn(E) -> Event,
}

impl<P, S> Sink<P> for RoleSink<'_, S, P::Message, P::Event>
where
    P: Protocol<Record = paxos::Record>,
    S: Sink<Node>,
{
    fn send(&mut self, to: Destination, message: P::Message, after: Option<Ticket>) {
        self.out.send(to, (self.message)(message), after);
    }

    fn persist(&mut self, record: paxos::Record) -> Ticket {
        self.out.persist(record)
    }

    fn emit(&mut self, event: P::Event) {
        self.out.emit((self.event)(event));
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.out.reach(peer, address);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.out.forget(peer);
    }

    fn enter(&mut self, generation: Generation) {
        self.out.enter(generation);
    }
}

/// The input of a role from the node's: `unwrap` takes its commands.
fn role_input<P: Protocol<Message = Message>>(
    input: Input<Node>,
    unwrap: impl Fn(Command) -> P::Command,
) -> Input<P> {
    match input {
        Input::Receive { from, message } => Input::Receive { from, message },
        Input::Command(command) => Input::Command(unwrap(command)),
        Input::Deadline => Input::Deadline,
        Input::Persisted(ticket) => Input::Persisted(ticket),
        Input::Linked { peer, session } => Input::Linked { peer, session },
        Input::Unlinked { peer } => Input::Unlinked { peer },
        Input::Progress { peer } => Input::Progress { peer },
        Input::Drained => Input::Drained,
    }
}

/// Whether it says why this process is not taken in.
fn is_refusal(input: &Input<Node>) -> bool {
    let Input::Receive { message: Message::Order(message), .. } = input else { return false };
    matches!(
        message,
        ecast::Message::NotAdmitted(_) | ecast::Message::Paxos(paxos::Message::NodeInUse { .. })
    )
}

impl Node {
    /// Why the domain does not take this process in, as it was told last.
    pub fn not_admitted(&self) -> Option<NotAdmitted> {
        match self {
            Node::Router(router) => router.log().namesake().cloned().map(NotAdmitted::NodeInUse),
            Node::Storage(storage) => storage.member().not_admitted().cloned(),
            Node::Super(superior) => superior.member().not_admitted().cloned(),
            Node::Client(client) => client.member().not_admitted().cloned(),
        }
    }
}

impl Protocol for Node {
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
            Input::Command(Command::Operate { token, operation }) => match self.plan(operation) {
                Ok(command) => {
                    out.emit(Event::Operated { token, taken: Ok(()) });
                    Input::Command(command)
                }
                Err(why) => return out.emit(Event::Operated { token, taken: Err(why) }),
            },
            input => input,
        };
        let refused = is_refusal(&input);
        match self {
            Node::Router(router) => {
                let input = match input {
                    Input::Receive { from, message: Message::Order(message) } => {
                        Input::Receive { from, message }
                    }
                    // Only members speak past the routers; to one of them it is a stray message.
                    Input::Receive { message: Message::Direct(_), .. } => return,
                    Input::Command(Command::Router(command)) => Input::Command(command),
                    Input::Command(Command::Seeds(seeds)) => Input::Command(RouterCommand::Seeds(seeds)),
                    Input::Command(command) => panic!("a router was asked for {command:?}"),
                    Input::Deadline => Input::Deadline,
                    Input::Persisted(ticket) => Input::Persisted(ticket),
                    Input::Linked { peer, session } => Input::Linked { peer, session },
                    Input::Unlinked { peer } => Input::Unlinked { peer },
                    Input::Progress { peer } => Input::Progress { peer },
                    Input::Drained => Input::Drained,
                };
                router.handle(
                    cx,
                    input,
                    &mut RoleSink { out, message: Message::Order, event: Event::Router },
                );
            }
            Node::Storage(storage) => {
                let input = role_input(input, |command| match command {
                    Command::Storage(command) => command,
                    Command::Seeds(seeds) => StorageCommand::Seeds(seeds),
                    other => panic!("a storage process was asked for {other:?}"),
                });
                let message = std::convert::identity;
                storage.handle(cx, input, &mut RoleSink { out, message, event: Event::Storage });
            }
            Node::Super(superior) => {
                let input = role_input(input, |command| match command {
                    Command::Super(command) => command,
                    Command::Seeds(seeds) => SuperCommand::Seeds(seeds),
                    other => panic!("a super was asked for {other:?}"),
                });
                let message = std::convert::identity;
                superior.handle(cx, input, &mut RoleSink { out, message, event: Event::Super });
            }
            Node::Client(client) => {
                let input = role_input(input, |command| match command {
                    Command::Client(command) => command,
                    Command::Seeds(seeds) => ClientCommand::Seeds(seeds),
                    other => panic!("a client was asked for {other:?}"),
                });
                let message = std::convert::identity;
                client.handle(cx, input, &mut RoleSink { out, message, event: Event::Client });
            }
        }
        if refused && let Some(why) = self.not_admitted() {
            out.emit(Event::NotAdmitted(why));
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Node::Router(router) => router.deadline(),
            Node::Storage(storage) => storage.deadline(),
            Node::Super(superior) => superior.deadline(),
            Node::Client(client) => client.deadline(),
        }
    }

    fn gathering(&self) -> Duration {
        match self {
            Node::Client(client) => client.gathering(),
            Node::Router(_) | Node::Storage(_) | Node::Super(_) => Duration::ZERO,
        }
    }
}

impl Relayed for Node {
    fn is_router(&self) -> bool {
        matches!(self, Node::Router(_))
    }

    fn routers(&self) -> Vec<ProcessId> {
        let of_member = |member: &Member| (member.leader(), member.routers().collect());
        let (leader, mut routers): (_, Vec<ProcessId>) = match self {
            Node::Router(router) => {
                let log = router.log();
                (log.leader(), log.members().iter().map(|router| router.id).collect())
            }
            Node::Storage(storage) => of_member(storage.member()),
            Node::Super(superior) => of_member(superior.member()),
            Node::Client(client) => of_member(client.member()),
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
