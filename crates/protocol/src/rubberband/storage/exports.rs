//! The ranges that standbys get from this process: pinned positions, and requests for rows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{replies::Pinned, work::Fetch};
use crate::{ecast::Position, id::ProcessId};

/// The pinned positions, and the requests of standbys.
#[derive(Default)]
pub(super) struct Exports {
    /// The ranges' memory at each pinned position.
    pins: BTreeMap<Position, Pinned>,
    /// Pins that wait in the queue.
    due: BTreeSet<Position>,
    pub(super) fetches: VecDeque<Fetch>,
}

impl Exports {
    /// Notes that a pin of this position waits in the queue.
    pub(super) fn expect(&mut self, at: Position) {
        self.due.insert(at);
    }

    /// Forgets the pins that wait in the queue.
    pub(super) fn expect_none(&mut self) {
        self.due.clear();
    }

    /// Pins the ranges' memory at a position, up to which everything was executed.
    pub(super) fn pin(&mut self, at: Position, memory: Pinned) {
        self.due.remove(&at);
        self.pins.insert(at, memory);
    }

    /// Releases a pinned position, for which no standby asks any longer.
    pub(super) fn release(&mut self, at: Position) {
        self.pins.remove(&at);
        self.fetches.retain(|fetch| fetch.change != at);
    }

    /// Returns the ranges' memory at a pinned position.
    pub(super) fn pinned(&self, at: Position) -> Option<&Pinned> {
        self.pins.get(&at)
    }

    /// Returns the pinned positions.
    pub(super) fn positions(&self) -> impl Iterator<Item = Position> {
        self.pins.keys().copied()
    }

    /// Whether a position is pinned, or a pin of it waits in the queue.
    pub(super) fn knows(&self, at: Position) -> bool {
        self.pins.contains_key(&at) || self.due.contains(&at)
    }

    /// Whether no position is pinned, and no pin waits in the queue.
    pub(super) fn is_empty(&self) -> bool {
        self.pins.is_empty() && self.due.is_empty()
    }

    /// Keeps a request of a standby, which replaces the standby's earlier request for the same change.
    pub(super) fn request(&mut self, fetch: Fetch) {
        self.fetches.retain(|other| other.from != fetch.from || other.change != fetch.change);
        self.fetches.push_back(fetch);
    }

    /// Drops the requests of a process that is gone.
    pub(super) fn departed(&mut self, process: ProcessId) {
        self.fetches.retain(|fetch| fetch.from != process);
    }
}
