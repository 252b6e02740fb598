//! A process of the world: its protocol, and what its host knows beside.

use std::collections::BTreeSet;

use quorate_protocol::{
    Generation, Input, ProcessId, Protocol, Session, Ticket, Time,
    ecast::{Position, Router},
    rubberband::{Client, Config, Message, Remains, Rubberband, Storage, Super, Task},
};

use crate::cluster::engine::Engine;

#[allow(
    clippy::large_enum_variant,
    reason = "there are few, and whether the lint fires varies with the build"
)]
pub(crate) enum Role {
    Router(Router<Rubberband>),
    Super(Super),
    Storage(Storage, Engine),
    Client(Client),
}

pub(crate) struct Process {
    pub(crate) role: Role,
    pub(super) wanted: BTreeSet<ProcessId>,
    /// Something was handed over since the last drain.
    pub(super) undrained: bool,
    /// What the engine is at, and when it will be done.
    pub(super) tasks: Option<(Time, Vec<Task>)>,
    pub(super) wedged: bool,
    /// What it leaves to its next life.
    pub(super) remains: Option<Box<Remains>>,
    /// It stands still: what is sent to it waits, and nothing falls due.
    pub(crate) paused: bool,
    pub(super) generation: Generation,
    /// How much of a router's history was compared.
    pub(super) compared: Position,
    /// Its last record.
    pub(super) ticket: Ticket,
}

impl Process {
    pub(crate) fn config(&self) -> Option<&Config> {
        match &self.role {
            Role::Router(router) => Some(router.config()),
            Role::Super(it) => it.config(),
            Role::Storage(it, _) => it.config(),
            Role::Client(it) => it.config(),
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        if self.paused {
            return None;
        }
        match &self.role {
            Role::Router(it) => it.deadline(),
            Role::Super(it) => it.deadline(),
            Role::Storage(it, _) => it.deadline(),
            Role::Client(it) => it.deadline(),
        }
    }
}

/// What happens to a process.
pub(crate) enum Happening {
    Receive(ProcessId, Message),
    Deadline,
    Linked(ProcessId, Session),
    Unlinked(ProcessId),
    Drained,
}

impl Happening {
    pub(super) fn input<P: Protocol>(self, unwrap: impl Fn(Message) -> P::Message) -> Input<P> {
        match self {
            Happening::Receive(from, message) => Input::Receive { from, message: unwrap(message) },
            Happening::Deadline => Input::Deadline,
            Happening::Linked(peer, session) => Input::Linked { peer, session },
            Happening::Unlinked(peer) => Input::Unlinked { peer },
            Happening::Drained => Input::Drained,
        }
    }
}
