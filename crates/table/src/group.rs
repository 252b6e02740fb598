//! Groups on their way to the gateway: their keys and partial aggregates.

use serde::{Deserialize, Serialize};

use crate::value::{Row, Value};

/// A partial aggregate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum State {
    /// A number of rows.
    Count(u64),
    /// A sum, and the number of its values (`sum`, `avg`).
    Sum {
        /// The number of non-NULL values.
        count: u64,
        /// The values' sum: a float for floats, a numeric for all other types.
        sum: Value,
    },
    /// The least or greatest value so far; NULL if there is none.
    Extreme(Value),
    /// The distinct values so far (aggregates over DISTINCT).
    Distinct(Vec<Value>),
    /// The sums that a variance is computed from.
    Spread {
        /// The number of non-NULL values.
        count: u64,
        /// The values' sum: a float for floats, a numeric for all other types.
        sum: Value,
        /// The sum of the values' squares; for floats, the sum of their squared deviations from the mean.
        squares: Value,
    },
}

/// One group's partial state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Values of the grouping expressions.
    pub keys: Row,
    /// One partial state per aggregate (see `aggregate.rs`).
    pub states: Vec<State>,
}
