//! Checkpoints: the whole state of a storage process, written while it works
//! ([journal](crate::rubberband::journal)).

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use super::{
    Storage, Task, TaskKind,
    replies::Pinned,
    stage::{Checkpoint, CheckpointStage, NextPiece},
    work::{Purpose, QueuedStep},
};
use crate::{
    ecast::Position,
    rubberband::journal::{Began, Record},
    seam::{Context, Sink, Ticket},
    time::{Duration, Time},
};

impl Storage {
    /// Begins a checkpoint if one is due and may begin.
    pub(super) fn begin_checkpoint(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        let Some(least) = self.settings.checkpoint_bytes else { return };
        let since = self.checkpoints.since(now);
        if !(self.completion_due.is_some() || self.is_checkpoint_due(least, since)) {
            return;
        }
        if !self.may_begin_checkpoint() {
            return;
        }
        self.checkpoints.begin(now);
        // Earlier records must be written before `Began`, because recovery reads everything after `Began`
        // again.
        self.membership.write_down(true, out);
        let Some(submissions) = self.membership.member.submissions() else { return };
        let Some(config) = self.membership.config().cloned() else { return };
        let at = self.membership.member.delivered();
        let began = Began {
            at,
            config,
            passed: submissions.passed,
            submitted: submissions.messages,
            departed: self.decisions.departed,
            received: self.received,
        };
        let began = out.persist(Record::Began(Box::new(began)));
        if let Some(journal) = self.membership.journal() {
            journal.bytes = 0;
            self.checkpoints.fragment_index.passed(std::mem::take(&mut journal.all_bytes));
        }
        let carried = Arc::new(self.checkpoints.fragment_index.carried(least / STRETCHES));
        self.queue.push(QueuedStep::Checkpoint { at });
        let completes = self.completion_due.take();
        let (stage, pinned) = (CheckpointStage::Due, Pinned::default());
        let named = BTreeMap::new();
        self.checkpoints.current =
            Some(Checkpoint { at, began, stage, pinned, bytes: 0, carried, named, completes });
    }

    /// Whether the journal after the last checkpoint, which began `since` ago, is long enough for the next
    /// checkpoint.
    pub(super) fn is_checkpoint_due(&mut self, least: u64, since: Duration) -> bool {
        let bytes = self.membership.journal().map_or(0, |journal| journal.bytes);
        self.checkpoints.is_due(least, since, bytes)
    }

    fn may_begin_checkpoint(&self) -> bool {
        let moves = self.import.is_some() || !self.exports.is_empty();
        let kept = self.keeps.is_some() || self.before.is_some();
        self.checkpoints.current.is_none()
            && !moves
            && !kept
            && !self.is_leaving_rows
            && !self.membership.is_wedged()
    }

    /// Pins the version and the ranges' memory: everything up to the checkpoint's position has been executed.
    pub(super) fn pin_checkpoint(&mut self, tasks: &mut Vec<Task>, at: Position, out: &mut dyn Sink<Self>) {
        let Some(checkpoint) = &mut self.checkpoints.current else { return };
        checkpoint.pinned = self.replies.pin_all();
        checkpoint.stage = CheckpointStage::Rows(None);
        for piece in self.verdicts.encode(self.settings.section_bytes_max) {
            out.persist(Record::Verdicts(piece));
        }
        self.queue.run(tasks, at, TaskKind::Pin, Purpose::Step(at));
    }

    /// Lets the engine save the next piece, if the previous piece is durable.
    pub(super) fn push_checkpoint(&mut self, tasks: &mut Vec<Task>) {
        if let Some(at) = self.checkpoints.version_to_release.take() {
            self.queue.run(tasks, at, TaskKind::Release, Purpose::Step(Position(0)));
        }
        let Some(checkpoint) = &mut self.checkpoints.current else { return };
        let at = checkpoint.at;
        if let CheckpointStage::Rows(cursor) = &mut checkpoint.stage {
            let kind = TaskKind::Save {
                record: self.checkpoints.fragment_index.next(),
                since: self.checkpoints.fragment_index.since(),
                carried: checkpoint.carried.clone(),
                cursor: cursor.take(),
            };
            checkpoint.stage = CheckpointStage::Reading;
            self.queue.run(tasks, at, kind, Purpose::Checkpoint);
        }
    }

    pub(super) fn checkpoint_read(
        &mut self,
        (fragments, count): (Bytes, u32),
        outline: Bytes,
        named: Vec<(u64, u32)>,
        cursor: Option<Bytes>,
        out: &mut dyn Sink<Self>,
    ) {
        // The process also writes fragments of an abandoned checkpoint, because the engine considers them
        // saved.
        let (number, bytes) = (self.checkpoints.fragment_index.next(), fragments.len() as u64);
        if count > 0 {
            let ticket = out.persist(Record::Fragments { number, count, fragments });
            self.checkpoints.fragment_index.put(number, ticket, bytes, count);
        }
        let Some(checkpoint) = &mut self.checkpoints.current else { return };
        for (number, fragments) in named {
            *checkpoint.named.entry(number).or_default() += fragments;
        }
        checkpoint.bytes += bytes + outline.len() as u64;
        if cursor.is_none() {
            self.checkpoints.version_to_release = Some(checkpoint.at);
        }
        let next = cursor.map_or(NextPiece::Replies(None), NextPiece::Rows);
        checkpoint.stage = CheckpointStage::Written(out.persist(Record::Outline(outline)), next);
    }

    /// Writes the next piece if all records up to `through`, including the last piece, are durable.
    pub(super) fn checkpoint_persisted(
        &mut self,
        cx: &mut Context<'_>,
        through: Ticket,
        out: &mut dyn Sink<Self>,
    ) {
        let section_bytes_max = self.settings.section_bytes_max;
        let Some(checkpoint) = &mut self.checkpoints.current else { return };
        let CheckpointStage::Written(record, next) = &mut checkpoint.stage else { return };
        if *record > through {
            return;
        }
        checkpoint.stage = match std::mem::replace(next, NextPiece::Over) {
            NextPiece::Rows(cursor) => CheckpointStage::Rows(Some(cursor)),
            NextPiece::Replies(cursor) => {
                let ranges = checkpoint.pinned.ranges();
                let (section, next) = checkpoint.pinned.section(&ranges, cursor, section_bytes_max);
                checkpoint.bytes += section.len() as u64;
                let next = next.map_or(NextPiece::End, |cursor| NextPiece::Replies(Some(cursor)));
                CheckpointStage::Written(out.persist(Record::Replies(section)), next)
            }
            NextPiece::End => {
                out.persist(Record::Named(
                    checkpoint.named.iter().map(|(&it, &fragments)| (it, fragments)).collect(),
                ));
                CheckpointStage::Written(out.persist(Record::Ended), NextPiece::Over)
            }
            NextPiece::Over => {
                let kept = self.checkpoints.fragment_index.keep(&checkpoint.named);
                out.collect(checkpoint.began, &kept);
                let completes = checkpoint.completes;
                // The size of a checkpoint after an import does not tell how much usually changes.
                self.checkpoints.bytes = if completes.is_some() { 0 } else { checkpoint.bytes };
                self.checkpoints.current = None;
                if let Some(change) = completes {
                    self.complete(cx, change, out);
                }
                return;
            }
        };
    }
}

/// Number of stretches into which `checkpoint_bytes` of the journal are divided. If checkpoints need little
/// of a stretch, the next checkpoint saves that part again, and the stretch is collected.
const STRETCHES: u64 = 4;
