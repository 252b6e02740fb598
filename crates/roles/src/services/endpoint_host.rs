//! The parts of an endpoint that its host supplies.

use quorate_protocol::{
    Context, Peer, ProcessId,
    service::{Command, Event},
};

use super::executor::Broken;

/// A host of endpoints of services: the production host, or the simulator.
pub trait EndpointHost: Sized + 'static {
    /// Executes a service in the turns of its replica.
    type Executor: InlineExecutor;
    /// Holds back a thread that executes a service.
    type Latch: ResultLatch;
    /// Knows the replicas to which a redirect directs callers.
    type Successor: Successor;
}

/// The user's code, executed in the turns of its replica. A batch consists of the orders that are executed
/// together in one turn.
pub trait InlineExecutor {
    /// A receiver of a copy of the state.
    type Receiver;

    /// Begins a batch.
    fn begin_batch(&mut self);

    /// Carries out an order. Calls `put` with the answer, if the order has one.
    fn perform(
        &mut self,
        cx: &mut Context<'_>,
        order: Event,
        put: &mut dyn FnMut(Command),
    ) -> Result<(), Broken>;

    /// Ends a batch in which the user's code worked on `orders` orders. Returns whether the batches take so
    /// long that the service must get a thread.
    fn end_batch(&mut self, orders: u32) -> bool;

    /// Records a request for a copy of the state.
    fn want_copy(&mut self, receiver: Self::Receiver);

    /// Gives the requested copies that contain no revertible change to their receivers.
    fn give_copies(&mut self, cx: &mut Context<'_>);
}

/// The replica's control over the thread that executes its service.
pub trait ResultLatch: Default {
    /// The channel through which results come from the thread.
    type Passage;

    /// Records `passage`, the channel through which results come from the thread.
    fn hold(&mut self, passage: &Self::Passage);

    /// Closes the channel if `is_shut`, because the replica holds as many results as it may. Otherwise opens
    /// it.
    fn set(&mut self, is_shut: bool);
}

/// The process that continues a replica's work.
pub trait Successor {
    /// Returns the leader, if the successor knows it, and the replicas that the successor knows.
    fn replicas(&self) -> (Option<ProcessId>, Vec<Peer>);
}
