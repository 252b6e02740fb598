//! COPY's data in both directions.

use std::io;

use pgwire::messages::{
    PgWireBackendMessage as Backend, PgWireFrontendMessage as Frontend,
    copy::{CopyData, CopyDone, CopyInResponse, CopyOutResponse},
};
use quorate_table::value::Value;

use super::{connection::Connection, frame::Frame, limit::Limit};
use crate::{
    copy::{CopyIn, lines},
    error::{Result, SqlError, code},
    finish::Rows,
    session::Status,
    sql::{Field, copy::Format},
};

impl Connection<'_> {
    pub(super) async fn copy_in(&mut self, mut copy: Box<CopyIn>) -> io::Result<Result<()>> {
        let columns = copy.columns();
        self.output.put(Backend::CopyInResponse(CopyInResponse::new(0, columns as i16, vec![0; columns])));
        loop {
            let limit = Limit::new(&self.cancelled, None);
            let frame = match limit.keep_io(self.next()).await {
                Ok(frame) => frame?,
                Err(error) => return Ok(Err(error)),
            };
            match frame {
                Frame::Message(Frontend::CopyData(data)) => {
                    let limit = Limit::new(&self.cancelled, self.session.timeout());
                    if let Err(error) = limit.keep(self.session.copy_data(&mut copy, &data.data)).await {
                        return Ok(Err(error));
                    }
                }
                Frame::Message(Frontend::CopyDone(_)) => {
                    let limit = Limit::new(&self.cancelled, self.session.timeout());
                    return Ok(match limit.keep(self.session.copy_done(copy)).await {
                        Ok(tag) => {
                            if self.session.status() == Status::Idle {
                                self.applied += 1;
                            }
                            self.output.complete(&tag);
                            Ok(())
                        }
                        Err(error) => Err(error),
                    });
                }
                Frame::Message(Frontend::CopyFail(fail)) => {
                    return Ok(Err(SqlError::new(
                        code::QUERY_CANCELED,
                        format!("COPY from stdin failed: {}", fail.message),
                    )));
                }
                // The protocol lets a client send these at any time during COPY.
                Frame::Message(Frontend::Flush(_) | Frontend::Sync(_)) => {}
                Frame::Message(other) => {
                    let what = format!("unexpected message during COPY from stdin: {other:?}");
                    return Ok(Err(SqlError::new(code::PROTOCOL_VIOLATION, what)));
                }
                Frame::TooLong { bytes, .. } => {
                    let what = format!("a piece of COPY data of {bytes} bytes is too long");
                    return Ok(Err(SqlError::new(code::PROGRAM_LIMIT_EXCEEDED, what)));
                }
                Frame::Malformed(what) => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
                Frame::Closed => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
    }

    pub(super) async fn copy_out(
        &mut self,
        mut rows: Rows,
        format: &Format,
        fields: &[Field],
    ) -> io::Result<Result<()>> {
        let columns = fields.len();
        self.output.put(Backend::CopyOutResponse(CopyOutResponse::new(0, columns as i16, vec![0; columns])));
        if format.header {
            let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
            let mut line = Vec::new();
            lines::write_header(format, &names, &mut line);
            self.output.put(Backend::CopyData(CopyData::new(line.into())));
        }
        let mut sent: u64 = 0;
        loop {
            let limit = Limit::new(&self.cancelled, self.session.timeout());
            let batch = match limit.keep(rows.next()).await {
                Ok(batch) => batch,
                Err(error) => return Ok(Err(error)),
            };
            if batch.is_empty() {
                break;
            }
            for row in &batch {
                let texts: Vec<Option<String>> = row.iter().map(Value::text).collect();
                let mut line = Vec::new();
                lines::write(format, &texts, &mut line);
                self.output.put(Backend::CopyData(CopyData::new(line.into())));
                self.output.flush_if_full().await?;
            }
            sent += batch.len() as u64;
        }
        self.output.metrics.rows.inc_by(sent);
        self.output.put(Backend::CopyDone(CopyDone::new()));
        self.output.complete(&format!("COPY {sent}"));
        Ok(Ok(()))
    }
}
