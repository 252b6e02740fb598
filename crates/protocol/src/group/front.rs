//! The caller's side of a member: what it asked, in its order, until each has its answer.

use std::collections::{BTreeMap, VecDeque};

use super::{Event, Failure, Outcome, Pack, SeatId, Strength};
use crate::seam::CommandId;

/// A send that waits.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) id: CommandId,
    pub(super) strength: Strength,
    pub(super) pack: Pack,
}

impl Pending {
    fn bytes(&self) -> usize {
        self.pack.bytes().len()
    }
}

/// What the caller of one member waits for.
#[derive(Debug, Default)]
pub(super) struct Front {
    /// The command to join, until it is done.
    joins: Option<CommandId>,
    /// The command to leave.
    leaves: Option<CommandId>,
    /// Nothing more is sent.
    closed: bool,
    /// The command to save everything that was sent, until that is submitted.
    closes: Option<CommandId>,
    /// Whether leaving was submitted.
    left: bool,
    /// The seats that are to be said, and how many sends stand before that.
    seats: Option<(u64, Vec<SeatId>)>,
    /// Sends so far.
    pushed: u64,
    queue: VecDeque<Pending>,
    bytes: usize,
    /// Ordered and safe sends that were submitted and not delivered here, by number.
    submitted: BTreeMap<u64, CommandId>,
    /// The number of the last one.
    last: u64,
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
        (self.leaves, self.closed) = (Some(id), true);
    }

    /// Nothing more is sent, and all that was is to be saved.
    pub(super) fn close(&mut self, id: CommandId) {
        (self.closes, self.closed) = (Some(id), true);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Says once which command's save is to be submitted: when everything sent before is delivered here.
    pub(super) fn may_close(&mut self) -> Option<CommandId> {
        self.closes.take_if(|_| self.queue.is_empty() && self.submitted.is_empty())
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

    pub(super) fn seat(&mut self, seats: Vec<SeatId>) {
        self.seats = Some((self.pushed, seats));
    }

    /// The seats that are to be said now: everything sent before them is delivered here.
    pub(super) fn may_seat(&mut self) -> Option<Vec<SeatId>> {
        let (before, _) = self.seats.as_ref()?;
        let open = self.queue.len() + self.submitted.len();
        if self.pushed - (open as u64) < *before {
            return None;
        }
        self.seats.take().map(|(_, seats)| seats)
    }

    pub(super) fn push(&mut self, pending: Pending, bytes_max: usize) -> Result<(), Failure> {
        if self.bytes + pending.bytes() > bytes_max {
            return Err(Failure::Full(bytes_max));
        }
        self.bytes += pending.bytes();
        self.pushed += 1;
        self.queue.push_back(pending);
        Ok(())
    }

    pub(super) fn first(&self) -> Option<&Pending> {
        self.queue.front()
    }

    pub(super) fn pop(&mut self) -> Option<Pending> {
        let pending = self.queue.pop_front()?;
        self.bytes -= pending.bytes();
        Some(pending)
    }

    /// Takes an ordered or safe send off the front, to submit it under this number. None if a soft one is first, or none.
    pub(super) fn submit(&mut self) -> Option<(u64, Strength, Pack)> {
        self.first().filter(|first| first.strength != Strength::Soft)?;
        let Pending { id, strength, pack } = self.pop().expect("it is the first");
        self.last += 1;
        self.submitted.insert(self.last, id);
        Some((self.last, strength, pack))
    }

    /// Whether no ordered send is on its way.
    pub(super) fn is_settled(&self) -> bool {
        self.submitted.is_empty()
    }

    /// The send that was submitted under this number has its answer now. None if it had it before.
    pub(super) fn settle(&mut self, number: u64) -> Option<CommandId> {
        self.submitted.remove(&number)
    }

    /// Sends that wait here fail: this process is out of touch.
    pub(super) fn turn_back(&mut self, events: &mut Vec<Event>) {
        let failed = |pending: Pending| Event::Done { id: pending.id, result: Err(Failure::OutOfTouch) };
        events.extend(self.queue.drain(..).map(failed));
        self.bytes = 0;
    }

    /// Ends everything: this process was dropped.
    pub(super) fn wedge(&mut self, events: &mut Vec<Event>) {
        let fail = |id, failure| Event::Done { id, result: Err(failure) };
        let submitted = std::mem::take(&mut self.submitted).into_values();
        events.extend(submitted.map(|id| fail(id, Failure::MaybeApplied)));
        events.extend(self.queue.drain(..).map(|pending| fail(pending.id, Failure::NotSent)));
        self.bytes = 0;
        events.extend(self.closes.take().map(|id| fail(id, Failure::Wedged)));
        events.extend(self.joins.take().map(|id| fail(id, Failure::Wedged)));
        // Out is what was asked for.
        events.extend(self.leaves.take().map(|id| Event::Done { id, result: Ok(Outcome::Left) }));
    }
}
