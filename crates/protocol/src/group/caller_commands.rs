//! The caller's side of a member: the open commands, in the order in which the caller gave them.

use std::collections::{BTreeMap, VecDeque};

use super::{CommandOutcome, Event, Failure, Pack, SeatId, SendStrength};
use crate::seam::CommandId;

/// A send that waits in the queue.
#[derive(Debug)]
pub(super) struct PendingSend {
    pub(super) id: CommandId,
    pub(super) strength: SendStrength,
    pub(super) pack: Pack,
}

impl PendingSend {
    fn bytes(&self) -> usize {
        self.pack.bytes().len()
    }
}

/// The open commands of one member's caller.
#[derive(Debug, Default)]
pub(super) struct CallerCommands {
    /// The command to join, until the join is done.
    joins: Option<CommandId>,
    /// The command to leave.
    leaves: Option<CommandId>,
    /// Whether new sends are refused.
    closed: bool,
    /// The command to save the state after all sends, until the save is submitted.
    closes: Option<CommandId>,
    /// Whether the request to leave was submitted to the order.
    left: bool,
    /// The new list of this process's members in the group, which is to be submitted, and the number of sends
    /// that must be delivered first.
    seats: Option<(u64, Vec<SeatId>)>,
    /// Number of sends so far.
    pushed: u64,
    queue: VecDeque<PendingSend>,
    /// Size of all sends that have not ended, queued or submitted, in bytes.
    bytes: usize,
    /// Ordered and safe sends that were submitted but not yet delivered here, by number, with their sizes in
    /// bytes.
    submitted: BTreeMap<u64, (CommandId, usize)>,
    /// The number of the last submitted send.
    last: u64,
}

impl CallerCommands {
    /// Makes the commands of a member that joins by the command `id`. Sends get numbers above `last`.
    pub(super) fn joining(id: CommandId, last: u64) -> Self {
        CallerCommands { joins: Some(id), last, ..CallerCommands::default() }
    }

    /// Returns the size of all sends that have not ended, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the largest number that a send of this member got.
    pub(super) fn numbered(&self) -> u64 {
        self.last
    }

    /// Removes and returns the command to join, which is done.
    pub(super) fn joined(&mut self) -> Option<CommandId> {
        self.joins.take()
    }

    pub(super) fn leave(&mut self, id: CommandId) {
        (self.leaves, self.closed) = (Some(id), true);
    }

    /// Refuses later sends. The state will be saved after all earlier sends.
    pub(super) fn close(&mut self, id: CommandId) {
        (self.closes, self.closed) = (Some(id), true);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the command to save the state that has to be submitted now, because all earlier sends are
    /// delivered here. Returns each command only once.
    pub(super) fn may_close(&mut self) -> Option<CommandId> {
        self.closes.take_if(|_| self.queue.is_empty() && self.submitted.is_empty())
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaves.is_some()
    }

    /// Removes and returns the command to leave.
    pub(super) fn leaves(&mut self) -> Option<CommandId> {
        self.leaves.take()
    }

    /// Whether the request to leave has to be submitted now, because all earlier sends are delivered here.
    /// Returns `true` only once.
    pub(super) fn may_leave(&mut self) -> bool {
        let may = self.leaves.is_some() && self.queue.is_empty() && self.submitted.is_empty();
        may && !std::mem::replace(&mut self.left, true)
    }

    pub(super) fn seat(&mut self, seats: Vec<SeatId>) {
        self.seats = Some((self.pushed, seats));
    }

    /// Removes and returns the list of this process's members to submit now, if all earlier sends are
    /// delivered here.
    pub(super) fn may_seat(&mut self) -> Option<Vec<SeatId>> {
        let (before, _) = self.seats.as_ref()?;
        let open = self.queue.len() + self.submitted.len();
        if self.pushed - (open as u64) < *before {
            return None;
        }
        self.seats.take().map(|(_, seats)| seats)
    }

    pub(super) fn push(&mut self, pending: PendingSend, bytes_max: usize) -> Result<(), Failure> {
        if self.bytes + pending.bytes() > bytes_max {
            return Err(Failure::Full(bytes_max));
        }
        self.bytes += pending.bytes();
        self.pushed += 1;
        self.queue.push_back(pending);
        Ok(())
    }

    pub(super) fn first(&self) -> Option<&PendingSend> {
        self.queue.front()
    }

    /// Removes and returns the first send of the queue, which thereby ends.
    pub(super) fn pop(&mut self) -> Option<PendingSend> {
        let pending = self.queue.pop_front()?;
        self.bytes -= pending.bytes();
        Some(pending)
    }

    /// Takes an ordered or safe send off the front of the queue, to submit it with the returned number.
    /// `None` if the first send is soft, or there is none.
    pub(super) fn submit(&mut self) -> Option<(u64, SendStrength, Pack)> {
        self.first().filter(|first| first.strength != SendStrength::Soft)?;
        let PendingSend { id, strength, pack } =
            self.queue.pop_front().expect("the first send was just looked at");
        self.last += 1;
        self.submitted.insert(self.last, (id, pack.bytes().len()));
        Some((self.last, strength, pack))
    }

    /// Whether no submitted send is on its way.
    pub(super) fn is_settled(&self) -> bool {
        self.submitted.is_empty()
    }

    /// Ends the send that was submitted with this number. Returns `None` if that send has already ended.
    pub(super) fn settle(&mut self, number: u64) -> Option<CommandId> {
        let (id, bytes) = self.submitted.remove(&number)?;
        self.bytes -= bytes;
        Some(id)
    }

    /// Fails the queued sends, because this process is out of touch.
    pub(super) fn fail_queued(&mut self, events: &mut Vec<Event>) {
        let failed = |pending: PendingSend| Event::Done { id: pending.id, result: Err(Failure::OutOfTouch) };
        self.bytes -= self.queue.iter().map(PendingSend::bytes).sum::<usize>();
        events.extend(self.queue.drain(..).map(failed));
    }

    /// Ends all commands, because this process was dropped from the group or leaves the group at once.
    pub(super) fn wedge(&mut self, events: &mut Vec<Event>) {
        let fail = |id, failure| Event::Done { id, result: Err(failure) };
        let submitted = std::mem::take(&mut self.submitted).into_values();
        events.extend(submitted.map(|(id, _)| fail(id, Failure::MaybeApplied)));
        events.extend(self.queue.drain(..).map(|pending| fail(pending.id, Failure::NotSent)));
        self.bytes = 0;
        events.extend(self.closes.take().map(|id| fail(id, Failure::Wedged)));
        events.extend(self.joins.take().map(|id| fail(id, Failure::Wedged)));
        // The command to leave has reached its goal.
        events.extend(self.leaves.take().map(|id| Event::Done { id, result: Ok(CommandOutcome::Left) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 5;

    fn pending(id: u64, strength: SendStrength) -> PendingSend {
        PendingSend { id: CommandId(id), strength, pack: Pack::of(b"x") }
    }

    #[test]
    fn sends_take_room_until_they_have_ended() {
        let mut caller_commands = CallerCommands::joining(CommandId(1), 7);
        for id in 0..3 {
            assert_eq!(caller_commands.push(pending(id, SendStrength::Ordered), 3 * BYTES), Ok(()));
        }
        while caller_commands.submit().is_some() {}
        let full = Err(Failure::Full(3 * BYTES));
        assert_eq!(
            caller_commands.push(pending(3, SendStrength::Soft), 3 * BYTES),
            full,
            "they are on their way"
        );
        assert_eq!((caller_commands.settle(7), caller_commands.settle(8)), (None, Some(CommandId(0))));
        assert_eq!(caller_commands.settle(8), None, "it has ended");
        assert_eq!(caller_commands.push(pending(3, SendStrength::Soft), 3 * BYTES), Ok(()));
        // Losing touch with the routers does not end the sends that were already submitted to the order.
        let mut events = Vec::new();
        caller_commands.fail_queued(&mut events);
        assert_eq!(events, [Event::Done { id: CommandId(3), result: Err(Failure::OutOfTouch) }]);
        assert_eq!(caller_commands.push(pending(4, SendStrength::Soft), 3 * BYTES), Ok(()));
        assert_eq!(caller_commands.push(pending(5, SendStrength::Soft), 3 * BYTES), full);
        assert_eq!(
            (caller_commands.settle(9), caller_commands.settle(10)),
            (Some(CommandId(1)), Some(CommandId(2)))
        );
        assert!(caller_commands.pop().is_some());
        assert_eq!((caller_commands.bytes, caller_commands.numbered()), (0, 10));
    }
}
