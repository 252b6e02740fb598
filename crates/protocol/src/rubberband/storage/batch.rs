//! Steps become batches for the engine, and results become answers.
//!
//! The engine has one batch at a time. A batch begins with urgent work outside the order: settling a held
//! write, rows to move, pages of long answers. Then come as many steps as may run together. `running`
//! records the purpose of each task.
//!
//! The reads of a batch share the memory for gathering results. A read that finds this memory used up is
//! *crowded*: the engine keeps the read's version, and the read runs again in a later batch without other
//! reads. Other steps have their turn in between.

use super::{
    Storage, StorageEvent, Task, TaskKind, TaskResult,
    outbox::{OutboxAnswer, RequestKey, WantedPage},
    work::{DeferredRead, Purpose, QueuedStep},
};
use crate::{
    ecast::{MemberCommand, Position},
    rubberband::{Direct, Message, ReadCost, TransferCursor},
    seam::{Context, Destination, Input, Sink},
};

impl Storage {
    /// Gives the engine its next batch if the engine is idle and some work may run.
    pub(super) fn execute(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if !self.queue.running.is_empty() || self.is_out(out) {
            return;
        }
        let mut tasks = Vec::new();
        if let Some((at, publish)) = self.decisions.next_settled() {
            self.queue.run(&mut tasks, at, TaskKind::Settle { publish }, Purpose::Settle);
        }
        self.push_transfers(&mut tasks, out);
        self.push_checkpoint(&mut tasks);
        self.push_pages(&mut tasks);
        if !self.decisions.is_holding() && !self.push_crowded(&mut tasks) {
            while !self.decisions.is_holding()
                && tasks.len() < self.settings.batch_max
                && self.push_step(&mut tasks, out)
            {}
            if tasks.is_empty() {
                self.push_crowded(&mut tasks);
            }
        }
        if !tasks.is_empty() {
            self.queue.begun = cx.now;
            out.emit(StorageEvent::Execute(tasks));
        } else if self.queue.steps.is_empty() && !self.decisions.is_holding() {
            self.advance(cx, self.membership.member.delivered(), out);
        }
    }

    /// Adds the next pages of long answers, and releases versions that no answer needs.
    fn push_pages(&mut self, tasks: &mut Vec<Task>) {
        for at in self.outboxes.released() {
            self.queue.run(tasks, at, TaskKind::Finish, Purpose::Step(Position(0)));
        }
        for WantedPage { asked, at, ranges, operation, cursor, rows } in self.outboxes.wanted() {
            let kind = TaskKind::Page { ranges, operation, cursor, rows };
            self.queue.run(tasks, at, kind, Purpose::Page { asked, at });
        }
    }

    /// Adds the next crowded read (a read that did not fit its batch) alone, unless the queued steps have the
    /// turn. Returns whether a read was added.
    fn push_crowded(&mut self, tasks: &mut Vec<Task>) -> bool {
        let Some(DeferredRead { at, asked: (client, token), ranges, operation, since }) =
            self.queue.next_crowded()
        else {
            return false;
        };
        let kind = TaskKind::Read { ranges: ranges.clone(), operation: operation.clone() };
        self.queue.run(
            tasks,
            at,
            kind,
            Purpose::Read { at, client, token, ranges, operation, since, kept: true },
        );
        true
    }

    /// Moves the next step into the batch. Returns `false` if the step cannot run yet, or if no step may
    /// follow it.
    fn push_step(&mut self, tasks: &mut Vec<Task>, out: &mut dyn Sink<Self>) -> bool {
        match self.queue.steps.front() {
            None => return false,
            Some(QueuedStep::Await { at })
                if self.import.as_ref().is_some_and(|import| import.change() == *at) =>
            {
                return false;
            }
            // A pin or a repetition needs the ranges' memory, which is complete only after the writes of the
            // current batch.
            Some(
                QueuedStep::Pin { .. }
                | QueuedStep::Checkpoint { .. }
                | QueuedStep::Forget { .. }
                | QueuedStep::Expire { .. }
                | QueuedStep::Clear { .. },
            ) if self.queue.runs_write() => return false,
            Some(QueuedStep::Write(write)) if self.replies.is_pending(write.header.name) => return false,
            Some(_) => {}
        }
        match self.queue.steps.pop_front().expect("just seen") {
            QueuedStep::Write(write) => return self.push_write(tasks, write, out),
            QueuedStep::Read { at, client, token, ranges, operation, since } => {
                let kind = TaskKind::Read { ranges: ranges.clone(), operation: operation.clone() };
                self.queue.run(
                    tasks,
                    at,
                    kind,
                    Purpose::Read { at, client, token, ranges, operation, since, kept: false },
                );
            }
            QueuedStep::Create { at, table, definition } => {
                self.queue.run(tasks, at, TaskKind::CreateTable { table, definition }, Purpose::Step(at));
            }
            QueuedStep::Drop { at, table } => {
                self.queue.run(tasks, at, TaskKind::DropTable { table }, Purpose::Step(at))
            }
            QueuedStep::Alter { at, table, altered, definition, columns } => {
                let kind = TaskKind::AlterTable { table, altered, definition, columns };
                self.queue.run(tasks, at, kind, Purpose::Step(at));
            }
            QueuedStep::Pin { at, ranges } => {
                self.exports.pin(at, self.replies.pin(&ranges));
                self.queue.run(tasks, at, TaskKind::Pin, Purpose::Step(at));
            }
            QueuedStep::Release { at } => {
                self.exports.release(at);
                self.queue.run(tasks, at, TaskKind::Release, Purpose::Step(Position(0)));
            }
            QueuedStep::Expire { through } => self.replies.expire(through),
            QueuedStep::Forget { at, session, below, kept } => {
                self.replies.forget(session, below, &kept);
                if below == u64::MAX {
                    // The session has ended, so nobody is left who could publish its staged rows.
                    self.queue.run(tasks, at, TaskKind::EndSession { session }, Purpose::Step(at));
                }
            }
            QueuedStep::Clear { at, ranges } => {
                self.replies.clear(&ranges);
                self.queue.run(tasks, at, TaskKind::Forget { ranges }, Purpose::Step(at));
            }
            QueuedStep::Checkpoint { at } => self.pin_checkpoint(tasks, at, out),
            QueuedStep::Restore { outline, records } => {
                let kind = TaskKind::Restore { outline, records };
                self.queue.run(tasks, Position(0), kind, Purpose::Step(Position(0)));
            }
            QueuedStep::RestoreRows { rows } => {
                self.queue.run(tasks, Position(0), TaskKind::Import { rows }, Purpose::Step(Position(0)));
            }
            QueuedStep::Await { .. } => {}
        }
        true
    }

    pub(super) fn on_executed(
        &mut self,
        cx: &mut Context<'_>,
        results: Vec<TaskResult>,
        out: &mut dyn Sink<Self>,
    ) {
        let purposes = std::mem::take(&mut self.queue.running);
        let took = cx.now.since(self.queue.begun);
        assert_eq!(purposes.len(), results.len(), "the engine answers every task of its batch");
        let mut done = self.executed;
        for (purpose, result) in purposes.into_iter().zip(results) {
            match (purpose, result) {
                (Purpose::Write(write), TaskResult::Written(results)) => {
                    assert_eq!(results.len(), write.held.len(), "a write answers every range");
                    done = self.wrote(cx, write, Ok(results), done, out);
                }
                (Purpose::Write(write), TaskResult::Failed(failure)) => {
                    done = self.wrote(cx, write, Err(failure), done, out);
                }
                (Purpose::Read { at, client, token, ranges, since, kept, .. }, TaskResult::Read(pieces)) => {
                    if kept {
                        self.outboxes.unwanted(at);
                    }
                    let spent = ReadCost { waited: self.queue.begun.since(since), took };
                    let answer = OutboxAnswer { at, ranges: &ranges, spent, now: cx.now };
                    self.outboxes.reply((client, token), answer, pieces, out);
                    done = done.max(at);
                }
                (
                    Purpose::Read { at, client, token, ranges, operation, since, kept },
                    TaskResult::Crowded,
                ) => {
                    if kept {
                        // The engine was already keeping this version and now keeps it once more, so one of
                        // the two references is released.
                        self.outboxes.unwanted(at);
                    }
                    let asked = (client, token);
                    self.queue.put_aside(DeferredRead { at, asked, ranges, operation, since });
                    done = done.max(at);
                }
                (Purpose::Read { at, client, token, ranges, operation, since, .. }, TaskResult::Long) => {
                    let spent = ReadCost { waited: self.queue.begun.since(since), took };
                    let answer = OutboxAnswer { at, ranges: &ranges, spent, now: cx.now };
                    self.outboxes.begin((client, token), answer, operation);
                    done = done.max(at);
                }
                (Purpose::Withdrawn { at }, TaskResult::Read(_)) => done = done.max(at),
                (Purpose::Withdrawn { at }, TaskResult::Long | TaskResult::Crowded) => {
                    self.outboxes.unwanted(at);
                    done = done.max(at);
                }
                (Purpose::Page { asked, at }, TaskResult::Page { rows, cursor }) => {
                    self.outboxes.page(asked, at, rows, cursor, cx.now, out);
                }
                (Purpose::Export { to, at, asked }, TaskResult::Exported { rows, cursor }) => {
                    // After the rows, the ranges' memory is sent.
                    let next = cursor.map_or(TransferCursor::Replies(None), TransferCursor::rows);
                    let asked = TransferCursor::Rows(asked);
                    let chunk = Direct::Chunk { change: at, asked, content: rows, next: Some(next) };
                    out.send(Destination::One(to), Message::Direct(chunk), None);
                }
                (Purpose::Checkpoint, TaskResult::Saved { fragments, count, outline, named, cursor }) => {
                    self.checkpoint_read((fragments, count), outline, named, cursor, out);
                }
                (Purpose::Import, TaskResult::Done) => self.imported(cx, out),
                (Purpose::Step(at), TaskResult::Done) => done = done.max(at),
                (Purpose::Settle, TaskResult::Done) => {}
                (_, result) => panic!("the engine answered a task of another kind: {result:?}"),
            }
        }
        self.advance(cx, done, out);
    }

    /// Whether a read waits here, runs at the engine, or has unsent pieces here.
    pub(super) fn is_underway(&self, asked: RequestKey) -> bool {
        self.outboxes.is_open(asked) || self.queue.has(asked)
    }

    /// Withdraws the reads that `unwanted` selects, because nobody waits for their answers.
    pub(super) fn withdraw(&mut self, unwanted: impl Fn(RequestKey) -> bool, out: &mut dyn Sink<Self>) {
        let outboxes = &mut self.outboxes;
        self.queue.withdraw(&unwanted, |task, kept| {
            if let Some(at) = kept {
                outboxes.unwanted(at);
            }
            out.emit(StorageEvent::Withdraw { task });
        });
        self.drop_crowded(&unwanted);
        self.outboxes.cancel(unwanted);
    }

    /// Drops the reads that wait for a batch of their own and that `unwanted` selects.
    pub(super) fn drop_crowded(&mut self, unwanted: impl Fn(RequestKey) -> bool) {
        self.queue.drop_crowded(unwanted).into_iter().for_each(|at| self.outboxes.unwanted(at));
    }

    fn advance(&mut self, cx: &mut Context<'_>, through: Position, out: &mut dyn Sink<Self>) {
        // A step that releases a version, or an injected step, may have a position that was not delivered
        // here.
        let through = through.min(self.membership.member.delivered());
        if through > self.executed {
            self.executed = through;
            self.member_input(cx, Input::Command(MemberCommand::Executed { through }), out);
        }
    }
}
