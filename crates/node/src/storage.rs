//! A storage process's tasks, done on an engine.
//!
//! Protocols never call the engine: they emit a batch of tasks, and their host (a thread in `runtime`, inline in `sim`)
//! has [`execute`] do them and hands the results back.

use bytes::Bytes;
use quorate_protocol::rubberband::{Range, Task, TaskKind, TaskResult};
use quorate_table::{
    engine::{Answer, Chunk, Cursor, Engine, Epoch, Job},
    failure::Failure,
    operation::{Operation, Output, Select},
    schema::{KeyRange, Schema, TableId},
};

/// Rows in one piece of an answer.
const PIECE_ROWS: usize = 512;
/// A read of plain rows with more is answered page by page, from a version that the engine keeps for it.
const WHOLE_ROWS_MAX: usize = 4096;
/// Rows in one chunk of an export.
const CHUNK_ROWS: usize = 4096;

/// Does the tasks in order; a result per task. Neighbouring reads and writes reach the engine as one batch.
pub fn execute(engine: &mut dyn Engine, tasks: Vec<Task>) -> Vec<TaskResult> {
    let mut results: Vec<TaskResult> = Vec::with_capacity(tasks.len());
    let mut jobs = Jobs::default();
    for task in tasks {
        let epoch = Epoch(task.at.0);
        match task.kind {
            TaskKind::Write { ranges, operation, held } => {
                jobs.push(epoch, &ranges, &operation, true, held, &mut results)
            }
            TaskKind::Read { ranges, operation } => {
                jobs.push(epoch, &ranges, &operation, false, false, &mut results)
            }
            TaskKind::Page { ranges, operation, cursor, rows } => {
                jobs.run(engine, &mut results);
                results.push(page(engine, epoch, &ranges, &operation, cursor.as_deref(), rows));
            }
            TaskKind::CreateTable { table, definition } => {
                match postcard::from_bytes::<Schema>(&definition) {
                    Ok(schema) => jobs.push_definition(
                        epoch,
                        Operation::CreateTable { table: TableId(table), schema },
                        &mut results,
                    ),
                    // The same bytes everywhere: the table exists nowhere, and operations on it fail alike.
                    Err(_) => results.push(TaskResult::Done),
                }
            }
            TaskKind::DropTable { table } => {
                jobs.push_definition(epoch, Operation::DropTable { table: TableId(table) }, &mut results);
            }
            other => {
                jobs.run(engine, &mut results);
                results.push(direct(engine, epoch, other));
            }
        }
    }
    jobs.run(engine, &mut results);
    results
}

/// What is no job: done at once, behind the jobs before it.
fn direct(engine: &mut dyn Engine, epoch: Epoch, kind: TaskKind) -> TaskResult {
    match kind {
        TaskKind::Settle { publish } => engine.settle(epoch, publish),
        TaskKind::Pin => engine.pin(epoch),
        TaskKind::Release => engine.release(epoch),
        TaskKind::Forget { ranges } => engine.forget(&key_ranges(&ranges)),
        TaskKind::Import { rows } => {
            if let Ok(chunk) = postcard::from_bytes::<Chunk>(&rows) {
                // A replica with a hole is worse than none: better to end, and to come back as a new incarnation.
                engine.import(chunk).expect("a chunk that a storage process exported");
            }
        }
        TaskKind::Export { ranges, cursor } => {
            let cursor = cursor.and_then(|cursor| postcard::from_bytes::<Cursor>(&cursor).ok());
            let chunk = engine.export(epoch, &key_ranges(&ranges), cursor, CHUNK_ROWS);
            let chunk = chunk.expect("an epoch that is pinned and a cursor from an export");
            return TaskResult::Exported { cursor: chunk.next.as_ref().map(encode), rows: encode(&chunk) };
        }
        TaskKind::Write { .. }
        | TaskKind::Read { .. }
        | TaskKind::Page { .. }
        | TaskKind::CreateTable { .. }
        | TaskKind::DropTable { .. } => unreachable!("these are jobs"),
    }
    TaskResult::Done
}

/// The next rows of a long answer.
fn page(
    engine: &mut dyn Engine,
    epoch: Epoch,
    ranges: &[Range],
    operation: &Bytes,
    cursor: Option<&[u8]>,
    rows: usize,
) -> TaskResult {
    let Ok(Operation::Select(select)) = postcard::from_bytes(operation) else {
        unreachable!("it was read as a select before");
    };
    let cursor = cursor.and_then(|cursor| postcard::from_bytes::<Cursor>(cursor).ok());
    match engine.page(epoch, &key_ranges(ranges), &select, cursor, rows) {
        Ok(page) => {
            let cursor = page.next.as_ref().map(encode);
            TaskResult::Page { rows: encode(&Answer::Rows(page.rows)), cursor }
        }
        Err(failure) => TaskResult::Page { rows: encode(&Answer::Failed(failure)), cursor: None },
    }
}

/// Limits a read of plain rows, whose answer has no end otherwise, so that one that is too long is noticed.
fn limit(select: &mut Select) -> Purpose {
    match &mut select.output {
        Output::Rows { order, limit: limit @ None, distinct: false, .. } if order.is_empty() => {
            *limit = Some(WHOLE_ROWS_MAX as u64 + 1);
            Purpose::Plain
        }
        _ => Purpose::Read,
    }
}

/// Neighbouring jobs, and where their results belong.
#[derive(Default)]
struct Jobs {
    jobs: Vec<Job>,
    places: Vec<(usize, Purpose)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Write,
    Read,
    /// A read of plain rows, which [`limit`] has limited.
    Plain,
    Definition,
}

impl Jobs {
    fn push(
        &mut self,
        epoch: Epoch,
        ranges: &[Range],
        operation: &Bytes,
        write: bool,
        held: bool,
        results: &mut Vec<TaskResult>,
    ) {
        let malformed = || encode(&Answer::Failed(Failure::malformed("an operation does not decode")));
        match postcard::from_bytes::<Operation>(operation) {
            Ok(mut operation) if operation.is_write() == write => {
                let purpose = match &mut operation {
                    Operation::Select(select) => limit(select),
                    Operation::Explain(_) => Purpose::Read,
                    _ => Purpose::Write,
                };
                self.places.push((results.len(), purpose));
                self.jobs.push(Job { epoch, ranges: key_ranges(ranges), operation, held });
                results.push(TaskResult::Done);
            }
            _ if write => results.push(TaskResult::Failed(malformed())),
            _ => results.push(TaskResult::Read(vec![malformed()])),
        }
    }

    fn push_definition(&mut self, epoch: Epoch, operation: Operation, results: &mut Vec<TaskResult>) {
        self.places.push((results.len(), Purpose::Definition));
        self.jobs.push(Job { epoch, ranges: vec![KeyRange::ALL], operation, held: false });
        results.push(TaskResult::Done);
    }

    fn run(&mut self, engine: &mut dyn Engine, results: &mut [TaskResult]) {
        if self.jobs.is_empty() {
            return;
        }
        let is_long = |answer: &Answer| matches!(answer, Answer::Rows(rows) if rows.len() > WHOLE_ROWS_MAX);
        let places = &self.places;
        let answers = engine
            .apply_keeping(&self.jobs, &mut |job, answer| places[job].1 == Purpose::Plain && is_long(answer));
        assert_eq!(answers.len(), self.jobs.len(), "only the last job of a batch is held");
        for ((place, purpose), answer) in self.places.drain(..).zip(answers) {
            results[place] = match (purpose, answer) {
                (Purpose::Definition, _) => TaskResult::Done,
                (Purpose::Write, Answer::Written(written)) => TaskResult::Written(
                    written.into_iter().map(|one| encode(&Answer::Written(vec![one]))).collect(),
                ),
                (Purpose::Write, answer) => TaskResult::Failed(encode(&answer)),
                (Purpose::Plain, answer) if is_long(&answer) => TaskResult::Long,
                (Purpose::Read | Purpose::Plain, answer) => TaskResult::Read(pieces(answer)),
            };
        }
        self.jobs.clear();
    }
}

/// Cuts a read's answer into pieces that can be sent one by one; at least one.
fn pieces(answer: Answer) -> Vec<Bytes> {
    match answer {
        Answer::Rows(rows) if rows.len() > PIECE_ROWS => {
            let mut pieces = Vec::with_capacity(rows.len() / PIECE_ROWS + 1);
            let mut rows = rows.into_iter();
            loop {
                let piece: Vec<_> = rows.by_ref().take(PIECE_ROWS).collect();
                if piece.is_empty() {
                    return pieces;
                }
                pieces.push(encode(&Answer::Rows(piece)));
            }
        }
        Answer::Groups(groups) if groups.len() > PIECE_ROWS => {
            groups.chunks(PIECE_ROWS).map(|piece| encode(&Answer::Groups(piece.to_vec()))).collect()
        }
        answer => vec![encode(&answer)],
    }
}

fn key_ranges(ranges: &[Range]) -> Vec<KeyRange> {
    ranges.iter().map(|range| KeyRange { low: range.low, high: range.high }).collect()
}

fn encode<T: serde::Serialize>(value: &T) -> Bytes {
    postcard::to_stdvec(value).expect("our own types always serialise").into()
}
