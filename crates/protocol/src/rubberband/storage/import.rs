//! Taking over ranges: the rows that are still missing, and their sources (002 §6.4, partial live migration).

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::{TaskKind, replies::Replies};
use crate::{
    ecast::Position,
    id::ProcessId,
    rubberband::{Config, Range, TransferCursor},
    time::Time,
};

/// An import in progress.
pub(super) struct Import {
    change: Position,
    /// Sources with missing rows, the present one first.
    todo: VecDeque<(ProcessId, Vec<Range>)>,
    /// The place from which the transfer from the present source continues.
    cursor: TransferCursor,
    stage: ImportStage,
    /// Time at which to ask the source again.
    deadline: Option<Time>,
    /// Processes that could not send, and are not asked again.
    failed: Vec<ProcessId>,
    replies: Replies,
}

enum ImportStage {
    /// The import can ask for the next chunk.
    Ask,
    /// The import has asked for a chunk.
    Asked,
    /// The engine should import these rows; the transfer then continues at this place.
    Rows(Bytes, TransferCursor),
    /// The engine should drop the rows of these ranges again, because their source failed.
    Undo(Vec<Range>),
    /// The engine is working on the import. The value tells how the import continues afterwards.
    Busy(AfterTask),
    /// Some range has no source left. This is final, whatever arrives later.
    Failed,
}

enum AfterTask {
    Next(TransferCursor),
    Restart,
}

/// The fate of a received chunk.
pub(super) enum ChunkOutcome {
    /// The import ignores the chunk, because it did not ask for it, or because the chunk does not decode.
    Not,
    /// The chunk has rows for the engine.
    Rows,
    /// The chunk had a section of the ranges' memory, which was taken in.
    Replies(ImportAction),
}

/// The next action of an import.
pub(super) enum ImportAction {
    /// The import asks its sources for more rows or memory.
    More,
    /// Everything has been imported.
    Finished { change: Position, replies: Replies },
}

impl Import {
    /// Creates an import of `ranges`; `copy` names the source of each.
    pub(super) fn new(change: Position, copy: Vec<(Range, ProcessId)>, ranges: Vec<Range>) -> Self {
        let mut sources: BTreeMap<ProcessId, Vec<Range>> = BTreeMap::new();
        for (range, source) in copy {
            if ranges.contains(&range) {
                sources.entry(source).or_default().push(range);
            }
        }
        Import {
            change,
            todo: sources.into_iter().collect(),
            cursor: TransferCursor::Rows(None),
            stage: ImportStage::Ask,
            deadline: None,
            failed: Vec::new(),
            // The sources have already bounded this memory.
            replies: Replies::new(usize::MAX, usize::MAX),
        }
    }

    /// Whether there is nothing to import, because every new range is a lost range and begins empty.
    pub(super) fn is_empty(&self) -> bool {
        self.todo.is_empty()
    }

    pub(super) fn change(&self) -> Position {
        self.change
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Whether the import has failed for good.
    pub(super) fn is_failed(&self) -> bool {
        matches!(self.stage, ImportStage::Failed)
    }

    /// Returns the memory of replies that has been taken in so far.
    pub(super) fn replies(&self) -> &Replies {
        &self.replies
    }

    /// Returns the source that is being read.
    pub(super) fn source(&self) -> Option<ProcessId> {
        self.todo.front().map(|(source, _)| *source)
    }

    /// Whether rows from `process` are still missing.
    pub(super) fn reads_from(&self, process: ProcessId) -> bool {
        self.todo.iter().any(|(source, _)| *source == process)
    }

    /// Returns the next request, if one is due. The caller repeats it at `deadline`.
    pub(super) fn fetch(&mut self, deadline: Time) -> Option<(ProcessId, Vec<Range>, TransferCursor)> {
        if !matches!(self.stage, ImportStage::Ask) {
            return None;
        }
        let (source, ranges) = self.todo.front()?;
        self.stage = ImportStage::Asked;
        self.deadline = Some(deadline);
        Some((*source, ranges.clone(), self.cursor.clone()))
    }

    /// Allows the request to be sent again, because no answer came in time.
    pub(super) fn again(&mut self) {
        self.deadline = None;
        if matches!(self.stage, ImportStage::Asked) {
            self.stage = ImportStage::Ask;
        }
    }

    /// Takes a chunk.
    pub(super) fn chunk(
        &mut self,
        from: ProcessId,
        change: Position,
        asked: TransferCursor,
        content: Bytes,
        next: Option<TransferCursor>,
    ) -> ChunkOutcome {
        let expected = matches!(self.stage, ImportStage::Ask | ImportStage::Asked) && asked == self.cursor;
        if change != self.change || self.source() != Some(from) || !expected {
            return ChunkOutcome::Not;
        }
        match (asked, next) {
            (TransferCursor::Rows(_), Some(next)) => {
                self.stage = ImportStage::Rows(content, next);
                self.deadline = None;
                ChunkOutcome::Rows
            }
            // After its last rows a source always sends the ranges' memory of writes, so a chunk of rows has
            // a next cursor. The import ignores a chunk of rows without a next cursor.
            (TransferCursor::Rows(_), None) => ChunkOutcome::Not,
            (TransferCursor::Replies(_), next) => {
                if !self.replies.take_in(&content) {
                    return ChunkOutcome::Not;
                }
                self.stage = ImportStage::Ask;
                self.deadline = None;
                match next {
                    Some(next) => self.cursor = next,
                    None => {
                        self.cursor = TransferCursor::Rows(None);
                        self.todo.pop_front();
                    }
                }
                ChunkOutcome::Replies(self.step())
            }
        }
    }

    /// Returns the engine's next task for the import, if there is one.
    pub(super) fn task(&mut self) -> Option<TaskKind> {
        match std::mem::replace(&mut self.stage, ImportStage::Ask) {
            ImportStage::Rows(rows, cursor) => {
                self.stage = ImportStage::Busy(AfterTask::Next(cursor));
                Some(TaskKind::Import { rows })
            }
            ImportStage::Undo(ranges) => {
                self.stage = ImportStage::Busy(AfterTask::Restart);
                Some(TaskKind::Forget { ranges })
            }
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// Notes that the engine has done [`Import::task`].
    pub(super) fn done(&mut self) -> ImportAction {
        match std::mem::replace(&mut self.stage, ImportStage::Ask) {
            ImportStage::Busy(AfterTask::Next(cursor)) => self.cursor = cursor,
            ImportStage::Busy(AfterTask::Restart) => self.cursor = TransferCursor::Rows(None),
            // The source failed while the engine worked, so its rows must still be dropped.
            other => self.stage = other,
        }
        self.step()
    }

    fn step(&mut self) -> ImportAction {
        if self.todo.is_empty() {
            let replies = std::mem::replace(&mut self.replies, Replies::new(0, 0));
            ImportAction::Finished { change: self.change, replies }
        } else {
            ImportAction::More
        }
    }

    /// Replaces `failed`, which cannot send any longer: its ranges are read from other complete replicas,
    /// from the start. Returns `false` if some range has no other complete replica; then the import has
    /// failed for good.
    pub(super) fn switch(&mut self, config: &Config, failed: ProcessId) -> bool {
        let was_first = self.source() == Some(failed);
        self.failed.push(failed);
        let lost: Vec<Range> = self
            .todo
            .iter()
            .filter(|(source, _)| *source == failed)
            .flat_map(|(_, ranges)| ranges.clone())
            .collect();
        let able = |replica: &ProcessId| !self.failed.contains(replica);
        let other = |range: &Range| {
            let segment = config.segments().iter().find(|segment| segment.range == *range)?;
            config.complete(segment).find(able)
        };
        let Some(others) = lost.iter().map(other).collect::<Option<Vec<ProcessId>>>() else {
            self.stage = ImportStage::Failed;
            self.deadline = None;
            return false;
        };
        self.todo.retain(|(source, _)| *source != failed);
        for (range, other) in lost.iter().zip(others) {
            match self.todo.iter_mut().skip(usize::from(!was_first)).find(|(source, _)| *source == other) {
                Some((_, ranges)) => ranges.push(*range),
                None => self.todo.push_back((other, vec![*range])),
            }
        }
        if was_first {
            self.cursor = TransferCursor::Rows(None);
            self.replies.clear(&lost);
            self.deadline = None;
            // Ranges from an earlier failure may still wait to be dropped.
            let mut ranges = match std::mem::replace(&mut self.stage, ImportStage::Ask) {
                ImportStage::Undo(ranges) => ranges,
                _ => Vec::new(),
            };
            ranges.retain(|range| !lost.contains(range));
            ranges.extend(lost);
            self.stage = ImportStage::Undo(ranges);
        }
        true
    }
}

#[cfg(test)]
mod tests;
