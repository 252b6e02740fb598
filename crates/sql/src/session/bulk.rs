//! Executes COPY.

use quorate_table::{
    constraint::Deferral,
    operation::{Compared, LoadId},
    value::Value,
};

use super::{
    Session, StatementOutcome, block::TransactionBlock, deferred::of_table, in_flight::InFlight,
    reference_check::ReferenceSide, settle::written_rows, steps::Origin,
};
use crate::{
    backend::OperationError,
    copy::CopyIn,
    error::{Result, SqlError},
    statement::copy,
};

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
                    self.hold(),
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
            return self.publish_in_block(copy).await;
        }
        if copy.needs_block() {
            self.begin_implicit();
            let published = self.publish_in_block(copy).await;
            return match published {
                Ok(tag) => self.commit_block().await.map(|()| tag),
                Err(error) => {
                    self.drop_block();
                    Err(error)
                }
            };
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

    /// Makes the rows of a COPY visible when the open block commits.
    async fn publish_in_block(&mut self, mut copy: Box<CopyIn>) -> Result<String> {
        let published = self.attempt_write(copy.publication(), copy.table()).await;
        let (rows, _) = published.map_err(|error| error.within(copy.schema()))?;
        copy.check(rows)?;
        let mut keys = Vec::new();
        for (index, publication) in copy.key_publications() {
            let within = |error: SqlError| of_table(error.within(&index.schema), copy.table());
            let stream = self.attempt(publication, Compared::All, &index, Origin::WritePart).await;
            keys.push(written_rows(stream.map_err(within)?).await?.0);
        }
        copy.check_keys(&keys)?;
        self.check_copied(&mut copy).await?;
        if let TransactionBlock::Open(open) = &mut self.block {
            open.steps.keep_copy(copy);
        }
        Ok(format!("COPY {rows}"))
    }

    /// Checks that the rows of a COPY have parents, or has it checked at COMMIT.
    async fn check_copied(&mut self, copy: &mut CopyIn) -> Result<()> {
        let referenced = copy.take_referenced();
        let Some(upkeep) = copy.upkeep().cloned() else { return Ok(()) };
        let (mut waiting, mut due) = (Vec::new(), Vec::new());
        for (number, keys) in referenced.into_iter().enumerate() {
            let waits = upkeep.parents[number].reference.deferral == Deferral::Deferred;
            let side = (ReferenceSide::Parent(number), waits);
            let check = self.reference_check(copy.table(), &upkeep, side, keys.into_iter())?;
            if waits { waiting.extend(check) } else { due.extend(check) }
        }
        self.put_off(waiting, false);
        self.check_references(due).await
    }
}
