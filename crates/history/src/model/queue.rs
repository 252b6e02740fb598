//! A first-in-first-out queue of values.

use crate::search::Model;

/// An operation on a queue, with its answer. Values are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOperation {
    /// An enqueue of this value.
    Enqueue(u32),
    /// A dequeue that took this value.
    Dequeue(u32),
    /// A dequeue that found the queue empty.
    DequeueNothing,
    /// A dequeue of unknown outcome, which may have taken the front value.
    DequeueUnknown,
}

/// The model of a queue that is empty at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queue;

impl Model for Queue {
    type State = Box<[u32]>;
    type Operation = QueueOperation;

    fn initial(&self) -> Box<[u32]> {
        [].into()
    }

    fn apply(&self, state: &Box<[u32]>, operation: &QueueOperation) -> Option<Box<[u32]>> {
        match (operation, state.split_first()) {
            (QueueOperation::Enqueue(value), _) => Some(state.iter().copied().chain([*value]).collect()),
            (QueueOperation::Dequeue(value), Some((first, rest))) => (value == first).then(|| rest.into()),
            (QueueOperation::DequeueUnknown, Some((_, rest))) => Some(rest.into()),
            (QueueOperation::DequeueNothing, None) => Some(state.clone()),
            _ => None,
        }
    }

    fn is_read(&self, operation: &QueueOperation) -> bool {
        matches!(operation, QueueOperation::DequeueNothing)
    }
}
