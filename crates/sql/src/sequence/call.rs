//! The calls of sequence functions in a statement.

use std::sync::Arc;

use quorate_table::expr::Expr;

use super::definition::Sequence;

/// A call of a sequence function. A statement executes its calls once, in order, before all else. The results
/// are values of its session.
#[derive(Clone, Debug)]
pub enum SequenceCall {
    /// `nextval`.
    Next(SequenceName),
    /// `currval`.
    Current(SequenceName),
    /// `lastval`.
    Last,
    /// `setval`.
    Set {
        /// The sequence to set.
        sequence: SequenceName,
        /// The new number, a bigint.
        value: Expr,
        /// Whether the number counts as given.
        is_called: Expr,
    },
}

/// The sequence that a call names.
#[derive(Clone, Debug)]
pub enum SequenceName {
    /// A sequence that was found when the statement was bound.
    Known(Arc<Sequence>),
    /// A text that is known only when the statement is executed.
    Computed(Expr),
}
