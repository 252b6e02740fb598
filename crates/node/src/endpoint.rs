//! Endpoints: protocols of any type, in the form in which their node can hold them.

use std::{any::Any, sync::Arc};

use bytes::BytesMut;
use quorate_protocol::{
    Context, Destination, Duration, Input, MulticastAddress, Policy, ProcessId, Protocol, Sink, Ticket, Time,
    wire::{Wire, WireError},
};

use crate::channel::Encoded;

/// A command or an event of some protocol.
pub type Payload = Box<dyn Any + Send>;

/// A protocol with untyped values: messages and records are bytes, commands and events are boxed. No value of
/// this type exists; it names the types that an [`Endpoint`] exchanges with its node.
#[derive(Clone, Copy, Debug)]
pub enum Opaque {}

impl Protocol for Opaque {
    type Message = Encoded;
    type Record = Encoded;
    type Command = Payload;
    type Event = Payload;

    fn handle(&mut self, _: &mut Context<'_>, _: Input<Self>, _: &mut dyn Sink<Self>) {
        match *self {}
    }

    fn deadline(&self) -> Option<Time> {
        match *self {}
    }
}

/// A protocol of any type that can be added to a node at run time. [`Dynamic`] turns a [`Protocol`] into an
/// endpoint.
pub trait Endpoint: Send {
    /// Handles an input like [`Protocol::handle`]. An error means that the message did not decode, so the
    /// endpoint did nothing.
    fn handle(
        &mut self,
        cx: &mut Context<'_>,
        input: Input<Opaque>,
        out: &mut dyn Sink<Opaque>,
    ) -> Result<(), WireError>;

    /// Returns the endpoint's deadline, like [`Protocol::deadline`].
    fn deadline(&self) -> Option<Time>;

    /// Returns the time for which input may gather, like [`Protocol::gathering`].
    fn gathering(&self) -> Duration;

    /// Returns the policy, like [`Protocol::policy`].
    fn policy(&self) -> Arc<dyn Policy>;
}

/// Wraps a protocol as an [`Endpoint`]. A command of a wrong type is a bug of the host, and ends the
/// endpoint.
pub struct Dynamic<P>(pub P);

impl<P> Endpoint for Dynamic<P>
where
    P: Protocol + Send,
    P::Message: Wire,
    P::Command: 'static,
    P::Event: Send + 'static,
{
    fn handle(
        &mut self,
        cx: &mut Context<'_>,
        input: Input<Opaque>,
        out: &mut dyn Sink<Opaque>,
    ) -> Result<(), WireError> {
        let message = match input {
            Input::Receive { from, message } => Input::Receive { from, message: message.decode_as()? },
            Input::Cast { from, message } => Input::Cast { from, message: message.decode_as()? },
            other => other.map(|_| unreachable!("messages are decoded above"), own_command::<P>),
        };
        self.0.handle(cx, message, &mut EncodingSink(out));
        Ok(())
    }

    fn deadline(&self) -> Option<Time> {
        self.0.deadline()
    }

    fn gathering(&self) -> Duration {
        self.0.gathering()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.0.policy()
    }
}

fn own_command<P: Protocol<Command: 'static>>(command: Payload) -> P::Command {
    *command.downcast().expect("a host gives an endpoint commands of its own")
}

/// The sink of a protocol in a [`Dynamic`]: it encodes and boxes the outputs.
struct EncodingSink<'a>(&'a mut dyn Sink<Opaque>);

impl<P> Sink<P> for EncodingSink<'_>
where
    P: Protocol,
    P::Message: Wire,
    P::Event: Send + 'static,
{
    fn send(&mut self, to: Destination, message: P::Message, after: Option<Ticket>) {
        self.0.send(to, Encoded::of(&message), after);
    }

    fn send_aside(&mut self, to: Destination, message: P::Message) {
        self.0.send_aside(to, Encoded::of(&message));
    }

    fn cast(&mut self, to: Destination, message: P::Message) {
        self.0.cast(to, Encoded::of(&message));
    }

    fn multicast(&mut self, address: MulticastAddress, to: Vec<ProcessId>, message: P::Message) {
        self.0.multicast(address, to, Encoded::of(&message));
    }

    fn listen(&mut self, address: MulticastAddress) {
        self.0.listen(address);
    }

    fn ignore(&mut self, address: MulticastAddress) {
        self.0.ignore(address);
    }

    fn persist(&mut self, record: P::Record) -> Ticket {
        let mut bytes = BytesMut::new();
        record.encode(&mut bytes);
        self.0.persist(Encoded { head: bytes.freeze(), payload: None })
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        self.0.collect(before, kept);
    }

    fn emit(&mut self, event: P::Event) {
        self.0.emit(Box::new(event));
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.0.reach(peer, address);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.0.forget(peer);
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        self.0.adopt(policy);
    }
}

pub(super) enum EndpointKind<H> {
    /// The protocol of a typed endpoint. Boxed, because otherwise the slot of a dynamic endpoint would be as
    /// large as the largest typed endpoint.
    Typed(Box<H>),
    Dynamic(Box<dyn Endpoint>),
}
