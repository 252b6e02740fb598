//! A process of the cluster as production runs it, with somebody at its gate who tells what it submits, and who breaks a
//! rule if asked to.

use quorate_protocol::{
    Context, Generation, Input, Lift, ProcessId, Protocol, Sink, Time,
    ecast::{self, Member},
    paxos,
    relay::{self, Relay, Relayed},
    rubberband::Message,
};
use quorate_tables::{Command, Event, Node};
use quorate_world::World;

use crate::{check::order::submissions, mutation::Tamper};

/// A process, and the links below it.
pub(crate) type Citizen = Relay<Resident>;

/// A process.
pub(crate) struct Resident {
    node: Node,
    /// How many of its submissions were seen.
    submitted: u64,
    tamper: Option<Tamper>,
}

/// What is told of it.
#[derive(Debug)]
pub(crate) enum Told {
    /// What it tells itself.
    Node(Event),
    /// It submitted its next message, of which this is the hash.
    Submitted(u64),
}

/// A process that begins.
pub(super) fn citizen(node: Node, tamper: Option<Tamper>) -> Citizen {
    let resident = Resident { node, submitted: 0, tamper };
    Relay::new(resident, Generation::FIRST, relay::Settings::default())
}

impl Resident {
    pub(super) fn node(&self) -> &Node {
        &self.node
    }
}

impl Relayed for Resident {
    fn is_router(&self) -> bool {
        self.node.is_router()
    }

    fn routers(&self) -> Vec<ProcessId> {
        self.node.routers()
    }
}

impl Protocol for Resident {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Command;
    type Event = Told;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut impl Sink<Self>) {
        let Resident { node, submitted, tamper } = self;
        let mut slept = Vec::new();
        if let Some(tamper) = tamper {
            slept = tamper.slept(cx.now);
            if let Input::Receive { from, message } = &input {
                tamper.arrive(*from, message);
            }
        }
        let mut lift = Lift::<Resident, _, _, _>::new::<Node>(
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
                            out.emit(Told::Submitted(content));
                        }
                    }
                }
                Some(message)
            },
            |out, event| out.emit(Told::Node(event)),
        );
        for now in slept {
            let mut then = Context { now, me: cx.me, random: &mut *cx.random };
            node.handle(&mut then, Input::Deadline, &mut lift);
        }
        let input = input.map(std::convert::identity, std::convert::identity);
        node.handle(cx, input, &mut lift);
    }

    fn deadline(&self) -> Option<Time> {
        self.node.deadline()
    }
}

/// The process on `machine`, while one runs.
pub(super) fn node(world: &World<Citizen>, machine: usize) -> Option<&Node> {
    world.process(machine).map(|citizen| &citizen.inner().node)
}

/// The end of the order in a process that is a member.
pub(super) fn member(node: &Node) -> Option<&Member> {
    match node {
        Node::Router(_) => None,
        Node::Storage(storage) => Some(storage.member()),
        Node::Super(superior) => Some(superior.member()),
        Node::Client(client) => Some(client.member()),
    }
}
