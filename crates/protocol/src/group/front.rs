//! The caller's side of a member: what it asked, in its order, until each has its answer.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;

use super::{Event, Failure, Outcome, Strength};
use crate::seam::CommandId;

/// A send that waits.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) id: CommandId,
    pub(super) strength: Strength,
    pub(super) body: Bytes,
}

/// What the caller of one member waits for.
#[derive(Debug, Default)]
pub(super) struct Front {
    /// The command to join, until it is done.
    joins: Option<CommandId>,
    /// The command to leave.
    leaves: Option<CommandId>,
    /// Whether leaving was submitted.
    left: bool,
    queue: VecDeque<Pending>,
    bytes: usize,
    /// Ordered and safe sends that were submitted and not delivered here.
    submitted: BTreeSet<CommandId>,
}

impl Front {
    pub(super) fn joining(id: CommandId) -> Self {
        Front { joins: Some(id), ..Front::default() }
    }

    /// Takes the command to join, which is done.
    pub(super) fn joined(&mut self) -> Option<CommandId> {
        self.joins.take()
    }

    pub(super) fn leave(&mut self, id: CommandId) {
        self.leaves = Some(id);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaves.is_some()
    }

    /// The command to leave.
    pub(super) fn leaves(&mut self) -> Option<CommandId> {
        self.leaves.take()
    }

    /// Says once that leaving is to be submitted: when everything sent before is delivered here.
    pub(super) fn may_leave(&mut self) -> bool {
        let may = self.leaves.is_some() && self.queue.is_empty() && self.submitted.is_empty();
        may && !std::mem::replace(&mut self.left, true)
    }

    pub(super) fn push(&mut self, pending: Pending, bytes_max: usize) -> Result<(), Failure> {
        if self.bytes + pending.body.len() > bytes_max {
            return Err(Failure::Full(bytes_max));
        }
        self.bytes += pending.body.len();
        self.queue.push_back(pending);
        Ok(())
    }

    pub(super) fn first(&self) -> Option<&Pending> {
        self.queue.front()
    }

    pub(super) fn pop(&mut self) -> Option<Pending> {
        let pending = self.queue.pop_front()?;
        self.bytes -= pending.body.len();
        Some(pending)
    }

    pub(super) fn submit(&mut self, id: CommandId) {
        self.submitted.insert(id);
    }

    /// Whether no ordered send is on its way.
    pub(super) fn is_settled(&self) -> bool {
        self.submitted.is_empty()
    }

    /// An ordered send has its answer. Says whether it had none before.
    pub(super) fn settle(&mut self, id: CommandId) -> bool {
        self.submitted.remove(&id)
    }

    /// Ends everything: this process was dropped.
    pub(super) fn wedge(&mut self, events: &mut Vec<Event>) {
        let fail = |id, failure| Event::Done { id, result: Err(failure) };
        events.extend(
            std::mem::take(&mut self.submitted).into_iter().map(|id| fail(id, Failure::MaybeApplied)),
        );
        events.extend(self.queue.drain(..).map(|pending| fail(pending.id, Failure::NotSent)));
        self.bytes = 0;
        events.extend(self.joins.take().map(|id| fail(id, Failure::Wedged)));
        // Out is what was asked for.
        events.extend(self.leaves.take().map(|id| Event::Done { id, result: Ok(Outcome::Left) }));
    }
}
