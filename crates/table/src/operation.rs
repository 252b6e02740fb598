//! Operations on a table, as they travel in the total order and to the engine.
//!
//! A statement becomes an operation once: prepared with its parameters open, then bound for each execution by
//! [`Operation::bind`]. What it does is decided by the operation and the rows alone, so that every replica of a row
//! does the same.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::{
    expr::{Aggregate, Expr},
    failure::Failure,
    schema::{Schema, TableId},
    value::{Row, Value},
};

/// One operation. Expressions are bound and without parameters by the time it reaches an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// A table begins to exist.
    CreateTable {
        /// Its number.
        table: TableId,
        /// Its definition.
        schema: Schema,
    },
    /// A table ceases to exist.
    DropTable {
        /// Which one.
        table: TableId,
    },
    /// Rows are added. An engine keeps those whose ring key lies in the job's ranges.
    Insert {
        /// Where.
        table: TableId,
        /// Full rows in schema order.
        rows: Vec<Row>,
        /// Expressions over each inserted row.
        returning: Vec<Expr>,
    },
    /// Rows that satisfy the filter change. The partition column is never assigned.
    Update {
        /// Where.
        table: TableId,
        /// Column and the expression over the old row.
        assignments: Vec<(usize, Expr)>,
        /// Which rows; all when absent.
        filter: Option<Expr>,
        /// Expressions over each new row.
        returning: Vec<Expr>,
    },
    /// Rows that satisfy the filter go.
    Delete {
        /// Where.
        table: TableId,
        /// Which rows; all when absent.
        filter: Option<Expr>,
        /// Expressions over each deleted row.
        returning: Vec<Expr>,
    },
    /// Rows of a bulk load are put aside, invisible until published.
    Stage {
        /// Where.
        table: TableId,
        /// Which load.
        load: LoadId,
        /// Full rows in schema order.
        rows: Vec<Row>,
    },
    /// All staged rows of a load become visible at once.
    Publish {
        /// Where.
        table: TableId,
        /// Which load.
        load: LoadId,
        /// How many rows were staged over all ranges (the answer's count is per range).
        rows: u64,
    },
    /// A load's staged rows are thrown away.
    Discard {
        /// Where.
        table: TableId,
        /// Which load.
        load: LoadId,
    },
    /// A read.
    Select(Select),
    /// A read that answers how it was done.
    Explain(Select),
    /// Rows are added, and those whose primary key a row has already are not: what happens instead is said.
    Upsert {
        /// Where.
        table: TableId,
        /// Full rows in schema order.
        rows: Vec<Row>,
        /// What happens instead.
        conflict: Conflict,
        /// Expressions over each row that was added or has changed.
        returning: Vec<Expr>,
    },
    /// Reads of plain rows of several tables, at least one, all as of one position: a backup. They are always told page by page,
    /// each page an [`Answer::Backup`](crate::engine::Answer::Backup): an engine is asked for these one by one.
    Backup(Vec<Select>),
}

impl Operation {
    /// The table it is about; the first of several.
    pub fn table(&self) -> TableId {
        match self {
            Operation::CreateTable { table, .. }
            | Operation::DropTable { table }
            | Operation::Insert { table, .. }
            | Operation::Upsert { table, .. }
            | Operation::Update { table, .. }
            | Operation::Delete { table, .. }
            | Operation::Stage { table, .. }
            | Operation::Publish { table, .. }
            | Operation::Discard { table, .. } => *table,
            Operation::Select(select) | Operation::Explain(select) => select.table,
            Operation::Backup(selects) => selects.first().map_or(TableId(0), |select| select.table),
        }
    }

    /// Whether it changes anything.
    pub fn is_write(&self) -> bool {
        !matches!(self, Operation::Select(_) | Operation::Explain(_) | Operation::Backup(_))
    }

    /// Which rows it reads or changes; `None` for all, and for operations that have no filter.
    pub fn filter(&self) -> Option<&Expr> {
        match self {
            Operation::Update { filter, .. } | Operation::Delete { filter, .. } => filter.as_ref(),
            Operation::Select(select) | Operation::Explain(select) => select.filter.as_ref(),
            _ => None,
        }
    }

    /// The same with constants for parameters (see [`Expr::bind`]).
    pub fn bind(&self, parameters: &[Value]) -> Result<Operation, Failure> {
        let many =
            |exprs: &[Expr]| exprs.iter().map(|expr| expr.bind(parameters)).collect::<Result<Vec<_>, _>>();
        let filtered =
            |filter: &Option<Expr>| filter.as_ref().map(|filter| filter.bind(parameters)).transpose();
        let assigned = |assignments: &[(usize, Expr)]| {
            let bound = assignments.iter().map(|(column, expr)| Ok((*column, expr.bind(parameters)?)));
            bound.collect::<Result<Vec<_>, Failure>>()
        };
        Ok(match self {
            Operation::Insert { table, rows, returning } => {
                Operation::Insert { table: *table, rows: rows.clone(), returning: many(returning)? }
            }
            Operation::Upsert { table, rows, conflict, returning } => Operation::Upsert {
                table: *table,
                rows: rows.clone(),
                conflict: match conflict {
                    Conflict::Skip => Conflict::Skip,
                    Conflict::Update { assignments, filter } => {
                        Conflict::Update { assignments: assigned(assignments)?, filter: filtered(filter)? }
                    }
                },
                returning: many(returning)?,
            },
            Operation::Update { table, assignments, filter, returning } => Operation::Update {
                table: *table,
                assignments: assigned(assignments)?,
                filter: filtered(filter)?,
                returning: many(returning)?,
            },
            Operation::Delete { table, filter, returning } => {
                Operation::Delete { table: *table, filter: filtered(filter)?, returning: many(returning)? }
            }
            Operation::Select(select) => Operation::Select(select.bind(parameters)?),
            Operation::Explain(select) => Operation::Explain(select.bind(parameters)?),
            Operation::Backup(selects) => Operation::Backup(
                selects.iter().map(|select| select.bind(parameters)).collect::<Result<_, _>>()?,
            ),
            Operation::CreateTable { .. }
            | Operation::DropTable { .. }
            | Operation::Stage { .. }
            | Operation::Publish { .. }
            | Operation::Discard { .. } => self.clone(),
        })
    }
}

/// What happens to a row that is to be added where a row has its primary key already.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Conflict {
    /// Nothing.
    Skip,
    /// The row that is there changes. Expressions are over that row followed by the one that was to be added: column `i`
    /// of the latter is column `i` plus the table's width.
    Update {
        /// Column and expression; no column of the primary key.
        assignments: Vec<(usize, Expr)>,
        /// Only if this is true.
        filter: Option<Expr>,
    },
}

/// A bulk load (one COPY), unique over all gateways and time: the session it belongs to, and its number there. What it has
/// put aside goes with the session at the latest ([`Engine::end_session`](crate::engine::Engine::end_session)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LoadId(pub u128, pub u64);

/// A read of one table, as far as one replica can compute it; [`crate::merge`] finishes it at the gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Select {
    /// Where.
    pub table: TableId,
    /// Which rows; all when absent.
    pub filter: Option<Expr>,
    /// What of them.
    pub output: Output,
}

impl Select {
    /// The same with constants for parameters (see [`Expr::bind`]).
    pub fn bind(&self, parameters: &[Value]) -> Result<Select, Failure> {
        let many =
            |exprs: &[Expr]| exprs.iter().map(|expr| expr.bind(parameters)).collect::<Result<Vec<_>, _>>();
        let filter = self.filter.as_ref().map(|filter| filter.bind(parameters)).transpose()?;
        let output = match &self.output {
            Output::Rows { columns, order, limit, distinct } => Output::Rows {
                columns: many(columns)?,
                order: order.clone(),
                limit: *limit,
                distinct: *distinct,
            },
            Output::Groups { keys, aggregates } => Output::Groups {
                keys: many(keys)?,
                aggregates: aggregates
                    .iter()
                    .map(|aggregate| aggregate.bind(parameters))
                    .collect::<Result<Vec<_>, _>>()?,
            },
        };
        Ok(Select { table: self.table, filter, output })
    }

    /// The columns that the filter or the output looks at, sorted.
    pub(crate) fn mentioned(&self) -> Vec<usize> {
        let mut columns = self.output.mentioned();
        self.filter.iter().for_each(|filter| filter.mentioned(&mut columns));
        columns.sort_unstable();
        columns.dedup();
        columns
    }
}

/// What a read returns from one replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Output {
    /// Rows of expressions over each matching row.
    Rows {
        /// The expressions.
        columns: Vec<Expr>,
        /// Order by these output columns (indexes into `columns`); with `limit` a top-k.
        order: Vec<Order>,
        /// At most so many from this replica (LIMIT + OFFSET of the statement).
        limit: Option<u64>,
        /// Without duplicates.
        distinct: bool,
    },
    /// One partial row per group: the keys, then one partial state per aggregate.
    Groups {
        /// Grouping expressions; empty means one group over everything (which exists even with no rows).
        keys: Vec<Expr>,
        /// The aggregates.
        aggregates: Vec<Aggregate>,
    },
}

impl Output {
    /// The expressions in it.
    pub fn expressions(&self) -> impl Iterator<Item = &Expr> {
        let (exprs, aggregates): (&[Expr], &[Aggregate]) = match self {
            Output::Rows { columns, .. } => (columns, &[]),
            Output::Groups { keys, aggregates } => (keys, aggregates),
        };
        exprs.iter().chain(aggregates.iter().filter_map(|aggregate| aggregate.argument.as_ref()))
    }

    /// The columns that it looks at, sorted.
    pub(crate) fn mentioned(&self) -> Vec<usize> {
        let mut mentioned = Vec::new();
        self.expressions().for_each(|expr| expr.mentioned(&mut mentioned));
        mentioned.sort_unstable();
        mentioned.dedup();
        mentioned
    }
}

/// One sort key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Index into the output columns.
    pub column: usize,
    /// DESC.
    pub descending: bool,
    /// NULLS FIRST (the default for DESC, as in PostgreSQL).
    pub nulls_first: bool,
}

impl Order {
    /// With an order and a limit, how many rows beyond the limit are gathered before the last are dropped.
    pub(crate) const SURPLUS: usize = 1024;

    /// Refuses sort keys outside the output.
    pub(crate) fn check(keys: &[Order], columns: usize) -> Result<(), Failure> {
        match keys.iter().all(|key| key.column < columns) {
            true => Ok(()),
            false => Err(Failure::malformed("a sort key outside the output")),
        }
    }

    /// Sorts if there is an order, and drops what is beyond the limit. Rows that are equal stay as they were.
    pub(crate) fn keep_first(rows: &mut Vec<Row>, keys: &[Order], limit: usize) {
        if !keys.is_empty() {
            rows.sort_by(|a, b| Order::compare(keys, a, b));
        }
        rows.truncate(limit);
    }

    /// How two rows of the output stand to each other by these sort keys.
    pub fn compare(keys: &[Order], left: &[Value], right: &[Value]) -> Ordering {
        keys.iter()
            .map(|key| {
                let (a, b) = (&left[key.column], &right[key.column]);
                match (a.is_null(), b.is_null()) {
                    (true, true) => Ordering::Equal,
                    (true, false) if key.nulls_first => Ordering::Less,
                    (true, false) => Ordering::Greater,
                    (false, true) if key.nulls_first => Ordering::Greater,
                    (false, true) => Ordering::Less,
                    (false, false) if key.descending => b.order(a),
                    (false, false) => a.order(b),
                }
            })
            .find(|ordering| ordering.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}
