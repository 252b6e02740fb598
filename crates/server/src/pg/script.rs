//! The statements that came together and whose client has received nothing of them.

use std::{ops::Range, sync::Arc};

use quorate_sql::{cache::Prepared, encode::Formats, statement::Field};
use quorate_table::value::Value;

/// The statements of a block whose client has received nothing of it.
pub(super) struct Script {
    /// The statements, in order; bounded by the buffer, which holds their answers.
    pub(super) statements: Vec<ScriptStatement>,
    /// Number of answers that were sent or filled when the script began.
    pub(super) progress: u64,
    /// Number of times that the script was executed again.
    pub(super) repeats: u32,
}

/// A statement, and the form and place of its answer.
pub(super) struct ScriptStatement {
    pub(super) prepared: Arc<Prepared>,
    pub(super) values: Vec<Value>,
    pub(super) shape: Shape,
    /// Whether the client did not need the statement's result at once.
    pub(super) is_deferred: bool,
    /// The place of the answer in the buffer.
    pub(super) answer: Range<usize>,
}

/// The form of a statement's answer.
#[derive(Clone)]
pub(super) struct Shape {
    /// The columns of the rows; `None` if the statement returns no rows.
    pub(super) fields: Option<Arc<Vec<Field>>>,
    pub(super) formats: Formats,
    /// Whether the columns are described before the rows, as in the simple protocol.
    pub(super) is_described: bool,
}
