//! A process of any kind, as production runs it. Its messages are the bytes on its links, so processes of
//! several kinds meet at the same routers, as in production.
//!
//! The routers of a domain are processes of tables, whichever parts the domain has.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use quorate_node::JournalEntry;
use quorate_protocol::{
    CommandId, Context, Duration, Input, Lift, Policy, ProcessId, Protocol, Sink, Time,
    domain::{Config, Domain},
    ecast::{Router, RouterCommand, RouterEvent},
    paxos::Change,
    relay::Relay,
    wire::{Wire, WireError},
};
use quorate_roles::tables::{Command, Event, Process as Role};
use quorate_world::Violation;

use crate::{
    endpoint::{RoleNode, ask, role_of, told},
    system::{
        group::process::TamperedMember,
        quorum::process::TamperedCell,
        service::process::{NodeCommand as ServiceCommand, NodeEvent as ServiceEvent, ServiceProcess},
        table::table_process::{TableEvent, TableProcess, table_process},
    },
};

/// A process of any kind.
pub(crate) enum AnyProcess {
    /// A router, or another process of tables.
    Table(Box<TableProcess>),
    Group(Box<RoleNode<TamperedMember>>),
    Maps(Box<RoleNode<TamperedCell>>),
    Service(Box<ServiceProcess>),
}

pub(crate) enum AnyCommand {
    Table(<TableProcess as Protocol>::Command),
    Group(quorate_node::Command<Relay<TamperedMember>>),
    Maps(quorate_node::Command<Relay<TamperedCell>>),
    Service(ServiceCommand),
}

pub(crate) enum AnyEvent {
    Table(<TableProcess as Protocol>::Event),
    Group(quorate_node::Event<Relay<TamperedMember>>),
    Maps(quorate_node::Event<Relay<TamperedCell>>),
    Service(ServiceEvent),
}

impl AnyProcess {
    /// Makes the process of a router that nobody tampers with.
    pub(crate) fn of_router(router: Router<Domain>) -> AnyProcess {
        AnyProcess::Table(Box::new(table_process(Role::Router(router), 0, None)))
    }

    /// Returns the router of the process, if it is one.
    pub(crate) fn router(&self) -> Option<&Router<Domain>> {
        let AnyProcess::Table(process) = self else { return None };
        match role_of(process)?.role() {
            Role::Router(router) => Some(router),
            _ => None,
        }
    }
}

impl AnyCommand {
    /// Wraps a command to a router for its process.
    pub(crate) fn to_router(command: RouterCommand) -> AnyCommand {
        AnyCommand::Table(ask(Command::Router(command)))
    }

    /// Returns the command that makes a router remove another router.
    pub(crate) fn removal(id: CommandId, router: ProcessId) -> AnyCommand {
        AnyCommand::to_router(RouterCommand::Change { id, change: Change::Remove(router) })
    }
}

impl AnyEvent {
    /// Returns the event of the router on `machine`, if this is one.
    pub(crate) fn of_router(self, machine: usize) -> Result<Option<RouterEvent<Config>>, Violation> {
        let AnyEvent::Table(event) = self else { return Ok(None) };
        Ok(match told(machine, event)? {
            Some(TableEvent::Process(Event::Router(event))) => Some(event),
            _ => None,
        })
    }
}

/// The bytes of a message on a link, or of a record.
pub(crate) struct LinkBytes(Bytes);

impl LinkBytes {
    fn of(value: &impl Wire) -> LinkBytes {
        let mut bytes = BytesMut::new();
        value.encode(&mut bytes);
        LinkBytes(bytes.freeze())
    }

    /// Reads a message.
    fn read<M: Wire>(mut self) -> M {
        M::decode(&mut self.0).expect("all nodes have the same envelopes")
    }
}

impl Wire for LinkBytes {
    fn encode(&self, out: &mut BytesMut) {
        out.extend_from_slice(&self.0);
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        Ok(LinkBytes(std::mem::take(input)))
    }
}

impl<R> From<JournalEntry<R>> for LinkBytes
where
    JournalEntry<R>: Wire,
{
    fn from(record: JournalEntry<R>) -> LinkBytes {
        LinkBytes::of(&record)
    }
}

/// Passes an input to a process, and wraps its messages, records and events.
fn run<R: Protocol<Message: Wire, Record: Into<LinkBytes>>>(
    process: &mut R,
    cx: &mut Context<'_>,
    input: Input<AnyProcess>,
    command: fn(AnyCommand) -> Option<R::Command>,
    event: fn(R::Event) -> AnyEvent,
    out: &mut dyn Sink<AnyProcess>,
) {
    let own = |given| command(given).expect("each workload commands its own processes");
    let input = input.map(LinkBytes::read::<R::Message>, own);
    let mut lift = Lift::<AnyProcess, _, _>::new::<R>(
        out,
        |_, _, message| Some(LinkBytes::of(&message)),
        |out, told| out.emit(event(told)),
    );
    process.handle(cx, input, &mut lift);
}

/// Evaluates an expression for the process, whatever its kind is.
macro_rules! each {
    ($any:expr, $process:ident => $what:expr) => {
        match $any {
            AnyProcess::Table($process) => $what,
            AnyProcess::Group($process) => $what,
            AnyProcess::Maps($process) => $what,
            AnyProcess::Service($process) => $what,
        }
    };
}

/// Runs the process, whatever its kind is.
macro_rules! run_each {
    ($any:expr, $cx:ident, $input:ident, $out:ident, $($kind:ident),+) => {
        match $any {
            $(AnyProcess::$kind(process) => {
                let own = |command| if let AnyCommand::$kind(command) = command { Some(command) } else { None };
                run(&mut **process, $cx, $input, own, AnyEvent::$kind, $out);
            })+
        }
    };
}

impl Protocol for AnyProcess {
    type Message = LinkBytes;
    type Record = LinkBytes;
    type Command = AnyCommand;
    type Event = AnyEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        run_each!(self, cx, input, out, Table, Group, Maps, Service);
    }

    fn deadline(&self) -> Option<Time> {
        each!(self, process => process.deadline())
    }

    fn gathering(&self) -> Duration {
        each!(self, process => process.gathering())
    }

    fn policy(&self) -> Arc<dyn Policy> {
        each!(self, process => process.policy())
    }
}
