//! What can be simulated: processes, their workload, and the checkers that watch them.
//!
//! | module | |
//! |---|---|
//! | [`paxos`] | routers and their log, nothing else |
//! | [`ecast`] | routers, and members that talk in rooms through them |
//! | [`table`] | a whole cluster, as production runs it |
//! | `routers` | what all of them know of their routers from outside |
//! | `order` | the order, judged by the predicates of correct routing; with a twin for each routing |

pub mod ecast;
mod order;
pub mod paxos;
mod rooms;
mod routers;
pub mod table;

pub(crate) use order::NUMBER_AT;

use std::{collections::BTreeMap, marker::PhantomData};

use quorate_protocol::{Destination, Generation, Input, ProcessId, Protocol, Sink, Ticket, wire::Wire};

use crate::world::World;

/// What a process hands on to the protocol inside it.
pub(crate) fn child<P, C>(input: Input<P>, command: impl FnOnce(P::Command) -> C::Command) -> Input<C>
where
    P: Protocol,
    C: Protocol<Message = P::Message>,
{
    match input {
        Input::Receive { from, message } => Input::Receive { from, message },
        Input::Command(ask) => Input::Command(command(ask)),
        Input::Deadline => Input::Deadline,
        Input::Persisted(ticket) => Input::Persisted(ticket),
        Input::Linked { peer, session } => Input::Linked { peer, session },
        Input::Unlinked { peer } => Input::Unlinked { peer },
        Input::Progress { peer } => Input::Progress { peer },
        Input::Drained => Input::Drained,
    }
}

/// Hands what the protocol inside a process puts out to the sink of the process `P`.
pub(crate) struct Within<'a, P, S, M, E> {
    out: &'a mut S,
    /// What leaves instead of a message.
    message: M,
    /// What becomes of an event.
    event: E,
    process: PhantomData<P>,
}

impl<'a, P: Protocol, S: Sink<P>, M, E> Within<'a, P, S, M, E> {
    pub(crate) fn new<C: Protocol>(out: &'a mut S, message: M, event: E) -> Self
    where
        M: FnMut(&mut S, &Destination, C::Message) -> Option<P::Message>,
        E: FnMut(&mut S, C::Event),
    {
        Within { out, message, event, process: PhantomData }
    }
}

impl<P, C, S, M, E> Sink<C> for Within<'_, P, S, M, E>
where
    P: Protocol,
    C: Protocol<Record = P::Record>,
    S: Sink<P>,
    M: FnMut(&mut S, &Destination, C::Message) -> Option<P::Message>,
    E: FnMut(&mut S, C::Event),
{
    fn send(&mut self, to: Destination, message: C::Message, after: Option<Ticket>) {
        if let Some(message) = (self.message)(self.out, &to, message) {
            self.out.send(to, message, after);
        }
    }

    fn persist(&mut self, record: C::Record) -> Ticket {
        self.out.persist(record)
    }

    fn emit(&mut self, event: C::Event) {
        (self.event)(self.out, event);
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

/// What was last seen of each machine, to tell what has happened since.
#[derive(Default)]
pub(crate) struct Signs(BTreeMap<usize, Sign>);

#[derive(Default)]
struct Sign {
    life: u64,
    resends: u64,
    starved: bool,
}

impl Signs {
    /// The process on `machine` has sent again so often, and is out of credits, or not: `again` is counted when that grew,
    /// and exhaustion when it began.
    pub(crate) fn note<P: Protocol>(
        &mut self,
        world: &mut World<P>,
        machine: usize,
        (again, resends): (&'static str, u64),
        starved: bool,
    ) where
        P::Message: Wire,
    {
        let life = world.life(machine);
        let sign = self.0.entry(machine).or_default();
        if sign.life != life {
            *sign = Sign { life, ..Sign::default() };
        }
        if resends > sign.resends {
            world.count(again);
        }
        if starved && !sign.starved {
            world.count("credits exhausted");
        }
        (sign.resends, sign.starved) = (resends, starved);
    }
}
