//! The gateway's half of a read: from the replicas' answers to the rows of the statement.
//!
//! The binder splits a statement in two. The [`Select`](crate::operation::Select) goes to one replica of every range
//! that the filter can touch; each answers with rows or partial groups of its own range. The [`Finish`] stays at the
//! gateway and says how those answers become the result.

use serde::{Deserialize, Serialize};

use crate::{
    expr::{Aggregate, Expr},
    failure::Failure,
    operation::Order,
    value::Value,
};

/// What the gateway does with the answers, in the order of the fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// What the answers hold and how it becomes output rows.
    pub input: Input,
    /// SELECT DISTINCT, over the whole output row.
    pub distinct: bool,
    /// ORDER BY, over output columns. For [`Input::Rows`] these are the keys that the replicas sorted by, too.
    pub order: Vec<Order>,
    /// OFFSET.
    pub offset: u64,
    /// LIMIT.
    pub limit: Option<u64>,
    /// How many of the output columns the client sees: those behind are sort keys only.
    pub visible: usize,
}

/// What the replicas answer with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// Output rows ([`Output::Rows`](crate::operation::Output::Rows)), each replica's in order.
    Rows,
    /// Partial groups ([`Output::Groups`](crate::operation::Output::Groups)).
    Groups {
        /// How many grouping expressions there are; without any there is exactly one group.
        keys: usize,
        /// The aggregates, as in the select.
        aggregates: Vec<Aggregate>,
        /// HAVING, over the row [keys…, aggregates…].
        having: Option<Expr>,
        /// The output columns, over the row [keys…, aggregates…].
        columns: Vec<Expr>,
    },
}

impl Finish {
    /// The same with constants for parameters (see [`Expr::bind`]).
    pub fn bind(&self, parameters: &[Value]) -> Result<Finish, Failure> {
        let input = match &self.input {
            Input::Rows => Input::Rows,
            Input::Groups { keys, aggregates, having, columns } => Input::Groups {
                keys: *keys,
                aggregates: aggregates
                    .iter()
                    .map(|aggregate| aggregate.bind(parameters))
                    .collect::<Result<Vec<_>, _>>()?,
                having: having.as_ref().map(|having| having.bind(parameters)).transpose()?,
                columns: columns
                    .iter()
                    .map(|column| column.bind(parameters))
                    .collect::<Result<Vec<_>, _>>()?,
            },
        };
        Ok(Finish { input, order: self.order.clone(), ..*self })
    }
}
