//! The writes of a block that were not tried, and their results.

use std::{collections::VecDeque, sync::Arc};

use quorate_table::value::Row;

use crate::{backend::Table, budget::MemoryReservation, error::SqlError, statement::write};

/// A write of a block that was not tried.
pub(super) struct DeferredWrite {
    /// The index of the write's step.
    pub(super) step: usize,
    pub(super) table: Arc<Table>,
    pub(super) verb: &'static str,
    /// The rows of RETURNING, as far as the gateway knows them; bounded by the memory of the session.
    pub(super) returned: Vec<Row>,
    /// Memory of these rows.
    pub(super) hold: MemoryReservation,
}

/// The result of a deferred write.
pub struct WriteResult {
    /// The command's tag.
    pub tag: String,
    /// Number of rows that the write changed.
    pub changed: u64,
    /// The rows of RETURNING; bounded by the results that ranges remember.
    pub rows: Vec<Row>,
    /// Memory of the rows that the gateway computed, freed together with the result.
    _hold: MemoryReservation,
}

impl DeferredWrite {
    /// Returns the write's result, from the rows that the ranges report.
    pub(super) fn result(self, changed: u64, more: Vec<Row>) -> WriteResult {
        let DeferredWrite { verb, mut returned, hold, .. } = self;
        returned.extend(more);
        WriteResult { tag: write::tag(verb, changed), changed, rows: returned, _hold: hold }
    }
}

/// Adds the names of the violated constraint to the error of a block, if one of its writes is about it.
pub(super) fn within_any(error: SqlError, writes: &VecDeque<DeferredWrite>) -> SqlError {
    let is_about = |write: &&DeferredWrite| {
        let schema = &write.table.schema;
        [&schema.name, &schema.key_name()].iter().any(|name| error.message.contains(&format!("\"{name}\"")))
    };
    match writes.iter().find(is_about) {
        Some(write) => error.within(&write.table.schema),
        None => error,
    }
}
