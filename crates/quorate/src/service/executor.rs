//! The user's code, on its own thread: it takes orders of the replica, and returns results.
//!
//! The protocol thread passes the orders of a turn as one batch, and the executor executes them in order.
//! Results leave in batches, too, but no result waits for a slow request ([`Outlet`]).
//!
//! A short service ([`Service::SHORT`]) has no such thread: the endpoint executes its orders itself, in the
//! turn in which they arise (`inline`). The thread and the endpoint both drive the service as a
//! [`Performer`].
//!
//! [`quorate_roles::services::Executor`] keeps the records of a replica (work, undo, commit, revert,
//! checkpoints). It calls the user's code through [`ServiceObject`].
//!
//! **Failures.** If the user's code leaves an unknown state, this replica ends, and gives the reason. A
//! leader first rejects the request, whose change was never proposed, so that the request does not end the
//! next leader in the same way. Then the replica resigns ([`service::Command::Resign`]), which delivers the
//! rejection.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender};
use quorate_node::panic_message;
use quorate_protocol::service::{self, Event};
use quorate_roles::services::{Broken, Executor, Exported, Restoring, ResultBatch, Work};

use super::{Carries, Cx, Executed, Service, object::ServiceObject};

/// Counters and gauges that an executor shows to other threads.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Approximate size of the waiting orders, in bytes.
    pub(super) backlog: AtomicUsize,
    /// The number of the last work (an execution or a commit) that the replica ordered.
    pub(super) ordered: AtomicU64,
    /// The number of the last work that the replica ordered in a reign that is over. The executor may skip
    /// works up to this number that it has not executed, because an order to revert follows them.
    pub(super) void: AtomicU64,
    /// Number of changes that the state contains.
    pub(super) changes: AtomicU64,
    /// Number of checkpoints of other replicas that replaced the state.
    pub(super) restored: AtomicU64,
}

impl Tally {
    /// Notes an order of the replica in these figures.
    pub(super) fn note(&self, order: &Event) {
        match order {
            Event::Execute { work, .. } | Event::Commit { work, .. } => {
                self.ordered.store(*work, Ordering::Relaxed);
            }
            Event::Revert => self.void.store(self.ordered.load(Ordering::Relaxed), Ordering::Relaxed),
            _ => {}
        }
    }
}

/// An order to an executor's thread.
pub(super) enum ExecutorOrder {
    /// Orders of the replica, from one turn.
    Turn(Vec<Event>),
    /// The host's request for a copy of the state.
    Copy(Sender<Exported>),
}

/// The receiver of an executor's results.
pub(super) trait Outlet: Send + Sync {
    /// Takes results in order. Returns `false` if the receiver takes no more results.
    fn results(&self, results: Vec<service::Command>) -> bool;
    /// Makes the replica resign, because it cannot continue.
    fn broken(&self, why: String);
}

/// A thread body that executes the orders of a replica.
pub(super) trait Runner: Send {
    /// Executes orders until all senders of the channel are dropped.
    fn run(self: Box<Self>, orders: Receiver<ExecutorOrder>, outlet: Arc<dyn Outlet>);
}

/// A runner that also executes orders one by one.
pub(super) trait Performer: Runner {
    /// Executes an order.
    fn perform(&mut self, order: Event, put: &mut dyn FnMut(service::Command)) -> Result<(), Broken>;

    /// Notes a request for a copy of the state.
    fn want_copy(&mut self, wanted: Sender<Exported>);

    /// Answers the requests for a copy of the state, if the state holds no change that may still be reverted.
    /// A runner calls this function after it has executed orders.
    fn give_copies(&mut self);
}

/// A service with its executor, driven by a thread.
pub(super) struct ServiceExecutor<S: Service> {
    pub(super) object: ServiceObject<S>,
    /// The books of the replica. Its copies of the state are bounded by the exports that the program awaits.
    pub(super) executor: Executor<S::Undo, Sender<Exported>>,
    tally: Arc<Tally>,
}

impl<S: Service> Performer for ServiceExecutor<S> {
    fn perform(&mut self, order: Event, put: &mut dyn FnMut(service::Command)) -> Result<(), Broken> {
        if self.is_void(&order) {
            return Ok(());
        }
        let ServiceExecutor { object, executor, .. } = self;
        let performed = catch_unwind(AssertUnwindSafe(|| executor.perform(object, order, put)));
        self.show();
        performed.unwrap_or_else(|panic| {
            Err(Broken(format!("the service's executor panicked: {}", panic_message(&*panic))))
        })
    }

    fn want_copy(&mut self, wanted: Sender<Exported>) {
        self.executor.want_copy(wanted);
    }

    fn give_copies(&mut self) {
        // The send fails if the caller has stopped waiting for the copy. That does no harm.
        self.executor.give_copies(&mut self.object, |wanted, copy| drop(wanted.send(copy)));
    }
}

impl<S: Service> Runner for ServiceExecutor<S> {
    fn run(mut self: Box<Self>, orders: Receiver<ExecutorOrder>, outlet: Arc<dyn Outlet>) {
        let mut results = Results::default();
        for order in orders {
            if !self.carry_out(order, &mut results, &*outlet, Self::perform) {
                return;
            }
        }
    }
}

impl<S: Service> ServiceExecutor<S> {
    /// Makes an executor of a service in its first state. The service may complete requests in any order.
    pub(super) fn new(
        object: ServiceObject<S>,
        restoring: Restoring,
        tally: Arc<Tally>,
        any_order: bool,
    ) -> Self {
        let executor = Executor::new(restoring, S::CARRIES == Carries::State, any_order);
        ServiceExecutor { object, executor, tally }
    }

    /// Executes an order on a thread, and passes the results on. Returns `false` if the thread should execute
    /// no further order.
    pub(super) fn carry_out(
        &mut self,
        order: ExecutorOrder,
        results: &mut Results,
        outlet: &dyn Outlet,
        mut perform: impl FnMut(&mut Self, Event, &mut dyn FnMut(service::Command)) -> Result<(), Broken>,
    ) -> bool {
        let batch = match order {
            ExecutorOrder::Turn(batch) => batch,
            ExecutorOrder::Copy(wanted) => {
                self.want_copy(wanted);
                Vec::new()
            }
        };
        for event in batch {
            let bytes = weight(&event);
            let performed = perform(self, event, &mut |result| results.put(result));
            self.tally.backlog.fetch_sub(bytes, Ordering::Relaxed);
            if let Err(Broken(why)) = performed {
                results.leave(outlet);
                outlet.broken(why);
                return false;
            }
            if results.are_due() && !results.leave(outlet) {
                return false;
            }
        }
        self.give_copies();
        results.leave(outlet)
    }

    /// Whether a reign that is over gave this order, so that an order to revert follows it.
    fn is_void(&self, order: &Event) -> bool {
        let (Event::Execute { work, .. } | Event::Commit { work, .. }) = order else { return false };
        *work <= self.tally.void.load(Ordering::Relaxed)
    }

    /// Completes a request with the result that `find` returns.
    pub(super) fn complete(
        &mut self,
        work: Work,
        results: &mut Results,
        find: impl FnOnce(&S, &mut Cx<'_>) -> Executed<S>,
    ) -> Result<(), Broken> {
        let ServiceExecutor { object, executor, .. } = self;
        let found = object.complete(None, work.read, find);
        let completed = executor.complete(object, work, found, &mut |result| results.put(result));
        self.show();
        completed
    }

    /// Shows the executor's counters to other threads.
    fn show(&self) {
        self.tally.changes.store(self.executor.changes(), Ordering::Relaxed);
        self.tally.restored.store(self.executor.restored(), Ordering::Relaxed);
    }
}

/// Results that wait to leave together.
#[derive(Default)]
pub(super) struct Results {
    batch: ResultBatch,
    /// Time at which the first of these results was added.
    since: Option<Instant>,
}

impl Results {
    pub(super) fn put(&mut self, result: service::Command) {
        self.batch.put(result);
        self.since.get_or_insert_with(Instant::now);
    }

    /// Whether the results should leave now, without waiting for the rest of the batch.
    fn are_due(&self) -> bool {
        let late = self.since.is_some_and(|since| since.elapsed() > RESULTS_PAUSE);
        late || self.batch.len() >= RESULTS_MAX || self.batch.is_long()
    }

    pub(super) fn leave(&mut self, outlet: &dyn Outlet) -> bool {
        self.since = None;
        let results = self.batch.take();
        results.is_empty() || outlet.results(results)
    }
}

/// Bounds at which results leave: their number, and the age of the first result.
const RESULTS_MAX: usize = 256;
const RESULTS_PAUSE: Duration = Duration::from_micros(100);

/// Returns the approximate size of an order, in bytes.
pub(super) fn weight(event: &Event) -> usize {
    let bytes = match event {
        Event::Execute { request, .. } => request.len(),
        Event::Apply { changes, .. } => changes.iter().map(|change| change.len() + ORDER_BYTES).sum(),
        Event::RestorePart { bytes, .. } => bytes.len(),
        _ => 0,
    };
    ORDER_BYTES + bytes
}

const ORDER_BYTES: usize = 64;

#[cfg(test)]
mod tests;
