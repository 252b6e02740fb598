//! Writes whose results the client does not need yet.
//!
//! If several statements come together, in one message or before one Sync, their client needs no result
//! before the last statement. A write among them is *deferred*: it becomes a step of the block, and nobody
//! tries it. COMMIT sends the steps as one message. The replicas then execute a deferred write for the first
//! time. COMMIT has no result of a trial to compare, so the block never fails because of other transactions.
//!
//! ```text
//! update acct set cents = cents - 50 where id = 1; update acct set cents = cents + 50 where id = 2
//!
//! begin_implicit()                     opens a block that ends with the message
//! execute(update …)   ─▶ Deferred      becomes step 1
//! execute(update …)   ─▶ Deferred      becomes step 2
//! end_implicit()                       sends both steps as one write
//! results()           ─▶ [UPDATE 1, UPDATE 1]
//! ```
//!
//! **Settling.** If a result is needed before COMMIT, [`Session::settle`] tries the deferred writes in order.
//! From then on the block compares their results, as if each had been tried when it came. That happens before
//! the client receives anything, before a rollback, at the end of a message that leaves its block open, and
//! if a later statement fails: then the earlier statements have results, and an earlier failure comes first.

use quorate_table::{
    engine::Answer,
    operation::{Operation, Trial},
    value::Row,
};

use super::{
    Session, StatementOutcome,
    block::TransactionBlock,
    deferred::{DeferredWrite, StatementPart, WriteResult},
    reference_check::ReferenceCheck,
    steps::Origin,
};
use crate::{
    backend::AnswerStream,
    budget::MemoryReservation,
    error::{Result, SqlError, code},
    fault,
    statement::write::Write,
};

impl Session {
    /// Sets whether the client needs no result of the next statements yet, because more statements follow.
    pub fn defer(&mut self, more_follows: bool) {
        self.defers = more_follows;
    }

    /// Whether writes are deferred.
    pub fn defers(&self) -> bool {
        self.defers
    }

    /// Whether the block has writes whose results are unknown.
    pub fn has_deferred(&self) -> bool {
        matches!(&self.block, TransactionBlock::Open(open) if !open.deferred.is_empty())
    }

    /// Returns the results of deferred writes that became known since the last call, in the order of the
    /// writes.
    pub fn results(&mut self) -> Vec<WriteResult> {
        std::mem::take(&mut self.results)
    }

    /// Adds a write to the open block without trying it. `returned` has the rows of RETURNING that the
    /// gateway knows.
    pub(super) fn defer_write(
        &mut self,
        operation: Operation,
        write: &Write,
        returned: Vec<Row>,
        hold: MemoryReservation,
    ) -> Result<StatementOutcome> {
        self.defer_part(operation, write, StatementPart::First, (returned, hold))?;
        Ok(StatementOutcome::Deferred)
    }

    /// Adds a part of a write to the open block without trying it.
    pub(super) fn defer_part(
        &mut self,
        operation: Operation,
        write: &Write,
        part: StatementPart,
        (returned, hold): (Vec<Row>, MemoryReservation),
    ) -> Result<()> {
        let origin = match part {
            StatementPart::First => self.client_write(),
            StatementPart::Rows | StatementPart::Other { .. } => Origin::WritePart,
        };
        let TransactionBlock::Open(open) = &mut self.block else {
            return Err(SqlError::new(code::INTERNAL_ERROR, "a write was deferred outside of a block"));
        };
        let schema = match &part {
            StatementPart::Other { table, .. } => &table.schema,
            StatementPart::First | StatementPart::Rows => &write.table.schema,
        };
        let step = open.steps.add_untried(operation, schema, origin)?;
        let (table, verb) = (write.table.clone(), write.action.verb());
        open.deferred.push_back(DeferredWrite {
            step,
            table,
            part,
            checks: Vec::new(),
            verb,
            returned,
            hold,
        });
        Ok(())
    }

    /// Puts checks off: until the result of the last deferred write is needed, or until COMMIT.
    pub(super) fn put_off(&mut self, checks: Vec<ReferenceCheck>, until_result: bool) {
        let TransactionBlock::Open(open) = &mut self.block else { return };
        match open.deferred.back_mut().filter(|_| until_result) {
            Some(write) => write.checks.extend(checks),
            None => open.checks.extend(checks),
        }
    }

    /// Makes the checks of the first deferred write, which was tried and succeeded.
    async fn check_settled(&mut self, checks: Vec<ReferenceCheck>) -> Result<()> {
        let checked = self.check_references(checks).await;
        if checked.is_err()
            && let TransactionBlock::Open(open) = &self.block
            && open.deferred.front().is_some_and(|write| !write.is_first())
        {
            // The client receives the error in place of the result of the parts before.
            self.results.pop();
        }
        checked
    }

    /// Tries the deferred writes in order, until one fails.
    pub async fn settle(&mut self) -> Result<()> {
        while let Some((number, trial)) = self.next_trial() {
            let attempt = self.backend.attempt(self.trial_strength(), trial).await;
            let attempt = attempt.map_err(|fault| self.trial_failed(fault))?;
            let attempt = self.confirmed(attempt, |steps| steps.trial_of(number, true)).await?;
            let TransactionBlock::Open(open) = &mut self.block else { return Ok(()) };
            match attempt.answers {
                Ok(answers) => {
                    let (rows, returned) = written_rows(answers).await?;
                    open.steps.set_received(number, attempt.received)?;
                    let checks = open.deferred.front_mut().map(|write| std::mem::take(&mut write.checks));
                    if let Some(checks) = checks.filter(|checks| !checks.is_empty())
                        && let Err(error) = self.check_settled(checks).await
                    {
                        return Err(error);
                    }
                    let TransactionBlock::Open(open) = &mut self.block else { return Ok(()) };
                    let write = open.deferred.pop_front().expect("the write that was tried");
                    write.conclude(rows, returned, &mut self.results);
                }
                Err(failure) => {
                    let error = SqlError::from(failure);
                    let error = match open.deferred.front() {
                        Some(write) => write.within(error),
                        None => error,
                    };
                    if open.deferred.front().is_some_and(|write| !write.is_first()) {
                        // The client receives the error in place of the result of the parts before.
                        self.results.pop();
                    }
                    // The client receives this error. At a strict isolation level the commit compares it,
                    // too.
                    if open.isolation.is_strict() && !attempt.received.is_empty() {
                        open.fail_deferred(attempt.received)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Returns the number of the first deferred write's step, and its trial.
    fn next_trial(&self) -> Option<(usize, Trial)> {
        let TransactionBlock::Open(open) = &self.block else { return None };
        let step = open.deferred.front()?.step;
        Some((step, open.steps.trial_of(step, open.isolation.is_strict())))
    }
}

/// Adds up the answers to a write that was tried: the number of rows, and the rows of RETURNING.
pub(super) async fn written_rows(stream: AnswerStream) -> Result<(u64, Vec<Row>)> {
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
