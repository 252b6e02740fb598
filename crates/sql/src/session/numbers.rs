//! The numbers that a session has got from sequences.

use std::collections::BTreeMap;

use quorate_table::{schema::TableId, value::Value};

/// The numbers that a session has got from sequences.
#[derive(Default)]
pub(super) struct SessionNumbers {
    /// The results of the present statement's calls, bounded by the length of a statement.
    pub(super) results: Vec<Value>,
    /// The latest number of each sequence, bounded by the number of sequences.
    pub(super) latest: BTreeMap<TableId, i64>,
    /// The sequence that gave the latest number.
    pub(super) last: Option<TableId>,
}

impl SessionNumbers {
    /// Forgets all numbers (`DISCARD SEQUENCES`).
    pub(super) fn discard(&mut self) {
        *self = SessionNumbers::default();
    }

    /// Records the latest number of a sequence.
    pub(super) fn record(&mut self, sequence: TableId, number: i64) {
        self.latest.insert(sequence, number);
        self.last = Some(sequence);
    }
}
