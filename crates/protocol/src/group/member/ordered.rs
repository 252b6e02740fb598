//! The ordered messages of a member that wait for delivery.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{ecast::Position, group::routing::Header, id::ProcessId};

/// An ordered message that is not yet delivered here.
#[derive(Debug)]
pub(super) struct WaitingMessage {
    pub(super) at: Position,
    pub(super) sender: ProcessId,
    pub(super) header: Header,
    pub(super) body: Bytes,
}

/// The ordered messages that wait for delivery, and the positions that the member has reached.
#[derive(Debug, Default)]
pub(super) struct OrderedQueue {
    waiting: VecDeque<WaitingMessage>,
    /// Number of confirmed messages at the beginning of `waiting`. A message is confirmed once all its soft
    /// predecessors are here.
    confirmed: usize,
    /// The position up to which everything ordered is confirmed.
    confirmed_through: Position,
    /// The position up to which everything ordered was delivered, or voided.
    passed: Position,
    /// Value of `passed` at the last tick.
    passed_before: Position,
}

impl OrderedQueue {
    /// Adds the next message of the order.
    pub(super) fn push(&mut self, message: WaitingMessage) {
        self.waiting.push_back(message);
    }

    /// Returns the number of waiting messages.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the next message to deliver.
    pub(super) fn first(&self) -> Option<&WaitingMessage> {
        self.waiting.front()
    }

    /// Takes the next message, which is delivered or voided now.
    pub(super) fn pop(&mut self) -> Option<WaitingMessage> {
        let first = self.waiting.pop_front()?;
        self.confirmed = self.confirmed.saturating_sub(1);
        self.confirmed_through = self.confirmed_through.max(first.at);
        self.passed = first.at;
        Some(first)
    }

    /// Returns the first message that is not confirmed.
    pub(super) fn unconfirmed(&self) -> Option<&WaitingMessage> {
        self.waiting.get(self.confirmed)
    }

    /// Confirms the first message that is not confirmed, which is at this position.
    pub(super) fn confirm(&mut self, at: Position) {
        self.confirmed += 1;
        self.confirmed_through = at;
    }

    /// Returns the position up to which everything ordered is confirmed.
    pub(super) fn confirmed_through(&self) -> Position {
        self.confirmed_through
    }

    /// Returns the position up to which everything ordered was delivered, or voided.
    pub(super) fn passed(&self) -> Position {
        self.passed
    }

    /// Begins a view, whose members have everything ordered before it.
    pub(super) fn begin(&mut self, view: Position) {
        self.passed = self.passed.max(view);
        self.confirmed_through = self.confirmed_through.max(view);
    }

    /// Handles a tick. Returns whether nothing was delivered since the last tick.
    pub(super) fn tick(&mut self) -> bool {
        std::mem::replace(&mut self.passed_before, self.passed) == self.passed
    }
}
