//! An engine that keeps the writes of each range in their order.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_protocol::{
    ecast::Position,
    rubberband::{Range, Task, TaskKind, TaskResult},
};
use serde::{Deserialize, Serialize};

use super::names::range_names;

/// A write as one range remembers it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) range: Range,
    pub(crate) at: Position,
    pub(crate) operation: String,
}

#[derive(Clone, Default)]
pub(crate) struct Engine {
    pub(crate) rows: Vec<Row>,
    held: Vec<Row>,
    /// Retained versions by position: the rows of the version, and the number of its holders.
    pub(crate) pins: BTreeMap<Position, (Vec<Row>, usize)>,
    tables: Vec<u32>,
}

/// Number of rows above which an answer is read page by page.
const LONG_ROWS: usize = 6;
/// Number of rows that an export reads at once.
const CHUNK_ROWS: usize = 3;

impl Engine {
    /// Whether an operation fails. `!17 name` fails in a range that contains key 17.
    fn fails(operation: &str, ranges: &[Range]) -> bool {
        let key = operation.strip_prefix('!').and_then(|rest| rest.split(' ').next());
        let key = key.map(|key| key.parse::<u64>().expect("a key"));
        key.is_some_and(|key| ranges.iter().any(|range| range.low <= key && key <= range.high))
    }

    /// Whether these reads kill the process.
    pub(crate) fn dies(tasks: &[Task]) -> bool {
        tasks.iter().any(|task| {
            let TaskKind::Read { ranges, operation } = &task.kind else { return false };
            let key = operation.strip_prefix(b"die").map(|key| String::from_utf8_lossy(key));
            key.is_some_and(|key| match key.trim().parse::<u64>() {
                Ok(key) => ranges.iter().any(|range| range.low <= key && key <= range.high),
                Err(_) => true,
            })
        })
    }

    /// Returns the answer to an operation. `=170 name` answers 170 bytes.
    fn answer(operation: &str) -> Bytes {
        let bytes = operation.strip_prefix('=').and_then(|rest| rest.split(' ').next());
        let bytes = bytes.map(|bytes| bytes.parse::<usize>().expect("a number"));
        bytes.map_or(Bytes::from_static(b"ok"), |bytes| vec![b'x'; bytes].into())
    }

    fn pin(&mut self, at: Position) {
        let (_, holders) = self.pins.entry(at).or_insert_with(|| (self.rows.clone(), 0));
        *holders += 1;
    }

    /// Runs the tasks of a batch. The read `large` fits only into a batch without other reads.
    pub(crate) fn run_all(&mut self, tasks: &[Task]) -> Vec<TaskResult> {
        let reads = tasks.iter().filter(|task| matches!(task.kind, TaskKind::Read { .. })).count();
        let run = |task: &Task| match &task.kind {
            TaskKind::Read { operation, .. } if operation == "large" && reads > 1 => {
                self.pin(task.at);
                TaskResult::Crowded
            }
            _ => self.run(task),
        };
        tasks.iter().map(run).collect()
    }

    fn run(&mut self, task: &Task) -> TaskResult {
        let at = task.at;
        match &task.kind {
            TaskKind::Write { ranges, operation, held } => {
                let operation = String::from_utf8(operation.to_vec()).expect("text");
                assert!(self.held.is_empty(), "a held write is the last of its batch");
                assert!(ranges.iter().all(|range| range.low <= range.high));
                if Engine::fails(&operation, ranges) {
                    return TaskResult::Failed(Bytes::from_static(b"failed"));
                }
                let new = ranges.iter().map(|&range| Row { range, at, operation: operation.clone() });
                if *held {
                    self.held.extend(new)
                } else {
                    self.rows.extend(new)
                }
                let answer = Engine::answer(&operation);
                TaskResult::Written(ranges.iter().map(|_| answer.clone()).collect())
            }
            TaskKind::Save { .. } | TaskKind::Restore { .. } => panic!("no process has a disk here"),
            TaskKind::Settle { publish } => {
                let held = std::mem::take(&mut self.held);
                if *publish {
                    self.rows.extend(held);
                }
                TaskResult::Done
            }
            TaskKind::Read { ranges, operation } => {
                if operation == "large" {
                    let rows = self.pins.get(&at).map_or(&self.rows, |(kept, _)| kept);
                    return TaskResult::Read(vec![Bytes::from(within(rows, ranges).count().to_string())]);
                }
                let rows: Vec<&Row> = within(&self.rows, ranges).collect();
                if operation == "count" || operation.starts_with(b"die") {
                    return TaskResult::Read(vec![Bytes::from(rows.len().to_string())]);
                }
                // `pieces 20 10000` answers 20 pieces of 10,000 bytes.
                if let Some(pieces) = operation.strip_prefix(b"pieces ") {
                    let pieces = String::from_utf8_lossy(pieces);
                    let (count, bytes) = pieces.split_once(' ').expect("two numbers");
                    let number = |text: &str| text.parse::<usize>().expect("a number");
                    return TaskResult::Read(vec![vec![b'x'; number(bytes)].into(); number(count)]);
                }
                if rows.len() > LONG_ROWS {
                    self.pin(at);
                    return TaskResult::Long;
                }
                let mut pieces: Vec<Bytes> = rows.chunks(2).map(|chunk| encode(&chunk)).collect();
                if pieces.is_empty() {
                    pieces.push(encode::<Vec<Row>>(&Vec::new()));
                }
                TaskResult::Read(pieces)
            }
            TaskKind::Page { ranges, cursor, .. } => {
                let start = cursor.as_ref().map_or(0, |cursor| decode::<usize>(cursor));
                let (kept, _) = &self.pins[&at];
                let rows: Vec<&Row> = within(kept, ranges).skip(start).take(2).collect();
                let more = within(kept, ranges).count() > start + rows.len();
                let cursor = more.then(|| encode(&(start + rows.len())));
                TaskResult::Page { rows: encode(&rows), cursor }
            }
            TaskKind::CreateTable { table, .. } => {
                self.tables.push(*table);
                TaskResult::Done
            }
            TaskKind::DropTable { table } => {
                self.tables.retain(|known| known != table);
                TaskResult::Done
            }
            TaskKind::AlterTable { table, altered, .. } => {
                self.tables.retain(|known| known != table);
                self.tables.push(*altered);
                TaskResult::Done
            }
            TaskKind::Pin => {
                self.pin(at);
                TaskResult::Done
            }
            TaskKind::Finish | TaskKind::Release => {
                let (_, holders) = self.pins.get_mut(&at).expect("what is released was pinned");
                *holders -= 1;
                if *holders == 0 {
                    self.pins.remove(&at);
                }
                TaskResult::Done
            }
            TaskKind::Export { ranges, cursor } => {
                let start = cursor.as_ref().map_or(0, |cursor| decode::<usize>(cursor));
                let (pinned, _) = &self.pins[&at];
                let rows: Vec<&Row> = within(pinned, ranges).skip(start).take(CHUNK_ROWS).collect();
                let more = within(pinned, ranges).count() > start + rows.len();
                let cursor = more.then(|| encode(&(start + rows.len())));
                TaskResult::Exported { rows: encode(&rows), cursor }
            }
            TaskKind::Import { rows } => {
                let rows = decode::<Vec<Row>>(rows);
                assert!(rows.is_empty() || !self.tables.is_empty(), "rows of a table that is not there");
                self.rows.extend(rows);
                TaskResult::Done
            }
            TaskKind::EndSession { .. } => TaskResult::Done,
            TaskKind::Forget { ranges } => {
                self.rows.retain(|row| !ranges.iter().any(|range| range.intersect(row.range).is_some()));
                TaskResult::Done
            }
        }
    }
}

/// Returns the trace of a task.
pub(crate) fn shown(task: &Task, result: &TaskResult) -> String {
    let what = match &task.kind {
        TaskKind::Write { ranges, operation, held } => {
            let how = if *held { "holds" } else { "writes" };
            format!("{how} {} in {}", String::from_utf8_lossy(operation), range_names(ranges))
        }
        TaskKind::Settle { publish: true } => "publishes".to_owned(),
        TaskKind::Settle { publish: false } => "voids".to_owned(),
        TaskKind::Read { ranges, .. } if *result == TaskResult::Crowded => {
            format!("has no room for a read of {}", range_names(ranges))
        }
        TaskKind::Read { ranges, .. } => format!("reads {}", range_names(ranges)),
        TaskKind::Page { ranges, .. } => format!("reads on in {}", range_names(ranges)),
        TaskKind::CreateTable { table, .. } => format!("creates table {table}"),
        TaskKind::DropTable { table } => format!("drops table {table}"),
        TaskKind::AlterTable { table, altered, .. } => format!("alters table {table} to {altered}"),
        TaskKind::Pin => "pins".to_owned(),
        TaskKind::Finish | TaskKind::Release => "releases".to_owned(),
        TaskKind::Save { .. } | TaskKind::Restore { .. } => panic!("no process has a disk here"),
        TaskKind::Export { ranges, cursor } => {
            let from = cursor.as_ref().map_or(0, |cursor| decode::<usize>(cursor));
            format!("exports {} from {from}", range_names(ranges))
        }
        TaskKind::Import { rows } => format!("imports {} rows", decode::<Vec<Row>>(rows).len()),
        TaskKind::EndSession { session } => format!("ends session {session}"),
        TaskKind::Forget { ranges } => format!("forgets {}", range_names(ranges)),
    };
    format!("@{} {what}", task.at)
}

/// Returns the rows in these ranges. A write is kept in parts, one for each segment, so a part lies wholly
/// inside or outside a range.
fn within<'a>(rows: &'a [Row], ranges: &'a [Range]) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(|row| ranges.iter().any(|range| range.intersect(row.range) == Some(row.range)))
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    postcard::to_stdvec(value).expect("it serialises").into()
}

pub(crate) fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> T {
    postcard::from_bytes(bytes).expect("our own bytes decode")
}
