//! Executes several writes as one message.

use std::sync::Arc;

use quorate_table::value::Value;

use super::{Session, Status};
use crate::{
    cache::Prepared,
    error::{Result, SqlError, code},
    statement::Statement,
};

impl Session {
    /// Executes writes in order, all at one position. All of them take effect, or none does. The client has
    /// received no result before, so a batch never fails with 40001 because of other transactions. Returns
    /// the number of rows that each statement changed.
    pub async fn batch(&mut self, statements: &[(Arc<Prepared>, Vec<Value>)]) -> Result<Vec<u64>> {
        if self.status() != Status::Idle {
            let message = "a batch cannot be executed inside a transaction block";
            return Err(SqlError::new(code::ACTIVE_SQL_TRANSACTION, message));
        }
        self.begin_implicit();
        self.defer(true);
        let executed = self.execute_all(statements).await;
        self.defer(false);
        if let Err(error) = executed {
            let error = self.failed(error);
            self.roll_back_implicit();
            return Err(error);
        }
        self.end_implicit().await?;
        Ok(self.results().into_iter().map(|result| result.changed).collect())
    }

    async fn execute_all(&mut self, statements: &[(Arc<Prepared>, Vec<Value>)]) -> Result<()> {
        for (prepared, values) in statements {
            match prepared.bound.as_ref().map(|bound| &bound.statement) {
                Some(Statement::Write(write)) if write.fields.is_empty() => {
                    self.execute(prepared, values).await?;
                }
                Some(Statement::Write(_)) => return Err(SqlError::unsupported("RETURNING in a batch")),
                _ => {
                    return Err(SqlError::unsupported(
                        "a statement other than INSERT, UPDATE and DELETE in a batch",
                    ));
                }
            }
        }
        Ok(())
    }
}
