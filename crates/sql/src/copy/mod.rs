//! COPY FROM: lines, or rows in binary, to staged rows, visible all at once at the end or never.
//!
//! Rows are staged in chunks, several under way at a time, and published by one ordered write after the last chunk
//! was taken. Whatever goes wrong before that — a malformed line, a broken connection, a cancellation — discards what
//! was staged.

pub mod lines;
mod target;
pub mod tuples;

use std::{sync::Arc, time::Duration};

use quorate_table::{
    engine::Answer,
    operation::{LoadId, Operation},
    schema::Schema,
    value::{Row, Value},
};
use tokio::{runtime::Handle, task::JoinSet};

use crate::{
    backend::{Backend, Fault, RequestId, Table, WriteName},
    error::{Result, SqlError, code},
    fault,
    statement::{
        copy::{Form, Format},
        parameters::SessionValue,
    },
};
use lines::Lines;
use target::Target;
use tuples::Tuples;

/// Rows of a chunk.
const CHUNK_ROWS: usize = 8_000;

/// Bytes of text of a chunk: wide rows come in smaller ones, so that the memory that one takes serves the next.
const CHUNK_BYTES: usize = 256 << 10;

/// Chunks under way.
const CHUNKS_MAX: usize = 8;

/// When a discard that came to nothing is tried again at first, and the longest pause between two attempts.
const DISCARD_AFTER: Duration = Duration::from_millis(100);
const DISCARD_AFTER_MAX: Duration = Duration::from_secs(600);

/// A COPY FROM that is going on.
pub struct CopyIn {
    backend: Arc<dyn Backend>,
    target: Target,
    load: LoadId,
    source: Source,
    chunk: Vec<Row>,
    chunk_bytes: usize,
    under_way: JoinSet<std::result::Result<Vec<Answer>, Fault>>,
    rows: u64,
    /// Something is staged, for all that is known.
    staged: bool,
}

/// What rows are read from.
enum Source {
    Lines(Lines, Format),
    Tuples(Tuples),
}

impl CopyIn {
    /// Begins a load into columns of a table.
    pub fn new(
        backend: Arc<dyn Backend>,
        table: Arc<Table>,
        columns: Vec<usize>,
        form: Form,
        load: LoadId,
        session: &(dyn Fn(SessionValue) -> Value + Sync),
    ) -> Result<Self> {
        let target = Target::new(table, columns, session)?;
        let source = match form {
            Form::Lines(format) => Source::Lines(Lines::new(format.clone()), format),
            Form::Binary => Source::Tuples(Tuples::default()),
        };
        Ok(CopyIn {
            backend,
            target,
            load,
            source,
            chunk: Vec::new(),
            chunk_bytes: 0,
            under_way: JoinSet::new(),
            rows: 0,
            staged: false,
        })
    }

    /// How many columns a row has.
    pub fn columns(&self) -> usize {
        self.target.columns()
    }

    /// Whether rows come in binary.
    pub fn is_binary(&self) -> bool {
        matches!(self.source, Source::Tuples(_))
    }

    /// Takes in data as it comes, cut anywhere.
    pub async fn data(&mut self, data: &[u8], id: &mut (dyn FnMut() -> RequestId + Send)) -> Result<()> {
        match &mut self.source {
            Source::Lines(lines, _) => lines.push(data),
            Source::Tuples(tuples) => tuples.push(data),
        }
        self.take_rows(false, id).await
    }

    /// Takes in what is left when the data ends, and waits until every chunk was taken.
    pub async fn end(&mut self, id: &mut (dyn FnMut() -> RequestId + Send)) -> Result<()> {
        self.take_rows(true, id).await?;
        if !self.chunk.is_empty() {
            self.stage(id).await?;
        }
        while let Some(joined) = self.under_way.join_next().await {
            staged(joined)?;
        }
        Ok(())
    }

    async fn take_rows(&mut self, last: bool, id: &mut (dyn FnMut() -> RequestId + Send)) -> Result<()> {
        while let Some((row, bytes)) = self.next_row(last)? {
            self.chunk.push(row);
            self.chunk_bytes += bytes;
            if self.chunk.len() >= CHUNK_ROWS || self.chunk_bytes >= CHUNK_BYTES {
                self.stage(id).await?;
            }
        }
        Ok(())
    }

    /// The next row that is here, and how many bytes it came in.
    fn next_row(&mut self, last: bool) -> Result<Option<(Row, usize)>> {
        let target = &self.target;
        match &mut self.source {
            Source::Lines(lines, format) => {
                if format.header && lines.number() == 0 {
                    let header = lines.next(last);
                    if header.map_err(|error| target.context(error, 1, None))?.is_none() {
                        return Ok(None);
                    }
                }
                let line = lines.number() + 1;
                let record = lines.next(last).map_err(|error| target.context(error, line, None))?;
                record.map(|record| Ok((target.row(&record, format, line)?, record.raw.len()))).transpose()
            }
            Source::Tuples(tuples) => {
                let line = tuples.number() + 1;
                let tuple = tuples.next(last).map_err(|error| target.context(error, line, None))?;
                tuple.map(|tuple| Ok((target.row_of_tuple(&tuple, line)?, tuple.bytes))).transpose()
            }
        }
    }

    async fn stage(&mut self, id: &mut (dyn FnMut() -> RequestId + Send)) -> Result<()> {
        if self.under_way.len() >= CHUNKS_MAX
            && let Some(joined) = self.under_way.join_next().await
        {
            staged(joined)?;
        }
        let rows = std::mem::take(&mut self.chunk);
        self.chunk_bytes = 0;
        self.rows += rows.len() as u64;
        self.staged = true;
        let id = id();
        let operation = Operation::Stage { table: self.target.table().id, load: self.load, rows };
        let backend = self.backend.clone();
        self.under_way.spawn(async move { backend.write(WriteName::nameless(id), operation).await });
        Ok(())
    }

    /// The table's schema.
    pub fn schema(&self) -> &Schema {
        &self.target.table().schema
    }

    /// The write that makes the rows visible.
    pub fn publication(&self) -> Operation {
        Operation::Publish { table: self.target.table().id, load: self.load, rows: self.rows }
    }

    /// The write that makes them visible is done, and counted so many rows. A publication that was repeated may have
    /// been answered from memory: then an earlier load is visible, and what this one has staged is discarded.
    pub fn published(&mut self, rows: u64, repeated: bool) -> Result<()> {
        self.staged &= repeated;
        if rows == self.rows {
            return Ok(());
        }
        let message = format!("{rows} of {} rows were loaded", self.rows);
        Err(SqlError::new(code::DATA_CORRUPTED, message)
            .detail("The others were lost while they were loaded, with all replicas of their range.")
            .hint("Look which rows are there, and load the rest."))
    }
}

fn staged(
    joined: std::result::Result<std::result::Result<Vec<Answer>, Fault>, tokio::task::JoinError>,
) -> Result<()> {
    let answered =
        joined.map_err(|error| SqlError::new(code::INTERNAL_ERROR, format!("a chunk was lost: {error}")))?;
    let answers = match answered {
        Ok(answers) => answers,
        // Staged or not: nothing of it is visible, so that nothing may have been applied.
        Err(fault) if fault.is_open() => {
            return Err(fault::of_nameless(Fault::not_sent("a chunk got no answer in time")));
        }
        Err(fault) => return Err(fault::of_nameless(fault)),
    };
    for answer in answers {
        if let Answer::Failed(failure) = answer {
            return Err(failure.into());
        }
    }
    Ok(())
}

impl Drop for CopyIn {
    /// However the load ends: what was staged and not published goes.
    fn drop(&mut self) {
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.staged {
            return;
        }
        let backend = self.backend.clone();
        let operation = Operation::Discard { table: self.target.table().id, load: self.load };
        let mut under_way = std::mem::take(&mut self.under_way);
        runtime.spawn(async move {
            // A chunk that is taken after the discard would stay until the session ends.
            while under_way.join_next().await.is_some() {}
            let mut pause = DISCARD_AFTER;
            loop {
                // Under a number of its own each time: what is discarded twice is gone.
                let name = WriteName::nameless(backend.request_id());
                match backend.write(name, operation.clone()).await {
                    // A table that is gone has nothing staged.
                    Ok(_) | Err(Fault::Failed(_)) => return,
                    Err(fault) if pause > DISCARD_AFTER_MAX => {
                        tracing::warn!(%fault, "staged rows of a broken load stay until this gateway ends");
                        return;
                    }
                    Err(_) => tokio::time::sleep(pause).await,
                }
                pause *= 2;
            }
        });
    }
}
