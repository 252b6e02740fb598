//! Courtesy locks of the open block ([`crate::locks`]), and the rows of SELECT … FOR UPDATE.
//!
//! A write or a locking read waits for a lock if its condition names one primary key. So blocks that each
//! change one row, such as a counter, follow one another. NOWAIT fails instead of waiting (55P03).
//!
//! **SKIP LOCKED** leaves out the rows that other blocks of this gateway have locked. First the session reads
//! candidates with their primary keys, as many as LIMIT wants and as many more as are locked. It locks the
//! free candidates, and then reads exactly these rows, so COMMIT compares these rows and no others.

use std::time::Duration;

use quorate_table::{
    expr::{Binary, Expr},
    operation::{Compared, Operation, Output, Select},
    value::{Row, Value},
};
use xxhash_rust::xxh3::Xxh3;

use super::{Session, block::TransactionBlock, steps::Origin};
use crate::{
    backend::{OperationError, Table},
    budget,
    error::{Result, SqlError, code},
    fault,
    finish::{RowWindow, Rows},
    locks::LockKey,
    statement::select::{LockWait, RowLock},
};

/// Longest wait for a lock.
const PATIENCE_MAX: Duration = Duration::from_secs(1);

/// Maximum number of rows that SKIP LOCKED reads.
const SKIP_LOCKED_ROWS_MAX: usize = 10_000;

/// Maximum number of attempts of SKIP LOCKED, if its rows change while it locks them.
const SKIP_LOCKED_ATTEMPTS_MAX: usize = 3;

impl Session {
    /// Executes a select that locks its rows. Outside of a block it locks nothing.
    pub(super) async fn locking_read(
        &mut self,
        table: &Table,
        select: Select,
        window: RowWindow,
        lock: RowLock,
    ) -> Result<Rows> {
        self.check_read_only(lock.verb)?;
        match lock.wait {
            LockWait::Wait => self.wait_for_row(table, select.filter.as_ref()).await,
            LockWait::NoWait => self.lock_without_waiting(table, &select).await?,
            LockWait::Skip => return self.read_unlocked(table, &select, window).await,
        }
        let Output::Rows { order, .. } = &select.output else { return Err(not_rows()) };
        let order = order.clone();
        let answers = match self.compared_read(table, true, || select.clone())? {
            Some((select, compared)) => {
                self.attempt(Operation::Select(select), compared, table, Origin::Read).await?
            }
            None => self.backend.read(self.strength(), &select).await.map_err(fault::read_error)?,
        };
        Ok(Rows::merged(answers, order, window, self.hold()))
    }

    /// Waits until no other block of this gateway has locked the row whose primary key a condition names.
    /// Goes on without the lock after a second or `lock_timeout`.
    pub(super) async fn wait_for_row(&mut self, table: &Table, filter: Option<&Expr>) {
        let patience = self.settings.timeouts.lock.map_or(PATIENCE_MAX, |limit| limit.min(PATIENCE_MAX));
        let Some(key) = filter.and_then(|filter| named_key(filter, table)) else { return };
        let backend = self.backend.clone();
        if let TransactionBlock::Open(open) = &mut self.block {
            open.locks.take(key, async { backend.sleep(patience).await }).await;
        }
    }

    /// Locks the rows of a select for the open block. Fails if another block of this gateway has locked one
    /// of these rows.
    async fn lock_without_waiting(&mut self, table: &Table, select: &Select) -> Result<()> {
        match select.filter.as_ref().and_then(|filter| named_key(filter, table)) {
            Some(key) if !self.try_lock(key) => Err(locked(table)),
            Some(_) => Ok(()),
            None => self.free_rows(table, select, LockWait::NoWait).await.map(drop),
        }
    }

    /// Reads the rows of a select that no other block of this gateway has locked, and locks them.
    async fn read_unlocked(&mut self, table: &Table, select: &Select, window: RowWindow) -> Result<Rows> {
        let Output::Rows { columns, order, .. } = &select.output else { return Err(not_rows()) };
        let width = columns.len();
        let mut attempts = 0;
        loop {
            let free = self.free_rows(table, select, LockWait::Skip).await?;
            if !self.is_in_block() {
                let visible = |mut row: Row| {
                    row.truncate(width);
                    row
                };
                return Ok(Rows::ready(free.into_iter().map(visible).collect(), &[], window));
            }
            if free.is_empty() {
                return Ok(Rows::plain(Vec::new()));
            }
            let keys = Expr::any(free.iter().map(|row| has_key(table, &row[width..])).collect());
            let filter = Some(Expr::all(select.filter.iter().cloned().chain([keys]).collect()));
            let output =
                Output::Rows { columns: columns.clone(), order: order.clone(), limit: None, distinct: false };
            let exact = Operation::Select(Select { table: table.id, filter, output });
            let answers = self.attempt(exact, Compared::Locked, table, Origin::Read).await?;
            let rows = Rows::merged(answers, order.clone(), window.clone(), self.hold()).all().await?;
            attempts += 1;
            // If a block that committed meanwhile has taken a row away, the session tries again.
            if rows.len() as u64 + window.offset >= free.len() as u64 || attempts == SKIP_LOCKED_ATTEMPTS_MAX
            {
                return Ok(Rows::plain(rows));
            }
        }
    }

    /// Returns the rows of a select that no other block has locked, each followed by its primary key. The
    /// open block locks them.
    async fn free_rows(&mut self, table: &Table, select: &Select, wait: LockWait) -> Result<Vec<Row>> {
        let Output::Rows { columns, order, limit, .. } = &select.output else { return Err(not_rows()) };
        let schema = &table.schema;
        if schema.primary_key.is_empty() {
            return Err(SqlError::unsupported("NOWAIT and SKIP LOCKED on a table without a primary key"));
        }
        let width = columns.len();
        let key_columns =
            schema.primary_key.iter().map(|&column| Expr::Column(column, schema.columns[column].ty));
        let columns: Vec<Expr> = columns.iter().cloned().chain(key_columns).collect();
        let visible = columns.len();
        let others = self.cache.locks().count(table.id) as u64;
        let most = limit.map(|limit| limit.saturating_add(others));
        let output = Output::Rows { columns, order: order.clone(), limit: most, distinct: false };
        let candidates = Select { table: table.id, filter: select.filter.clone(), output };
        let answers = match &self.block {
            TransactionBlock::Open(open) if open.steps.concern_table(table.id) => {
                let is_strict = open.isolation.is_strict();
                let operation = Operation::Select(candidates);
                let (trial, _) =
                    open.steps.begin(operation, Compared::All, schema, Origin::Read, is_strict)?;
                let attempt = self.backend.attempt(self.trial_strength(), trial).await;
                attempt.map_err(|fault| self.trial_failed(fault))?.answers.map_err(OperationError::Failed)
            }
            _ => self.backend.read(self.strength(), &candidates).await,
        };
        let window = RowWindow { distinct: false, offset: 0, limit: most, visible };
        let mut rows = Rows::merged(answers.map_err(fault::read_error)?, order.clone(), window, self.hold());
        let wanted = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let (mut free, mut hold) = (Vec::new(), self.hold());
        while free.len() < wanted {
            let batch = rows.next().await?;
            if batch.is_empty() {
                break;
            }
            for row in batch {
                if free.len() == wanted {
                    break;
                }
                if self.try_lock(LockKey(table.id, hash_of(row[width..].iter()))) {
                    if free.len() == SKIP_LOCKED_ROWS_MAX {
                        let message = format!(
                            "NOWAIT and SKIP LOCKED lock at most {SKIP_LOCKED_ROWS_MAX} rows at a time"
                        );
                        return Err(SqlError::new(code::PROGRAM_LIMIT_EXCEEDED, message).hint("Use LIMIT."));
                    }
                    hold.grow(budget::weight(&row))?;
                    free.push(row);
                } else if wait == LockWait::NoWait {
                    return Err(locked(table));
                }
            }
        }
        Ok(free)
    }

    /// Locks a row for the open block, if there is one. Returns false if another block has locked the row.
    fn try_lock(&mut self, key: LockKey) -> bool {
        match &mut self.block {
            TransactionBlock::Open(open) => open.locks.try_take(key),
            _ => !self.cache.locks().of_block().is_held_by_other(key),
        }
    }
}

/// Returns the lock of the row whose primary key a condition names.
fn named_key(filter: &Expr, table: &Table) -> Option<LockKey> {
    let key = &table.schema.primary_key;
    let mut values = vec![None; key.len()];
    name_values(filter, &mut |column, value| {
        if let Some(place) = key.iter().position(|&own| own == column) {
            values[place] = Some(value);
        }
    });
    let values: Vec<&Value> = values.into_iter().collect::<Option<_>>()?;
    (!values.is_empty()).then(|| LockKey(table.id, hash_of(values)))
}

/// Calls `found` for each column that a conjunction compares with a constant, with this constant.
fn name_values<'e>(expr: &'e Expr, found: &mut impl FnMut(usize, &'e Value)) {
    match expr {
        Expr::Binary(Binary::And, left, right) => {
            name_values(left, found);
            name_values(right, found);
        }
        Expr::Binary(Binary::Equal, left, right) => {
            for (one, other) in [(left, right), (right, left)] {
                if let (Some(column), Expr::Constant(value, _)) = (column_of(one), &**other) {
                    found(column, value);
                }
            }
        }
        _ => {}
    }
}

fn column_of(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Column(column, _) => Some(*column),
        Expr::Cast(inner, _) => column_of(inner),
        _ => None,
    }
}

/// Hashes a primary key. Values of two types that have the same text have the same hash.
fn hash_of<'v>(values: impl IntoIterator<Item = &'v Value>) -> u64 {
    let mut hash = Xxh3::new();
    for value in values {
        let text = value.text().unwrap_or_default();
        hash.update(&text.len().to_le_bytes());
        hash.update(text.as_bytes());
    }
    hash.digest()
}

/// Returns the condition that a row has this primary key.
fn has_key(table: &Table, values: &[Value]) -> Expr {
    let schema = &table.schema;
    let is_equal = |(&column, value): (&usize, &Value)| {
        let ty = schema.columns[column].ty;
        Expr::binary(Binary::Equal, Expr::Column(column, ty), Expr::constant(value.clone(), ty))
    };
    Expr::all(schema.primary_key.iter().zip(values).map(is_equal).collect())
}

fn locked(table: &Table) -> SqlError {
    let message = format!("could not obtain lock on row in relation \"{}\"", table.schema.name);
    SqlError::new(code::LOCK_NOT_AVAILABLE, message)
}

fn not_rows() -> SqlError {
    SqlError::new(code::INTERNAL_ERROR, "a select that locks its rows returns groups")
}
