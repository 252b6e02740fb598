//! The four kinds of processes of a cluster. A storage process comes with its engine.

use std::{cell::Cell, convert::identity, rc::Rc, sync::Arc};

use quorate_protocol::{
    Context, Duration, Input, Lift, Peer, Policy, Protocol, Sink, Time,
    ecast::{Router, RouterCommand, RouterEvent},
    rubberband::{
        Client, ClientCommand, ClientEvent, Config, Message, Record, Rubberband, Storage, StorageCommand,
        StorageEvent, Super, SuperCommand, SuperEvent, Task,
    },
};

use super::{
    engine::{Engine, shown},
    names::name,
};

pub(crate) enum Role {
    Router(Box<Router<Rubberband>>),
    Super(Box<Super>),
    Storage(Box<Store>),
    Client(Box<Client>),
}

/// Commands to processes of all kinds.
#[derive(Debug)]
pub(crate) enum Asked {
    Reach(Vec<Peer>),
    Router(RouterCommand),
    Super(SuperCommand),
    Storage(StorageCommand),
    Client(ClientCommand),
}

/// Events of processes of all kinds.
pub(crate) enum News {
    Router(RouterEvent<Config>),
    Super(SuperEvent),
    Storage(StorageEvent),
    Client(ClientEvent),
    /// The trace of the engine's work on a batch.
    Engine(String),
    /// A read killed the process.
    Died,
}

impl Role {
    pub(crate) fn router(&self) -> Option<&Router<Rubberband>> {
        match self {
            Role::Router(router) => Some(router),
            _ => None,
        }
    }

    pub(crate) fn store(&self) -> Option<&Store> {
        match self {
            Role::Storage(store) => Some(store),
            _ => None,
        }
    }

    pub(crate) fn config(&self) -> Option<&Config> {
        match self {
            Role::Router(it) => Some(it.config()),
            Role::Super(it) => it.config(),
            Role::Storage(it) => it.storage.config(),
            Role::Client(it) => it.config(),
        }
    }
}

impl Protocol for Role {
    type Message = Message;
    type Record = Record;
    type Command = Asked;
    type Event = News;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        let order = |message| match message {
            Message::Order(message) => message,
            Message::Direct(message) => panic!("a router is sent {message:?}"),
        };
        match (self, input) {
            (_, Input::Command(Asked::Reach(peers))) => {
                peers.iter().for_each(|peer| out.reach(peer.id, &peer.address));
            }
            (Role::Router(it), input) => {
                let input = input.map(order, |asked| match asked {
                    Asked::Router(command) => command,
                    other => panic!("a router is asked {other:?}"),
                });
                within(&mut **it, cx, input, out, Message::Order, |out, event| out.emit(News::Router(event)));
            }
            (Role::Super(it), input) => {
                let input = input.map(identity, |asked| match asked {
                    Asked::Super(command) => command,
                    other => panic!("a super is asked {other:?}"),
                });
                within(&mut **it, cx, input, out, identity, |out, event| out.emit(News::Super(event)));
            }
            (Role::Storage(it), input) => {
                let input = input.map(identity, |asked| match asked {
                    Asked::Storage(command) => command,
                    other => panic!("a storage process is asked {other:?}"),
                });
                it.handle(cx, input, out);
            }
            (Role::Client(it), input) => {
                let input = input.map(identity, |asked| match asked {
                    Asked::Client(command) => command,
                    other => panic!("a client is asked {other:?}"),
                });
                within(&mut **it, cx, input, out, identity, |out, event| out.emit(News::Client(event)));
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Role::Router(it) => it.deadline(),
            Role::Super(it) => it.deadline(),
            Role::Storage(it) => it.storage.deadline().into_iter().chain(it.done()).min(),
            Role::Client(it) => it.deadline(),
        }
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match self {
            Role::Router(it) => it.policy(),
            Role::Super(it) => it.policy(),
            Role::Storage(it) => it.storage.policy(),
            Role::Client(it) => it.policy(),
        }
    }
}

/// Passes an input to a process of one kind.
fn within<C: Protocol<Record: Into<Record>>>(
    kind: &mut C,
    cx: &mut Context<'_>,
    input: Input<C>,
    out: &mut dyn Sink<Role>,
    message: fn(C::Message) -> Message,
    event: impl FnMut(&mut dyn Sink<Role>, C::Event),
) {
    let mut lift = Lift::<Role, _, _>::new::<C>(out, |_, _, sent| Some(message(sent)), event);
    kind.handle(cx, input, &mut lift);
}

/// A storage process and its engine.
pub(crate) struct Store {
    pub(crate) storage: Storage,
    pub(crate) engine: Engine,
    /// Longest time that the engine takes for a batch. `None` if the engine stands still.
    work: Rc<Cell<Option<Duration>>>,
    /// The batch at the engine, and the time of its end.
    tasks: Option<(Time, Vec<Task>)>,
}

impl Store {
    pub(crate) fn new(storage: Storage, engine: Engine, work: Rc<Cell<Option<Duration>>>) -> Store {
        Store { storage, engine, work, tasks: None }
    }

    /// Returns the time at which the engine ends its batch.
    fn done(&self) -> Option<Time> {
        self.work.get().and(self.tasks.as_ref()).map(|(due, _)| *due)
    }

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Storage>, out: &mut dyn Sink<Role>) {
        let now = cx.now;
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let wakes = matches!(input, Input::Deadline);
        if !wakes || is_due(self.storage.deadline()) {
            self.serve(cx, input, out);
        }
        if wakes && is_due(self.done()) {
            self.run(cx, out);
        }
    }

    fn serve(&mut self, cx: &mut Context<'_>, input: Input<Storage>, out: &mut dyn Sink<Role>) {
        let mut events = Vec::new();
        within(&mut self.storage, cx, input, out, identity, |_, event| events.push(event));
        for event in events {
            match event {
                StorageEvent::Execute(tasks) => {
                    let span = self.work.get().unwrap_or_default().as_micros() as u64;
                    let span = if span == 0 { 0 } else { (cx.random)() % span };
                    let before = self.tasks.replace((cx.now + Duration::from_micros(span), tasks));
                    assert!(before.is_none(), "{} is given a batch while at another", name(cx.me));
                }
                StorageEvent::Withdraw { task } => {
                    let (_, tasks) = self.tasks.as_ref().expect("a batch is at the engine");
                    out.emit(News::Engine(format!("@{} is waited for no more", tasks[task].at)));
                }
                event => out.emit(News::Storage(event)),
            }
        }
    }

    /// Runs the engine's batch.
    fn run(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Role>) {
        let (_, tasks) = self.tasks.take().expect("it is done");
        if Engine::dies(&tasks) {
            return out.emit(News::Died);
        }
        let results = self.engine.run_all(&tasks);
        for (task, result) in tasks.iter().zip(&results) {
            out.emit(News::Engine(shown(task, result)));
        }
        self.serve(cx, Input::Command(StorageCommand::Executed(results)), out);
    }
}
