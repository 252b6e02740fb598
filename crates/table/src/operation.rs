//! Operations on a table, in the form that the total order and the engine use.
//!
//! A statement becomes an operation once: it is prepared with open parameters, and [`Operation::bind`] fills
//! them in for each execution. The effect depends only on the operation and the rows, so the effect is the
//! same on every replica of a row.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::{
    alter::Alteration,
    expr::{Aggregate, Expr},
    failure::Failure,
    fingerprint::Fingerprint,
    schema::{KeyRange, Schema, TableId},
    value::{Row, Value},
};

/// One operation. When it reaches an engine, its expressions are bound and have no parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// Creates a table.
    CreateTable {
        /// The number of the new table.
        table: TableId,
        /// The definition of the new table.
        schema: Schema,
    },
    /// Drops a table.
    DropTable {
        /// The table to drop.
        table: TableId,
    },
    /// Adds rows. An engine keeps the rows whose ring key lies in the job's ranges.
    Insert {
        /// The table that receives the rows.
        table: TableId,
        /// Full rows in schema order.
        rows: Vec<Row>,
        /// Expressions over each inserted row.
        returning: Vec<Expr>,
    },
    /// Changes the rows that satisfy the filter. The partition column is never assigned.
    Update {
        /// The table whose rows change.
        table: TableId,
        /// Columns and expressions over the old row.
        assignments: Vec<(usize, Expr)>,
        /// The condition of the rows to change; all rows if absent.
        filter: Option<Expr>,
        /// Expressions over each new row.
        returning: Vec<Expr>,
    },
    /// Deletes the rows that satisfy the filter.
    Delete {
        /// The table whose rows are deleted.
        table: TableId,
        /// The condition of the rows to delete; all rows if absent.
        filter: Option<Expr>,
        /// Expressions over each deleted row.
        returning: Vec<Expr>,
    },
    /// Stages rows of a bulk load, which are invisible until published.
    Stage {
        /// The table for which the rows are staged.
        table: TableId,
        /// The load that the rows belong to.
        load: LoadId,
        /// Full rows in schema order.
        rows: Vec<Row>,
    },
    /// Makes all staged rows of a load visible at once.
    Publish {
        /// The table in which the rows become visible.
        table: TableId,
        /// The load whose rows become visible.
        load: LoadId,
        /// The number of rows staged over all ranges; the answer counts them per range.
        rows: u64,
    },
    /// Drops a load's staged rows.
    Discard {
        /// The table for which the rows were staged.
        table: TableId,
        /// The load whose rows are dropped.
        load: LoadId,
    },
    /// A read.
    Select(Select),
    /// Runs a read, and answers how its rows were found.
    Explain(Select),
    /// Adds rows, except those whose primary key exists; `conflict` decides what happens to these.
    Upsert {
        /// The table that receives the rows.
        table: TableId,
        /// Full rows in schema order.
        rows: Vec<Row>,
        /// The treatment of rows with an existing primary key.
        conflict: Conflict,
        /// Expressions over each row that was added or has changed.
        returning: Vec<Expr>,
    },
    /// Reads plain rows of several tables, at least one, all at one position: a backup. The rows are always
    /// returned in pages, each an [`Answer::Backup`](crate::engine::Answer::Backup). The caller of an engine
    /// passes these reads to it one by one.
    Backup(Vec<Select>),
    /// Executes several statements together: all of them take effect, or none does.
    Transaction(TableTransaction),
    /// Tries a statement of a transaction that is not sent yet. A read: it changes nothing.
    Trial(Box<Trial>),
    /// Ends a table, and begins a table with its rows under another definition ([`crate::alter`]).
    AlterTable {
        /// The table that ends.
        table: TableId,
        /// The number of the table that begins.
        altered: TableId,
        /// The definition of the table that begins, and the sources of its columns.
        alteration: Alteration,
    },
}

impl Operation {
    /// Returns the table of the operation; the first table if there are several.
    pub fn table(&self) -> TableId {
        match self {
            Operation::CreateTable { table, .. }
            | Operation::DropTable { table }
            | Operation::AlterTable { table, .. }
            | Operation::Insert { table, .. }
            | Operation::Upsert { table, .. }
            | Operation::Update { table, .. }
            | Operation::Delete { table, .. }
            | Operation::Stage { table, .. }
            | Operation::Publish { table, .. }
            | Operation::Discard { table, .. } => *table,
            Operation::Select(select) | Operation::Explain(select) => select.table,
            Operation::Backup(selects) => selects.first().map_or(TableId(0), |select| select.table),
            Operation::Transaction(transaction) => first_table(transaction.statements()),
            Operation::Trial(trial) => trial.statement.operation.table(),
        }
    }

    /// Whether the operation changes anything.
    pub fn is_write(&self) -> bool {
        !matches!(
            self,
            Operation::Select(_) | Operation::Explain(_) | Operation::Backup(_) | Operation::Trial(_)
        )
    }

    /// Returns the filter of the rows that the operation reads or changes; `None` for all rows, and for
    /// operations without a filter.
    pub fn filter(&self) -> Option<&Expr> {
        match self {
            Operation::Update { filter, .. } | Operation::Delete { filter, .. } => filter.as_ref(),
            Operation::Select(select) | Operation::Explain(select) => select.filter.as_ref(),
            _ => None,
        }
    }

    /// Returns the operation with constants for parameters (see [`Expr::bind`]). Statements of transactions
    /// have constants already.
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
            | Operation::AlterTable { .. }
            | Operation::Stage { .. }
            | Operation::Publish { .. }
            | Operation::Discard { .. }
            | Operation::Transaction(_)
            | Operation::Trial(_) => self.clone(),
        })
    }
}

/// Statements that take effect together, or not at all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableTransaction {
    /// A random number for the fingerprints, so that nobody can choose rows whose fingerprints collide.
    pub key: u128,
    /// The statements and savepoints, in order.
    pub steps: Vec<Step>,
}

/// A statement that is executed after a transaction's earlier steps, and changes nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The transaction's number for fingerprints.
    pub key: u128,
    /// The earlier steps that may concern the statement's rows. If such a step no longer gives the result
    /// that the client received, the trial fails (40001).
    pub earlier: Vec<Step>,
    /// Whether the results of the earlier steps are compared in all ranges. Otherwise they are compared only
    /// in the ranges that the statement concerns.
    pub compares_all: bool,
    /// The statement. Its `received` is empty.
    pub statement: TransactionStatement,
}

/// A step of a transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "nearly all steps are statements")]
pub enum Step {
    /// Executes a statement.
    Execute(TransactionStatement),
    /// Remembers the state of the tables.
    Savepoint,
    /// Restores the tables as they were at the latest savepoint that was not restored yet. The client has
    /// received the results of the statements since that savepoint, so the commit compares these results like
    /// all others.
    RollBack,
}

/// Maximum number of savepoints of a transaction that are open at one step. Each may keep a state of the
/// tables in memory.
pub const SAVEPOINTS_MAX: usize = 16;

/// A statement of a transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransactionStatement {
    /// The operation: a write of rows, or a select.
    pub operation: Operation,
    /// The rows whose results are compared.
    pub compared: Compared,
    /// The results that the client received, by range of ring keys. Empty if the client has received none.
    pub received: Vec<(KeyRange, ReceivedResult)>,
}

/// The rows of a statement whose results are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compared {
    /// All rows of the statement.
    All,
    /// All rows, as for SELECT FOR UPDATE. For a later select of the transaction with [`Compared::Own`],
    /// these rows count as rows that the transaction wrote.
    Locked,
    /// Only rows that earlier steps of the transaction wrote or locked.
    Own,
}

/// The result that a client received for a range of ring keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReceivedResult {
    /// The statement succeeded with this result.
    Success(Fingerprint),
    /// The statement failed with this SQLSTATE.
    Failed(String),
}

impl Step {
    /// Returns the step's statement, if it has one.
    pub fn statement(&self) -> Option<&TransactionStatement> {
        match self {
            Step::Execute(statement) => Some(statement),
            Step::Savepoint | Step::RollBack => None,
        }
    }
}

impl TableTransaction {
    /// Returns the statements of all steps, in order.
    pub fn statements(&self) -> impl Iterator<Item = &TransactionStatement> {
        self.steps.iter().filter_map(Step::statement)
    }
}

impl Trial {
    /// Returns the statements of the earlier steps, and the trial's own statement.
    pub fn statements(&self) -> impl Iterator<Item = &TransactionStatement> {
        self.earlier.iter().filter_map(Step::statement).chain([&self.statement])
    }
}

/// Returns the table of the first statement; table 0 if there is none.
fn first_table<'a>(mut statements: impl Iterator<Item = &'a TransactionStatement>) -> TableId {
    statements.next().map_or(TableId(0), |statement| statement.operation.table())
}

/// The treatment of a row to add whose primary key exists already.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Conflict {
    /// Drops the row to add.
    Skip,
    /// Changes the existing row. Expressions read the existing row, followed by the row to add: column `i` of
    /// the row to add has the index `i` plus the table's width.
    Update {
        /// Columns and expressions; no column of the primary key.
        assignments: Vec<(usize, Expr)>,
        /// The condition of the change.
        filter: Option<Expr>,
    },
}

/// A bulk load (one COPY): the session that it belongs to, and its number there. This pair is unique over all
/// gateways and for all time. The load's staged rows are dropped with the session at the latest
/// ([`Engine::end_session`](crate::engine::Engine::end_session)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LoadId(pub u128, pub u64);

/// The part of a read of one table that one replica computes; [`crate::merge`] finishes the read at the
/// gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Select {
    /// The table to read.
    pub table: TableId,
    /// The condition of the rows to read; all rows if absent.
    pub filter: Option<Expr>,
    /// The output for the rows that fulfil the condition.
    pub output: Output,
}

impl Select {
    /// Returns the read with constants for parameters (see [`Expr::bind`]).
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

    /// Returns the columns that the filter or the output reads, sorted.
    pub(crate) fn mentioned(&self) -> Vec<usize> {
        let mut columns = self.output.mentioned();
        self.filter.iter().for_each(|filter| filter.mentioned(&mut columns));
        columns.sort_unstable();
        columns.dedup();
        columns
    }
}

/// The output of a read at one replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Output {
    /// Rows of expressions over each matching row.
    Rows {
        /// The expressions that make an output row.
        columns: Vec<Expr>,
        /// The sort keys, as indexes into `columns`; with `limit`, the replica returns its first rows only.
        order: Vec<Order>,
        /// Maximum number of rows from this replica (LIMIT + OFFSET of the statement).
        limit: Option<u64>,
        /// Whether duplicates are dropped.
        distinct: bool,
    },
    /// One partial row per group: the keys, then one partial state per aggregate.
    Groups {
        /// The grouping expressions. If there are none, all rows form one group, which exists even without
        /// rows.
        keys: Vec<Expr>,
        /// The aggregates, one partial state for each.
        aggregates: Vec<Aggregate>,
    },
}

impl Output {
    /// Returns the expressions of the output.
    pub fn expressions(&self) -> impl Iterator<Item = &Expr> {
        let (exprs, aggregates): (&[Expr], &[Aggregate]) = match self {
            Output::Rows { columns, .. } => (columns, &[]),
            Output::Groups { keys, aggregates } => (keys, aggregates),
        };
        exprs.iter().chain(aggregates.iter().filter_map(|aggregate| aggregate.argument.as_ref()))
    }

    /// Returns the columns that the output reads, sorted.
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
    /// Whether the order is DESC.
    pub descending: bool,
    /// Whether NULLs come first (the default for DESC, as in PostgreSQL).
    pub nulls_first: bool,
}

impl Order {
    /// The number of rows beyond the limit that a read with an order gathers before it drops the last ones.
    pub(crate) const SURPLUS: usize = 1024;

    /// Refuses sort keys outside the output.
    pub(crate) fn check(keys: &[Order], columns: usize) -> Result<(), Failure> {
        match keys.iter().all(|key| key.column < columns) {
            true => Ok(()),
            false => Err(Failure::malformed("a sort key is not a column of the output")),
        }
    }

    /// Sorts the rows if there are sort keys, and truncates them to the limit. Equal rows keep their order.
    pub(crate) fn keep_first(rows: &mut Vec<Row>, keys: &[Order], limit: usize) {
        if !keys.is_empty() {
            rows.sort_by(|a, b| Order::compare(keys, a, b));
        }
        rows.truncate(limit);
    }

    /// Compares two rows of the output by these sort keys.
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
