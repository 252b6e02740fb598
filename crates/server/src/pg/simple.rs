//! The simple protocol: a text of statements, each of which is executed and answered in text format. Several
//! statements are one transaction (`together`).

use std::{io, sync::Arc};

use pgwire::messages::{PgWireBackendMessage as Backend, response::EmptyQueryResponse};
use quorate_sql::{
    cache::Prepared,
    encode::{Format, Formats},
    error::{Result, SqlError, code},
    finish::RowBatch,
    session::StatementOutcome,
    statement::parse,
};
use smallvec::smallvec;

use super::{connection::Connection, script::Shape};

impl Connection<'_> {
    pub(super) async fn simple(&mut self, text: &str) -> io::Result<()> {
        let statements = match parse::parse(text) {
            Ok(statements) => statements,
            Err(error) => {
                self.refuse(error, text).await;
                return Ok(());
            }
        };
        if statements.is_empty() {
            self.output.put(Backend::EmptyQueryResponse(EmptyQueryResponse::new()));
            return Ok(());
        }
        let alone = statements.len() == 1;
        for statement in statements {
            if !alone {
                self.begin_block();
            }
            self.session.defer(!alone);
            let prepared = if alone {
                self.session.prepare(text, Vec::new())
            } else {
                self.session.prepare_once(text, statement)
            };
            let done = match prepared {
                Ok(prepared) => self.simple_statement(&prepared).await?,
                Err(error) => Err(error),
            };
            let done = match done {
                Ok(()) => {
                    self.succeeded();
                    self.settle_if_full().await
                }
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                self.refuse(error, text).await;
                return Ok(());
            }
            if self.output.is_full() {
                self.output.flush().await?;
            }
        }
        Ok(())
    }

    async fn simple_statement(&mut self, prepared: &Arc<Prepared>) -> io::Result<Result<()>> {
        if !prepared.parameters().is_empty() {
            return Ok(Err(SqlError::new(code::UNDEFINED_PARAMETER, "there is no parameter $1")));
        }
        let fields = self.fields(prepared);
        let formats: Formats = smallvec![Format::Text; fields.as_ref().map_or(0, |fields| fields.len())];
        let shape = Shape { fields, formats, is_described: true };
        let outcome = match self.execute(prepared, &[]).await? {
            Ok(outcome) => outcome,
            Err(error) => return Ok(Err(error)),
        };
        let answered = self.answer(outcome, &shape).await?;
        if self.script.is_some() && answered.is_ok() {
            self.record(prepared, Vec::new(), shape);
        }
        Ok(answered)
    }

    /// Sends the answer of a statement, with all its rows.
    pub(super) async fn answer(
        &mut self,
        outcome: StatementOutcome,
        shape: &Shape,
    ) -> io::Result<Result<()>> {
        let fields = shape.fields.clone().unwrap_or_default();
        let formats = &shape.formats;
        match outcome {
            StatementOutcome::Rows(mut rows, word) => {
                if shape.is_described {
                    self.output.describe(&fields, formats);
                }
                let (mut ready, shape) = (RowBatch::default(), (&fields[..], &formats[..]));
                let sent = self.send_rows(&mut rows, &mut ready, usize::MAX, shape).await?;
                match sent {
                    Ok(sent) => self.output.complete_rows(word, sent),
                    Err(error) => return Ok(Err(error)),
                }
            }
            StatementOutcome::Buffered(rows, tag, _hold) => {
                if shape.is_described {
                    self.output.describe(&fields, formats);
                }
                for row in &rows {
                    self.output.row(row, &fields, formats)?;
                    if let Err(error) = self.flush_if_full().await? {
                        return Ok(Err(error));
                    }
                }
                self.output.complete(&tag);
            }
            StatementOutcome::Done(tag) => self.output.complete(&tag),
            StatementOutcome::Deferred => self.leave_gap(shape.clone()),
            StatementOutcome::Empty => {
                self.output.put(Backend::EmptyQueryResponse(EmptyQueryResponse::new()))
            }
            StatementOutcome::CopyIn(copy) => return self.copy_in(copy).await,
            StatementOutcome::CopyOut(rows, form, fields) => {
                return self.copy_out(rows, &form, &fields).await;
            }
        }
        Ok(Ok(()))
    }
}
