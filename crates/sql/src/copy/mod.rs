//! COPY FROM: reads lines or binary rows, and stages them. All rows become visible at once at the end, or
//! never.
//!
//! Rows are staged in chunks, several under way at a time. After all chunks were staged, one ordered write
//! publishes them. Any failure before that, such as a malformed line, a broken connection or a cancellation,
//! discards the staged rows.

pub mod lines;
mod target;
pub mod tuples;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use quorate_table::{
    engine::Answer,
    operation::{LoadId, Operation},
    schema::{Schema, TableId},
    value::{Row, Value, key_of},
};
use tokio::{runtime::Handle, task::JoinSet};

use crate::{
    backend::{Backend, OperationError, RequestId, Table, WriteName},
    budget::{MemoryReservation, weight},
    cache::Cache,
    error::{Result, SqlError, code},
    fault,
    statement::{
        copy::{CopyForm, Format},
        parameters::SessionValue,
        upkeep::{UniqueKey, Upkeep},
    },
};
use lines::LineReader;
use target::CopyTarget;
use tuples::Tuples;

/// Maximum number of rows of a chunk.
const CHUNK_ROWS: usize = 8_000;

/// Size of the rows at which a chunk is sent, in bytes of their text. A chunk of wide rows holds fewer rows,
/// so that its memory is bounded.
const CHUNK_BYTES: usize = 256 << 10;

/// Maximum number of chunks that are under way at a time.
const CHUNKS_MAX: usize = 8;

/// Pause before a failed discard is tried again. It grows up to `DISCARD_AFTER_MAX`.
const DISCARD_AFTER: Duration = Duration::from_millis(100);
const DISCARD_AFTER_MAX: Duration = Duration::from_secs(600);

/// A COPY FROM in progress.
pub struct CopyIn {
    backend: Arc<dyn Backend>,
    cache: Arc<Cache>,
    /// The latest numbers of the sequences that number the rows, bounded by the columns of a table.
    latest: BTreeMap<TableId, i64>,
    target: CopyTarget,
    upkeep: Option<Arc<Upkeep>>,
    /// For each unique key, the number of keys that were staged.
    keys: Vec<u64>,
    /// For each reference, the keys of the staged rows, by their bytes; bounded by the memory of the session.
    referenced: Vec<BTreeMap<Vec<u8>, Row>>,
    /// Memory of these keys.
    hold: MemoryReservation,
    load: LoadId,
    source: CopyInput,
    chunk: Vec<Row>,
    chunk_bytes: usize,
    under_way: JoinSet<std::result::Result<Vec<Answer>, OperationError>>,
    rows: u64,
    /// Whether the cluster may hold staged rows of this load, which must be discarded if the load fails.
    staged: bool,
}

/// The format and the parser of the data.
enum CopyInput {
    Lines(LineReader, Format),
    Tuples(Tuples),
}

impl CopyIn {
    /// Begins a load into columns of a table. The session supplies the values of defaults. The last argument
    /// is the time zone that the client asked for, if the session uses another zone.
    pub fn new(
        (backend, cache): (Arc<dyn Backend>, Arc<Cache>),
        table: Arc<Table>,
        columns: Vec<usize>,
        form: CopyForm,
        load: LoadId,
        (session, rejected_time_zone): (&(dyn Fn(SessionValue) -> Value + Sync), Option<&str>),
        hold: MemoryReservation,
    ) -> Result<Self> {
        let upkeep = Upkeep::of(&backend.catalog(), &table.schema);
        let keys = vec![0; upkeep.as_ref().map_or(0, |upkeep| upkeep.uniques.len())];
        let referenced = upkeep.iter().flat_map(|upkeep| &upkeep.parents).map(|_| BTreeMap::new()).collect();
        let target = CopyTarget::new(&backend.catalog(), table, columns, session, rejected_time_zone)?;
        let source = match form {
            CopyForm::Lines(format) => CopyInput::Lines(LineReader::new(format.clone()), format),
            CopyForm::Binary => CopyInput::Tuples(Tuples::default()),
        };
        Ok(CopyIn {
            backend,
            cache,
            latest: BTreeMap::new(),
            target,
            upkeep,
            keys,
            referenced,
            hold,
            load,
            source,
            chunk: Vec::new(),
            chunk_bytes: 0,
            under_way: JoinSet::new(),
            rows: 0,
            staged: false,
        })
    }

    /// Returns the number of columns of the data.
    pub fn columns(&self) -> usize {
        self.target.columns()
    }

    /// Whether the data is binary.
    pub fn is_binary(&self) -> bool {
        matches!(self.source, CopyInput::Tuples(_))
    }

    /// Takes a piece of the data, which may be cut anywhere.
    pub async fn data(&mut self, data: &[u8], id: &mut (dyn FnMut() -> RequestId + Send)) -> Result<()> {
        match &mut self.source {
            CopyInput::Lines(lines, _) => lines.push(data),
            CopyInput::Tuples(tuples) => tuples.push(data),
        }
        self.take_rows(false, id).await
    }

    /// Processes the remaining data when the data ends, and waits until all chunks are staged.
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

    /// Returns the next complete row, and its length in the data in bytes.
    fn next_row(&mut self, last: bool) -> Result<Option<(Row, usize)>> {
        let target = &self.target;
        match &mut self.source {
            CopyInput::Lines(lines, format) => {
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
            CopyInput::Tuples(tuples) => {
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
        let mut rows = std::mem::take(&mut self.chunk);
        self.chunk_bytes = 0;
        for (column, sequence) in self.target.numbered() {
            let numbers = self.cache.numbers().take(&self.backend, sequence, rows.len()).await?;
            self.latest.extend(numbers.last().map(|latest| (sequence.table.id, *latest)));
            self.target.number(&mut rows, *column, numbers)?;
        }
        self.rows += rows.len() as u64;
        self.staged = true;
        let mut stages = Vec::with_capacity(1 + self.keys.len());
        for (unique, staged) in self.upkeep.iter().flat_map(|upkeep| &upkeep.uniques).zip(&mut self.keys) {
            let keys = unique.rows_of(&rows);
            *staged += keys.len() as u64;
            if !keys.is_empty() {
                stages.push(Operation::Stage { table: unique.index.id, load: self.load, rows: keys });
            }
        }
        let parents = self.upkeep.iter().flat_map(|upkeep| &upkeep.parents);
        for (parent, keys) in parents.zip(&mut self.referenced) {
            let columns = &parent.reference.columns;
            for row in rows.iter().filter(|row| columns.iter().all(|&column| !row[column].is_null())) {
                if let Entry::Vacant(place) = keys.entry(key_of(columns.iter().map(|&column| &row[column]))) {
                    let key: Row = columns.iter().map(|&column| row[column].clone()).collect();
                    self.hold.grow(weight(&key) + place.key().len())?;
                    place.insert(key);
                }
            }
        }
        stages.push(Operation::Stage { table: self.target.table().id, load: self.load, rows });
        for operation in stages {
            let (backend, id) = (self.backend.clone(), id());
            self.under_way.spawn(async move { backend.write(WriteName::nameless(id), operation).await });
        }
        Ok(())
    }

    /// Returns the latest numbers of the sequences that number the rows.
    pub fn latest_numbers(&self) -> &BTreeMap<TableId, i64> {
        &self.latest
    }

    /// Returns the table's schema.
    pub fn schema(&self) -> &Schema {
        &self.target.table().schema
    }

    /// Returns the write that makes the staged rows visible.
    pub fn publication(&self) -> Operation {
        Operation::Publish { table: self.target.table().id, load: self.load, rows: self.rows }
    }

    /// Returns the writes that make the keys of the staged rows visible in the tables of indexes.
    pub fn key_publications(&self) -> Vec<(Arc<Table>, Operation)> {
        let publication = |(unique, rows): (&UniqueKey, &u64)| {
            let table = unique.index.id;
            (unique.index.clone(), Operation::Publish { table, load: self.load, rows: *rows })
        };
        self.uniques().iter().zip(&self.keys).map(publication).collect()
    }

    fn uniques(&self) -> &[UniqueKey] {
        self.upkeep.as_ref().map_or(&[], |upkeep| &upkeep.uniques)
    }

    /// Returns the table.
    pub fn table(&self) -> &Arc<Table> {
        self.target.table()
    }

    /// Concludes a load whose publication took effect. The ranges may have answered a `repeated` publication
    /// from memory. Then the rows of an earlier load are visible, and the rows that this load staged are
    /// discarded.
    pub fn was_published(&mut self, repeated: bool) {
        self.staged &= repeated;
    }

    /// Whether the rows become visible in a transaction with other statements: with their keys in the tables
    /// of indexes, or with the reads of their parents.
    pub fn needs_block(&self) -> bool {
        !self.keys.is_empty() || !self.referenced.is_empty()
    }

    /// Takes the keys of the rows in each of the table's references.
    pub fn take_referenced(&mut self) -> Vec<Vec<Row>> {
        std::mem::take(&mut self.referenced).into_iter().map(|keys| keys.into_values().collect()).collect()
    }

    /// Returns the constraints of the table that its rows alone do not decide.
    pub fn upkeep(&self) -> Option<&Arc<Upkeep>> {
        self.upkeep.as_ref()
    }

    /// Checks that the publications of the keys were answered with all keys.
    pub fn check_keys(&self, published: &[u64]) -> Result<()> {
        published.iter().zip(&self.keys).try_for_each(|(published, staged)| check_whole(*published, *staged))
    }

    /// Checks that the publication of a load was answered with all its rows.
    pub fn check(&self, rows: u64) -> Result<()> {
        check_whole(rows, self.rows)
    }
}

/// Refuses a load of which fewer rows were published than staged.
fn check_whole(published: u64, staged: u64) -> Result<()> {
    if published == staged {
        return Ok(());
    }
    let message = format!("{published} of {staged} rows were loaded");
    Err(SqlError::new(code::DATA_CORRUPTED, message)
        .detail("The other rows were lost during the load, because all replicas of their range were lost.")
        .hint("Check which rows the table has, and load the rest."))
}

fn staged(
    joined: std::result::Result<std::result::Result<Vec<Answer>, OperationError>, tokio::task::JoinError>,
) -> Result<()> {
    let answered = joined.map_err(|error| {
        SqlError::new(code::INTERNAL_ERROR, format!("the task that sent a chunk of the COPY failed: {error}"))
    })?;
    let answers = match answered {
        Ok(answers) => answers,
        // Staged rows are not visible, so an unknown outcome here means that nothing was applied.
        Err(fault) if fault.is_open() => {
            return Err(fault::unnamed_error(OperationError::not_sent(
                "a chunk of the COPY got no answer in time",
            )));
        }
        Err(fault) => return Err(fault::unnamed_error(fault)),
    };
    for answer in answers {
        if let Answer::Failed(failure) = answer {
            return Err(failure.into());
        }
    }
    Ok(())
}

/// Discards the staged rows of a table. Tries again if the cluster does not answer.
async fn discard_staged(backend: &dyn Backend, operation: Operation) {
    let mut pause = DISCARD_AFTER;
    loop {
        // Each attempt has its own id. A second discard has no effect.
        let name = WriteName::nameless(backend.request_id());
        match backend.write(name, operation.clone()).await {
            // A table that was dropped has no staged rows.
            Ok(_) | Err(OperationError::Failed(_)) => return,
            Err(fault) if pause > DISCARD_AFTER_MAX => {
                tracing::warn!(
                    %fault,
                    "the staged rows of a failed COPY could not be discarded and stay in memory until this gateway ends"
                );
                return;
            }
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause *= 2;
    }
}

impl Drop for CopyIn {
    /// Discards rows that were staged and not published, however the load ended.
    fn drop(&mut self) {
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.staged {
            return;
        }
        let backend = self.backend.clone();
        let tables = self.uniques().iter().map(|unique| unique.index.id).chain([self.target.table().id]);
        let discard = |table| Operation::Discard { table, load: self.load };
        let operations: Vec<Operation> = tables.map(discard).collect();
        let mut under_way = std::mem::take(&mut self.under_way);
        runtime.spawn(async move {
            // A chunk that is staged after the discard would stay until the session ends.
            while under_way.join_next().await.is_some() {}
            for operation in operations {
                discard_staged(&*backend, operation).await;
            }
        });
    }
}
