//! A process of the cluster as production runs it, with an adapter that reports its submissions, and that
//! breaks a rule in some runs.

use std::sync::Arc;

use quorate_protocol::{
    Context, Input, Lift, Policy, ProcessId, Protocol, Sink, Time,
    ecast::{self, Member},
    relay::Wrapper,
    rubberband::{self, Message},
};
use quorate_roles::tables::{Command, Event, Process};

use crate::{
    check::order::submissions,
    endpoint::{RoleNode, node_of},
    mutation::Tamper,
};

/// A process with one endpoint, a role and the relay below it.
pub(crate) type TableProcess = RoleNode<Resident>;

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
pub(crate) fn table_process(role: Process, submitted: u64, tamper: Option<Tamper>) -> TableProcess {
    node_of(Resident { role, submitted, tamper })
}

impl Resident {
    /// Returns the role without its adapter.
    pub(crate) fn role(&self) -> &Process {
        &self.role
    }
}

impl Wrapper for Resident {
    type Inner = Process;

    fn inner(&self) -> &Process {
        &self.role
    }

    fn inner_mut(&mut self) -> &mut Process {
        &mut self.role
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

/// Returns the part of a role that takes part in the order; `None` for a router.
pub(super) fn member(role: &Process) -> Option<&Member> {
    match role {
        Process::Router(_) => None,
        Process::Storage(storage) => Some(storage.member()),
        Process::Super(superior) => Some(superior.member()),
        Process::Client(client) => Some(client.member()),
    }
}
