//! The work that waits for the engine, and the batch that the engine has.

use std::collections::VecDeque;

use super::{
    outbox::RequestKey,
    task::{Task, TaskKind},
    work::{DeferredRead, Purpose, QueuedStep},
};
use crate::{ecast::Position, time::Time};

/// The work of the engine.
#[derive(Default)]
pub(super) struct EngineQueue {
    /// The steps that wait, in the order of their positions.
    pub(super) steps: VecDeque<QueuedStep>,
    /// The purposes of the engine's current tasks; empty while it is idle.
    pub(super) running: Vec<Purpose>,
    /// Time at which the current batch was handed to the engine.
    pub(super) begun: Time,
    /// Reads that did not fit their batches.
    crowded: VecDeque<DeferredRead>,
    /// Whether the last batch consisted of one read from `crowded`.
    crowded_last: bool,
}

impl EngineQueue {
    /// Makes the queue of an idle engine for which these steps wait.
    pub(super) fn of(steps: VecDeque<QueuedStep>) -> Self {
        EngineQueue { steps, ..EngineQueue::default() }
    }

    /// Returns the number of steps and reads that wait.
    pub(super) fn len(&self) -> usize {
        self.steps.len() + self.crowded.len()
    }

    /// Whether no work waits, and the engine is idle.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.len() == 0
    }

    /// Adds a step after all other steps.
    pub(super) fn push(&mut self, step: QueuedStep) {
        self.steps.push_back(step);
    }

    /// Adds a task to the batch, and notes its purpose.
    pub(super) fn run(&mut self, tasks: &mut Vec<Task>, at: Position, kind: TaskKind, purpose: Purpose) {
        tasks.push(Task { at, kind });
        self.running.push(purpose);
    }

    /// Whether the batch contains a write.
    pub(super) fn runs_write(&self) -> bool {
        self.running.iter().any(|purpose| matches!(purpose, Purpose::Write(_)))
    }

    /// Puts a read aside that did not fit its batch.
    pub(super) fn put_aside(&mut self, read: DeferredRead) {
        self.crowded.push_back(read);
    }

    /// Takes the next crowded read, unless the queued steps have the turn.
    pub(super) fn next_crowded(&mut self) -> Option<DeferredRead> {
        let turn_of_steps = std::mem::take(&mut self.crowded_last) && !self.steps.is_empty();
        let next = if turn_of_steps { None } else { self.crowded.pop_front() };
        self.crowded_last = next.is_some();
        next
    }

    /// Whether a read waits or runs here.
    pub(super) fn has(&self, asked: RequestKey) -> bool {
        let waits = |step: &QueuedStep| matches!(step, QueuedStep::Read { client, token, .. } if (*client, *token) == asked);
        let runs =
            |at: &Purpose| matches!(at, Purpose::Read { client, token, .. } if (*client, *token) == asked);
        self.crowded.iter().any(|it| it.asked == asked)
            || self.running.iter().any(runs)
            || self.steps.iter().any(waits)
    }

    /// Withdraws the reads of steps and tasks that `unwanted` selects. `withdrawn` gets the index of each
    /// task, and the position whose version the engine kept for its read, if it kept one.
    pub(super) fn withdraw(
        &mut self,
        unwanted: impl Fn(RequestKey) -> bool,
        mut withdrawn: impl FnMut(usize, Option<Position>),
    ) {
        self.steps.retain(|step| match step {
            QueuedStep::Read { client, token, .. } => !unwanted((*client, *token)),
            _ => true,
        });
        for (task, purpose) in self.running.iter_mut().enumerate() {
            if let Purpose::Read { at, client, token, kept, .. } = purpose
                && unwanted((*client, *token))
            {
                withdrawn(task, kept.then_some(*at));
                *purpose = Purpose::Withdrawn { at: *at };
            }
        }
    }

    /// Drops the crowded reads that `unwanted` selects. Returns the positions whose versions the engine kept
    /// for them.
    pub(super) fn drop_crowded(&mut self, unwanted: impl Fn(RequestKey) -> bool) -> Vec<Position> {
        let (gone, stay): (VecDeque<DeferredRead>, VecDeque<DeferredRead>) =
            std::mem::take(&mut self.crowded).into_iter().partition(|it| unwanted(it.asked));
        self.crowded = stay;
        gone.into_iter().map(|it| it.at).collect()
    }
}
