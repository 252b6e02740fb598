//! The buffer of answers to one client, and the encoding of answers.

use std::{collections::VecDeque, fmt, fmt::Write, io};

use bytes::{Buf, BufMut, BytesMut};
use pgwire::messages::{
    PgWireBackendMessage as Backend,
    data::{FieldDescription, RowDescription},
    response::{ErrorResponse, NoticeResponse},
};
use quorate_sql::{
    encode::{self, Format},
    error::{Result, SqlError},
    finish::{RowBatch, Rows, malformed},
    statement::Field,
};
use quorate_table::value::Value;
use tokio::{io::AsyncWriteExt, net::tcp};

use super::{gap::Gap, limit::Limit};
use crate::metrics::Metrics;

/// Size at which the buffer of answers is written, in bytes.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

/// Size up to which answers wait for the results before them, in bytes.
const HELD_BYTES_MAX: usize = 256 << 10;

pub(super) struct OutputBuffer<'a> {
    pub(super) stream: tcp::OwnedWriteHalf,
    pub(super) buffer: BytesMut,
    /// The places of results that are not known yet; bounded by the steps of a block.
    pub(super) gaps: VecDeque<Gap>,
    /// A number that rises whenever a part of the buffer is written, or a gap is filled.
    pub(super) progress: u64,
    pub(super) metrics: &'a Metrics,
}

impl<'a> OutputBuffer<'a> {
    pub(super) fn new(stream: tcp::OwnedWriteHalf, metrics: &'a Metrics) -> OutputBuffer<'a> {
        OutputBuffer { stream, buffer: BytesMut::new(), gaps: VecDeque::new(), progress: 0, metrics }
    }
}

impl OutputBuffer<'_> {
    pub(super) fn put(&mut self, message: Backend) {
        message
            .encode(&mut self.buffer)
            .expect("each message of the gateway is within the limits of the protocol");
    }

    /// Writes the buffer, unless a result before some of its answers is unknown. If the future is dropped at
    /// a wait, the bytes that are not written yet stay in the buffer and are written later.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        while self.gaps.is_empty() && !self.buffer.is_empty() {
            let written = self.stream.write(&self.buffer).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.metrics.bytes.inc_by(written as u64);
            self.progress += 1;
            self.buffer.advance(written);
        }
        // A buffer that grew for one long row is freed, so that the short rows after it do not hold its
        // memory.
        if self.buffer.is_empty() && self.buffer.capacity() > 4 * BUFFER_BYTES {
            self.buffer = BytesMut::new();
        }
        Ok(())
    }

    pub(super) fn is_full(&self) -> bool {
        self.buffer.len() >= if self.gaps.is_empty() { BUFFER_BYTES } else { HELD_BYTES_MAX }
    }

    /// Whether answers have to be written, but wait for results.
    pub(super) fn is_held_full(&self) -> bool {
        !self.gaps.is_empty() && self.is_full()
    }

    /// Ends a statement with its tag. The tag is encoded in place, because every statement has a tag.
    pub(super) fn complete(&mut self, tag: impl fmt::Display) {
        let begin = self.buffer.len();
        self.buffer.put_slice(&[b'C', 0, 0, 0, 0]);
        write!(self.buffer, "{tag}\0").expect("a write to a buffer in memory does not fail");
        let length = (self.buffer.len() - begin - 1) as i32;
        self.buffer[begin + 1..begin + 5].copy_from_slice(&length.to_be_bytes());
    }

    /// Ends a statement that returned rows. Only SELECT and FETCH have the number of rows in their tag.
    pub(super) fn complete_rows(&mut self, word: &str, rows: usize) {
        if matches!(word, "SELECT" | "FETCH") {
            self.complete(format_args!("{word} {rows}"));
        } else {
            self.complete(word);
        }
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
                    field.modifier,
                    i16::from(*format == Format::Binary),
                )
            })
            .collect();
        self.put(Backend::RowDescription(RowDescription::new(described)));
    }

    pub(super) fn row(&mut self, row: &[Value], fields: &[Field], formats: &[Format]) -> io::Result<()> {
        let begin = self.begin_row();
        self.fields(row, fields, formats);
        self.end_row(begin, row.len())?;
        self.metrics.rows.inc();
        Ok(())
    }

    /// Begins a DataRow: the letter, the length, and the number of fields. `end_row` fills in both numbers.
    fn begin_row(&mut self) -> usize {
        let begin = self.buffer.len();
        self.buffer.put_slice(&[b'D', 0, 0, 0, 0, 0, 0]);
        begin
    }

    fn fields(&mut self, row: &[Value], fields: &[Field], formats: &[Format]) {
        for ((value, field), format) in row.iter().zip(fields).zip(formats) {
            encode::field(value, field.ty, *format, &mut self.buffer);
        }
    }

    fn end_row(&mut self, begin: usize, fields: usize) -> io::Result<()> {
        let too_long = |_| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "a row of the result is longer than the PostgreSQL protocol allows",
            )
        };
        let length = i32::try_from(self.buffer.len() - begin - 1).map_err(too_long)?;
        self.buffer[begin + 1..begin + 5].copy_from_slice(&length.to_be_bytes());
        self.buffer[begin + 5..begin + 7].copy_from_slice(&(fields as i16).to_be_bytes());
        Ok(())
    }

    /// Sends at most `most` rows, and returns the number of rows sent. Fewer rows mean that the result has
    /// ended, or that the buffer is full and has gaps. `ready` has rows that were taken from `rows` and not
    /// sent yet.
    pub(super) async fn rows(
        &mut self,
        rows: &mut Rows,
        ready: &mut RowBatch,
        most: usize,
        (fields, formats): (&[Field], &[Format]),
        limit: &Limit,
    ) -> io::Result<Result<usize>> {
        let mut sent = 0;
        loop {
            while sent < most && !ready.is_empty() {
                let before = sent;
                let mut put = Ok(());
                while sent < most && !ready.is_empty() && !self.is_full() && put.is_ok() {
                    put = self.next_row(ready, fields, formats)?;
                    sent += usize::from(put.is_ok());
                }
                self.metrics.rows.inc_by((sent - before) as u64);
                if let Err(error) = put {
                    return Ok(Err(error));
                }
                if self.is_held_full() {
                    return Ok(Ok(sent));
                }
                if self.is_full() {
                    // A client that does not read can still cancel, which frees the resources behind the
                    // rows.
                    match limit.run_io(self.flush()).await {
                        Ok(flushed) => flushed?,
                        Err(error) => return Ok(Err(error)),
                    }
                }
            }
            if sent == most {
                return Ok(Ok(sent));
            }
            if let Some(batch) = rows.ready_batch() {
                if batch.is_empty() {
                    return Ok(Ok(sent));
                }
                *ready = batch;
                continue;
            }
            match limit.run(rows.next_batch()).await {
                Ok(batch) if batch.is_empty() => return Ok(Ok(sent)),
                Ok(batch) => *ready = batch,
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Encodes the next row of a batch. The batch must not be empty.
    fn next_row(
        &mut self,
        batch: &mut RowBatch,
        fields: &[Field],
        formats: &[Format],
    ) -> io::Result<Result<()>> {
        let begin = self.begin_row();
        let width = match batch {
            RowBatch::Rows(rows) => {
                let row = rows.next().expect("not empty");
                self.fields(&row, fields, formats);
                row.len()
            }
            RowBatch::Encoded(rows, visible) => {
                let visible = fields.len().min(*visible);
                let mut width = 0;
                let read = rows.next(|column, cell| {
                    if column < visible {
                        encode::cell(cell, fields[column].ty, formats[column], &mut self.buffer);
                        width += 1;
                    }
                });
                if let Err(error) = read {
                    self.buffer.truncate(begin);
                    return Ok(Err(malformed(error)));
                }
                width
            }
        };
        self.end_row(begin, width)?;
        Ok(Ok(()))
    }

    pub(super) fn fatal(&mut self, error: &SqlError) {
        self.cut_at_gap(&error.code);
        self.error("FATAL", error, "");
    }

    pub(super) fn error(&mut self, severity: &str, error: &SqlError, text: &str) {
        let fields = fields_of(severity, error, text);
        self.put(Backend::ErrorResponse(ErrorResponse::new(fields)));
    }

    pub(super) fn notice(&mut self, notice: &SqlError) {
        // Messages of the classes 00 and 42 are notices, and messages of all other classes are warnings.
        let severity = if matches!(&notice.code[..2], "00" | "42") { "NOTICE" } else { "WARNING" };
        self.put(Backend::NoticeResponse(NoticeResponse::new(fields_of(severity, notice, ""))));
    }
}

fn fields_of(severity: &str, error: &SqlError, text: &str) -> Vec<(u8, String)> {
    // The protocol ends a text at a NUL, which a message may quote.
    let error = &error.clone().bounded();
    let clean = |text: &str| text.replace('\0', "\u{fffd}");
    let mut fields = vec![
        (b'S', severity.to_owned()),
        (b'V', severity.to_owned()),
        (b'C', error.code.to_string()),
        (b'M', clean(&error.message)),
    ];
    let position = error.place.filter(|_| !text.is_empty()).map(|place| place.offset(text).to_string());
    let schema = error.about.table.as_ref().map(|_| "public".to_owned());
    let routine = error.routine.map(str::to_owned);
    let more = [
        (b'D', &error.detail),
        (b'H', &error.hint),
        (b'P', &position),
        (b'W', &error.context),
        (b's', &schema),
        (b't', &error.about.table),
        (b'c', &error.about.column),
        (b'n', &error.about.constraint),
        (b'R', &routine),
    ];
    fields
        .extend(more.into_iter().filter_map(|(kind, text)| text.as_deref().map(|text| (kind, clean(text)))));
    fields
}
