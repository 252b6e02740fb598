//! Executes several writes as one message.

use quorate_table::{
    engine::Answer,
    operation::{Compared, Step, TableTransaction, TransactionStatement},
    value::Value,
};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

use super::{
    Session, Status,
    in_flight::{CurrentStatement, InFlight},
    now,
    steps::check_count,
    write::operation,
};
use crate::{
    cache::Prepared,
    error::{Result, SqlError, code},
    fault,
    statement::{Statement, parameters::Arguments},
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
        check_count(statements.len())?;
        self.statement_began = now();
        let catalog = self.backend.catalog();
        let (mut steps, mut print) = (Vec::with_capacity(statements.len()), Xxh3::new());
        for (prepared, values) in statements {
            let prepared = prepared.current(&catalog)?;
            let Some((bound, Statement::Write(write))) =
                prepared.bound.as_ref().map(|bound| (bound, &bound.statement))
            else {
                return Err(SqlError::unsupported(
                    "a statement other than INSERT, UPDATE and DELETE in a batch",
                ));
            };
            if !write.fields.is_empty() {
                return Err(SqlError::unsupported("RETURNING in a batch"));
            }
            self.check_depends(bound.depends)?;
            self.check_read_only(write.action.verb())?;
            let session = |value| self.session_value(value);
            let operation = operation(write, &Arguments { values, session: &session })
                .map_err(|error| error.within(&write.table.schema))?;
            print.update(&CurrentStatement::new(&prepared, values).print().to_le_bytes());
            steps.push(Step::Execute(TransactionStatement {
                operation,
                compared: Compared::All,
                received: Vec::new(),
            }));
        }
        if steps.is_empty() {
            return Ok(Vec::new());
        }
        let request = self.request_of(print.digest())?;
        self.in_flight = Some(InFlight::Write(request));
        let answered = self.backend.transact(request.sent, TableTransaction { key: 0, steps }).await;
        self.in_flight = None;
        self.conclude_request(&answered);
        let answers =
            answered.map_err(|fault| fault::write_error(fault, request.name, request.sent.repeated))?;
        let mut changed = vec![0; statements.len()];
        for answer in answers {
            let Answer::Written(results) = answer else {
                return Err(SqlError::new(code::INTERNAL_ERROR, "a range answered a transaction with rows"));
            };
            for (changed, result) in changed.iter_mut().zip(results) {
                *changed += result.rows;
            }
        }
        Ok(changed)
    }
}
