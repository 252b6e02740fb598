//! The parts of an endpoint that its host brings along.

use quorate_protocol::{
    Context, Peer, ProcessId,
    service::{Command, Event},
};

use super::executor::Broken;

/// A host of endpoints of services: production, or the simulator.
pub trait EndpointHost: Sized + 'static {
    /// Executes a service in the turns of its replica.
    type Executor: InlineExecutor;
    /// Holds back a thread that executes a service.
    type Latch: ResultLatch;
    /// Knows the replicas to which a redirect directs callers.
    type Successor: Successor;
}

/// The user's code in the turns of its replica. A batch is a number of orders in one turn.
pub trait InlineExecutor {
    /// A receiver of a copy of the state.
    type Receiver;

    /// Begins a batch.
    fn begin_batch(&mut self);

    /// Carries out an order, and puts the answer, if the order has one.
    fn perform(
        &mut self,
        cx: &mut Context<'_>,
        order: Event,
        put: &mut dyn FnMut(Command),
    ) -> Result<(), Broken>;

    /// Ends a batch in which the user's code worked for `orders` orders. Returns whether the batches take so
    /// long that the service must get a thread.
    fn end_batch(&mut self, orders: u32) -> bool;

    /// Notes a request for a copy of the state.
    fn want_copy(&mut self, receiver: Self::Receiver);

    /// Gives the copies of the state that hold no revertible change.
    fn give_copies(&mut self, cx: &mut Context<'_>);
}

/// The replica's control of the thread that executes its service.
pub trait ResultLatch: Default {
    /// Results on their way from the thread.
    type Passage;

    /// Notes the way on which results come.
    fn hold(&mut self, passage: &Self::Passage);

    /// Shuts the way while the replica holds as many results as it may.
    fn set(&mut self, is_shut: bool);
}

/// The process that replaced a replica.
pub trait Successor {
    /// Returns the leader, if the successor knows one, and the replicas that it knows.
    fn replicas(&self) -> (Option<ProcessId>, Vec<Peer>);
}
