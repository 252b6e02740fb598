//! A router or a member of its order, as one protocol: for hosts that carry both kinds of process.
//!
//! A member may exchange further messages with other members, so the station has the member's message type.
//! A router refuses all but the messages of the order.

use std::sync::Arc;

use super::{Message, Router, RouterCommand, RouterEvent, Routing};
use crate::{
    paxos,
    seam::{Context, Input, Lift, Policy, Protocol, Sink},
    time::{Duration, Time},
};

/// A process of a domain.
pub enum Station<R: Routing, M> {
    /// A process that orders messages.
    Router(Box<Router<R>>),
    /// A process that submits messages and gets deliveries: a [`Member`](super::Member), or a protocol with
    /// one in it.
    Member(Box<M>),
}

/// A command to a process of the same kind. The command's owner knows the kind.
#[derive(Clone, Debug)]
pub enum StationCommand<C> {
    /// A command to a router.
    Router(RouterCommand),
    /// A command to a member.
    Member(C),
}

/// An event of a process.
#[derive(Debug)]
pub enum StationEvent<F, E> {
    /// An event of a router.
    Router(RouterEvent<F>),
    /// An event of a member.
    Member(E),
}

/// A message type of members, which includes the messages of the order.
pub trait OrderCarrier {
    /// Wraps a message of the order.
    fn of_order(message: Message) -> Self;

    /// Returns the message of the order, `None` if this is a message between members.
    fn into_order(self) -> Option<Message>;
}

impl OrderCarrier for Message {
    fn of_order(message: Message) -> Self {
        message
    }

    fn into_order(self) -> Option<Message> {
        Some(self)
    }
}

impl<R, M> Protocol for Station<R, M>
where
    R: Routing,
    M: Protocol<Message: OrderCarrier, Record: From<paxos::Record>>,
{
    type Message = M::Message;
    type Record = M::Record;
    type Command = StationCommand<M::Command>;
    type Event = StationEvent<R::Config, M::Event>;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match self {
            Station::Router(router) => {
                let own = input.try_map(
                    |message| message.into_order().ok_or(()),
                    |command| match command {
                        StationCommand::Router(command) => Ok(command),
                        StationCommand::Member(_) => panic!("a router got a command of a member"),
                    },
                );
                let Ok(own) = own else { return router.refuse() };
                let mut lift = Lift::<Self, _, _>::new::<Router<R>>(
                    out,
                    |_, _, message| Some(M::Message::of_order(message)),
                    |out, event| out.emit(StationEvent::Router(event)),
                );
                router.handle(cx, own, &mut lift);
            }
            Station::Member(member) => {
                let own = input.map(std::convert::identity, |command| match command {
                    StationCommand::Member(command) => command,
                    StationCommand::Router(_) => panic!("a member got a command of a router"),
                });
                let mut lift = Lift::<Self, _, _>::new::<M>(
                    out,
                    |_, _, message| Some(message),
                    |out, event| out.emit(StationEvent::Member(event)),
                );
                member.handle(cx, own, &mut lift);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Station::Router(router) => router.deadline(),
            Station::Member(member) => member.deadline(),
        }
    }

    fn gathering(&self) -> Duration {
        match self {
            Station::Router(router) => router.gathering(),
            Station::Member(member) => member.gathering(),
        }
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match self {
            Station::Router(router) => router.policy(),
            Station::Member(member) => member.policy(),
        }
    }
}
