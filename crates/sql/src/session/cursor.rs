//! SQL's cursors: a query whose rows are fetched a few at a time, within its block.
//!
//! A cursor holds the stream of its rows, and the ranges wait until the client fetches. A cursor only moves
//! forward. It ends with its block, or with a rollback to a savepoint that is older than the cursor.

use std::sync::Arc;

use quorate_table::value::Value;

use super::{
    Session, StatementOutcome,
    block::{Cursor, TransactionBlock},
};
use crate::{
    budget,
    error::{Result, SqlError, code},
    finish::Rows,
    statement::{Field, cursor::Declare},
};

/// Estimated memory of the rows that are under way from the ranges to one cursor, in bytes.
const UNDER_WAY_BYTES: usize = 256 << 10;

impl Session {
    /// Returns the columns of the cursor of this name, if there is one.
    pub fn cursor_fields(&self, name: &str) -> Option<Arc<Vec<Field>>> {
        self.cursors.get(name).map(|cursor| cursor.fields.clone())
    }

    pub(super) async fn declare(&mut self, declare: &Declare, values: &[Value]) -> Result<StatementOutcome> {
        if !matches!(self.block, TransactionBlock::Open(_)) {
            return Err(SqlError::new(
                code::NO_ACTIVE_SQL_TRANSACTION,
                "DECLARE CURSOR can only be used in transaction blocks",
            ));
        }
        let name = &declare.name;
        if self.cursors.contains_key(name) {
            return Err(SqlError::new("42P03", format!("cursor \"{name}\" already exists")));
        }
        let mut hold = self.hold();
        hold.grow(UNDER_WAY_BYTES)?;
        let rows = self.query(&declare.query, values).await?;
        let fields = Arc::new(declare.query.fields.clone());
        self.cursors.insert(name.clone(), Cursor { rows, fields, _hold: hold });
        Ok(StatementOutcome::Done("DECLARE CURSOR".to_owned()))
    }

    /// Returns the next `count` rows; without a count, all remaining rows.
    pub(super) async fn fetch(&mut self, name: &str, count: Option<u64>) -> Result<StatementOutcome> {
        let mut hold = self.hold();
        let cursor = self.cursors.get_mut(name).ok_or_else(|| no_cursor(name))?;
        let Some(count) = count else {
            let rows = std::mem::replace(&mut cursor.rows, Rows::plain(Vec::new()));
            return Ok(StatementOutcome::Rows(rows, "FETCH"));
        };
        let mut fetched = Vec::new();
        while (fetched.len() as u64) < count {
            let most = usize::try_from(count).unwrap_or(usize::MAX) - fetched.len();
            let more = cursor.rows.take(most).await?;
            if more.is_empty() {
                break;
            }
            hold.grow(more.iter().map(budget::weight).sum())?;
            fetched.extend(more);
        }
        let tag = format!("FETCH {}", fetched.len());
        Ok(StatementOutcome::Buffered(fetched, tag, hold))
    }

    /// Closes a cursor; without a name, all cursors.
    pub(super) fn close(&mut self, name: Option<&str>) -> Result<StatementOutcome> {
        match name {
            None => {
                self.cursors.clear();
                Ok(StatementOutcome::Done("CLOSE CURSOR ALL".to_owned()))
            }
            Some(name) => match self.cursors.remove(name) {
                Some(_) => Ok(StatementOutcome::Done("CLOSE CURSOR".to_owned())),
                None => Err(no_cursor(name)),
            },
        }
    }
}

fn no_cursor(name: &str) -> SqlError {
    SqlError::new(code::INVALID_CURSOR_NAME, format!("cursor \"{name}\" does not exist"))
}
