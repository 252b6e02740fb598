//! Artificial delays: a read begins later than it was asked for, and a write's outcome is told later than it is known.
//!
//! Longer operations overlap more, and give replicas more time: reads at small levels return older values less often (004
//! §II.A). The delay is inside the interval that the user sees, and nothing else of an operation changes. A write that
//! did not meet its level is told at once.

use std::collections::BTreeMap;

use super::{
    coordinator::{Action, Operation},
    operation::Outcome,
};
use crate::time::{Duration, Time};

/// Something that waits because it was asked to.
#[derive(Debug)]
pub(super) enum Delayed {
    /// A read that has not begun.
    Begin(Operation),
    /// A write that is done.
    Tell { id: u64, outcome: Outcome },
}

/// All that waits.
#[derive(Debug, Default)]
pub(super) struct Delays {
    waiting: BTreeMap<(Time, u64), Delayed>,
    /// How many there were so far: those that are due at one instant are taken in their order.
    count: u64,
    bytes: usize,
}

impl Delays {
    /// No operation is delayed for longer.
    pub(super) const MAX: Duration = Duration::from_secs(60);

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The memory that they take, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first instant at which something is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.waiting.first_key_value().map(|((due, _), _)| *due)
    }

    /// Keeps an operation if it is a read that is to begin later, or gives it back.
    pub(super) fn keep(&mut self, mut operation: Operation, now: Time) -> Option<Operation> {
        if operation.action != Action::Read || operation.delay.is_zero() {
            return Some(operation);
        }
        let due = now + operation.delay.min(Delays::MAX);
        operation.delay = Duration::ZERO;
        self.insert(due, Delayed::Begin(operation));
        None
    }

    /// Keeps the outcome of a write that is done, for as long as it asked for.
    pub(super) fn tell_later(&mut self, id: u64, outcome: Outcome, delay: Duration, now: Time) {
        self.insert(now + delay.min(Delays::MAX), Delayed::Tell { id, outcome });
    }

    fn insert(&mut self, due: Time, delayed: Delayed) {
        self.count += 1;
        self.bytes += delayed.bytes();
        self.waiting.insert((due, self.count), delayed);
    }

    /// Takes the next that is due.
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
