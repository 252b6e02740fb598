//! The simple protocol: a text of statements, each of which is executed and answered in text format.

use std::{io, sync::Arc};

use pgwire::messages::{PgWireBackendMessage as Backend, response::EmptyQueryResponse};
use quorate_sql::{
    cache::Prepared,
    encode::Format,
    error::{Result, SqlError, code},
    finish::RowBatch,
    session::StatementOutcome,
    statement::parse,
};

use super::connection::Connection;

impl Connection<'_> {
    pub(super) async fn simple(&mut self, text: &str) -> io::Result<()> {
        let statements = match parse::parse(text) {
            Ok(statements) => statements,
            Err(error) => {
                self.refuse(error, text);
                return Ok(());
            }
        };
        if statements.is_empty() {
            self.output.put(Backend::EmptyQueryResponse(EmptyQueryResponse::new()));
            return Ok(());
        }
        let alone = statements.len() == 1;
        for statement in statements {
            let prepared = if alone {
                self.session.prepare(text, Vec::new())
            } else {
                self.session.prepare_once(text, statement)
            };
            let done = match prepared {
                Ok(prepared) => self.simple_statement(&prepared).await?,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                self.refuse(error, text);
                return Ok(());
            }
            self.succeeded();
            self.output.flush_if_full().await?;
        }
        Ok(())
    }

    async fn simple_statement(&mut self, prepared: &Arc<Prepared>) -> io::Result<Result<()>> {
        if !prepared.parameters().is_empty() {
            return Ok(Err(SqlError::new(code::UNDEFINED_PARAMETER, "there is no parameter $1")));
        }
        let fields = self.fields(prepared);
        let outcome = match self.execute(prepared, &[]).await {
            Ok(outcome) => outcome,
            Err(error) => return Ok(Err(error)),
        };
        let fields = fields.unwrap_or_default();
        let formats = vec![Format::Text; fields.len()];
        match outcome {
            StatementOutcome::Rows(mut rows, word) => {
                self.output.describe(&fields, &formats);
                let (mut ready, shape) = (RowBatch::default(), (&fields[..], &formats[..]));
                let sent = self.output.rows(&mut rows, &mut ready, usize::MAX, shape, &self.limit).await?;
                match sent {
                    Ok(sent) => self.output.complete_rows(word, sent),
                    Err(error) => return Ok(Err(error)),
                }
            }
            StatementOutcome::Buffered(rows, tag, _hold) => {
                self.output.describe(&fields, &formats);
                for row in &rows {
                    self.output.row(row, &fields, &formats).await?;
                }
                self.output.complete(&tag);
            }
            StatementOutcome::Done(tag) => self.output.complete(&tag),
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
