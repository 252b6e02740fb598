//! A member's knowledge of its group's checkpoints, and its commands to save one.

use std::collections::VecDeque;

use crate::{
    ecast::Position,
    group::{Mark, Offer, Record},
    seam::CommandId,
};

/// The checkpoints of a group at a member.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// The known checkpoints of the group.
    record: Option<Record>,
    /// The checkpoint that the host offered.
    offer: Offer,
    /// Commands to save whose messages are not yet delivered here.
    saves: VecDeque<CommandId>,
    /// This member's commands that wait until the state at the beginning of the next view is saved; `None` if
    /// no member requested a save.
    keeps: Option<Vec<CommandId>>,
}

impl Checkpoints {
    /// Makes the checkpoints of a process that joins with this offer.
    pub(super) fn new(offer: Offer) -> Self {
        Checkpoints { record: None, offer, saves: VecDeque::new(), keeps: None }
    }

    /// Notes the routers' record of the group's checkpoints.
    pub(super) fn learn(&mut self, record: Option<Record>) {
        self.record = record;
    }

    /// Notes that a member has saved a checkpoint.
    pub(super) fn kept(&mut self, checkpoint: Mark) {
        self.record = Some(Record::kept(self.record, checkpoint));
    }

    /// Notes the checkpoint of a process that asked to join.
    pub(super) fn offered(&mut self, offer: Offer) {
        if let Some(checkpoint) = offer.checkpoint {
            self.record = Some(Record::brought(self.record, checkpoint));
        }
    }

    /// Returns the newest known checkpoint.
    pub(super) fn newest(&self) -> Option<Mark> {
        self.record.map(|record| record.newest)
    }

    /// Returns the newest known checkpoint if this process may not begin with its own, which is older.
    pub(super) fn superseded_by(&self) -> Option<Mark> {
        self.newest().filter(|_| !Record::admits(self.record, self.offer))
    }

    /// Queues this member's command to save, whose message goes to the order now.
    pub(super) fn submit(&mut self, id: CommandId) {
        self.saves.push_back(id);
    }

    /// Handles a delivered message to save. `is_own` says whether this member sent it.
    pub(super) fn ordered(&mut self, is_own: bool) {
        let own = if is_own { self.saves.pop_front() } else { None };
        self.keeps.get_or_insert_default().extend(own);
    }

    /// If any member requested a save, returns the checkpoint to save at the beginning of a view, and the
    /// commands of this member that the save ends.
    pub(super) fn begin(&mut self, view: Position) -> Option<(Mark, Vec<CommandId>)> {
        Some((Record::mark(self.record, view), self.keeps.take()?))
    }

    /// Takes all commands of this member to save.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = CommandId> {
        self.saves.drain(..).chain(self.keeps.take().into_iter().flatten())
    }
}
