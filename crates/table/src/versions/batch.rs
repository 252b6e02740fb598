//! Batches: the engine runs operations in order, and answers together the operations that one search can
//! cover.
//!
//! Reads with no write between them see one version and share one pass. If there are writes between them, one
//! pass over the version before the batch finds the rows of every operation. Each write then notes the rows
//! that it touches, for the operations that the rows concern ([`Rows::note`]). An operation that one search
//! cannot cover (a definition, a load, a held job) ends such a batch.
//!
//! A panic while rows are only searched is the failure of one read (XX000). The engine halves the jobs that
//! were searched together until it finds that read, and answers the others. A search changes nothing, so
//! nothing is left half done. A panic in code that changes the engine (a write, the assembly of a pinned
//! version) is not caught, because replicas must not differ.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::{Answer, Bounds, Chunk, Cursor, Engine, Epoch, Failure, Holder, Job, Page, Pinned, Usage},
    explain::Explanation,
    expr::Expr,
    failure::catch_panic,
    host::Host,
    operation::{Operation, Select, Trial},
    saved::{Records, SaveTarget, SavedPart},
    schema::{KeyRange, TableId},
    value::{Row, Value},
};

use super::{
    MemoryBounds, Read, RowTask, Rows, Table, Version,
    budget::Budget,
    pins::Pins,
    save::Section,
    write::{Effect, WriteTask},
};

/// An engine: all tables, in the present version and in the pinned ones.
pub struct Versions<R: Rows> {
    present: Version<R>,
    /// The epoch of the last write that was applied.
    written: Epoch,
    held: Option<PendingJob<R>>,
    pins: Pins<R>,
    bounds: Bounds,
    costs: R::Costs,
    /// The section that the next lines of an outline belong to.
    restoring: Option<Section>,
}

impl<R: Rows> Default for Versions<R> {
    fn default() -> Versions<R> {
        Versions::new(Bounds::default())
    }
}

/// The tables that are read, each with the indexes of the jobs that read it.
type SharedPasses<R> = BTreeMap<(Option<Epoch>, TableId), (Arc<Table<R>>, Vec<usize>)>;

/// State that the jobs of one call share.
#[derive(Clone, Copy)]
struct CallContext<'c> {
    host: &'c dyn Host,
    budget: &'c Budget,
}

/// A held job that waits until it is published or dropped.
struct PendingJob<R> {
    epoch: Epoch,
    effect: Option<Effect<R>>,
}

impl<R: Rows> Versions<R> {
    /// Returns an engine without tables.
    pub fn new(bounds: Bounds) -> Versions<R> {
        let (present, pins) = (Version::default(), Pins::default());
        let costs = R::Costs::default();
        Versions { present, written: Epoch::default(), held: None, pins, bounds, costs, restoring: None }
    }

    /// Sets the cost, on this machine, of each way to find rows.
    pub fn with_costs(self, costs: R::Costs) -> Versions<R> {
        Versions { costs, ..self }
    }

    /// Returns the table that a read at `epoch` sees: the present one, or the one pinned at `epoch`.
    fn readable(&mut self, epoch: Epoch, id: TableId) -> Result<Arc<Table<R>>, Failure> {
        match epoch >= self.written {
            true => self.present.table(id).cloned(),
            false => self.pins.table(epoch, id, &self.present)?.ok_or_else(Failure::table_ended),
        }
    }

    /// Answers reads with no write between them; `first` is the index of the first job in the batch.
    fn read(&mut self, jobs: &[Job], first: usize, call: CallContext<'_>) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = vec![None; jobs.len()];
        // Groups the reads by version and table.
        let mut shared: SharedPasses<R> = BTreeMap::new();
        for (index, job) in jobs.iter().enumerate() {
            match &job.operation {
                Operation::Backup(_) => {
                    let failure = Failure::malformed("a backup was sent as a single read");
                    answers[index] = Some(Answer::Failed(failure));
                    continue;
                }
                Operation::Trial(trial) => {
                    answers[index] = Some(self.attempt(job, trial));
                    continue;
                }
                _ => {}
            }
            let past = (job.epoch < self.written).then_some(job.epoch);
            let id = job.operation.table();
            if let Some((_, indexes)) = shared.get_mut(&(past, id)) {
                indexes.push(index);
                continue;
            }
            match self.readable(job.epoch, id) {
                Ok(table) => drop(shared.insert((past, id), (table, vec![index]))),
                Err(failure) => answers[index] = Some(Answer::Failed(failure)),
            }
        }
        for (table, indexes) in shared.into_values() {
            self.answer_reads(&table, jobs, &indexes, first, call, &mut answers);
        }
        answers.into_iter().map(|answer| answer.expect("every read has one answer")).collect()
    }

    /// Answers a trial. A trial that panics fails.
    fn attempt(&mut self, job: &Job, trial: &Trial) -> Answer {
        let version = match job.epoch >= self.written {
            true => Ok(self.present.clone()),
            false => self.pins.version(job.epoch, &self.present),
        };
        let answer = version.and_then(|version| catch_panic(|| version.attempt(job, trial, &self.costs))?);
        answer.unwrap_or_else(Answer::Failed)
    }

    /// Answers the reads with these indexes, which are all of one table. A read that panics alone fails.
    fn answer_reads(
        &self,
        table: &Table<R>,
        jobs: &[Job],
        indexes: &[usize],
        first: usize,
        call: CallContext<'_>,
        answers: &mut [Option<Answer>],
    ) {
        match (catch_panic(|| self.answer_in_one_pass(table, jobs, indexes, first, call)), indexes) {
            (Ok(told), _) => {
                indexes.iter().zip(told).for_each(|(&index, answer)| answers[index] = Some(answer));
            }
            (Err(panic), &[index]) => answers[index] = Some(Answer::Failed(panic)),
            (Err(_), _) => {
                let (one, other) = indexes.split_at(indexes.len() / 2);
                self.answer_reads(table, jobs, one, first, call, answers);
                self.answer_reads(table, jobs, other, first, call, answers);
            }
        }
    }

    /// Answers the reads with these indexes, which are all of one table, in one pass.
    fn answer_in_one_pass(
        &self,
        table: &Table<R>,
        jobs: &[Job],
        indexes: &[usize],
        first: usize,
        call: CallContext<'_>,
    ) -> Vec<Answer> {
        let tasks: Vec<RowTask<'_>> =
            indexes.iter().map(|&index| self.task(&jobs[index], first + index, call.budget)).collect();
        let mut batch_results = table.rows.search_batch(&table.schema, &tasks, false, &self.costs, call.host);
        let mut answers = Vec::with_capacity(indexes.len());
        for (number, &index) in indexes.iter().enumerate() {
            let explained = match jobs[index].operation {
                Operation::Explain(_) => Some(table.rows.explain(&batch_results, number)),
                _ => None,
            };
            let answer = table
                .rows
                .answer(&mut batch_results, number)
                .expect("a read without writes before it need not run again");
            answers.push(match (answer, explained) {
                (Err(failure), _) => Answer::Failed(failure),
                (Ok(answer), None) => answer,
                (Ok(answer), Some(explained)) => {
                    let (epoch, rows) = (jobs[index].epoch, answer.rows());
                    Answer::Explanation(Explanation { epoch, rows, ..explained })
                }
            });
        }
        answers
    }

    /// Returns the number of leading jobs that one search can cover: reads of the present, and writes that
    /// change rows. Returns 0 if a common search does not pay.
    fn foreseeable(&self, jobs: &[Job]) -> usize {
        let joins = |job: &&Job| {
            use Operation::*;
            matches!(job.operation, Select(_) | Insert { .. } | Upsert { .. } | Update { .. } | Delete { .. })
                && !job.held
                && job.epoch >= self.written
                && self.present.tables.contains_key(&job.operation.table())
        };
        let count = jobs.iter().take_while(joins).count();
        let writes = jobs[..count].iter().any(|job| job.operation.is_write());
        if R::SHARED && count > 1 && writes { count } else { 0 }
    }

    /// Returns the work that an operation needs from the rows.
    fn task<'j>(&self, job: &'j Job, number: usize, batch: &'j Budget) -> RowTask<'j> {
        match &job.operation {
            Operation::Select(select) | Operation::Explain(select) => {
                let memory_bounds = MemoryBounds { bytes_max: self.bounds.result_bytes_max, batch };
                RowTask::Read(Read { ranges: &job.ranges, select, job: number, memory_bounds })
            }
            Operation::Update { filter, assignments, .. } => {
                RowTask::Find { ranges: &job.ranges, filter: filter.as_ref(), assigned: assignments }
            }
            Operation::Delete { filter, .. } => {
                RowTask::Find { ranges: &job.ranges, filter: filter.as_ref(), assigned: &[] }
            }
            _ => RowTask::Nothing,
        }
    }

    /// Runs some of the leading jobs, at least the first; one search finds the rows of all these jobs.
    /// `first` is the first job's index in the batch.
    fn run(
        &mut self,
        jobs: &[Job],
        first: usize,
        keep: &mut dyn FnMut(usize, &Answer) -> bool,
        call: CallContext<'_>,
    ) -> Vec<Answer> {
        self.expect(jobs);
        let mut indexes: BTreeMap<TableId, Vec<usize>> = BTreeMap::new();
        let mut numbers = Vec::with_capacity(jobs.len());
        for (index, job) in jobs.iter().enumerate() {
            let indexes = indexes.entry(job.operation.table()).or_default();
            numbers.push(indexes.len());
            indexes.push(index);
        }
        let mut batch_results_by_table: BTreeMap<TableId, R::BatchResults<'_>> = BTreeMap::new();
        for (id, indexes) in indexes {
            let table = &self.present.tables[&id];
            let tasks: Vec<RowTask<'_>> = indexes
                .into_iter()
                .map(|index| self.task(&jobs[index], first + index, call.budget))
                .collect();
            match catch_panic(|| table.rows.search_batch(&table.schema, &tasks, true, &self.costs, call.host))
            {
                Ok(batch_results) => drop(batch_results_by_table.insert(id, batch_results)),
                // Nothing has changed so far. Runs only the first half of the jobs; the caller continues
                // with the rest.
                Err(_) if jobs.len() > 1 => return self.run(&jobs[..jobs.len() / 2], first, keep, call),
                Err(_) => return self.run_alone(&jobs[0], first, keep, call),
            }
        }
        let mut answers = Vec::with_capacity(jobs.len());
        for (job, number) in jobs.iter().zip(numbers) {
            let id = job.operation.table();
            let batch_results =
                batch_results_by_table.get_mut(&id).expect("every table of the batch has its results");
            if !job.operation.is_write() {
                let here = first + answers.len();
                let rows = &self.present.tables[&id].rows;
                let found_rows = match job.epoch >= self.written {
                    true => catch_panic(|| rows.answer(batch_results, number)),
                    false => Ok(None),
                };
                let broken = found_rows.is_err();
                let answer = match found_rows {
                    Ok(Some(answer)) => answer.unwrap_or_else(Answer::Failed),
                    Ok(None) | Err(_) => self.read(std::slice::from_ref(job), here, call).remove(0),
                };
                if keep(here, &answer) {
                    self.pins.pin(job.epoch, Holder::Reader);
                }
                answers.push(answer);
                if broken {
                    // The panic may have spoiled the results, so the caller makes a new search for the jobs
                    // after the read.
                    return answers;
                }
                continue;
            }
            let found = match job.operation {
                Operation::Insert { .. } | Operation::Upsert { .. } => None,
                _ => self.present.tables[&id].rows.found_rows(batch_results, number),
            };
            match self.present.evaluate(WriteTask::of(job), found) {
                Ok((written, effect)) => {
                    let (going, coming, changing) = effect.touched_rows();
                    self.present.tables[&id].rows.note(batch_results, &going, changing.as_deref(), false);
                    self.take_place(job.epoch, Some(effect));
                    let again = changing.is_some();
                    let coming = if again { going } else { coming };
                    self.present.tables[&id].rows.note(batch_results, &coming, changing.as_deref(), again);
                    answers.push(Answer::Written(written));
                }
                Err(failure) => answers.push(Answer::Failed(failure)),
            }
        }
        answers
    }

    /// Runs one job without the search that the jobs of a batch share. Called if that search panicked for
    /// this job.
    fn run_alone(
        &mut self,
        job: &Job,
        first: usize,
        keep: &mut dyn FnMut(usize, &Answer) -> bool,
        call: CallContext<'_>,
    ) -> Vec<Answer> {
        let answer = match job.operation.is_write() {
            true => {
                let (answer, effect) = self.evaluate(job);
                self.take_place(job.epoch, effect);
                answer
            }
            false => self.read(std::slice::from_ref(job), first, call).remove(0),
        };
        if !job.operation.is_write() && keep(first, &answer) {
            self.pins.pin(job.epoch, Holder::Reader);
        }
        vec![answer]
    }

    /// Returns the answer of a write, and its effect unless it fails.
    fn evaluate(&self, job: &Job) -> (Answer, Option<Effect<R>>) {
        if let Operation::Transaction(transaction) = &job.operation {
            return match self.present.execute(job, transaction, &self.costs) {
                Ok((results, tables)) => (Answer::Transaction(results), Some(Effect::Tables(tables))),
                Err(failure) => (Answer::Failed(failure), None),
            };
        }
        match self.present.evaluate(WriteTask::of(job), None) {
            Ok((written, effect)) => (Answer::Written(written), Some(effect)),
            Err(failure) => (Answer::Failed(failure), None),
        }
    }

    /// Gives codes to the values that jobs bring.
    fn expect(&mut self, jobs: &[Job]) {
        for job in jobs {
            let id = job.operation.table();
            let table = &self.present.tables[&id];
            let unknown = |&(column, value): &(usize, &Value)| !table.rows.has_code(column, value);
            let coming: Vec<(usize, &Value)> = match &job.operation {
                Operation::Insert { rows, .. } | Operation::Upsert { rows, .. } => {
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

    fn account(&mut self) {
        self.pins.account(&self.present, self.bounds.pinned_bytes_max);
    }

    /// Merges the tails of all tables in which that is due, and counts the memory that pinned versions
    /// keep. Releases the oldest pins of readers if the memory that is kept for readers exceeds its bound.
    fn merge_due_tails(&mut self) {
        let merge_due = self.present.tables.iter().filter(|(_, table)| !table.rows.is_tidy());
        for id in merge_due.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.pins.keep(&self.present, id);
            self.present.table_mut(id).rows.merge_due_tails();
        }
        self.account();
    }

    fn take_place(&mut self, epoch: Epoch, effect: Option<Effect<R>>) {
        if let Some(effect) = effect {
            if let Effect::Tables(tables) = &effect {
                tables.keys().for_each(|id| self.pins.keep(&self.present, *id));
                self.present.take_place(effect, None);
                self.written = self.written.max(epoch);
                return;
            }
            if let Effect::AlterTable { altered, .. } = &effect {
                // Records that pinned versions lack the table that begins.
                self.pins.keep(&self.present, *altered);
            }
            let log = self.pins.log(&self.present, &effect);
            self.present.take_place(effect, log);
            self.written = self.written.max(epoch);
        }
    }
}

impl<R: Rows + Sync> Engine for Versions<R> {
    fn apply_keeping(
        &mut self,
        jobs: &[Job],
        keep: &mut dyn FnMut(usize, &Answer) -> bool,
        host: &dyn Host,
    ) -> Vec<Answer> {
        assert!(self.held.is_none(), "a held job is settled before the next call");
        // The budget covers at least the bound of one read, so a read without others in its batch is limited
        // only by its own bound.
        let budget = Budget::new(self.bounds.batch_bytes_max.max(self.bounds.result_bytes_max));
        let call = CallContext { host, budget: &budget };
        let mut answers = Vec::with_capacity(jobs.len());
        while let Some(job) = jobs.get(answers.len()) {
            let rest = &jobs[answers.len()..];
            let together = self.foreseeable(rest);
            if together > 0 {
                answers.extend(self.run(&rest[..together], answers.len(), keep, call));
                continue;
            }
            let reads = rest.iter().take_while(|job| !job.operation.is_write() && !job.held).count();
            if reads > 0 {
                for (job, answer) in rest.iter().zip(self.read(&rest[..reads], answers.len(), call)) {
                    if keep(answers.len(), &answer) {
                        self.pins.pin(job.epoch, Holder::Reader);
                    }
                    answers.push(answer);
                }
                continue;
            }
            let (answer, effect) = if job.operation.is_write() {
                self.evaluate(job)
            } else {
                (self.read(&rest[..1], answers.len(), call).remove(0), None)
            };
            answers.push(answer);
            if job.held {
                self.held = Some(PendingJob { epoch: job.epoch, effect });
                break;
            }
            self.take_place(job.epoch, effect);
        }
        if self.held.is_none() {
            self.merge_due_tails();
        }
        answers
    }

    fn settle(&mut self, epoch: Epoch, publish: bool) {
        let held = self.held.take().expect("a job is settled only while one is held");
        assert_eq!(held.epoch, epoch, "the held job is of another epoch");
        if publish {
            self.take_place(epoch, held.effect);
        }
        self.merge_due_tails();
    }

    fn pin(&mut self, epoch: Epoch, holder: Holder) {
        assert!(self.held.is_none(), "no version is pinned while a job is held");
        self.pins.pin(epoch, holder);
        self.account();
    }

    fn release(&mut self, epoch: Epoch, holder: Holder) {
        self.pins.release(epoch, holder);
        self.account();
    }

    fn page(
        &mut self,
        epoch: Epoch,
        ranges: &[KeyRange],
        select: &Select,
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Page, Failure> {
        let table = self.pins.table(epoch, select.table, &self.present)?;
        self.account();
        let table = table.ok_or_else(Failure::table_ended)?;
        catch_panic(|| table.page(ranges, select, cursor, rows))?
    }

    fn export(
        &mut self,
        epoch: Epoch,
        ranges: &[KeyRange],
        cursor: Option<Cursor>,
        rows: usize,
    ) -> Result<Chunk, Failure> {
        self.pins.version(epoch, &self.present)?.export(ranges, cursor, rows)
    }

    fn import(&mut self, chunk: Chunk) -> Result<(), Failure> {
        assert!(self.held.is_none(), "nothing is imported while a job is held");
        let defined = chunk.definitions.iter().map(|(id, _)| *id);
        for id in defined.chain(chunk.rows.iter().map(|row| row.table)).collect::<BTreeSet<_>>() {
            self.pins.keep(&self.present, id);
        }
        let done = self.present.import(chunk);
        self.merge_due_tails();
        done
    }

    fn save(
        &mut self,
        epoch: Epoch,
        saving: &SaveTarget,
        cursor: Option<Cursor>,
    ) -> Result<SavedPart, Failure> {
        let version = self.pins.version(epoch, &self.present)?;
        let saved = version.save(saving, cursor)?;
        if saved.next.is_some() {
            self.pins.keep_version(epoch, &version)?;
            self.account();
        }
        Ok(saved)
    }

    fn restore(&mut self, outline: &[u8], records: &Records) -> Result<(), Failure> {
        self.present.restore(outline, records, &mut self.restoring)
    }

    fn forget(&mut self, ranges: &[KeyRange]) {
        assert!(self.held.is_none(), "nothing is forgotten while a job is held");
        for &id in self.present.tables.keys() {
            self.pins.keep(&self.present, id);
        }
        self.present.forget(ranges);
        self.account();
    }

    fn end_session(&mut self, session: u128) {
        assert!(self.held.is_none(), "no session ends while a job is held");
        for id in self.present.loading(session) {
            self.pins.keep(&self.present, id);
        }
        self.present.end_session(session);
        self.account();
    }

    fn digest(&mut self, epoch: Option<Epoch>, ranges: &[KeyRange]) -> Result<u64, Failure> {
        match epoch {
            None => Ok(self.present.digest(ranges)),
            Some(epoch) => Ok(self.pins.version(epoch, &self.present)?.digest(ranges)),
        }
    }

    fn rows_at(&self, table: TableId, key: u64, most: usize) -> usize {
        let at_key = [KeyRange { low: key, high: key }];
        let table = self.present.tables.get(&table);
        table.map_or(0, |table| table.rows.candidates(&at_key, None, &[]).take(most).count())
    }

    fn usage(&self) -> Vec<Usage> {
        let mut counted = BTreeSet::new();
        let mut usages: BTreeMap<TableId, Usage> = BTreeMap::new();
        for (&id, table) in &self.present.tables {
            let bytes = table.bytes_uncounted(&mut counted) as u64;
            usages.insert(id, Usage { table: id, rows: table.rows.len() as u64, bytes });
        }
        for (id, bytes) in self.pins.bytes_uncounted(&mut counted) {
            usages.entry(id).or_insert(Usage { table: id, rows: 0, bytes: 0 }).bytes += bytes as u64;
        }
        usages.into_values().collect()
    }

    fn pinned(&self) -> Pinned {
        self.pins.taken()
    }
}

#[cfg(test)]
mod tests;
