//! Executes a storage process's tasks on an engine.
//!
//! Protocols never call the engine. They emit a batch of tasks, and their host (a thread in `runtime`, inline
//! in `sim`) runs [`execute`] and returns the results. A read fails with XX000 if the engine panics while
//! executing it, or if its rows cannot be encoded. Any other panic passes to the host and ends the process.

use bytes::Bytes;
use quorate_protocol::{
    rubberband::{Range, Task, TaskKind, TaskResult},
    wire::FRAME_BYTES_MAX,
};
use quorate_table::{
    alter::Alteration,
    engine::{Answer, Chunk, Cursor, Engine, Epoch, Group, Holder, Job, SaveTarget, SavedPart},
    failure::{Failure, catch_panic},
    fingerprint::Fingerprint,
    host::Host,
    operation::{Operation, Output, Select},
    schema::{KeyRange, Schema, TableId},
    value::Row,
};
use serde::Serialize;

/// Maximum number of rows in one piece of an answer.
const PIECE_ROWS: usize = 512;
/// Number of rows above which a read of plain rows is answered page by page, from a version of the tables
/// that the engine keeps for this read. A read of more bytes than the engine gathers for one read is answered
/// page by page, too.
const WHOLE_ROWS_MAX: usize = 4096;
const PIECE_BYTES: usize = 1 << 20;
/// Maximum number of rows in one chunk of an export. The number is halved if long rows would not fit into a
/// message.
const CHUNK_ROWS: usize = 4096;
/// Maximum size of the answers and exports that one message carries, in bytes.
const CONTENT_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;

/// Executes the tasks in order. Returns one result per task. Neighbouring reads and writes reach the engine
/// as one batch of jobs. `host` refers to a task by its index in `tasks`, whereas the engine refers to a job
/// by its index in the batch.
pub fn execute(engine: &mut dyn Engine, tasks: Vec<Task>, host: &dyn Host) -> Vec<TaskResult> {
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
                jobs.run(engine, &mut results, host);
                let told = page(engine, epoch, &ranges, &operation, cursor.as_deref(), rows);
                results.push(told.unwrap_or_else(|failure| TaskResult::Page {
                    rows: encode(&failed(failure, host)),
                    cursor: None,
                }));
            }
            TaskKind::CreateTable { table, definition } => {
                match postcard::from_bytes::<Schema>(&definition) {
                    Ok(schema) => jobs.push_definition(
                        epoch,
                        Operation::CreateTable { table: TableId(table), schema },
                        &mut results,
                    ),
                    // All replicas have the same malformed bytes, so no replica creates the table, and
                    // operations on it fail in the same way everywhere.
                    Err(_) => results.push(TaskResult::Done),
                }
            }
            TaskKind::DropTable { table } => {
                jobs.push_definition(epoch, Operation::DropTable { table: TableId(table) }, &mut results);
            }
            TaskKind::AlterTable { table, altered, definition, columns } => {
                let decoded = postcard::from_bytes(&definition).and_then(|schema| {
                    let columns = postcard::from_bytes(&columns)?;
                    Ok(Alteration { schema, columns })
                });
                match decoded {
                    Ok(alteration) => {
                        let (table, altered) = (TableId(table), TableId(altered));
                        let operation = Operation::AlterTable { table, altered, alteration };
                        jobs.push_definition(epoch, operation, &mut results);
                    }
                    // All replicas have the same malformed bytes, so no replica alters the table.
                    Err(_) => results.push(TaskResult::Done),
                }
            }
            other => {
                jobs.run(engine, &mut results, host);
                results.push(direct(engine, epoch, other));
            }
        }
    }
    jobs.run(engine, &mut results, host);
    results
}

/// Executes a task that is not a job for the engine. The jobs before the task must be done.
fn direct(engine: &mut dyn Engine, epoch: Epoch, kind: TaskKind) -> TaskResult {
    match kind {
        TaskKind::Settle { publish } => engine.settle(epoch, publish),
        TaskKind::Finish => engine.release(epoch, Holder::Reader),
        TaskKind::Pin => engine.pin(epoch, Holder::Migration),
        TaskKind::Release => engine.release(epoch, Holder::Migration),
        TaskKind::EndSession { session } => engine.end_session(session),
        TaskKind::Forget { ranges } => engine.forget(&key_ranges(&ranges)),
        TaskKind::Import { rows } => {
            if let Ok(chunk) = postcard::from_bytes::<Chunk>(&rows) {
                // A replica that lacks rows would be worse than no replica. So a failure ends the process,
                // which comes back as a new incarnation.
                engine.import(chunk).expect("a chunk that a storage process exported can be imported");
            }
        }
        TaskKind::Save { record, since, carried, cursor } => {
            let cursor = cursor.and_then(|cursor| postcard::from_bytes::<Cursor>(&cursor).ok());
            let saved = engine.save(epoch, &SaveTarget { record, since, carried }, cursor);
            let SavedPart { fragments, count, outline, named, next } =
                saved.expect("a pinned epoch can be saved from a cursor of the same engine");
            let cursor = next.as_ref().map(encode);
            return TaskResult::Saved {
                fragments: fragments.into(),
                count,
                outline: outline.into(),
                named,
                cursor,
            };
        }
        TaskKind::Restore { outline, records } => {
            // A replica that lacks rows would be worse than no replica, so a failure ends the process, as for
            // an import.
            engine.restore(&outline, &records).expect("what a storage process saved can be restored");
        }
        TaskKind::Export { ranges, cursor } => {
            let cursor = cursor.and_then(|cursor| postcard::from_bytes::<Cursor>(&cursor).ok());
            let mut rows = CHUNK_ROWS;
            loop {
                let chunk = engine.export(epoch, &key_ranges(&ranges), cursor.clone(), rows);
                let chunk = chunk.expect("a pinned epoch can be exported from a cursor of an export");
                let encoded = encode(&chunk);
                if encoded.len() <= CONTENT_BYTES_MAX || rows == 1 {
                    return TaskResult::Exported { cursor: chunk.next.as_ref().map(encode), rows: encoded };
                }
                rows /= 2;
            }
        }
        TaskKind::Write { .. }
        | TaskKind::Read { .. }
        | TaskKind::Page { .. }
        | TaskKind::CreateTable { .. }
        | TaskKind::DropTable { .. }
        | TaskKind::AlterTable { .. } => unreachable!("these are jobs"),
    }
    TaskResult::Done
}

/// Reads the next page of a long answer.
fn page(
    engine: &mut dyn Engine,
    epoch: Epoch,
    ranges: &[Range],
    operation: &Bytes,
    cursor: Option<&[u8]>,
    rows: usize,
) -> Result<TaskResult, Failure> {
    let ranges = key_ranges(ranges);
    match postcard::from_bytes(operation) {
        Ok(Operation::Select(mut select)) => {
            // The gateway counts the rows of all pages, and ends the read at its limit.
            if let Output::Rows { limit, .. } = &mut select.output {
                *limit = None;
            }
            let cursor = cursor.and_then(|cursor| postcard::from_bytes::<Cursor>(cursor).ok());
            let (rows, next) = page_of(engine, epoch, &ranges, &select, cursor, rows, Answer::Rows)?;
            Ok(TaskResult::Page { rows, cursor: next.as_ref().map(encode) })
        }
        Ok(Operation::Backup(selects)) => {
            let cursor = cursor.and_then(|cursor| postcard::from_bytes(cursor).ok());
            let (read, cursor): (u32, Option<Cursor>) = cursor.unwrap_or_default();
            let select = selects.get(read as usize).ok_or_else(|| Failure::malformed("a cursor"))?;
            let answer = |rows| Answer::Backup { at: epoch, read, rows };
            let (rows, next) = page_of(engine, epoch, &ranges, select, cursor, rows, answer)?;
            let next = match next {
                Some(next) => Some((read, Some(next))),
                None => selects.get(read as usize + 1).map(|_| (read + 1, None)),
            };
            Ok(TaskResult::Page { rows, cursor: next.as_ref().map(encode) })
        }
        _ => unreachable!("it was read as one of these before"),
    }
}

/// Reads the next rows of a read of plain rows. Returns the rows as an encoded answer, and the cursor of the
/// next page.
fn page_of(
    engine: &mut dyn Engine,
    epoch: Epoch,
    ranges: &[KeyRange],
    select: &Select,
    cursor: Option<Cursor>,
    rows: usize,
    answer: impl Fn(Vec<Row>) -> Answer,
) -> Result<(Bytes, Option<Cursor>), Failure> {
    let mut wanted = rows;
    loop {
        let page = engine.page(epoch, ranges, select, cursor.clone(), wanted)?;
        let (found, next) = (page.rows.len(), page.next);
        let rows = catch_panic(|| encode(&answer(page.rows)))?;
        if rows.len() > PIECE_BYTES && found > 1 {
            // The number of rows was derived from the previous page, whose rows were much shorter than the
            // rows of this page.
            wanted = found / 2;
            continue;
        }
        return match too_long(rows.len()) {
            Some(failure) => Err(failure),
            None => Ok((rows, next)),
        };
    }
}

/// Makes the answer of a read that failed, and reports a panic to the host.
fn failed(failure: Failure, host: &dyn Host) -> Answer {
    if failure.is_panic() {
        host.panicked();
    }
    Answer::Failed(failure)
}

/// Returns a failure if an answer has a row of `bytes` bytes that no message can carry.
fn too_long(bytes: usize) -> Option<Failure> {
    (bytes > CONTENT_BYTES_MAX).then(|| {
        let what = format!("a row of the answer takes {bytes} bytes, over the limit of {CONTENT_BYTES_MAX}");
        Failure::new("54000", what)
    })
}

/// Limits a read of plain rows to one row more than an answer in one part may have, so that a longer answer
/// is noticed.
fn limit(select: &mut Select) -> JobKind {
    match &mut select.output {
        Output::Rows { order, limit, distinct: false, .. } if order.is_empty() => {
            let most = WHOLE_ROWS_MAX as u64 + 1;
            *limit = Some(limit.map_or(most, |limit| limit.min(most)));
            JobKind::Plain
        }
        _ => JobKind::Read,
    }
}

/// Whether an answer to a read of plain rows is so long that it must be given page by page.
fn is_long(answer: &Answer) -> bool {
    match answer {
        Answer::Rows(rows) => rows.len() > WHOLE_ROWS_MAX,
        Answer::Failed(failure) => failure.is_too_much(),
        _ => false,
    }
}

/// Makes the job that begins a backup: a read of no rows of the first table. The engine keeps the version of
/// the tables at that read, and all pages of the backup are read from this version. Returns `None` if the
/// backup has no tables, or has a read that cannot be answered page by page.
fn beginning(selects: &[Select]) -> Option<Select> {
    let is_plain = |select: &Select| matches!(&select.output, Output::Rows { order, distinct: false, limit: None, .. } if order.is_empty());
    let mut first = selects.first().filter(|_| selects.iter().all(is_plain))?.clone();
    if let Output::Rows { limit, .. } = &mut first.output {
        *limit = Some(0);
    }
    Some(first)
}

/// Whether a read failed because the other reads of its batch had used up the memory.
fn is_crowded(answer: &Answer) -> bool {
    matches!(answer, Answer::Failed(failure) if failure.is_crowded())
}

/// Neighbouring jobs, each with the index of its result.
#[derive(Default)]
struct Jobs {
    jobs: Vec<Job>,
    places: Vec<(usize, JobKind)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum JobKind {
    Write,
    Read,
    /// A read of plain rows, limited by [`limit`].
    Plain,
    /// The read that begins a backup ([`beginning`]).
    Backup,
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
        let malformed =
            || encode(&Answer::Failed(Failure::malformed("the bytes of an operation cannot be decoded")));
        match postcard::from_bytes::<Operation>(operation) {
            Ok(Operation::Backup(selects)) if !write => match beginning(&selects) {
                Some(first) => {
                    self.places.push((results.len(), JobKind::Backup));
                    let operation = Operation::Select(first);
                    self.jobs.push(Job { epoch, ranges: key_ranges(ranges), operation, held });
                    results.push(TaskResult::Done);
                }
                None => results.push(TaskResult::Read(vec![malformed()])),
            },
            Ok(mut operation) if operation.is_write() == write => {
                let purpose = match &mut operation {
                    Operation::Select(select) => limit(select),
                    Operation::Explain(_) | Operation::Trial(_) => JobKind::Read,
                    _ => JobKind::Write,
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
        self.places.push((results.len(), JobKind::Definition));
        self.jobs.push(Job { epoch, ranges: vec![KeyRange::ALL], operation, held: false });
        results.push(TaskResult::Done);
    }

    fn run(&mut self, engine: &mut dyn Engine, results: &mut [TaskResult], host: &dyn Host) {
        if self.jobs.is_empty() {
            return;
        }
        let places = &self.places;
        let answers = engine.apply_keeping(
            &self.jobs,
            &mut |job, answer| match places[job].1 {
                JobKind::Plain => is_long(answer),
                JobKind::Read => is_crowded(answer),
                JobKind::Backup => matches!(answer, Answer::Rows(_)),
                JobKind::Write | JobKind::Definition => false,
            },
            &JobsHost { host, places },
        );
        assert_eq!(answers.len(), self.jobs.len(), "only the last job of a batch is held");
        for ((place, purpose), answer) in self.places.drain(..).zip(answers) {
            results[place] = match (purpose, answer) {
                (JobKind::Definition, _) => TaskResult::Done,
                (JobKind::Write, Answer::Written(written)) => TaskResult::Written(
                    written.into_iter().map(|one| encode(&Answer::Written(vec![one]))).collect(),
                ),
                // A range's answer has the results of all statements.
                (JobKind::Write, Answer::Transaction(results)) => TaskResult::Written(
                    results.into_iter().map(|results| encode(&Answer::Written(results))).collect(),
                ),
                (JobKind::Write, answer) => TaskResult::Failed(encode(&answer)),
                (JobKind::Plain, answer) if is_long(&answer) => TaskResult::Long,
                (JobKind::Backup, Answer::Rows(_)) => TaskResult::Long,
                (JobKind::Read, answer) if is_crowded(&answer) => TaskResult::Crowded,
                (JobKind::Read | JobKind::Plain | JobKind::Backup, answer) => {
                    let answer = match answer {
                        Answer::Failed(failure) => failed(failure, host),
                        answer => answer,
                    };
                    let told = catch_panic(|| pieces(answer));
                    TaskResult::Read(told.unwrap_or_else(|panic| vec![encode(&failed(panic, host))]))
                }
            };
        }
        self.jobs.clear();
    }
}

/// The host that the engine sees. It translates the indices of tasks into indices of jobs.
struct JobsHost<'a> {
    host: &'a dyn Host,
    places: &'a [(usize, JobKind)],
}

impl Host for JobsHost<'_> {
    fn withdrawn(&self, seen: usize) -> Vec<usize> {
        let job = |task| self.places.binary_search_by_key(&task, |(place, _)| *place).unwrap_or(usize::MAX);
        self.host.withdrawn(seen).into_iter().map(job).collect()
    }

    fn panicked(&self) {
        self.host.panicked();
    }

    fn threads(&self) -> usize {
        self.host.threads()
    }

    fn looks_min(&self) -> usize {
        self.host.looks_min()
    }

    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.host.each(count, work);
    }
}

/// An [`Answer`] with a part of its rows or groups, which is encoded in the same way as an [`Answer`].
#[derive(Serialize)]
enum AnswerPart<'a> {
    #[expect(dead_code, reason = "it has its place in the numbering")]
    Written(&'a [()]),
    Rows(&'a [Row]),
    Groups(&'a [Group]),
}

/// Cuts a read's answer into pieces, each of which fits into a message. If a single row or group fits into no
/// message, the answer is a failure instead.
fn pieces(answer: Answer) -> Vec<Bytes> {
    if let Answer::Tried { received, answer } = answer {
        return tried(&received, *answer);
    }
    let mut pieces = Vec::new();
    match &answer {
        Answer::Rows(rows) if !rows.is_empty() => {
            rows.chunks(PIECE_ROWS).for_each(|rows| cut(rows, AnswerPart::Rows, &mut pieces));
        }
        Answer::Groups(groups) if !groups.is_empty() => {
            groups.chunks(PIECE_ROWS).for_each(|groups| cut(groups, AnswerPart::Groups, &mut pieces));
        }
        answer => pieces.push(encode(answer)),
    }
    match pieces.iter().find_map(|piece| too_long(piece.len())) {
        Some(failure) => vec![encode(&Answer::Failed(failure))],
        None => pieces,
    }
}

/// Cuts the answer of a trial into pieces. The first piece also has the fingerprints.
fn tried(received: &[(KeyRange, Fingerprint)], answer: Answer) -> Vec<Bytes> {
    let mut pieces = pieces(answer);
    let first = pieces.first_mut().expect("an answer has a piece");
    if let Ok(answer) = postcard::from_bytes::<Answer>(first)
        && !matches!(answer, Answer::Failed(_))
    {
        *first = encode(&Answer::Tried { received: received.to_vec(), answer: Box::new(answer) });
    }
    pieces
}

/// Encodes the items as one piece. Cuts them into several pieces if one piece would be too large.
fn cut<'a, T>(all: &'a [T], part: fn(&'a [T]) -> AnswerPart<'a>, pieces: &mut Vec<Bytes>) {
    let piece = encode(&part(all));
    if piece.len() <= PIECE_BYTES || all.len() == 1 {
        return pieces.push(piece);
    }
    let (first, second) = all.split_at(all.len() / 2);
    cut(first, part, pieces);
    cut(second, part, pieces);
}

fn key_ranges(ranges: &[Range]) -> Vec<KeyRange> {
    ranges.iter().map(|range| KeyRange { low: range.low, high: range.high }).collect()
}

fn encode<T: serde::Serialize>(value: &T) -> Bytes {
    postcard::to_stdvec(value).expect("our own types always serialise").into()
}

#[cfg(test)]
mod tests {
    use quorate_protocol::ecast::Position;
    use quorate_table::{
        engine::Bounds,
        expr::Expr,
        host::SingleThread,
        operation::Order,
        plain::PlainEngine,
        scan::ScanEngine,
        schema::{Column, Partition},
        value::{Type, Value},
    };

    use super::*;

    fn rows(texts: &[usize]) -> Vec<Row> {
        texts.iter().map(|length| vec![Value::Text("x".repeat(*length).into())]).collect()
    }

    fn texts_schema() -> Schema {
        let (name, ty) = (String::from("t"), Type::Text);
        let column = Column { name, ty, modifier: None, not_null: false, default: None };
        Schema {
            name: String::from("texts"),
            columns: vec![column],
            primary_key: Vec::new(),
            partition: Partition::Hash { column: 0 },
            constraints: Vec::new(),
        }
    }

    fn taken(pieces: &[Bytes]) -> Vec<Row> {
        let rows = pieces.iter().flat_map(|piece| match postcard::from_bytes(piece).expect("an answer") {
            Answer::Rows(rows) => rows,
            other => panic!("{other:?} among rows"),
        });
        rows.collect()
    }

    #[test]
    fn an_answer_is_cut_by_rows_and_by_bytes() {
        for texts in [vec![], vec![1; 3], vec![1; 1500], vec![300 << 10; 40], vec![1, 3 << 20, 1]] {
            let all = rows(&texts);
            let pieces = pieces(Answer::Rows(all.clone()));
            assert_eq!(taken(&pieces), all, "nothing is lost or moved");
            let small =
                |piece: &Bytes| piece.len() <= PIECE_BYTES || taken(std::slice::from_ref(piece)).len() == 1;
            assert!(pieces.iter().all(small));
        }
        assert_eq!(pieces(Answer::Rows(rows(&[1; 1500]))).len(), 3);
    }

    /// Twenty queries arrive in one batch. Each sorts all rows, and nearly reaches the bound of one query.
    /// The batch gathers no more bytes than one query may, and each read that did not fit can be answered
    /// alone.
    #[test]
    fn reads_that_come_together_gather_no_more_than_one() {
        let bounds = Bounds { result_bytes_max: 1 << 20, batch_bytes_max: 1 << 20, ..Bounds::default() };
        let mut engine = ScanEngine::new(bounds);
        let texts: Vec<usize> = vec![50 << 10; 15];
        let (table, ranges) = (TableId(1), vec![KeyRange::ALL]);
        let job = |operation| Job { epoch: Epoch(1), ranges: ranges.clone(), operation, held: false };
        let insert = Operation::Insert { table, rows: rows(&texts), returning: Vec::new() };
        engine.apply(&[job(Operation::CreateTable { table, schema: texts_schema() }), job(insert)]);

        let order = vec![Order { column: 0, descending: false, nulls_first: false }];
        let columns = vec![Expr::Column(0, Type::Text)];
        let output = Output::Rows { columns, order, limit: None, distinct: false };
        let operation = encode(&Operation::Select(Select { table, filter: None, output }));
        let read = || Task {
            at: Position(1),
            kind: TaskKind::Read { ranges: vec![Range::ALL], operation: operation.clone() },
        };
        let bytes = |results: &[TaskResult]| -> usize {
            let pieces = results.iter().flat_map(|result| match result {
                TaskResult::Read(pieces) => pieces.as_slice(),
                TaskResult::Crowded => &[],
                other => panic!("{other:?}"),
            });
            pieces.map(Bytes::len).sum()
        };
        let results = execute(&mut engine, (0..20).map(|_| read()).collect(), &SingleThread);
        let crowded = results.iter().filter(|result| **result == TaskResult::Crowded).count();
        assert!((500 << 10..1100 << 10).contains(&bytes(&results)), "{} bytes", bytes(&results));
        for _ in 0..crowded {
            let alone = execute(&mut engine, vec![read()], &SingleThread);
            assert!(bytes(&alone) > 700 << 10, "it is answered alone");
            let finish = Task { at: Position(1), kind: TaskKind::Finish };
            execute(&mut engine, vec![finish], &SingleThread);
        }
        assert_eq!(engine.pinned().readers, 0);
    }

    #[test]
    fn a_row_that_fits_into_no_message_fails() {
        let told = pieces(Answer::Rows(rows(&[1, CONTENT_BYTES_MAX])));
        let [failed] = told.as_slice() else { panic!("{} pieces", told.len()) };
        let Ok(Answer::Failed(failure)) = postcard::from_bytes(failed) else { panic!("it does not fail") };
        assert_eq!(failure.sqlstate, "54000");
    }

    #[test]
    fn a_page_is_cut_where_rows_become_longer_than_those_it_was_sized_by() {
        let mut engine = PlainEngine::default();
        let texts = [vec![1; 20], vec![300 << 10; 20], vec![1; 20]].concat();
        let schema = texts_schema();
        let table = TableId(1);
        let ranges = vec![KeyRange::ALL];
        let job = |operation| Job { epoch: Epoch(1), ranges: ranges.clone(), operation, held: false };
        let insert = Operation::Insert { table, rows: rows(&texts), returning: Vec::new() };
        engine.apply(&[job(Operation::CreateTable { table, schema }), job(insert)]);
        engine.pin(Epoch(1), Holder::Reader);

        let output = Output::Rows {
            columns: vec![Expr::Column(0, Type::Text)],
            order: Vec::new(),
            limit: None,
            distinct: false,
        };
        let operation = encode(&Operation::Select(Select { table, filter: None, output }));
        let (mut pages, mut cursor) = (Vec::new(), None::<Bytes>);
        loop {
            let told = page(&mut engine, Epoch(1), &[Range::ALL], &operation, cursor.as_deref(), 64);
            let Ok(TaskResult::Page { rows, cursor: next }) = told else {
                panic!("{told:?} instead of a page")
            };
            assert!(rows.len() <= PIECE_BYTES, "{} bytes", rows.len());
            pages.push(rows);
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        let mut lengths: Vec<usize> = taken(&pages)
            .iter()
            .map(|row| matches!(&row[0], Value::Text(text) if text.len() > 1) as usize)
            .collect();
        lengths.sort_unstable();
        assert_eq!(lengths, [vec![0; 40], vec![1; 20]].concat(), "every row comes once");
    }
}
