//! Restoring a backup, and verifying one.

use std::{
    fs::File,
    io::BufReader,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, bounded};
use quorate_sql::{
    backend::{Backend as _, Definition, OperationError, RequestId, WriteName},
    error::SqlError,
    fault,
};
use quorate_table::{
    engine::Answer,
    failure::Failure,
    operation::{Compared, LoadId, Operation, Step, TableTransaction, TransactionStatement},
    schema::{Schema, TableId},
    value::Row,
};

use super::{
    Progress, Summary, Transfer,
    file::{Contents, Next, Reader},
    transfer::{BUFFER_BYTES, TELL_EVERY},
};
use crate::{cluster::ClusterBackend, db::Db, error::Error, wait::block_on};

/// Number of threads that write batches of rows.
const WRITERS: usize = 4;
/// Longest time for which a failed write is repeated.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two attempts of a write.
const PAUSE: Duration = Duration::from_millis(100);

/// Reads the whole file, and fails if any of it is damaged.
pub(super) fn verify(it: &Transfer) -> Result<Summary, Error> {
    let all = read(it, 0, |_, _| Ok(()))?;
    let tables = chosen(it)?.into_iter().map(|place| all.tables[place].clone()).collect();
    Ok(Summary { tables, ..all })
}

/// Returns the indices of the requested tables.
fn chosen(it: &Transfer) -> Result<Vec<usize>, Error> {
    let file = File::open(&it.file).map_err(|error| it.wrong(error))?;
    let reader = Reader::open(file).map_err(|error| it.wrong(error))?;
    let chosen = it.choose(reader.contents().tables.iter());
    chosen.map_err(|name| it.wrong(format!("this backup has no table \"{name}\"")))
}

/// Reads a file to its end. `before` is the number of bytes that were read earlier, for the progress.
fn read(
    it: &Transfer,
    before: u64,
    mut take: impl FnMut(usize, Vec<Row>) -> Result<(), Error>,
) -> Result<Summary, Error> {
    let file = File::open(&it.file).map_err(|error| it.wrong(error))?;
    let length = file.metadata().map_err(|error| it.wrong(error))?.len();
    let mut reader =
        Reader::open(BufReader::with_capacity(BUFFER_BYTES, file)).map_err(|error| it.wrong(error))?;
    let (mut taken, mut reported_at) = (0, Instant::now());
    loop {
        match reader.next().map_err(|error| it.wrong(error))? {
            Next::Rows { table, rows } => {
                taken += rows.len() as u64;
                take(table, rows)?;
            }
            Next::End(end) => return Ok(Summary::of(reader.contents(), &end, reader.bytes())),
        }
        if reported_at.elapsed() >= TELL_EVERY {
            reported_at = Instant::now();
            let bytes = before + reader.bytes();
            (it.watch)(Progress { rows: taken, bytes, of: Some(before + length) });
        }
    }
}

/// Restores the tables.
pub(super) fn load(db: &Db, it: &Transfer) -> Result<Summary, Error> {
    let (_, tables) = db.tables()?;
    let verified = read(it, 0, |_, _| Ok(()))?;
    let chosen = chosen(it)?;
    let catalog = tables.catalog();
    for &place in &chosen {
        let name = &verified.tables[place].0;
        if catalog.table(name).is_some() {
            let failure = Failure::new("42P07", format!("relation \"{name}\" already exists"))
                .with_detail("Nothing was changed. A table is restored only where no table has its name.");
            return Err(SqlError::from(failure).into());
        }
    }
    let mut made = RestoredTables { tables: &tables, all: Vec::new(), unsure: Vec::new() };
    match made.bring_back(it, &verified, &chosen) {
        Ok(()) => Ok(Summary {
            tables: chosen.into_iter().map(|place| verified.tables[place].clone()).collect(),
            ..verified
        }),
        Err(error) => Err(made.undo(error)),
    }
}

/// The tables that a restore has made so far.
struct RestoredTables<'a> {
    tables: &'a Arc<ClusterBackend>,
    all: Vec<Loading>,
    /// Tables that may have been made, or may still be made, because the outcome of a request is unknown.
    unsure: Vec<String>,
}

/// A table that is being loaded.
struct Loading {
    /// The table's index in the backup.
    place: usize,
    name: String,
    table: TableId,
    load: LoadId,
    rows: u64,
    /// Whether all the table's rows are visible.
    published: bool,
}

/// Rows of a table on their way to a writing thread.
struct LoadBatch {
    table: TableId,
    load: LoadId,
    rows: Vec<Row>,
}

impl RestoredTables<'_> {
    fn bring_back(&mut self, it: &Transfer, verified: &Summary, chosen: &[usize]) -> Result<(), Error> {
        let file = File::open(&it.file).map_err(|error| it.wrong(error))?;
        let contents = Reader::open(file).map_err(|error| it.wrong(error))?.contents().clone();
        let changed = || it.wrong("this file was changed while the restore read the tables");
        if chosen.iter().any(|&place| place >= contents.tables.len()) {
            return Err(changed());
        }
        let schema = |&place: &usize| &contents.tables[place];
        Transfer::check_references(chosen.iter().map(schema)).map_err(|why| it.wrong(why))?;
        let is_linked = |place: &usize| {
            let own = schema(place);
            let mut all = chosen.iter().map(schema).flat_map(Schema::references);
            own.references().next().is_some() || all.any(|reference| reference.parent == own.name)
        };
        let (linked, others): (Vec<usize>, Vec<usize>) = chosen.iter().copied().partition(is_linked);
        self.create(&linked, &contents, verified)?;
        for place in others {
            self.create(&[place], &contents, verified)?;
        }
        self.stage(it, verified.bytes)?;
        let (together, others) = self.all.split_at_mut(linked.len());
        publish_together(self.tables, together)?;
        together.iter_mut().for_each(|loading| loading.published = true);
        for loading in others {
            publish(self.tables, loading)?;
            loading.published = true;
        }
        Ok(())
    }

    /// Creates tables in one message.
    fn create(&mut self, places: &[usize], contents: &Contents, verified: &Summary) -> Result<(), Error> {
        if places.is_empty() {
            return Ok(());
        }
        let create =
            |&place: &usize| Definition::Create { schema: contents.tables[place].clone(), replicas: None };
        let definitions = places.iter().map(create).collect();
        if let Err(fault) = block_on(self.tables.define(self.tables.request_id(), definitions)) {
            if fault.is_open() {
                self.unsure.extend(places.iter().map(|&place| verified.tables[place].0.clone()));
            }
            return Err(fault::unnamed_error(fault).into());
        }
        for &place in places {
            let (name, rows) = verified.tables[place].clone();
            let table = self.tables.catalog().table(&name).map(|table| table.id);
            let table = table.ok_or_else(|| {
                Error::not_sent(format!(
                    "another client dropped table \"{name}\" right after the restore had created the table"
                ))
            })?;
            let RequestId { session, number } = self.tables.request_id();
            let load = LoadId(session, number);
            self.all.push(Loading { place, name, table, load, rows, published: false });
        }
        Ok(())
    }

    /// Stages all rows, which stay invisible.
    fn stage(&self, it: &Transfer, before: u64) -> Result<(), Error> {
        let (sender, batches) = bounded::<LoadBatch>(WRITERS);
        let failed: Mutex<Option<Error>> = Mutex::default();
        let broken = || failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let work = |batches: Receiver<LoadBatch>| {
            for LoadBatch { table, load, rows } in batches {
                if let Err(error) = write(self.tables, Operation::Stage { table, load, rows }) {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return;
                }
            }
        };
        let read = thread::scope(|scope| {
            for _ in 0..WRITERS {
                let batches = batches.clone();
                scope.spawn(move || work(batches));
            }
            // The send fails once all writing threads have ended.
            drop(batches);
            let read = read(it, before, |place, rows| {
                let loading = self.all.iter().find(|loading| loading.place == place);
                let Some(loading) = loading else { return Ok(()) };
                if let Some(error) = broken() {
                    return Err(error);
                }
                let batch = LoadBatch { table: loading.table, load: loading.load, rows };
                let gone =
                    |_| broken().unwrap_or_else(|| Error::not_sent("all threads that write rows have ended"));
                sender.send(batch).map_err(gone)
            });
            drop(sender);
            read
        });
        match broken() {
            Some(error) => Err(error),
            None => read.map(drop),
        }
    }

    /// Drops the incomplete tables that the restore has made. Returns `error`, extended by the names of the
    /// tables that could not be dropped.
    fn undo(self, error: Error) -> Error {
        let (mut whole, mut empty) = (Vec::new(), Vec::new());
        for Loading { name, table, published, .. } in self.all {
            if published {
                whole.push(name);
                continue;
            }
            let drop = vec![Definition::Drop { table }];
            if block_on(self.tables.define(self.tables.request_id(), drop)).is_err() {
                empty.push(name);
            }
        }
        let left = [
            ("tables that were restored completely stay", whole),
            ("incomplete tables that could not be dropped", empty),
            ("tables that may or may not have been created", self.unsure),
        ];
        let left: Vec<String> = left
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(what, names)| format!("{what}: {}", names.join(", ")))
            .collect();
        if left.is_empty() { error } else { Error::rejected(format!("{error}; {}", left.join("; "))) }
    }
}

/// Makes all rows of a table visible at once.
fn publish(tables: &ClusterBackend, loading: &Loading) -> Result<(), Error> {
    let &Loading { table, load, rows, .. } = loading;
    if rows == 0 {
        return Ok(());
    }
    let answers = write(tables, Operation::Publish { table, load, rows })?;
    let written = |answer: &Answer| match answer {
        Answer::Written(written) => written.iter().map(|one| one.rows).sum(),
        _ => 0,
    };
    check_whole(loading, answers.iter().map(written).sum())
}

/// Makes all rows of several tables visible at one position.
fn publish_together(tables: &ClusterBackend, all: &[Loading]) -> Result<(), Error> {
    let filled: Vec<&Loading> = all.iter().filter(|loading| loading.rows > 0).collect();
    if filled.is_empty() {
        return Ok(());
    }
    let step = |loading: &&Loading| {
        let &Loading { table, load, rows, .. } = *loading;
        let operation = Operation::Publish { table, load, rows };
        Step::Execute(TransactionStatement { operation, compared: Compared::All, received: Vec::new() })
    };
    let transaction = TableTransaction { key: 0, steps: filled.iter().map(step).collect() };
    let send = |name| block_on(tables.transact(name, transaction.clone()));
    let answers = repeated(tables, send)?;
    for (index, loading) in filled.into_iter().enumerate() {
        let published = |answer: &Answer| match answer {
            Answer::Written(results) => results.get(index).map_or(0, |result| result.rows),
            _ => 0,
        };
        check_whole(loading, answers.iter().map(published).sum())?;
    }
    Ok(())
}

/// Refuses a table of which fewer rows were published than staged.
fn check_whole(loading: &Loading, published: u64) -> Result<(), Error> {
    let Loading { rows, name, .. } = loading;
    if published == *rows {
        return Ok(());
    }
    let message = format!("only {published} of {rows} rows of table \"{name}\" were loaded");
    let failure = Failure::new("XX001", message)
        .with_detail("The other rows were lost while they were loaded, with all replicas of their range.");
    Err(SqlError::from(failure).into())
}

/// Executes a write exactly once.
fn write(tables: &ClusterBackend, operation: Operation) -> Result<Vec<Answer>, Error> {
    repeated(tables, |name| block_on(tables.write(name, operation.clone())))
}

/// Sends a request. A request that failed or has an unknown outcome is repeated under the same id until
/// `PATIENCE` is over.
fn repeated(
    tables: &ClusterBackend,
    mut send: impl FnMut(WriteName) -> Result<Vec<Answer>, OperationError>,
) -> Result<Vec<Answer>, Error> {
    let until = Instant::now() + PATIENCE;
    let mut name = WriteName::nameless(tables.request_id());
    loop {
        match send(name) {
            Ok(answers) => return Ok(answers),
            Err(OperationError::Failed(failure)) => return Err(SqlError::from(failure).into()),
            Err(fault) if Instant::now() >= until => return Err(fault::unnamed_error(fault).into()),
            Err(_) => {
                name.repeated = true;
                thread::sleep(PAUSE);
            }
        }
    }
}
