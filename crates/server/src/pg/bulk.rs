//! The data of COPY, from and to the client.

use std::io;

use pgwire::messages::{
    PgWireBackendMessage as Backend, PgWireFrontendMessage as Frontend,
    copy::{CopyData, CopyDone, CopyInResponse, CopyOutResponse},
};
use quorate_sql::{
    copy::{CopyIn, lines, tuples},
    error::{Result, SqlError, code},
    finish::Rows,
    session::Status,
    statement::{Field, copy::CopyForm},
};
use quorate_table::value::Value;

use super::{connection::Connection, frame::Frame, limit::Limit};

impl Connection<'_> {
    pub(super) async fn copy_in(&mut self, mut copy: Box<CopyIn>) -> io::Result<Result<()>> {
        // The client sends the data only after it has received all earlier answers.
        if let Err(error) = self.settle().await {
            return Ok(Err(error));
        }
        let (columns, format) = (copy.columns(), i16::from(copy.is_binary()));
        let response = CopyInResponse::new(format as i8, columns as i16, vec![format; columns]);
        self.output.put(Backend::CopyInResponse(response));
        loop {
            let limit = Limit::new(&self.cancel, None);
            let frame = match limit.run_io(self.next()).await {
                Ok(frame) => frame?,
                Err(error) => return Ok(Err(error)),
            };
            match frame {
                Frame::Message(Frontend::CopyData(data)) => {
                    let limit = Limit::new(&self.cancel, self.session.time_limit(false));
                    if let Err(error) = limit.run(self.session.copy_data(&mut copy, &data.data)).await {
                        return Ok(Err(error));
                    }
                }
                Frame::Message(Frontend::CopyDone(_)) => {
                    let limit = Limit::new(&self.cancel, self.session.time_limit(false));
                    return Ok(match limit.run(self.session.copy_done(copy)).await {
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
                // The protocol lets a client send Flush and Sync at any time during COPY.
                Frame::Message(Frontend::Flush(_) | Frontend::Sync(_)) => {}
                other @ (Frame::Message(_) | Frame::Bind(_) | Frame::Execute(_)) => {
                    let what = format!("unexpected message during COPY from stdin: {other:?}");
                    return Ok(Err(SqlError::new(code::PROTOCOL_VIOLATION, what)));
                }
                Frame::TooLong { bytes, .. } => {
                    let what = format!(
                        "during COPY, the client sent a message of {bytes} bytes, which is too long: send shorter messages"
                    );
                    return Ok(Err(SqlError::new(code::PROGRAM_LIMIT_EXCEEDED, what)));
                }
                Frame::Refused { error, .. } => return Ok(Err(error)),
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
        form: &CopyForm,
        fields: &[Field],
    ) -> io::Result<Result<()>> {
        let (columns, format) = (fields.len(), i16::from(*form == CopyForm::Binary));
        let response = CopyOutResponse::new(format as i8, columns as i16, vec![format; columns]);
        self.output.put(Backend::CopyOutResponse(response));
        // As in PostgreSQL, the binary header shares a message with the first row, and a header line has a
        // message of its own.
        let mut data = Vec::new();
        match form {
            CopyForm::Binary => data.extend_from_slice(tuples::HEADER),
            CopyForm::Lines(format) if format.header => {
                let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
                lines::write_header(format, &names, &mut data);
                self.output.put(Backend::CopyData(CopyData::new(std::mem::take(&mut data).into())));
            }
            CopyForm::Lines(_) => {}
        }
        let mut sent: u64 = 0;
        loop {
            let batch = match self.limit.run(rows.next()).await {
                Ok(batch) => batch,
                Err(error) => return Ok(Err(error)),
            };
            if batch.is_empty() {
                break;
            }
            for row in &batch {
                match form {
                    CopyForm::Lines(format) => {
                        let texts: Vec<Option<String>> = row.iter().map(Value::text).collect();
                        lines::write(format, &texts, &mut data);
                    }
                    CopyForm::Binary => tuples::write(row, fields, &mut data),
                }
                self.output.put(Backend::CopyData(CopyData::new(std::mem::take(&mut data).into())));
                if let Err(error) = self.flush_if_full().await? {
                    return Ok(Err(error));
                }
            }
            sent += batch.len() as u64;
        }
        if *form == CopyForm::Binary {
            data.extend_from_slice(&tuples::TRAILER);
            self.output.put(Backend::CopyData(CopyData::new(data.into())));
        }
        self.output.metrics.rows.inc_by(sent);
        self.output.put(Backend::CopyDone(CopyDone::new()));
        self.output.complete(format_args!("COPY {sent}"));
        Ok(Ok(()))
    }
}
