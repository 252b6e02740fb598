//! Reads that kill: a storage process dies when its engine reads a certain row for a certain query, whichever
//! process that is.
//!
//! Judged: no more than two processes die of one query. None of them is the last with all rows of a range, as
//! far as the gateway knows.

mod deaths;

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_protocol::{
    ProcessId, Time,
    rubberband::{Task, TaskKind},
};
use quorate_world::Chance;

/// Queries that kill the process that runs them.
pub(super) struct KillerQueries {
    queries: BTreeMap<Bytes, KillerQuery>,
    /// The time at which each gateway got its configuration.
    configured_at: BTreeMap<usize, Time>,
    chance: Chance,
}

struct KillerQuery {
    /// The ring key of the row.
    key: u64,
    /// The gateway that sends the query.
    gateway: usize,
    asked: Time,
    died: Vec<ProcessId>,
}

impl KillerQueries {
    pub(super) fn new(seed: u64) -> KillerQueries {
        KillerQueries {
            queries: BTreeMap::new(),
            configured_at: BTreeMap::new(),
            chance: Chance::new(seed, "deadly"),
        }
    }

    /// Notes that a gateway got its configuration.
    pub(super) fn configured(&mut self, gateway: usize, now: Time) {
        self.configured_at.insert(gateway, now);
    }

    /// Returns the query among these tasks that kills the process.
    fn met(&self, tasks: &[Task]) -> Option<Bytes> {
        tasks.iter().find_map(|task| {
            let TaskKind::Read { ranges, operation } = &task.kind else { return None };
            let key = self.queries.get(operation)?.key;
            ranges.iter().any(|range| range.low <= key && key <= range.high).then(|| operation.clone())
        })
    }
}
