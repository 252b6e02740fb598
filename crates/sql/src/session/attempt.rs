//! Tries the statements of an open block.

use quorate_roles::tables::gateway::ranges_of;
use quorate_table::{
    engine::Answer,
    operation::{Compared, Operation, Select},
    value::Row,
};

use super::{Session, block::TransactionBlock, in_flight::CurrentStatement};
use crate::{
    backend::{AnswerStream, Strength, Table},
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
        let print = self.current_statement.as_ref().map_or(0, CurrentStatement::print);
        let stream = self.attempt(operation, Compared::All, table, Some(print)).await?;
        let (mut total, mut returned) = (0, Vec::new());
        for mut part in stream.parts {
            while let Some(answer) = part.next().await {
                let Answer::Written(ranges) = answer.map_err(fault::trial_error)? else {
                    return Err(SqlError::new(code::INTERNAL_ERROR, "a range answered a write with rows"));
                };
                for range in ranges {
                    total += range.rows;
                    returned.extend(range.returning);
                }
            }
        }
        Ok((total, returned))
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
        if self.strength() == Strength::Basic && (is_strict || open.steps.has_writes()) {
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
        print: Option<u64>,
    ) -> Result<AnswerStream> {
        // A trial needs one position, which the strength basic does not have.
        let strength = match self.strength() {
            Strength::Basic => Strength::Snapshot,
            strength => strength,
        };
        let TransactionBlock::Open(open) = &mut self.block else {
            return Err(SqlError::new(code::INTERNAL_ERROR, "a statement was tried outside of a block"));
        };
        let is_strict = open.isolation.is_strict();
        let (trial, attempted) = open.steps.begin(operation, compared, &table.schema, print, is_strict)?;
        let mut attempt = self.backend.attempt(strength, trial).await.map_err(fault::trial_error)?;
        if attempt.answers.is_err() && !is_strict && open.steps.len() > 0 {
            // The failure may only follow from an earlier result that is no longer true. Such a block met
            // another one (40001), and its client has to repeat the block.
            let trial = open.steps.comparison(&attempted);
            attempt = self.backend.attempt(strength, trial).await.map_err(fault::trial_error)?;
        }
        match attempt.answers {
            Ok(answers) => {
                open.steps.push(attempted, attempt.received)?;
                Ok(answers)
            }
            Err(failure) => {
                // At a strict level, the error that the client receives has to stay true, too.
                if is_strict && !attempt.received.is_empty() {
                    open.steps.push(attempted, attempt.received)?;
                }
                Err(failure.into())
            }
        }
    }
}
