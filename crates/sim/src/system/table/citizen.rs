//! A process of the cluster as production runs it, with somebody at its gate who tells what it submits, and who breaks a
//! rule if asked to.

use std::sync::Arc;

use bytes::Bytes;
use quorate_node::{Channel, EndpointId, Newcomer, Node, records_of};
use quorate_protocol::{
    Context, DomainId, Input, Lift, Policy, ProcessId, Protocol, Sink, Ticket, Time,
    ecast::{self, Member},
    relay::{self, Relay, Relayed},
    rubberband::{self, Message},
};
use quorate_tables::{Command, Event, Process};
use quorate_world::World;

use crate::{check::order::submissions, mutation::Tamper};

/// A process with one endpoint, a role and the relay below it.
pub(crate) type Citizen = Node<Relay<Resident>>;

/// A role.
pub(crate) struct Resident {
    role: Process,
    /// How many of its submissions were seen.
    submitted: u64,
    tamper: Option<Tamper>,
}

/// What is told of it.
#[derive(Debug)]
pub(crate) enum Told {
    /// What it tells itself.
    Process(Event),
    /// It submitted its next message, of which this is the hash.
    Submitted { me: ProcessId, content: u64 },
}

/// A process that begins, or comes back, when so many of its submissions were seen.
pub(super) fn citizen(role: Process, submitted: u64, tamper: Option<Tamper>) -> Citizen {
    let resident = Resident { role, submitted, tamper };
    Node::with(Newcomer::home(HERE, Relay::new(resident, relay::Settings::default())).vital())
}

/// Where the roles of a cluster are.
const HERE: Channel = Channel { domain: DomainId(0xc1), endpoint: EndpointId::TABLES };

/// The records of the role among those of its process.
pub(super) fn records_of_role(records: Vec<(Ticket, Bytes)>) -> Vec<(Ticket, Bytes)> {
    records_of(HERE, records).expect("what a process wrote down can be read")
}

/// The same of a router, which has all from the first on.
pub(super) fn log_of_role(records: Vec<Bytes>) -> Vec<Bytes> {
    let records = records.into_iter().zip(1..).map(|(record, ticket)| (Ticket(ticket), record)).collect();
    records_of_role(records).into_iter().map(|(_, record)| record).collect()
}

/// What a role is asked for, as its process takes it.
pub(super) fn ask(command: Command) -> Ask {
    Ask::Home(HERE, command)
}

/// A command of a process.
pub(crate) type Ask = quorate_node::Command<Relay<Resident>>;
/// An event of a process.
pub(crate) type News = quorate_node::Event<Relay<Resident>>;

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
    type Event = Told;

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
                        // What is sent again was seen before.
                        if number == *submitted + 1 {
                            *submitted = number;
                            out.emit(Told::Submitted { me, content });
                        }
                    }
                }
                Some(message)
            },
            |out, event| out.emit(Told::Process(event)),
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

/// The role of a process.
pub(super) fn role_of(citizen: &Citizen) -> Option<&Process> {
    Some(&citizen.home(HERE)?.inner().role)
}

/// The role of the process on `machine`, while one runs.
pub(super) fn role(world: &World<Citizen>, machine: usize) -> Option<&Process> {
    world.process(machine).and_then(role_of)
}

/// How many relayed links the process on `machine` has begun.
pub(super) fn roads_begun(world: &World<Citizen>, machine: usize) -> u64 {
    let relay = world.process(machine).and_then(|citizen| citizen.home(HERE));
    relay.map_or(0, |relay| relay.figures().begun)
}

/// The end of the order in a process that is a member.
pub(super) fn member(role: &Process) -> Option<&Member> {
    match role {
        Process::Router(_) => None,
        Process::Storage(storage) => Some(storage.member()),
        Process::Super(superior) => Some(superior.member()),
        Process::Client(client) => Some(client.member()),
    }
}
