//! The writes of a block that were not tried, and their results.

use std::{collections::VecDeque, sync::Arc};

use quorate_table::{schema::Schema, value::Row};

use super::reference_check::ReferenceCheck;
use crate::{backend::Table, budget::MemoryReservation, error::SqlError, statement::write};

/// A write of a block that was not tried.
pub(super) struct DeferredWrite {
    /// The index of the write's step.
    pub(super) step: usize,
    /// The table of the client's statement.
    pub(super) table: Arc<Table>,
    pub(super) part: StatementPart,
    /// The checks that are due when the write's result is needed.
    pub(super) checks: Vec<ReferenceCheck>,
    pub(super) verb: &'static str,
    /// The rows of RETURNING, as far as the gateway knows them; bounded by the memory of the session.
    pub(super) returned: Vec<Row>,
    /// Memory of these rows.
    pub(super) hold: MemoryReservation,
}

/// The part of the client's statement that a write is.
#[derive(Clone)]
pub(super) enum StatementPart {
    /// The first or only part.
    First,
    /// A further part, whose rows count as rows of the statement.
    Rows,
    /// A write of another table, whose rows do not count.
    Other {
        /// The table that is written.
        table: Arc<Table>,
        /// The table that errors name. For the table of an index, the indexed table.
        owner: Arc<Table>,
    },
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
    hold: MemoryReservation,
}

impl WriteResult {
    /// Returns the number of changed rows, the rows of RETURNING, and their memory.
    pub(super) fn into_parts(self) -> (u64, Vec<Row>, MemoryReservation) {
        (self.changed, self.rows, self.hold)
    }
}

impl DeferredWrite {
    /// Adds the write's result to the results of the client's statements, from the rows that the ranges
    /// report.
    pub(super) fn conclude(self, changed: u64, more: Vec<Row>, results: &mut Vec<WriteResult>) {
        let DeferredWrite { part, verb, mut returned, hold, .. } = self;
        match part {
            StatementPart::Other { .. } => {}
            StatementPart::First => {
                returned.extend(more);
                results.push(WriteResult { tag: write::tag(verb, changed), changed, rows: returned, hold });
            }
            StatementPart::Rows => {
                let Some(first) = results.last_mut() else { return };
                first.changed += changed;
                first.tag = write::tag(verb, first.changed);
                first.rows.extend(more);
            }
        }
    }

    /// Whether the write is the first part of its statement.
    pub(super) fn is_first(&self) -> bool {
        matches!(self.part, StatementPart::First)
    }

    /// Returns the table whose constraints the write can violate.
    fn constrained(&self) -> &Schema {
        match &self.part {
            StatementPart::Other { table, .. } => &table.schema,
            StatementPart::First | StatementPart::Rows => &self.table.schema,
        }
    }

    /// Adds the names of the violated constraint to the write's error.
    pub(super) fn within(&self, error: SqlError) -> SqlError {
        let owner = match &self.part {
            StatementPart::Other { owner, .. } => owner,
            StatementPart::First | StatementPart::Rows => &self.table,
        };
        of_table(error.within(self.constrained()), owner)
    }
}

/// Names the table of the client's statement in an error that names the table of an index.
pub(super) fn of_table(mut error: SqlError, table: &Table) -> SqlError {
    if let Some(name) = &mut error.about.table {
        name.clone_from(&table.schema.name);
    }
    error
}

/// Adds the names of the violated constraint to the error of a block, if one of its writes is about it.
pub(super) fn within_any(error: SqlError, writes: &VecDeque<DeferredWrite>) -> SqlError {
    let is_about = |write: &&DeferredWrite| {
        let schema = write.constrained();
        [&schema.name, &schema.key_name()].iter().any(|name| error.message.contains(&format!("\"{name}\"")))
    };
    match writes.iter().find(is_about) {
        Some(write) => write.within(error),
        None => error,
    }
}

/// Gives the number of a failing statement in the detail of an error as the client counts statements: without
/// the steps that constraints need. `numbers` has the client's number of each statement.
pub(super) fn renumbered(mut error: SqlError, numbers: &[usize]) -> SqlError {
    const BEFORE: &str = "This was statement ";
    const AFTER: &str = " of the transaction.";
    let Some(detail) = &error.detail else { return error };
    let Some((head, number)) = detail.strip_suffix(AFTER).and_then(|detail| detail.rsplit_once(BEFORE))
    else {
        return error;
    };
    let number = number.parse().ok().and_then(|number: usize| numbers.get(number.checked_sub(1)?));
    let Some(number) = number else { return error };
    error.detail = match numbers.last() {
        // The client sent one statement.
        Some(1) => Some(head.trim_end().to_owned()).filter(|head| !head.is_empty()),
        _ => Some(format!("{head}{BEFORE}{number}{AFTER}")),
    };
    error
}
