//! Messages of later views, which wait until their view is installed.

use crate::{ecast::Position, group::Direct, group::stream::Soft, id::ProcessId};

/// Messages of later views.
#[derive(Debug, Default)]
pub(super) struct EarlyMessages {
    /// The messages, each with its sender and its view.
    messages: Vec<(ProcessId, Position, Direct)>,
    /// Memory of the messages, in bytes.
    bytes: usize,
}

impl EarlyMessages {
    /// Returns the memory of the messages, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a message, unless all messages together would take more than `bytes_max` bytes.
    pub(super) fn keep(&mut self, from: ProcessId, view: Position, direct: Direct, bytes_max: usize) {
        let bytes = bytes_of(&direct);
        if self.bytes + bytes <= bytes_max {
            self.bytes += bytes;
            self.messages.push((from, view, direct));
        }
    }

    /// Takes the messages of all views up to `view`.
    pub(super) fn take(&mut self, view: Position) -> Vec<(ProcessId, Position, Direct)> {
        let (now, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.messages).into_iter().partition(|(_, of, _)| *of <= view);
        self.bytes = later.iter().map(|(_, _, direct)| bytes_of(direct)).sum();
        self.messages = later;
        now
    }
}

/// Returns the memory of a message, in bytes.
fn bytes_of(direct: &Direct) -> usize {
    match direct {
        Direct::Soft { messages, .. } => messages.iter().map(Soft::bytes).sum(),
        Direct::Receipts { counts, ordered, .. } => 64 + counts.len() * 32 + ordered.len() * 8,
        _ => 0,
    }
}
