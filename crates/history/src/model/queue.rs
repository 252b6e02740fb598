//! A first-in-first-out queue of values.

use crate::search::Model;

/// What a queue is asked. Values are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOperation {
    /// Put this at the end.
    Enqueue(u32),
    /// This was first and was taken.
    Dequeue(u32),
    /// There was nothing to take.
    DequeueNothing,
    /// Whatever was first may have been taken.
    DequeueUnknown,
}

/// A queue, empty at first.
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
