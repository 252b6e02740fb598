//! Artificial delays: the coordinator begins a read late, or withholds the outcome of a finished write.
//!
//! Longer operations overlap more, and give replicas more time. So reads at small levels return older values
//! less often (004 §II.A). The delay lies inside the interval that the user sees, and changes nothing else of
//! an operation. A coordinator reports a write that did not meet its level at once.

use std::collections::BTreeMap;

use super::operation::{Action, Operation, OperationOutcome};
use crate::time::{Duration, Time};

/// A read or an outcome that waits because its user asked for a delay.
#[derive(Debug)]
pub(super) enum Delayed {
    /// A read that has not begun.
    Begin(Operation),
    /// The outcome of a write that is done.
    Report { id: u64, outcome: OperationOutcome },
}

/// All delayed reads and outcomes of a coordinator.
#[derive(Debug, Default)]
pub(super) struct Delays {
    waiting: BTreeMap<(Time, u64), Delayed>,
    /// The number of delayed items so far. The number orders items that are due at the same instant.
    count: u64,
    bytes: usize,
}

impl Delays {
    /// The longest delay. If a user requests a longer one, this delay is used instead.
    pub(super) const MAX: Duration = Duration::from_secs(60);

    /// Returns how many items wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the approximate memory of the items, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the first instant at which an item is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.waiting.first_key_value().map(|((due, _), _)| *due)
    }

    /// Keeps a read that asks for a delay. Returns every other operation.
    pub(super) fn keep(&mut self, mut operation: Operation, now: Time) -> Option<Operation> {
        if operation.action != Action::Read || operation.delay.is_zero() {
            return Some(operation);
        }
        let due = now + operation.delay.min(Delays::MAX);
        operation.delay = Duration::ZERO;
        self.insert(due, Delayed::Begin(operation));
        None
    }

    /// Keeps the outcome of a finished write for the delay that the write asked for.
    pub(super) fn report_later(&mut self, id: u64, outcome: OperationOutcome, delay: Duration, now: Time) {
        self.insert(now + delay.min(Delays::MAX), Delayed::Report { id, outcome });
    }

    fn insert(&mut self, due: Time, delayed: Delayed) {
        self.count += 1;
        self.bytes += delayed.bytes();
        self.waiting.insert((due, self.count), delayed);
    }

    /// Removes and returns the next item that is due.
    pub(super) fn take_due(&mut self, now: Time) -> Option<Delayed> {
        let first = self.waiting.first_entry()?;
        let delayed = (first.key().0 <= now).then(|| first.remove())?;
        self.bytes -= delayed.bytes();
        Some(delayed)
    }
}

impl Delayed {
    fn bytes(&self) -> usize {
        size_of::<Delayed>() + if let Delayed::Begin(operation) = self { operation.key.len() } else { 0 }
    }
}
