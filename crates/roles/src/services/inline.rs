//! A service that its endpoint executes, in the turns of the replica (`turn`).
//!
//! **Promise.** A replica's orders are executed in the turn in which they arise, in their order, and their
//! results are a part of that turn: no other thread is woken.
//!
//! **Attacks considered.**
//!
//! - *Results are longer than the log has room for.* Results of a quarter of a MiB are passed to the replica
//!   before more orders are executed. While the replica holds as many results as it may
//!   ([`Replica::holds_too_much`]), requests wait for a later turn. The log advances by messages, each of
//!   which begins a turn.
//! - *Results come after the end of a batch*, or after records that have become durable. Then the replica
//!   gets the end of a batch once more, so that it proposes the executed requests.
//! - *The service breaks in the middle of a turn.* The endpoint passes on the results so far, and the replica
//!   resigns. The endpoint drops later orders, because the service can no longer execute them.
//! - *The service gets a thread in the middle of a turn.* It gets the thread only in a turn at whose end all
//!   orders were executed and all results were passed on.

use std::collections::VecDeque;

use quorate_protocol::{
    Context, Input,
    service::{self, Replica},
};

use super::{endpoint_host::InlineExecutor, results::ResultBatch};

/// A service that is executed in the turns of its replica.
pub struct Inline<X> {
    pub(super) executor: X,
    pub(super) results: ResultBatch,
    /// Inputs of the current turn; bounded by the results of its orders. The memory is reused by later turns.
    pub(super) inputs: VecDeque<Input<Replica>>,
    /// Orders that were not carried out yet; bounded by the work that the replica has under way.
    pub(super) orders: VecDeque<service::Event>,
    /// Whether the service has failed, so that its state is unknown.
    pub(super) broken: bool,
}

/// The result of a turn, as far as the service must change.
pub(super) enum Upshot {
    Fine,
    /// The service cannot continue, for this reason.
    Broken(String),
    /// The service has to get a thread.
    Long,
}

impl<X: InlineExecutor> Inline<X> {
    /// Makes an inline service with this executor.
    pub fn new(executor: X) -> Inline<X> {
        Inline {
            executor,
            results: ResultBatch::default(),
            inputs: VecDeque::new(),
            orders: VecDeque::new(),
            broken: false,
        }
    }

    /// Returns the executor.
    pub fn executor(&self) -> &X {
        &self.executor
    }

    /// Whether all orders are carried out.
    pub fn is_idle(&self) -> bool {
        self.orders.is_empty()
    }

    pub(super) fn into_executor(self) -> X {
        self.executor
    }

    /// Records a request for a copy of the state.
    pub(super) fn want_copy(&mut self, cx: &mut Context<'_>, receiver: X::Receiver) {
        if !self.broken {
            self.executor.want_copy(receiver);
            self.executor.give_copies(cx);
        }
    }
}

/// Whether an order makes the user's code do more than drop the data for a revert. Only such orders count
/// when the length of batches is measured.
pub(super) fn is_work(order: &service::Event) -> bool {
    matches!(order, service::Event::Execute { .. } | service::Event::Apply { .. })
}

/// Whether an order may wait for a later turn. Such an order adds a result to the results that the replica
/// holds.
pub(super) fn may_wait(order: &service::Event) -> bool {
    matches!(order, service::Event::Execute { .. })
}

/// Whether an event concerns the host rather than the service's code.
pub(super) fn is_news(event: &service::Event) -> bool {
    use service::Event;
    matches!(
        event,
        Event::Leader(_)
            | Event::Serving
            | Event::Members(_)
            | Event::Removed
            | Event::ChangeRefused { .. }
            | Event::Corrupt(_)
            | Event::Resigned
    )
}
