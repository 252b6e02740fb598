//! A process of the cluster as production runs it, with an adapter that reports its submissions, and that
//! breaks a rule in some runs.

use std::sync::Arc;

use bytes::Bytes;
use quorate_node::{Channel, EndpointId, NewEndpoint, Node, records_of};
use quorate_protocol::{
    Context, DomainId, Input, Lift, Policy, ProcessId, Protocol, Sink, Ticket, Time,
    ecast::{self, Member},
    relay::{self, Relay, Relayed},
    rubberband::{self, Message},
};
use quorate_roles::tables::{Command, Event, Process};
use quorate_world::World;

use crate::{check::order::submissions, mutation::Tamper};

/// A process with one endpoint, a role and the relay below it.
pub(crate) type TableProcess = Node<Relay<Resident>>;

/// A role.
pub(crate) struct Resident {
    role: Process,
    /// Number of submissions that the process has sent.
    submitted: u64,
    tamper: Option<Tamper>,
}

/// The reports about a process.
#[derive(Debug)]
pub(crate) enum TableEvent {
    /// An event of the process itself.
    Process(Event),
    /// The process sent its next submission, with this hash.
    Submitted { me: ProcessId, content: u64 },
}

/// Creates a process that begins, or comes back after `submitted` submissions.
pub(super) fn table_process(role: Process, submitted: u64, tamper: Option<Tamper>) -> TableProcess {
    let resident = Resident { role, submitted, tamper };
    Node::with(NewEndpoint::typed(HERE, Relay::new(resident, relay::Settings::default())).vital())
}

/// The channel of a cluster's roles.
const HERE: Channel = Channel { domain: DomainId(0xc1), endpoint: EndpointId::TABLES };

/// Returns the records of the role among those of its process.
pub(super) fn records_of_role(records: Vec<(Ticket, Bytes)>) -> Vec<(Ticket, Bytes)> {
    records_of(HERE, records).expect("a process can read the records that it wrote")
}

/// Returns the records of the role among those of a router's process, which are all records from the first
/// on.
pub(super) fn log_of_role(records: Vec<Bytes>) -> Vec<Bytes> {
    let records = records.into_iter().zip(1..).map(|(record, ticket)| (Ticket(ticket), record)).collect();
    records_of_role(records).into_iter().map(|(_, record)| record).collect()
}

/// Wraps a command to a role for its process.
pub(super) fn ask(command: Command) -> NodeCommand {
    NodeCommand::Typed(HERE, command)
}

/// A command of a process.
pub(crate) type NodeCommand = quorate_node::Command<Relay<Resident>>;
/// An event of a process.
pub(crate) type NodeEvent = quorate_node::Event<Relay<Resident>>;

impl Relayed for Resident {
    fn is_router(&self) -> bool {
        self.role.is_router()
    }

    fn routers(&self) -> Vec<ProcessId> {
        self.role.routers()
    }
}

impl Protocol for Resident {
    type Message = Message;
    type Record = rubberband::Record;
    type Command = Command;
    type Event = TableEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        let Resident { role, submitted, tamper } = self;
        let me = cx.me;
        let mut slept = Vec::new();
        if let Some(tamper) = tamper {
            slept = tamper.slept(cx.now);
            if let Input::Receive { from, message } = &input {
                tamper.arrive(*from, message);
            }
        }
        let mut lift = Lift::<Resident, _, _>::new::<Process>(
            out,
            |out, to, message| {
                let message = match tamper {
                    Some(tamper) => tamper.leave(to, message)?,
                    None => message,
                };
                if let Message::Order(ecast::Message::Route(block)) = &message {
                    for (number, content) in submissions(block) {
                        // A repeated submission was reported before.
                        if number == *submitted + 1 {
                            *submitted = number;
                            out.emit(TableEvent::Submitted { me, content });
                        }
                    }
                }
                Some(message)
            },
            |out, event| out.emit(TableEvent::Process(event)),
        );
        for now in slept {
            let mut then = Context { now, me: cx.me, random: &mut *cx.random };
            role.handle(&mut then, Input::Deadline, &mut lift);
        }
        let input = input.map(std::convert::identity, std::convert::identity);
        role.handle(cx, input, &mut lift);
    }

    fn deadline(&self) -> Option<Time> {
        self.role.deadline()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.role.policy()
    }
}

/// Returns the role of a process.
pub(super) fn role_of(table_process: &TableProcess) -> Option<&Process> {
    Some(&table_process.typed(HERE)?.inner().role)
}

/// Returns the role of the process that runs on `machine`.
pub(super) fn role(world: &World<TableProcess>, machine: usize) -> Option<&Process> {
    world.process(machine).and_then(role_of)
}

/// Returns the number of relayed links that the process on `machine` has begun.
pub(super) fn roads_begun(world: &World<TableProcess>, machine: usize) -> u64 {
    let relay = world.process(machine).and_then(|table_process| table_process.typed(HERE));
    relay.map_or(0, |relay| relay.counters().begun)
}

/// Returns the part of a role that takes part in the order; `None` for a router.
pub(super) fn member(role: &Process) -> Option<&Member> {
    match role {
        Process::Router(_) => None,
        Process::Storage(storage) => Some(storage.member()),
        Process::Super(superior) => Some(superior.member()),
        Process::Client(client) => Some(client.member()),
    }
}
