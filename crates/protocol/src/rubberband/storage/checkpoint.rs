//! Checkpoints: all that a storage process has, written down while it works ([journal](crate::rubberband::journal)).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    Storage, Task, TaskKind,
    batch::Purpose,
    replies::{Cursor, Pinned},
    steps::Step,
};
use crate::{
    ecast::Position,
    rubberband::journal::{Began, Record},
    seam::{Context, Sink, Ticket},
    time::{Duration, Time},
};

/// A checkpoint in progress.
pub(super) struct Checkpoint {
    /// What was delivered up to here is in it.
    at: Position,
    /// Its first record.
    began: Ticket,
    stage: Stage,
    /// What the ranges remembered there.
    pinned: Pinned,
    /// Bytes written so far.
    bytes: u64,
    /// The records whose fragments are saved anew.
    carried: Arc<BTreeSet<u64>>,
    /// How many fragments of which record it is made of, as far as is known.
    named: BTreeMap<u64, u32>,
    /// The change that is complete once the checkpoint is whole.
    completes: Option<Position>,
}

enum Stage {
    /// Its step is in the queue.
    Due,
    /// The version is to be saved from there on.
    Rows(Option<Bytes>),
    /// The engine reads.
    Reading,
    /// A piece is written. Once it is durable comes the next.
    Written(Ticket, Next),
}

enum Next {
    Rows(Bytes),
    Replies(Option<Cursor>),
    End,
    /// It is whole.
    Over,
}

impl Storage {
    /// Begins a checkpoint if one is due and can be taken.
    pub(super) fn begin_checkpoint(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        let Some(least) = self.settings.checkpoint_bytes else { return };
        let last = *self.checkpointed_at.get_or_insert(now);
        if !(self.complete_due.is_some() || self.is_checkpoint_due(least, now.since(last))) {
            return;
        }
        if !self.may_begin_checkpoint() {
            return;
        }
        self.checkpointed_at = Some(now);
        // What is in it is not to be read behind it again.
        self.membership.write_down(true, out);
        let Some(submissions) = self.membership.member.submissions() else { return };
        let Some(config) = self.membership.config().cloned() else { return };
        let at = self.membership.member.delivered();
        let began = Began {
            at,
            config,
            passed: submissions.passed,
            submitted: submissions.messages,
            departed: self.departed,
            received: self.received,
        };
        let began = out.persist(Record::Began(Box::new(began)));
        if let Some(journal) = self.membership.journal() {
            journal.bytes = 0;
            self.shelf.passed(std::mem::take(&mut journal.all_bytes));
        }
        let carried = Arc::new(self.shelf.carried(least / STRETCHES));
        self.queue.push_back(Step::Checkpoint { at });
        let completes = self.complete_due.take();
        let (stage, pinned) = (Stage::Due, Pinned::default());
        let named = BTreeMap::new();
        self.checkpoint = Some(Checkpoint { at, began, stage, pinned, bytes: 0, carried, named, completes });
    }

    /// Whether the journal behind the last checkpoint, which began so long ago, is long enough for another.
    pub(super) fn is_checkpoint_due(&mut self, least: u64, since: Duration) -> bool {
        let bytes = self.membership.journal().map_or(0, |journal| journal.bytes);
        // As long as the last one: so disks write everything twice, at most, and mostly much less.
        if bytes >= least.max(self.checkpoint_bytes) {
            return true;
        }
        // To execute the journal again takes many times longer than to read what came of it. So a disk that has had little to do
        // may write sooner.
        let few = (least / PARTS).max(1);
        let pace = u128::from(least / PACE_SECONDS) * since.as_millis() / 1_000;
        bytes >= few && pace >= u128::from(self.checkpoint_bytes.max(few))
    }

    fn may_begin_checkpoint(&self) -> bool {
        let moves = self.import.is_some() || !self.pins.is_empty() || !self.pins_due.is_empty();
        let kept = self.keeps.is_some() || self.before.is_some();
        self.checkpoint.is_none() && !moves && !kept && !self.parting && !self.membership.is_wedged()
    }

    /// All up to the position of the checkpoint is executed: the version and what ranges remember of it are kept.
    pub(super) fn pin_checkpoint(&mut self, tasks: &mut Vec<Task>, at: Position, out: &mut dyn Sink<Self>) {
        let Some(checkpoint) = &mut self.checkpoint else { return };
        checkpoint.pinned = self.replies.pin_all();
        checkpoint.stage = Stage::Rows(None);
        out.persist(Record::Verdicts(self.verdicts.encode()));
        self.push(tasks, at, TaskKind::Pin, Purpose::Step(at));
    }

    /// More is saved, if it is time.
    pub(super) fn push_checkpoint(&mut self, tasks: &mut Vec<Task>) {
        if let Some(at) = self.version_spent.take() {
            self.push(tasks, at, TaskKind::Release, Purpose::Step(Position(0)));
        }
        let Some(checkpoint) = &mut self.checkpoint else { return };
        let at = checkpoint.at;
        if let Stage::Rows(cursor) = &mut checkpoint.stage {
            let kind = TaskKind::Save {
                record: self.shelf.next(),
                since: self.shelf.since(),
                carried: checkpoint.carried.clone(),
                cursor: cursor.take(),
            };
            checkpoint.stage = Stage::Reading;
            self.push(tasks, at, kind, Purpose::Checkpoint);
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
        // Also of a checkpoint that has come to nothing: the engine knows these fragments to be on disk.
        let (number, bytes) = (self.shelf.next(), fragments.len() as u64);
        if count > 0 {
            let ticket = out.persist(Record::Fragments { number, count, fragments });
            self.shelf.put(number, ticket, bytes, count);
        }
        let Some(checkpoint) = &mut self.checkpoint else { return };
        for (number, fragments) in named {
            *checkpoint.named.entry(number).or_default() += fragments;
        }
        checkpoint.bytes += bytes + outline.len() as u64;
        if cursor.is_none() {
            self.version_spent = Some(checkpoint.at);
        }
        let next = cursor.map_or(Next::Replies(None), Next::Rows);
        checkpoint.stage = Stage::Written(out.persist(Record::Outline(outline)), next);
    }

    /// Everything up to this record is durable.
    pub(super) fn checkpoint_persisted(
        &mut self,
        cx: &mut Context<'_>,
        through: Ticket,
        out: &mut dyn Sink<Self>,
    ) {
        let section_bytes_max = self.settings.section_bytes_max;
        let Some(checkpoint) = &mut self.checkpoint else { return };
        let Stage::Written(record, next) = &mut checkpoint.stage else { return };
        if *record > through {
            return;
        }
        checkpoint.stage = match std::mem::replace(next, Next::Over) {
            Next::Rows(cursor) => Stage::Rows(Some(cursor)),
            Next::Replies(cursor) => {
                let ranges = checkpoint.pinned.ranges();
                let (section, next) = checkpoint.pinned.section(&ranges, cursor, section_bytes_max);
                checkpoint.bytes += section.len() as u64;
                let next = next.map_or(Next::End, |cursor| Next::Replies(Some(cursor)));
                Stage::Written(out.persist(Record::Replies(section)), next)
            }
            Next::End => {
                out.persist(Record::Named(
                    checkpoint.named.iter().map(|(&it, &fragments)| (it, fragments)).collect(),
                ));
                Stage::Written(out.persist(Record::Ended), Next::Over)
            }
            Next::Over => {
                let kept = self.shelf.keep(&checkpoint.named);
                out.collect(checkpoint.began, &kept);
                let completes = checkpoint.completes;
                // One that holds ranges which were taken over says nothing of how much changes.
                self.checkpoint_bytes = if completes.is_some() { 0 } else { checkpoint.bytes };
                self.checkpoint = None;
                if let Some(change) = completes {
                    self.complete(cx, change, out);
                }
                return;
            }
        };
    }

    /// What was to be executed before a checkpoint is not executed any more, so one that waits for it comes to nothing.
    pub(super) fn drop_checkpoint_due(&mut self) {
        self.checkpoint.take_if(|checkpoint| matches!(checkpoint.stage, Stage::Due));
    }

    /// The checkpoint in progress comes to nothing. Tells which version the engine keeps for it.
    pub(super) fn drop_checkpoint(&mut self) -> Option<Position> {
        let begun = self.checkpoint.take();
        let read = begun.filter(|it| matches!(it.stage, Stage::Rows(_) | Stage::Written(_, Next::Rows(_))));
        self.version_spent.take().or(read.map(|it| it.at))
    }
}

/// A checkpoint takes the place of at least this part of the bytes that make one due by themselves.
const PARTS: u64 = 4;

/// Checkpoints sooner than that write as many bytes in this time, on average: with 64 MiB 16 MiB a second.
const PACE_SECONDS: u64 = 4;

/// The journal behind a checkpoint is looked at in so many stretches when little of a stretch is needed any more.
const STRETCHES: u64 = 4;
