//! The write that a session has under way, and the statement that sends it.

use std::sync::Arc;

use quorate_table::value::{Value, key_of};
use xxhash_rust::xxh3::Xxh3;

use crate::{backend::WriteName, cache::Prepared, name::RequestName};

/// The parts of the current statement that its print is computed from.
pub(super) struct CurrentStatement {
    prepared: Arc<Prepared>,
    /// The hash of the parameters' values and of the data of a COPY. `None` if the statement has neither
    /// parameters nor data.
    given: Option<Box<Xxh3>>,
}

/// A write or definition under way, whose outcome the client does not know.
#[derive(Clone, Copy, Debug)]
pub(super) enum InFlight {
    Write(WriteRequest),
    /// The COMMIT of a block.
    Transaction(WriteRequest),
    /// The definition of a table, which has no name under which it could be sent again.
    Definition,
}

/// A write that is about to be sent.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest {
    /// The name for the ranges, marked as repeated if the client chose the id.
    pub sent: WriteName,
    /// The name for the client.
    pub name: RequestName,
}

impl CurrentStatement {
    pub(super) fn new(prepared: &Arc<Prepared>, values: &[Value]) -> CurrentStatement {
        let mut executing = CurrentStatement { prepared: prepared.clone(), given: None };
        if !values.is_empty() {
            executing.give(&key_of(values));
        }
        executing
    }

    /// Adds the values of parameters, or the data of a COPY, to the statement's print.
    pub(super) fn give(&mut self, data: &[u8]) {
        self.given.get_or_insert_default().update(data);
    }

    pub(super) fn print(&self) -> u64 {
        let given = self.given.as_ref().map_or(0, |given| given.digest());
        self.prepared.print() ^ given.rotate_left(1)
    }
}
