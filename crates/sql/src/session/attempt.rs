//! Tries the statements of an open block.

use quorate_roles::tables::gateway::ranges_of;
use quorate_table::{
    operation::{Compared, Operation, Select, Trial},
    value::Row,
};

use super::{
    Session,
    block::TransactionBlock,
    in_flight::CurrentStatement,
    settle::written_rows,
    steps::{Origin, Steps},
};
use crate::{
    backend::{AnswerStream, Attempt, OperationError, Strength, Table},
    error::{Result, SqlError, code},
    fault,
};

impl Session {
    /// Tries a write in the open block, and adds it to the block. Returns the number of rows that it changes,
    /// and the rows of RETURNING.
    pub(super) async fn attempt_write(
        &mut self,
        operation: Operation,
        table: &Table,
    ) -> Result<(u64, Vec<Row>)> {
        let origin = self.client_write();
        let stream = self.attempt(operation, Compared::All, table, origin).await?;
        written_rows(stream).await
    }

    /// Returns the origin of the current statement's step, which is a write.
    pub(super) fn client_write(&self) -> Origin {
        Origin::Write { print: self.current_statement.as_ref().map_or(0, CurrentStatement::print) }
    }

    /// Returns the select of a read that the open block has to compare, and the rows to compare. Returns
    /// `None` if the read can be sent alone. `select` makes the select. `lock` says whether the read locks
    /// its rows.
    pub(super) fn compared_read(
        &self,
        table: &Table,
        lock: bool,
        select: impl Fn() -> Select,
    ) -> Result<Option<(Select, Compared)>> {
        let TransactionBlock::Open(open) = &self.block else { return Ok(None) };
        let is_strict = open.isolation.is_strict();
        // An implicit block reads at a higher strength instead, because its client began no block.
        if self.strength() == Strength::Basic && !open.is_implicit && (is_strict || open.steps.has_writes()) {
            let why = if is_strict {
                format!("a transaction block with isolation level {}", open.isolation.name().to_uppercase())
            } else {
                "a transaction block that has written".to_owned()
            };
            let message = format!("a read of strength basic is not possible in {why}");
            return Err(SqlError::new(code::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
                .hint("SET LOCAL quorate.read = 'snapshot' or 'sequential'."));
        }
        let compared = match (lock, is_strict) {
            (true, _) => Compared::Locked,
            (false, true) => Compared::All,
            (false, false) if !open.steps.concern_table(table.id) => return Ok(None),
            (false, false) => Compared::Own,
        };
        let select = select();
        if compared == Compared::Own {
            let ranges = ranges_of(&Operation::Select(select.clone()), &table.schema);
            if !open.steps.concern(table.id, &ranges) {
                return Ok(None);
            }
        }
        Ok(Some((select, compared)))
    }

    /// Tries a statement behind the block's earlier steps, and adds it to the block.
    pub(super) async fn attempt(
        &mut self,
        operation: Operation,
        compared: Compared,
        table: &Table,
        origin: Origin,
    ) -> Result<AnswerStream> {
        let TransactionBlock::Open(open) = &self.block else { return Err(outside()) };
        let is_strict = open.isolation.is_strict();
        let (trial, attempted) = open.steps.begin(operation, compared, &table.schema, origin, is_strict)?;
        let again = (self.has_deferred() && origin != Origin::KeyRead).then(|| trial.clone());
        let attempt = match (self.backend.attempt(self.trial_strength(), trial).await, again) {
            // The failure may follow from an earlier statement that was deferred and has failed. So the
            // deferred statements are tried first, and the client gets their failure if there is one.
            (Err(fault @ OperationError::Failed(_)), Some(trial)) if !fault.is_conflict() => {
                Box::pin(self.settle()).await?;
                self.backend.attempt(self.trial_strength(), trial).await
            }
            (attempt, _) => attempt,
        };
        let attempt = attempt.map_err(|fault| self.trial_failed(fault))?;
        let attempt = self.confirmed(attempt, |steps| steps.comparison(&attempted)).await?;
        let TransactionBlock::Open(open) = &mut self.block else { return Err(outside()) };
        match attempt.answers {
            Ok(answers) => {
                open.steps.push(attempted, attempt.received)?;
                Ok(answers)
            }
            Err(failure) => {
                // The client receives this error. At a strict isolation level the commit compares it, too.
                if is_strict && !attempt.received.is_empty() {
                    open.steps.push(attempted, attempt.received)?;
                }
                Err(failure.into())
            }
        }
    }

    /// Confirms the failure of a statement: tries the statement again, and compares the results of all
    /// earlier statements. If one of these results is no longer true, the failure may follow from it. Then
    /// another transaction conflicts with the block (40001), and the client has to repeat the block.
    /// `comparison` makes the trial.
    pub(super) async fn confirmed(
        &mut self,
        attempt: Attempt,
        comparison: impl FnOnce(&Steps) -> Trial,
    ) -> Result<Attempt> {
        let TransactionBlock::Open(open) = &self.block else { return Ok(attempt) };
        if attempt.answers.is_ok() || open.isolation.is_strict() {
            return Ok(attempt);
        }
        let trial = comparison(&open.steps);
        if trial.earlier.is_empty() {
            return Ok(attempt);
        }
        let strength = self.trial_strength();
        self.backend.attempt(strength, trial).await.map_err(|fault| self.trial_failed(fault))
    }

    /// Returns the error of a statement whose trial failed, and notes a conflict.
    pub(super) fn trial_failed(&mut self, fault: OperationError) -> SqlError {
        self.conflicted |= fault.is_conflict();
        fault::trial_error(fault)
    }

    /// Returns the strength of trials. A trial needs one position, which the strength basic does not have.
    pub(super) fn trial_strength(&self) -> Strength {
        match self.strength() {
            Strength::Basic => Strength::Snapshot,
            strength => strength,
        }
    }
}

fn outside() -> SqlError {
    SqlError::new(code::INTERNAL_ERROR, "a statement was tried outside of a block")
}
