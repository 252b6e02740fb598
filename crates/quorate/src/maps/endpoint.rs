//! A cell as one endpoint: its protocol, and the distances of other sites.

use std::sync::Arc;

use quorate_protocol::{
    Context, Destination, Input, Policy, ProcessId, Protocol, Sink, Ticket, Time,
    partial::{
        Record, Resident,
        resident::{self, Message},
    },
    relay::Wrapper,
};

use super::{distances::Distances, status::Status, strategy::Outcome};

/// A cell, whose messages to other sites may leave later.
pub struct CellEndpoint {
    pub(super) resident: Resident,
    pub(super) distances: Distances,
}

/// Commands to a cell.
#[derive(Clone, Debug)]
pub enum Command {
    /// Asks for the status. Answered by [`Event::Status`].
    Status {
        /// The token that the asker gave the command.
        token: u64,
    },
    /// A command for the process within.
    Resident(resident::Command),
    /// The end of a request to a map whose strategy is not partial quorums. The cell passes it on as
    /// [`Event::Answered`].
    Answered {
        /// The id that the asker gave the request.
        id: u64,
        /// The outcome.
        outcome: Box<Outcome>,
    },
}

/// Events of a cell.
#[derive(Debug)]
pub enum Event {
    /// The answer to [`Command::Status`].
    Status {
        /// The token that the asker gave the command.
        token: u64,
        /// The status.
        status: Box<Status>,
    },
    /// An event of the process within.
    Resident(resident::Event),
    /// The end of a request to a map whose strategy is not partial quorums.
    Answered {
        /// The id that the asker gave the request.
        id: u64,
        /// The outcome.
        outcome: Box<Outcome>,
    },
}

impl CellEndpoint {
    pub(super) fn new(resident: Resident, distances: Distances) -> CellEndpoint {
        CellEndpoint { resident, distances }
    }
}

impl Protocol for CellEndpoint {
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        let own = input.try_map(Ok, |command| match command {
            Command::Resident(command) => Ok(command),
            Command::Status { token } => Err(Event::Status { token, status: Box::new(self.status(cx.me)) }),
            Command::Answered { id, outcome } => Err(Event::Answered { id, outcome }),
        });
        let input = match own {
            Ok(input) => input,
            Err(event) => return out.emit(event),
        };
        let CellEndpoint { resident, distances } = self;
        distances.follow(resident.roster());
        while let Some((to, message, after)) = distances.due(cx.now) {
            out.send(Destination::One(to), message, after);
        }
        match &input {
            Input::Deadline if resident.deadline().is_none_or(|due| due > cx.now) => return,
            Input::Unlinked { peer } => distances.lose(*peer),
            _ => {}
        }
        let (now, chance) = (cx.now, if distances.has_jitter() { (cx.random)() } else { 0 });
        resident.handle(cx, input, &mut AtCell { out, distances, now, chance });
    }

    fn deadline(&self) -> Option<Time> {
        [self.resident.deadline(), self.distances.deadline()].into_iter().flatten().min()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.resident.policy()
    }
}

impl Wrapper for CellEndpoint {
    type Inner = Resident;

    fn inner(&self) -> &Resident {
        &self.resident
    }

    fn inner_mut(&mut self) -> &mut Resident {
        &mut self.resident
    }
}

/// The sink of a cell: messages to cells of other sites may leave later.
struct AtCell<'a> {
    out: &'a mut dyn Sink<CellEndpoint>,
    distances: &'a mut Distances,
    now: Time,
    chance: u64,
}

impl AtCell<'_> {
    /// Returns the receivers to which a message goes at once, if there are any.
    fn near(&mut self, to: Destination, message: &Message, after: Option<Ticket>) -> Option<Destination> {
        if !self.distances.reach_any() {
            return Some(to);
        }
        let near = self.distances.hold(&to, message, after, self.now, self.chance);
        (!near.is_empty()).then_some(Destination::Many(near))
    }
}

impl Sink<Resident> for AtCell<'_> {
    fn send(&mut self, to: Destination, message: Message, after: Option<Ticket>) {
        if let Some(near) = self.near(to, &message, after) {
            self.out.send(near, message, after);
        }
    }

    fn send_aside(&mut self, to: Destination, message: Message) {
        if let Some(near) = self.near(to, &message, None) {
            self.out.send_aside(near, message);
        }
    }

    fn persist(&mut self, record: Record) -> Ticket {
        self.out.persist(record)
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        self.out.collect(before, kept);
    }

    fn emit(&mut self, event: resident::Event) {
        self.out.emit(Event::Resident(event));
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.out.reach(peer, address);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.out.forget(peer);
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        self.out.adopt(policy);
    }
}
