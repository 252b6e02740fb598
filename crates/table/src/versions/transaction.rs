//! Transactions: statements that take effect together, at one position, or not at all.
//!
//! **Promise.** A transaction's steps are executed in order at its position, each on the effects of the
//! steps before it. All of them take effect, or none does. A statement may carry the result that its client
//! received. The transaction then takes effect only if the statement gives the same result at the position.
//! So the client saw what it would have seen if it had run the whole transaction there, alone.
//!
//! **Trials.** Before a client commits, it wants the result of each statement. A trial is a read. It executes
//! the earlier steps that concern its rows, and then its own statement, on a copy of the tables that is
//! dropped afterwards. So a trial changes nothing, and no replica keeps anything of an open transaction.
//!
//! **Comparison.** A result is compared part by part. A part is a range of ring keys that one replica
//! answered for. The client's gateway keeps a [`Fingerprint`] of the result in each part, and sends the
//! fingerprints with the transaction. Each replica compares the parts that it holds, so all replicas of a
//! range decide alike. A replica that holds only some keys of a part cannot compare it, because ranges were
//! split after the client received the result. Such a transaction fails like one whose results differ: its
//! client tries again (40001).
//!
//! **Bounds.** All replicas execute a transaction, so its reads have one fixed bound of memory, whatever the
//! settings of a replica are.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::{Answer, Epoch, Failure, Job, Written},
    eval::satisfies,
    fingerprint::Fingerprint,
    host::SingleThread,
    operation::{
        Compared, Operation, Output, ReceivedResult, SAVEPOINTS_MAX, Select, Step, TableTransaction,
        TransactionStatement, Trial,
    },
    schema::{KeyRange, TableId},
};

use super::{
    FoundRow, MemoryBounds, Read, ReadOutput, RowPlace, RowTask, Rows, Table, Version, budget::Budget,
    write::WriteTask,
};

/// Maximum number of bytes that a read of a transaction may gather. Every replica has the same bound, because
/// replicas must agree on failures.
const READ_BYTES_MAX: u64 = 64 << 20;

/// The epoch of rows that a trial adds. No position is as high, so these rows have numbers of their own.
const TRIAL_EPOCH: Epoch = Epoch(u64::MAX);

/// The results of a transaction's statements for each range of the job, and the tables in their new state.
type Executed<R> = (Vec<Vec<Written>>, BTreeMap<TableId, Arc<Table<R>>>);

impl<R: Rows> Version<R> {
    /// Executes a transaction on a copy of the tables.
    pub(super) fn execute(
        &self,
        job: &Job,
        transaction: &TableTransaction,
        costs: &R::Costs,
    ) -> Result<Executed<R>, Failure> {
        let mut execution = Execution::new(self.clone(), job, job.epoch, transaction.key, costs);
        execution.is_final = true;
        execution.run(&transaction.steps)?;
        let Execution { version, changed, results, .. } = execution;
        let tables = version.tables.into_iter().filter(|(id, _)| changed.contains(id)).collect();
        Ok((results, tables))
    }

    /// Executes a trial on this copy of the tables.
    pub(super) fn attempt(self, job: &Job, trial: &Trial, costs: &R::Costs) -> Result<Answer, Failure> {
        let mut execution = Execution::new(self, job, TRIAL_EPOCH, trial.key, costs);
        execution.run(&trial.earlier)?;
        match execution.answer(&trial.statement, &job.ranges) {
            Ok((received, answer)) => Ok(Answer::Tried { received, answer: Box::new(answer) }),
            Err(failure) => {
                // The statement failed in at least one range, and may succeed in others. It is tried in
                // each range alone.
                let fails = |range: &&KeyRange| {
                    let failed = execution.answer(&trial.statement, std::slice::from_ref(*range)).err();
                    failed.is_some_and(|failed| failed.sqlstate == failure.sqlstate)
                };
                let ranges = job.ranges.iter().filter(fails).copied().collect();
                Ok(Answer::TrialFailed { ranges, failure })
            }
        }
    }
}

/// The execution of steps on a copy of the tables.
struct Execution<'a, R: Rows> {
    version: Version<R>,
    /// The ranges that this replica answers for.
    ranges: &'a [KeyRange],
    /// The epoch of the rows that the steps add.
    epoch: Epoch,
    /// The key of the fingerprints.
    key: u128,
    /// Whether the transaction takes effect here. Then every part of a result must be compared. A trial may
    /// have fewer ranges than its earlier steps, and compares only the parts that it has.
    is_final: bool,
    costs: &'a R::Costs,
    /// The number of rows that the steps have added so far.
    lines: u32,
    /// The number of statements so far.
    statements: usize,
    /// The rows that the steps have written or locked so far; bounded by the rows of the tables.
    own: BTreeMap<TableId, BTreeSet<RowPlace>>,
    /// The tables that have changed; bounded by the tables that the steps name.
    changed: BTreeSet<TableId>,
    /// The results of the statements so far, for each range.
    results: Vec<Vec<Written>>,
}

impl<'a, R: Rows> Execution<'a, R> {
    fn new(
        version: Version<R>,
        job: &'a Job,
        epoch: Epoch,
        key: u128,
        costs: &'a R::Costs,
    ) -> Execution<'a, R> {
        Execution {
            version,
            ranges: &job.ranges,
            epoch,
            key,
            is_final: false,
            costs,
            lines: 0,
            statements: 0,
            own: BTreeMap::new(),
            changed: BTreeSet::new(),
            results: vec![Vec::new(); job.ranges.len()],
        }
    }

    fn run(&mut self, steps: &[Step]) -> Result<(), Failure> {
        let mut savepoints = Vec::new();
        for step in steps {
            match step {
                Step::Execute(statement) => {
                    self.statement(statement)?;
                    self.statements += 1;
                }
                Step::Savepoint if savepoints.len() >= SAVEPOINTS_MAX => {
                    return Err(Failure::malformed("a transaction nests too many savepoints"));
                }
                Step::Savepoint => savepoints.push((self.version.clone(), self.changed.clone())),
                // Rows that were written after the savepoint stay among the own rows: comparing them too is
                // never wrong.
                Step::RollBack => {
                    let before = savepoints.pop();
                    let before =
                        before.ok_or_else(|| Failure::malformed("a transaction lacks a savepoint"))?;
                    (self.version, self.changed) = before;
                }
            }
        }
        Ok(())
    }

    /// Executes a statement, and compares its result with the result that its client received.
    fn statement(&mut self, statement: &TransactionStatement) -> Result<(), Failure> {
        let received = self.received_here(statement)?;
        if let Some((_, code)) = statement.received.iter().find_map(|(range, received)| match received {
            ReceivedResult::Failed(code) => Some((range, code)),
            ReceivedResult::Success(_) => None,
        }) {
            for (range, _) in received {
                match self.answer(statement, &[range]) {
                    Err(failure) if failure.sqlstate == *code => {}
                    _ => return Err(self.conflict()),
                }
            }
            self.nothing();
            return Ok(());
        }
        match &statement.operation {
            Operation::Select(select) => {
                for (range, received) in received {
                    match self.read(select, statement.compared, &[range]) {
                        Ok((now, _))
                            if now
                                .first()
                                .is_some_and(|(_, now)| ReceivedResult::Success(*now) == *received) => {}
                        _ => return Err(self.conflict()),
                    }
                }
                if statement.compared == Compared::Locked {
                    self.lock(select)?;
                }
                self.nothing();
                Ok(())
            }
            operation if statement.received.is_empty() => {
                let ranges = self.ranges;
                let written = self.write(operation, ranges).map_err(|failure| self.of_statement(failure))?;
                for (results, written) in self.results.iter_mut().zip(written) {
                    results.push(written);
                }
                Ok(())
            }
            operation => {
                let parts: Vec<KeyRange> = received.iter().map(|(range, _)| *range).collect();
                let ranges: Vec<KeyRange> =
                    parts.iter().copied().chain(difference(self.ranges, &parts)).collect();
                let written = self.write(operation, &ranges).map_err(|_| self.conflict())?;
                for ((_, received), written) in received.iter().zip(&written) {
                    if **received != ReceivedResult::Success(self.fingerprint(written)) {
                        return Err(self.conflict());
                    }
                }
                self.nothing();
                Ok(())
            }
        }
    }

    /// Returns the parts of a result that are compared here.
    fn received_here<'s>(
        &self,
        statement: &'s TransactionStatement,
    ) -> Result<Vec<(KeyRange, &'s ReceivedResult)>, Failure> {
        let mut here = Vec::new();
        for (part, received) in &statement.received {
            let is_within = |range: &&KeyRange| range.low <= part.low && part.high <= range.high;
            let is_beside = |range: &&KeyRange| part.high < range.low || range.high < part.low;
            match self.ranges.iter().find(is_within) {
                Some(_) => here.push((*part, received)),
                None if self.is_final && !self.ranges.iter().all(|range| is_beside(&range)) => {
                    return Err(self.conflict().with_detail("Ranges of ring keys were split meanwhile."));
                }
                None => {}
            }
        }
        Ok(here)
    }

    /// Adds an empty result for a statement whose client needs none.
    fn nothing(&mut self) {
        self.results.iter_mut().for_each(|results| results.push(Written::default()));
    }

    /// Executes a write on these ranges.
    fn write(&mut self, operation: &Operation, ranges: &[KeyRange]) -> Result<Vec<Written>, Failure> {
        let rows = match operation {
            Operation::Insert { rows, .. } | Operation::Upsert { rows, .. } => rows.len(),
            Operation::Update { .. } | Operation::Delete { .. } | Operation::Publish { .. } => 0,
            _ => return Err(Failure::malformed("a transaction has a statement that it cannot have")),
        };
        let task = WriteTask { epoch: self.epoch, first_line: self.lines, ranges, operation };
        let (written, effect) = self.version.evaluate(task, None)?;
        let table = effect.table();
        let (going, coming, _) = effect.touched_rows();
        let own = self.own.entry(table).or_default();
        own.extend(going.iter().chain(&coming).map(|found| found.place));
        self.lines = u32::try_from(rows)
            .ok()
            .and_then(|rows| self.lines.checked_add(rows))
            .ok_or_else(|| Failure::malformed("a transaction has more rows than a row number can count"))?;
        self.changed.insert(table);
        self.version.take_place(effect, None);
        Ok(written)
    }

    /// Returns the fingerprints of a statement's result in these ranges, and its answer. Nothing changes.
    fn answer(
        &self,
        statement: &TransactionStatement,
        ranges: &[KeyRange],
    ) -> Result<(Vec<(KeyRange, Fingerprint)>, Answer), Failure> {
        match &statement.operation {
            Operation::Select(select) => self.read(select, statement.compared, ranges),
            operation => {
                let task = WriteTask { epoch: self.epoch, first_line: self.lines, ranges, operation };
                let (written, _) = self.version.evaluate(task, None)?;
                let received = ranges.iter().zip(&written);
                let received = received.map(|(range, written)| (*range, self.fingerprint(written))).collect();
                Ok((received, Answer::Written(written)))
            }
        }
    }

    /// Returns the fingerprints of a read in these ranges, and its answer.
    fn read(
        &self,
        select: &Select,
        compared: Compared,
        ranges: &[KeyRange],
    ) -> Result<(Vec<(KeyRange, Fingerprint)>, Answer), Failure> {
        let table = self.version.table(select.table)?;
        let budget = Budget::new(READ_BYTES_MAX);
        let memory_bounds = MemoryBounds { bytes_max: READ_BYTES_MAX, batch: &budget };
        let task = |ranges| RowTask::Read(Read { ranges, select, job: 0, memory_bounds });
        let mut tasks = vec![task(ranges)];
        if ranges.len() > 1 && compared != Compared::Own {
            tasks.extend(ranges.iter().map(|range| task(std::slice::from_ref(range))));
        }
        let rows = &table.rows;
        let mut found = rows.search_batch(&table.schema, &tasks, false, self.costs, &SingleThread);
        let mut answer = |task| rows.answer(&mut found, task).expect("a read without writes before it");
        let whole = answer(0)?;
        let mut received = Vec::with_capacity(ranges.len());
        for (number, range) in ranges.iter().enumerate() {
            let print = match compared {
                Compared::Own => self.own_rows(table, select, *range, memory_bounds)?,
                _ if ranges.len() == 1 => self.fingerprint_of(&whole),
                _ => self.fingerprint_of(&answer(number + 1)?),
            };
            received.push((*range, print));
        }
        Ok((received, whole))
    }

    /// Returns the fingerprint of a read in a range, over only those rows that earlier steps wrote or
    /// locked.
    fn own_rows(
        &self,
        table: &Table<R>,
        select: &Select,
        range: KeyRange,
        memory_bounds: MemoryBounds<'_>,
    ) -> Result<Fingerprint, Failure> {
        let mut select = select.clone();
        if let Output::Rows { order, limit, distinct, .. } = &mut select.output {
            (*order, *limit, *distinct) = (Vec::new(), None, false);
        }
        let all: Vec<usize> = (0..table.schema.columns.len()).collect();
        let mut output = ReadOutput::new(&select, memory_bounds);
        let own = self.own.get(&select.table).into_iter().flatten();
        for place in own.filter(|place| range.contains(place.key)) {
            if let Some((_, row)) = table.rows.at(&FoundRow::somewhere(*place), &all) {
                output.offer(&row);
            }
        }
        Ok(self.fingerprint_of(&output.finish()?))
    }

    /// Adds the rows of a locking read to the transaction's own rows.
    fn lock(&mut self, select: &Select) -> Result<(), Failure> {
        let table = self.version.table(select.table)?;
        let filter = select.filter.as_ref();
        let reach = table.reach(self.ranges, filter);
        let all: Vec<usize> = (0..table.schema.columns.len()).collect();
        let mut locked = Vec::new();
        for (found, row) in table.rows.candidates(&reach, filter, &all) {
            if satisfies(filter, &row)? {
                locked.push(found.place);
            }
        }
        self.own.entry(select.table).or_default().extend(locked);
        Ok(())
    }

    fn fingerprint(&self, written: &Written) -> Fingerprint {
        Fingerprint { rows: written.rows, ..Fingerprint::of(self.key, written.returning.iter()) }
    }

    fn fingerprint_of(&self, answer: &Answer) -> Fingerprint {
        match answer {
            Answer::Rows(rows) => Fingerprint::of(self.key, rows.iter()),
            Answer::Groups(groups) => Fingerprint::of(self.key, groups.iter()),
            other => unreachable!("a read is answered with rows or groups, not with {other:?}"),
        }
    }

    /// Returns the failure of a transaction whose client received a result that is no longer true.
    fn conflict(&self) -> Failure {
        let detail = format!(
            "Since statement {} of the transaction was executed, another transaction has changed its result.",
            self.statements + 1
        );
        Failure::new(Failure::CONFLICT, "could not serialize access due to concurrent update")
            .with_detail(detail)
    }

    /// Adds the number of the statement to its failure.
    fn of_statement(&self, failure: Failure) -> Failure {
        let number = format!("This was statement {} of the transaction.", self.statements + 1);
        let detail = match &failure.detail {
            Some(detail) => format!("{detail} {number}"),
            None => number,
        };
        failure.with_detail(detail)
    }
}

/// Returns the keys of `ranges` that are in none of `parts`.
fn difference(ranges: &[KeyRange], parts: &[KeyRange]) -> Vec<KeyRange> {
    let mut left = ranges.to_vec();
    for part in parts {
        left = left
            .into_iter()
            .flat_map(|range| {
                if part.high < range.low || range.high < part.low {
                    return [Some(range), None];
                }
                let below = part.low.checked_sub(1).filter(|high| range.low <= *high);
                let above = part.high.checked_add(1).filter(|low| *low <= range.high);
                [
                    below.map(|high| KeyRange { low: range.low, high }),
                    above.map(|low| KeyRange { low, high: range.high }),
                ]
            })
            .flatten()
            .collect();
    }
    left
}
