//! Taking over ranges: which rows still have to come, and from whom (002 §6.4, partial live migration).

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
    /// Sources still to be read, the present one first.
    todo: VecDeque<(ProcessId, Vec<Range>)>,
    /// Where the present source goes on.
    cursor: TransferCursor,
    stage: Stage,
    /// When to ask again.
    deadline: Option<Time>,
    /// Who could not send: not asked again.
    failed: Vec<ProcessId>,
    replies: Replies,
}

enum Stage {
    /// To ask for the next chunk.
    Ask,
    /// A chunk was asked for.
    Asked,
    /// Rows for the engine, and where to go on.
    Rows(Bytes, TransferCursor),
    /// Ranges to be dropped again, because their source failed.
    Undo(Vec<Range>),
    /// The engine is at it; then go on there.
    Busy(After),
    /// Some range has no source any more: it never finishes, whatever still comes or is done.
    Failed,
}

enum After {
    Next(TransferCursor),
    Restart,
}

/// What became of a chunk.
pub(super) enum Taken {
    /// It was not asked for, or is none.
    Not,
    /// Rows, for the engine.
    Rows,
    /// What ranges remember; this is next.
    Replies(ImportStep),
}

/// What to do after something was taken in.
pub(super) enum ImportStep {
    /// Ask for more.
    More,
    /// All rows are here.
    Finished { change: Position, replies: Replies },
}

impl Import {
    /// An import of `ranges`; `copy` names a source for each.
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
            stage: Stage::Ask,
            deadline: None,
            failed: Vec::new(),
            // What comes was within the bound where it comes from.
            replies: Replies::new(usize::MAX),
        }
    }

    /// Whether there is nothing to import: every range that came is a lost one, and begins empty.
    pub(super) fn is_empty(&self) -> bool {
        self.todo.is_empty()
    }

    pub(super) fn change(&self) -> Position {
        self.change
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Whether it can not finish any more.
    pub(super) fn is_failed(&self) -> bool {
        matches!(self.stage, Stage::Failed)
    }

    /// What was taken in of what ranges remember.
    pub(super) fn replies(&self) -> &Replies {
        &self.replies
    }

    /// The source that is being read.
    pub(super) fn source(&self) -> Option<ProcessId> {
        self.todo.front().map(|(source, _)| *source)
    }

    /// Whether rows are still to come from `process`, now or later.
    pub(super) fn reads_from(&self, process: ProcessId) -> bool {
        self.todo.iter().any(|(source, _)| *source == process)
    }

    /// The next request, if one is due; it is to be repeated at `deadline`.
    pub(super) fn fetch(&mut self, deadline: Time) -> Option<(ProcessId, Vec<Range>, TransferCursor)> {
        if !matches!(self.stage, Stage::Ask) {
            return None;
        }
        let (source, ranges) = self.todo.front()?;
        self.stage = Stage::Asked;
        self.deadline = Some(deadline);
        Some((*source, ranges.clone(), self.cursor.clone()))
    }

    /// No answer came in time.
    pub(super) fn again(&mut self) {
        self.deadline = None;
        if matches!(self.stage, Stage::Asked) {
            self.stage = Stage::Ask;
        }
    }

    /// A chunk has come.
    pub(super) fn chunk(
        &mut self,
        from: ProcessId,
        change: Position,
        asked: TransferCursor,
        content: Bytes,
        next: Option<TransferCursor>,
    ) -> Taken {
        let expected = matches!(self.stage, Stage::Ask | Stage::Asked) && asked == self.cursor;
        if change != self.change || self.source() != Some(from) || !expected {
            return Taken::Not;
        }
        match (asked, next) {
            (TransferCursor::Rows(_), Some(next)) => {
                self.stage = Stage::Rows(content, next);
                self.deadline = None;
                Taken::Rows
            }
            // Behind rows there is always more.
            (TransferCursor::Rows(_), None) => Taken::Not,
            (TransferCursor::Replies(_), next) => {
                if !self.replies.take_in(&content) {
                    return Taken::Not;
                }
                self.stage = Stage::Ask;
                self.deadline = None;
                match next {
                    Some(next) => self.cursor = next,
                    None => {
                        self.cursor = TransferCursor::Rows(None);
                        self.todo.pop_front();
                    }
                }
                Taken::Replies(self.step())
            }
        }
    }

    /// What the engine is to do for the import, if anything.
    pub(super) fn task(&mut self) -> Option<TaskKind> {
        match std::mem::replace(&mut self.stage, Stage::Ask) {
            Stage::Rows(rows, cursor) => {
                self.stage = Stage::Busy(After::Next(cursor));
                Some(TaskKind::Import { rows })
            }
            Stage::Undo(ranges) => {
                self.stage = Stage::Busy(After::Restart);
                Some(TaskKind::Forget { ranges })
            }
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// The engine has done [`Import::task`].
    pub(super) fn done(&mut self) -> ImportStep {
        match std::mem::replace(&mut self.stage, Stage::Ask) {
            Stage::Busy(After::Next(cursor)) => self.cursor = cursor,
            Stage::Busy(After::Restart) => self.cursor = TransferCursor::Rows(None),
            // The source failed while the engine was at it: the undoing still has to come.
            other => self.stage = other,
        }
        self.step()
    }

    fn step(&mut self) -> ImportStep {
        if self.todo.is_empty() {
            let replies = std::mem::replace(&mut self.replies, Replies::new(0));
            ImportStep::Finished { change: self.change, replies }
        } else {
            ImportStep::More
        }
    }

    /// `failed` can not send any more: reads what it was to send from other complete replicas, from the start. `false`
    /// if some range has none: then this import has failed for good.
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
            self.stage = Stage::Failed;
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
            // What an earlier failure left to be dropped is still there.
            let mut ranges = match std::mem::replace(&mut self.stage, Stage::Ask) {
                Stage::Undo(ranges) => ranges,
                _ => Vec::new(),
            };
            ranges.retain(|range| !lost.contains(range));
            ranges.extend(lost);
            self.stage = Stage::Undo(ranges);
        }
        true
    }
}

#[cfg(test)]
mod tests;
