//! Answers, gathered and written.

use std::io;

use bytes::BytesMut;
use pgwire::messages::{
    Message, PgWireBackendMessage as Backend,
    data::{DataRow, FieldDescription, RowDescription},
    response::{CommandComplete, ErrorResponse, NoticeResponse},
};
use quorate_table::value::Value;
use tokio::{io::AsyncWriteExt, net::tcp};

use super::{
    encode::{self, Format},
    limit::Limit,
};
use crate::{
    error::{Result, SqlError},
    finish::Rows,
    metrics::Metrics,
    sql::Field,
};

/// Answers are written when there is so much of them.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

pub(super) struct Output<'a> {
    pub(super) stream: tcp::OwnedWriteHalf,
    pub(super) buffer: BytesMut,
    pub(super) row: BytesMut,
    pub(super) metrics: &'a Metrics,
}

impl Output<'_> {
    pub(super) fn put(&mut self, message: Backend) {
        message.encode(&mut self.buffer).expect("messages of ours are within their limits");
    }

    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.stream.write_all(&self.buffer).await?;
            self.metrics.bytes.add(self.buffer.len() as u64);
            self.buffer.clear();
        }
        Ok(())
    }

    pub(super) async fn flush_if_full(&mut self) -> io::Result<()> {
        if self.buffer.len() >= BUFFER_BYTES { self.flush().await } else { Ok(()) }
    }

    pub(super) fn complete(&mut self, tag: &str) {
        self.put(Backend::CommandComplete(CommandComplete::new(tag.to_owned())));
    }

    pub(super) fn describe(&mut self, fields: &[Field], formats: &[Format]) {
        let described = fields
            .iter()
            .zip(formats)
            .map(|(field, format)| {
                let (table, column) = field.origin.unwrap_or_default();
                FieldDescription::new(
                    field.name.clone(),
                    table as i32,
                    column,
                    field.ty.oid(),
                    field.ty.info().length,
                    -1,
                    i16::from(*format == Format::Binary),
                )
            })
            .collect();
        self.put(Backend::RowDescription(RowDescription::new(described)));
    }

    pub(super) async fn row(
        &mut self,
        row: &[Value],
        fields: &[Field],
        formats: &[Format],
    ) -> io::Result<()> {
        self.row.clear();
        for ((value, field), format) in row.iter().zip(fields).zip(formats) {
            encode::field(value, field.ty, *format, &mut self.row);
        }
        let message = DataRow::new(std::mem::take(&mut self.row), row.len() as i16);
        let encoded = Message::encode(&message, &mut self.buffer);
        encoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        self.row = message.data;
        self.metrics.rows.increment();
        self.flush_if_full().await
    }

    /// Sends the next rows; none when there are no more.
    pub(super) async fn batch(
        &mut self,
        rows: &mut Rows,
        fields: &[Field],
        formats: &[Format],
        limit: Limit,
    ) -> io::Result<Result<usize>> {
        let batch = match limit.keep(rows.next()).await {
            Ok(batch) => batch,
            Err(error) => return Ok(Err(error)),
        };
        for row in &batch {
            self.row(row, fields, formats).await?;
        }
        Ok(Ok(batch.len()))
    }

    pub(super) fn fatal(&mut self, error: &SqlError) {
        self.error("FATAL", error, "");
    }

    pub(super) fn error(&mut self, severity: &str, error: &SqlError, text: &str) {
        let fields = fields_of(severity, error, text);
        self.put(Backend::ErrorResponse(ErrorResponse::new(fields)));
    }

    pub(super) fn notice(&mut self, notice: &SqlError) {
        // A code of class 00 or 42 is a matter of course, anything else a warning.
        let severity = if matches!(&notice.code[..2], "00" | "42") { "NOTICE" } else { "WARNING" };
        self.put(Backend::NoticeResponse(NoticeResponse::new(fields_of(severity, notice, ""))));
    }
}

pub(super) fn select_tag(word: &str, rows: usize) -> String {
    if word == "SELECT" { format!("SELECT {rows}") } else { word.to_owned() }
}

fn fields_of(severity: &str, error: &SqlError, text: &str) -> Vec<(u8, String)> {
    // A C string ends at a NUL, which a message may quote.
    let clean = |text: &str| text.replace('\0', "\u{fffd}");
    let mut fields = vec![
        (b'S', severity.to_owned()),
        (b'V', severity.to_owned()),
        (b'C', error.code.to_string()),
        (b'M', clean(&error.message)),
    ];
    let position = error.place.filter(|_| !text.is_empty()).map(|place| place.offset(text).to_string());
    let more = [(b'D', &error.detail), (b'H', &error.hint), (b'P', &position), (b'W', &error.context)];
    fields
        .extend(more.into_iter().filter_map(|(kind, text)| text.as_deref().map(|text| (kind, clean(text)))));
    fields
}
