//! A service that its endpoint executes, in the turns of the replica (`turn`).
//!
//! **Promise.** A replica's orders are executed in the turn in which they arise, in their order, and their
//! results are a part of that turn: no other thread is woken.
//!
//! **Attacks considered.**
//!
//! - *Results are longer than the log has room for.* Results of a quarter of a MiB go to the replica before
//!   more is executed. While the replica holds as many results as it may ([`Replica::holds_too_much`]),
//!   requests wait for a later turn. The log goes on by messages, which are turns.
//! - *Results follow the end of a batch*, or records that become complete after it. Then the end is given
//!   again, so that the executed requests are proposed.
//! - *The service breaks in the middle of a turn.* Its results are passed on, the replica resigns, and later
//!   orders are dropped, like those for a thread that has ended.
//! - *The service gets a thread in the middle of a turn.* All earlier orders were executed, and all results
//!   were passed on.

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
    /// Inputs of the present turn; bounded by the results of its orders. The memory is reused.
    pub(super) inputs: VecDeque<Input<Replica>>,
    /// Orders that are not carried out; bounded by what the replica has under way.
    pub(super) orders: VecDeque<service::Event>,
    /// Whether the service's state is unknown.
    pub(super) broken: bool,
}

/// The result of a turn.
pub(super) enum Upshot {
    Fine,
    /// The service cannot continue, for this reason.
    Broken(String),
    /// The service has to get a thread.
    Long,
}

impl<X: InlineExecutor> Inline<X> {
    /// Makes a service that this executor executes.
    pub fn new(executor: X) -> Inline<X> {
        Inline {
            executor,
            results: ResultBatch::default(),
            inputs: VecDeque::new(),
            orders: VecDeque::new(),
            broken: false,
        }
    }

    pub(super) fn into_executor(self) -> X {
        self.executor
    }

    /// Notes a request for a copy of the state.
    pub(super) fn want_copy(&mut self, cx: &mut Context<'_>, receiver: X::Receiver) {
        if !self.broken {
            self.executor.want_copy(receiver);
            self.executor.give_copies(cx);
        }
    }
}

/// Whether an order makes the user's code do more than forget data for a revert. The meter counts such
/// orders.
pub(super) fn is_work(order: &service::Event) -> bool {
    matches!(order, service::Event::Execute { .. } | service::Event::Apply { .. })
}

/// Whether an order may wait for a later turn, because its result adds to those that the replica holds.
pub(super) fn may_wait(order: &service::Event) -> bool {
    matches!(order, service::Event::Execute { .. })
}

/// Whether an event concerns the host and not the service's code.
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
