//! The place of a result that is not known yet, among the answers to a client.

use super::script::Shape;
use crate::metrics::ExecutingStatement;

/// The place of a result that is not known yet.
pub(super) struct Gap {
    /// The offset in the buffer.
    pub(super) at: usize,
    pub(super) shape: Shape,
    /// The statement, which the metrics count when its result is known.
    pub(super) running: Option<ExecutingStatement>,
}
