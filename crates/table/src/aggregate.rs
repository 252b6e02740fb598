//! Partial states of aggregates: what replicas compute and gateways merge.

use serde::{Deserialize, Serialize};

use crate::value::Value;

/// A partial aggregate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum State {
    /// Rows counted.
    Count(u64),
    /// A sum and how many values went into it (`sum`, `avg`).
    Sum {
        /// Non-NULL values seen.
        count: u64,
        /// Their sum, in the result's type or wider.
        sum: Value,
    },
    /// The least or greatest so far; NULL when none.
    Extreme(Value),
    /// The distinct values so far (aggregates over DISTINCT).
    Distinct(Vec<Value>),
}
