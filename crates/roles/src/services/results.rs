//! Results that wait to be passed to the replica.

use std::{mem, vec};

use quorate_protocol::service::{Command, Executed};

/// Results that wait to be passed on together.
#[derive(Debug, Default)]
pub struct ResultBatch {
    waiting: Vec<Command>,
    bytes: usize,
}

impl ResultBatch {
    /// Adds a result.
    pub fn put(&mut self, result: Command) {
        self.bytes += result_bytes(&result);
        self.waiting.push(result);
    }

    /// Returns the number of results.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there are no results.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the results are so long that they must be passed on before more orders are executed.
    pub fn is_long(&self) -> bool {
        self.bytes >= RESULT_BATCH_BYTES
    }

    /// Removes all results, and returns them.
    pub fn take(&mut self) -> Vec<Command> {
        self.bytes = 0;
        mem::take(&mut self.waiting)
    }

    /// Removes all results, and returns them. Keeps the memory for later results.
    pub fn drain(&mut self) -> vec::Drain<'_, Command> {
        self.bytes = 0;
        self.waiting.drain(..)
    }
}

/// Returns the size of a result, in bytes.
pub fn result_bytes(result: &Command) -> usize {
    match result {
        Command::Executed { result: Executed::Changed { reply, change }, .. } => reply.len() + change.len(),
        Command::Executed { result: Executed::Unchanged { reply }, .. } => reply.len(),
        Command::CheckpointPart { bytes, .. } => bytes.len(),
        _ => 0,
    }
}

/// Size of the results, in bytes, at which they are passed on.
pub const RESULT_BATCH_BYTES: usize = 256 << 10;
