//! The gateway's half of a read: it turns the replicas' answers into the rows of the statement.
//!
//! The binder splits a statement in two. The [`Select`](crate::operation::Select) goes to one replica of
//! every range that the filter can touch, and each replica answers with rows or partial groups of its range.
//! The [`Finish`] stays at the gateway and describes how the answers become the result; [`Merge`] applies it.
//! Plain rows without an order pass through as they arrive, so that a result of any size needs no memory.
//! Sorting and grouping wait for the last answer.
//!
//! ```
//! use quorate_table::{engine::Answer, merge::{Finish, Input, Merge}, operation::Order, value::Value};
//!
//! let order = vec![Order { column: 0, descending: true, nulls_first: true }];
//! let finish = Finish { input: Input::Rows, distinct: true, order, offset: 0, limit: Some(2), visible: 1 };
//! let rows = |values: &[i32]| Answer::Rows(values.iter().map(|&value| vec![Value::Int4(value)]).collect());
//!
//! let mut merge = Merge::new(finish);
//! assert!(merge.push(rows(&[9, 4, 1])).unwrap().is_empty());
//! assert!(merge.push(rows(&[9, 7])).unwrap().is_empty());
//! assert_eq!(merge.finish().unwrap(), [[Value::Int4(9)], [Value::Int4(7)]]);
//! ```

use std::collections::HashSet;

use rustc_hash::FxBuildHasher;
use serde::{Deserialize, Serialize};

use crate::{
    aggregate::Groups,
    engine::Answer,
    eval::{eval, satisfies},
    expr::{Aggregate, Expr},
    failure::Failure,
    operation::Order,
    value::{Row, Value, key_of},
};

/// The gateway's work on the answers. The gateway does it in the order of these fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// The form of the answers, which says how output rows are made of them.
    pub input: Input,
    /// SELECT DISTINCT, over the whole output row.
    pub distinct: bool,
    /// ORDER BY, over output columns. For [`Input::Rows`], the replicas have sorted by the same keys.
    pub order: Vec<Order>,
    /// OFFSET: the number of output rows to skip.
    pub offset: u64,
    /// LIMIT: the maximum number of output rows; `None` is no limit.
    pub limit: Option<u64>,
    /// The number of output columns that the client sees. The columns behind them are only sort keys.
    pub visible: usize,
}

/// The form of the replicas' answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// Output rows ([`Output::Rows`](crate::operation::Output::Rows)). The rows of each replica come in the
    /// statement's order.
    Rows,
    /// Partial groups ([`Output::Groups`](crate::operation::Output::Groups)).
    Groups {
        /// The number of grouping expressions; without grouping expressions there is exactly one group.
        keys: usize,
        /// The aggregates of the select.
        aggregates: Vec<Aggregate>,
        /// HAVING, over the row [keys…, aggregates…].
        having: Option<Expr>,
        /// The output columns, over the row [keys…, aggregates…].
        columns: Vec<Expr>,
    },
}

impl Finish {
    /// Returns the same work with constants for parameters (see [`Expr::bind`]).
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

/// A read on its way to the client.
pub struct Merge {
    finish: Finish,
    /// The partial groups, if the read groups rows.
    groups: Option<Groups>,
    /// The output rows that wait to be sorted.
    waiting: Vec<Row>,
    /// The keys of the output rows so far, for DISTINCT.
    seen: HashSet<Vec<u8>, FxBuildHasher>,
    /// The number of rows that OFFSET still skips.
    offset: usize,
    /// The number of rows that LIMIT still admits.
    limit: usize,
}

impl Merge {
    /// Creates a merge without answers.
    pub fn new(finish: Finish) -> Merge {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let groups = match &finish.input {
            Input::Rows => None,
            Input::Groups { keys, aggregates, .. } => Some(Groups::new(*keys, aggregates.clone())),
        };
        Merge {
            groups,
            waiting: Vec::new(),
            seen: HashSet::with_hasher(FxBuildHasher),
            offset: number(finish.offset),
            limit: finish.limit.map_or(usize::MAX, number),
            finish,
        }
    }

    /// Takes one range's answer, or part of it, and returns the rows that are ready for the client. A failed
    /// answer fails the whole statement.
    pub fn push(&mut self, answer: Answer) -> Result<Vec<Row>, Failure> {
        match (answer, &mut self.groups) {
            (Answer::Failed(failure), _) => Err(failure),
            (Answer::Groups(partial), Some(groups)) => {
                partial.into_iter().try_for_each(|group| groups.absorb(group))?;
                Ok(Vec::new())
            }
            (Answer::Rows(rows), None) => self.take(rows),
            _ => Err(Failure::malformed("an answer is not of the kind that its query asks for")),
        }
    }

    /// Whether further answers would change nothing.
    pub fn is_complete(&self) -> bool {
        self.limit == 0
    }

    /// Returns the remaining rows, after the last answer.
    pub fn finish(mut self) -> Result<Vec<Row>, Failure> {
        let mut ready = Vec::new();
        if let (Some(groups), Input::Groups { having, columns, .. }) =
            (self.groups.take(), &self.finish.input)
        {
            let mut output = Vec::new();
            for row in groups.finish()? {
                if satisfies(having.as_ref(), &row)? {
                    output.push(columns.iter().map(|column| eval(column, &row)).collect::<Result<Row, _>>()?);
                }
            }
            ready = self.take(output)?;
        }
        let kept = self.offset.saturating_add(self.limit);
        let mut sorted = std::mem::take(&mut self.waiting);
        Order::keep_first(&mut sorted, &self.finish.order, kept);
        ready.extend(sorted.into_iter().filter_map(|row| self.give(row)));
        Ok(ready)
    }

    /// Takes output rows. Returns the rows that are ready, or stores the rows if they must be sorted.
    fn take(&mut self, rows: Vec<Row>) -> Result<Vec<Row>, Failure> {
        let mut ready = Vec::new();
        for row in rows {
            if row.len() < self.finish.visible {
                return Err(Failure::malformed("a row of an answer has too few columns"));
            }
            Order::check(&self.finish.order, row.len())?;
            if self.finish.distinct && !self.seen.insert(key_of(&row)) {
                continue;
            }
            if self.finish.order.is_empty() {
                ready.extend(self.give(row));
                continue;
            }
            self.waiting.push(row);
            let kept = self.offset.saturating_add(self.limit);
            if self.waiting.len() >= kept.saturating_add(Order::SURPLUS) {
                Order::keep_first(&mut self.waiting, &self.finish.order, kept);
            }
        }
        Ok(ready)
    }

    /// Returns the next row of the result with its visible columns; `None` if OFFSET or LIMIT exclude it.
    fn give(&mut self, mut row: Row) -> Option<Row> {
        if self.offset > 0 {
            self.offset -= 1;
            return None;
        }
        self.limit = self.limit.checked_sub(1)?;
        row.truncate(self.finish.visible);
        Some(row)
    }
}
