//! Executes COPY.

use quorate_table::{operation::LoadId, value::Value};

use super::{Session, StatementOutcome, block::TransactionBlock, in_flight::InFlight};
use crate::{backend::OperationError, copy::CopyIn, error::Result, statement::copy};

impl Session {
    pub(super) async fn copy(&mut self, copy: &copy::Copy, values: &[Value]) -> Result<StatementOutcome> {
        match &copy.direction {
            copy::Direction::Out(query) => {
                let rows = self.query(query, values).await?;
                Ok(StatementOutcome::CopyOut(rows, copy.form.clone(), copy.fields()))
            }
            copy::Direction::In { table, columns } => {
                let id = self.backend.request_id();
                let load = LoadId(id.session, id.number);
                let rows = CopyIn::new(
                    (self.backend.clone(), self.cache.clone()),
                    table.clone(),
                    columns.clone(),
                    copy.form.clone(),
                    load,
                    (&|value| self.session_value(value), self.rejected_time_zone()),
                )?;
                Ok(StatementOutcome::CopyIn(Box::new(rows)))
            }
        }
    }

    /// Takes a piece of the data of a COPY.
    pub async fn copy_data(&mut self, copy: &mut CopyIn, data: &[u8]) -> Result<()> {
        if let Some(executing) = &mut self.current_statement {
            executing.give(data);
        }
        copy.data(data, &mut || self.backend.request_id()).await
    }

    /// Makes all rows of a COPY visible at once; in a block, when the block commits.
    pub async fn copy_done(&mut self, mut copy: Box<CopyIn>) -> Result<String> {
        copy.end(&mut || self.backend.request_id()).await?;
        for (sequence, number) in copy.latest_numbers() {
            self.numbers.record(*sequence, *number);
        }
        if self.is_in_block() {
            let published = self.attempt_write(copy.publication(), copy.table()).await;
            let (rows, _) = published.map_err(|error| error.within(copy.schema()))?;
            copy.check(rows)?;
            if let TransactionBlock::Open(open) = &mut self.block {
                open.steps.keep_copy(copy);
            }
            return Ok(format!("COPY {rows}"));
        }
        let request = self.request()?;
        self.in_flight = Some(InFlight::Write(request));
        let answered = self.backend.write(request.sent, copy.publication()).await;
        if !answered.as_ref().is_err_and(OperationError::is_open) {
            self.in_flight = None;
        }
        let written = self.written(answered, request);
        let (rows, _) = written.map_err(|error| error.within(copy.schema()))?;
        copy.was_published(request.sent.repeated);
        copy.check(rows)?;
        Ok(format!("COPY {rows}"))
    }
}
