//! Versions of tables: what every engine does alike, over rows that each keeps in its own way.
//!
//! Promise: the operations of a batch take effect exactly as if one after another, a statement wholly or not at all,
//! and replicas that were given the same operations for a range hold the same rows of it.
//!
//! A write is evaluated against the present version into an `Effect` (`write.rs`), which then either takes place or
//! does not: a failed statement has changed nothing, and a held one is an effect that waits. A version is a map from
//! table to shared rows ([`Rows`]), so that pinning one copies a pointer for each table. Reads that stand together in a
//! batch see one version, and are handed to the rows together.
//!
//! A row's [`Place`] is its ring key, then a hash of its primary key, then its number. So the rows of an arc lie
//! together (migration and pruning are slices), rows that could have equal primary keys lie together (the order is the
//! unique index), and every replica visits rows in the same order, whatever way they came and whatever way they lie.
//!
//! Uniqueness is judged at the end of the statement, as the SQL standard says; PostgreSQL judges row by row and refuses
//! some updates that end without duplicates (`SET k = k + 1`). Row by row, the outcome would depend on where rows lie.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::{Answer, Chunk, Cursor, Engine, Epoch, Failure, Job, Page, RowId, Usage, Written},
    expr::Expr,
    operation::{LoadId, Operation, Select},
    plain::Blocks,
    schema::{KeyRange, Schema, TableId},
    value::{Row, Value},
};

mod migrate;
mod read;
mod write;

pub(crate) use read::Gathering;
use write::Effect;

/// Where a row lies among all rows of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub(crate) key: u64,
    pub(crate) tie: u64,
    pub(crate) id: RowId,
}

impl Place {
    /// Before every row of this ring key.
    pub(crate) fn first(key: u64) -> Place {
        Place { key, tie: 0, id: RowId { epoch: Epoch(0), line: 0 } }
    }
}

/// A row that is no part of a table, or not yet.
pub(crate) type Stored = Arc<[Value]>;

/// A row of a table: borrowed where it lies as it is, put together where it lies in pieces.
pub(crate) type Seen<'a> = Cow<'a, [Value]>;

/// A read of rows of one version.
pub struct Read<'a> {
    /// The arcs it is to answer for.
    pub ranges: &'a [KeyRange],
    /// What to read.
    pub select: &'a Select,
}

/// What an operation asks of rows.
pub enum Task<'a> {
    /// A read's answer.
    Read(Read<'a>),
    /// The rows that a write may change.
    Find {
        /// The arcs it is about.
        ranges: &'a [KeyRange],
        /// Which rows of them.
        filter: Option<&'a Expr>,
    },
    /// Nothing: the operation brings rows.
    Nothing,
}

/// The rows of one table in one version, in the order of their places. A clone is another version: cheap, and not
/// changed by what happens to the first.
pub trait Rows: Clone + Send {
    /// None, of a table with this definition.
    fn new(schema: &Schema) -> Self;

    /// How many there are.
    fn len(&self) -> usize;

    /// The bytes they take, except those of parts already in `counted`, which gains the rest.
    fn bytes_beside(&self, counted: &mut BTreeSet<usize>) -> usize;

    /// Whether there is a row at this place.
    fn has(&self, place: &Place) -> bool;

    /// The rows of sorted, disjoint arcs, from a place on.
    fn within<'a>(&'a self, ranges: &'a [KeyRange], start: Place) -> impl Iterator<Item = (Place, Seen<'a>)>;

    /// The rows whose ring key and tie these are.
    fn tied(&self, key: u64, tie: u64) -> Vec<(Place, Seen<'_>)>;

    /// The rows in these sorted, disjoint arcs that may satisfy the filter, and those on which it fails.
    fn candidates<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        filter: Option<&Expr>,
    ) -> impl Iterator<Item = (Place, Seen<'a>)>;

    /// Puts rows at their places, where there are none.
    fn insert(&mut self, rows: Vec<(Place, Stored)>);

    /// Takes away rows that are there.
    fn remove(&mut self, places: &[Place]);

    /// Puts other rows where there are some. They differ in these columns only.
    fn replace(&mut self, columns: &[usize], rows: Vec<(Place, Stored)>);

    /// The row at a place, if there is one.
    fn at(&self, place: &Place) -> Option<Seen<'_>>;

    /// Whether a value can be told from those that never were in this column.
    fn knows(&self, _column: usize, _value: &Value) -> bool {
        true
    }

    /// Takes note of a value that is about to come to a column.
    fn expect(&mut self, _column: usize, _value: &Value) {}

    /// Whether nothing has piled up that is put in order between batches.
    fn is_tidy(&self) -> bool {
        true
    }

    /// Puts it in order.
    fn tidy(&mut self) {}

    /// Whether it pays to find for writes and reads of a batch together.
    const SHARED: bool;

    /// What the operations of a batch find in the version before all of them.
    type Foresight<'a>;

    /// Finds it for all of them, each as if it were alone; `followed` if writes among them will be noted.
    fn foresee<'a>(&self, schema: &Schema, tasks: &[Task<'a>], followed: bool) -> Self::Foresight<'a>;

    /// What a read answers now; given once, and not if it must be asked anew.
    fn answer(&self, foresight: &mut Self::Foresight<'_>, task: usize) -> Option<Result<Answer, Failure>>;

    /// Where the rows were that a write must look at; given once.
    fn places(foresight: &mut Self::Foresight<'_>, task: usize) -> Option<Vec<Place>>;

    /// Takes note that these rows are about to change, or have just come to be.
    fn note(&self, foresight: &mut Self::Foresight<'_>, places: &[Place]);
}

/// An engine: all tables, in the present version and in those that are pinned.
pub struct Versions<R> {
    present: Version<R>,
    /// The last write that took place.
    written: Epoch,
    held: Option<Held>,
    pins: BTreeMap<Epoch, Pin<R>>,
}

impl<R> Default for Versions<R> {
    fn default() -> Versions<R> {
        Versions { present: Version::default(), written: Epoch::default(), held: None, pins: BTreeMap::new() }
    }
}

/// All tables at one moment.
#[derive(Clone)]
struct Version<R> {
    tables: BTreeMap<TableId, Arc<Table<R>>>,
}

impl<R> Default for Version<R> {
    fn default() -> Version<R> {
        Version { tables: BTreeMap::new() }
    }
}

#[derive(Clone)]
struct Table<R> {
    schema: Schema,
    rows: R,
    /// Rows of loads that are not published; they are never searched, so they lie as they came.
    staged: BTreeMap<LoadId, Blocks>,
}

/// Tables that are read, and the jobs that read them.
type Shared<'a, R> = BTreeMap<(Option<Epoch>, TableId), (&'a Table<R>, Vec<usize>)>;

/// A job that waits for its verdict.
struct Held {
    epoch: Epoch,
    effect: Option<Effect>,
}

struct Pin<R> {
    version: Version<R>,
    holders: usize,
}

impl<R> Version<R> {
    fn table(&self, table: TableId) -> Result<&Table<R>, Failure> {
        self.tables
            .get(&table)
            .map(|table| &**table)
            .ok_or_else(|| Failure::new("42P01", format!("table {} does not exist", table.0)))
    }
}

impl<R: Rows> Table<R> {
    fn new(schema: Schema) -> Table<R> {
        Table { rows: R::new(&schema), schema, staged: BTreeMap::new() }
    }

    /// Where a row of this number belongs.
    fn place(&self, row: &[Value], id: RowId) -> Place {
        Place { key: self.schema.partition.key(row), tie: self.schema.primary_key_hash(row), id }
    }

    fn reach(&self, ranges: &[KeyRange], filter: Option<&Expr>) -> Vec<KeyRange> {
        reach(&self.schema, ranges, filter)
    }
}

impl Read<'_> {
    /// The arcs that it has to look at.
    pub(crate) fn reach(&self, schema: &Schema) -> Vec<KeyRange> {
        reach(schema, self.ranges, self.select.filter.as_ref())
    }
}

/// The arcs among `ranges` that can hold a row satisfying the filter.
pub(crate) fn reach(schema: &Schema, ranges: &[KeyRange], filter: Option<&Expr>) -> Vec<KeyRange> {
    let ranges = KeyRange::union(ranges.to_vec());
    match filter {
        Some(filter) => KeyRange::intersection(&ranges, &schema.partition.ranges(filter)),
        None => ranges,
    }
}

impl<R: Rows> Versions<R> {
    /// The version a read at `epoch` sees: the present one, or the one pinned there.
    fn readable(&self, epoch: Epoch) -> Result<&Version<R>, Failure> {
        if epoch >= self.written {
            return Ok(&self.present);
        }
        self.pinned(epoch)
    }

    fn pinned(&self, epoch: Epoch) -> Result<&Version<R>, Failure> {
        let gone = || Failure::new("72000", format!("snapshot too old: epoch {} is not kept", epoch.0));
        self.pins.get(&epoch).map(|pin| &pin.version).ok_or_else(gone)
    }

    /// What reads with no write between them answer.
    fn read(&self, jobs: &[Job]) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = vec![None; jobs.len()];
        // By version and table.
        let mut shared: Shared<'_, R> = BTreeMap::new();
        for (index, job) in jobs.iter().enumerate() {
            let past = (job.epoch < self.written).then_some(job.epoch);
            let id = job.operation.table();
            match self.readable(job.epoch).and_then(|version| version.table(id)) {
                Ok(table) => {
                    shared.entry((past, id)).or_insert_with(|| (table, Vec::new())).1.push(index);
                }
                Err(failure) => answers[index] = Some(Answer::Failed(failure)),
            }
        }
        for (table, indexes) in shared.into_values() {
            let tasks: Vec<Task<'_>> = indexes.iter().map(|&index| task(&jobs[index])).collect();
            let mut foresight = table.rows.foresee(&table.schema, &tasks, false);
            for (number, index) in indexes.into_iter().enumerate() {
                let answer = table.rows.answer(&mut foresight, number).expect("nothing has changed");
                answers[index] = Some(answer.unwrap_or_else(Answer::Failed));
            }
        }
        answers.into_iter().map(|answer| answer.expect("every read has one answer")).collect()
    }

    /// How many jobs at the front can be foreseen together: reads of the present, and writes that change rows. None if
    /// that is no help.
    fn foreseeable(&self, jobs: &[Job]) -> usize {
        let joins = |job: &&Job| {
            use Operation::*;
            matches!(job.operation, Select(_) | Insert { .. } | Update { .. } | Delete { .. })
                && !job.held
                && job.epoch >= self.written
                && self.present.tables.contains_key(&job.operation.table())
        };
        let count = jobs.iter().take_while(joins).count();
        let writes = jobs[..count].iter().any(|job| job.operation.is_write());
        if R::SHARED && count > 1 && writes { count } else { 0 }
    }

    /// Runs jobs that are foreseen together.
    fn run(&mut self, jobs: &[Job]) -> Vec<Answer> {
        self.expect(jobs);
        let mut tasks: BTreeMap<TableId, Vec<Task<'_>>> = BTreeMap::new();
        let mut numbers = Vec::with_capacity(jobs.len());
        for job in jobs {
            let tasks = tasks.entry(job.operation.table()).or_default();
            numbers.push(tasks.len());
            tasks.push(task(job));
        }
        let mut foresights: BTreeMap<TableId, R::Foresight<'_>> = BTreeMap::new();
        for (id, tasks) in tasks {
            let table = &self.present.tables[&id];
            foresights.insert(id, table.rows.foresee(&table.schema, &tasks, true));
        }
        let mut answers = Vec::with_capacity(jobs.len());
        for (job, number) in jobs.iter().zip(numbers) {
            let id = job.operation.table();
            let foresight = foresights.get_mut(&id).expect("made for every table");
            if !job.operation.is_write() {
                let foreseen = match job.epoch >= self.written {
                    true => self.present.tables[&id].rows.answer(foresight, number),
                    false => None,
                };
                answers.push(match foreseen {
                    Some(answer) => answer.unwrap_or_else(Answer::Failed),
                    None => self.read(std::slice::from_ref(job)).remove(0),
                });
                continue;
            }
            let found = match job.operation {
                Operation::Insert { .. } => None,
                _ => R::places(foresight, number),
            };
            match self.present.evaluate(job, found) {
                Ok((written, effect)) => {
                    let (going, coming) = effect.places();
                    self.present.tables[&id].rows.note(foresight, &going);
                    self.take_place(job.epoch, Some(effect));
                    self.present.tables[&id].rows.note(foresight, &coming);
                    answers.push(Answer::Written(written));
                }
                Err(failure) => answers.push(Answer::Failed(failure)),
            }
        }
        answers
    }

    /// Has rows take note of the values that jobs bring.
    fn expect(&mut self, jobs: &[Job]) {
        for job in jobs {
            let id = job.operation.table();
            let table = &self.present.tables[&id];
            let unknown = |&(column, value): &(usize, &Value)| !table.rows.knows(column, value);
            let coming: Vec<(usize, &Value)> = match &job.operation {
                Operation::Insert { rows, .. } => {
                    let here = |row: &&Row| {
                        row.len() == table.schema.columns.len()
                            && job.ranges.iter().any(|range| range.contains(table.schema.partition.key(row)))
                    };
                    rows.iter().filter(here).flat_map(|row| row.iter().enumerate()).filter(unknown).collect()
                }
                Operation::Update { assignments, .. } => {
                    let constants = assignments.iter().filter_map(|(column, expr)| match expr {
                        Expr::Constant(value, _) => Some((*column, value)),
                        _ => None,
                    });
                    constants.filter(unknown).collect()
                }
                _ => Vec::new(),
            };
            if !coming.is_empty() {
                let rows = &mut self.present.table_mut(id).rows;
                coming.into_iter().for_each(|(column, value)| rows.expect(column, value));
            }
        }
    }

    /// Between batches.
    fn tidy(&mut self) {
        for table in self.present.tables.values_mut().filter(|table| !table.rows.is_tidy()) {
            Arc::make_mut(table).rows.tidy();
        }
    }

    fn take_place(&mut self, epoch: Epoch, effect: Option<Effect>) {
        if let Some(effect) = effect {
            self.present.take_place(effect);
            self.written = self.written.max(epoch);
        }
    }
}

impl<R: Rows + Sync> Engine for Versions<R> {
    fn apply(&mut self, jobs: &[Job]) -> Vec<Answer> {
        assert!(self.held.is_none(), "a held job is settled before the next call");
        let mut answers = Vec::with_capacity(jobs.len());
        while let Some(job) = jobs.get(answers.len()) {
            let rest = &jobs[answers.len()..];
            let together = self.foreseeable(rest);
            if together > 0 {
                answers.extend(self.run(&rest[..together]));
                continue;
            }
            let reads = rest.iter().take_while(|job| !job.operation.is_write() && !job.held).count();
            if reads > 0 {
                answers.extend(self.read(&rest[..reads]));
                continue;
            }
            let (answer, effect) = if job.operation.is_write() {
                match self.present.evaluate(job, None) {
                    Ok((written, effect)) => (Answer::Written(written), Some(effect)),
                    Err(failure) => (Answer::Failed(failure), None),
                }
            } else {
                (self.read(&rest[..1]).remove(0), None)
            };
            answers.push(answer);
            if job.held {
                self.held = Some(Held { epoch: job.epoch, effect });
                break;
            }
            self.take_place(job.epoch, effect);
        }
        if self.held.is_none() {
            self.tidy();
        }
        answers
    }

    fn settle(&mut self, epoch: Epoch, publish: bool) {
        let held = self.held.take().expect("a held job to settle");
        assert_eq!(held.epoch, epoch, "the held job is of another epoch");
        if publish {
            self.take_place(epoch, held.effect);
        }
        self.tidy();
    }

    fn pin(&mut self, epoch: Epoch) {
        assert!(self.held.is_none(), "no version is pinned while a job is held");
        let pin = self.pins.entry(epoch).or_insert_with(|| Pin { version: self.present.clone(), holders: 0 });
        pin.holders += 1;
    }

    fn release(&mut self, epoch: Epoch) {
        let pin = self.pins.get_mut(&epoch).expect("a pinned epoch");
        pin.holders -= 1;
        if pin.holders == 0 {
            self.pins.remove(&epoch);
        }
    }

    fn page(
        &self,
        epoch: Epoch,
        ranges: &[KeyRange],
        select: &Select,
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Page, Failure> {
        self.pinned(epoch)?.page(ranges, select, cursor, rows)
    }

    fn export(
        &self,
        epoch: Epoch,
        ranges: &[KeyRange],
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Chunk, Failure> {
        self.pinned(epoch)?.export(ranges, cursor, rows)
    }

    fn import(&mut self, chunk: Chunk) -> Result<(), Failure> {
        assert!(self.held.is_none(), "nothing is imported while a job is held");
        let done = self.present.import(chunk);
        self.tidy();
        done
    }

    fn forget(&mut self, ranges: &[KeyRange]) {
        assert!(self.held.is_none(), "nothing is forgotten while a job is held");
        self.present.forget(ranges);
    }

    fn digest(&self, epoch: Option<Epoch>, ranges: &[KeyRange]) -> Result<u64, Failure> {
        let version = epoch.map_or(Ok(&self.present), |epoch| self.pinned(epoch))?;
        Ok(version.digest(ranges))
    }

    fn usage(&self) -> Vec<Usage> {
        let mut usages: BTreeMap<TableId, Usage> = BTreeMap::new();
        let mut counted = BTreeSet::new();
        let pinned = self.pins.values().map(|pin| &pin.version);
        for version in std::iter::once(&self.present).chain(pinned) {
            for (&id, table) in &version.tables {
                let usage =
                    usages.entry(id).or_insert(Usage { table: id, rows: table.rows.len() as u64, bytes: 0 });
                usage.bytes += table.rows.bytes_beside(&mut counted) as u64;
                for blocks in table.staged.values() {
                    usage.bytes += blocks.bytes_beside(&mut counted) as u64;
                }
            }
        }
        usages.into_values().collect()
    }
}

/// What an operation asks.
fn task(job: &Job) -> Task<'_> {
    match &job.operation {
        Operation::Select(select) => Task::Read(Read { ranges: &job.ranges, select }),
        Operation::Update { filter, .. } | Operation::Delete { filter, .. } => {
            Task::Find { ranges: &job.ranges, filter: filter.as_ref() }
        }
        _ => Task::Nothing,
    }
}

/// One empty result for each range.
fn nothing_written(ranges: &[KeyRange]) -> Vec<Written> {
    vec![Written::default(); ranges.len()]
}
