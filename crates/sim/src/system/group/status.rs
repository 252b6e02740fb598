//! The status of a process in a group, and the requests to it, as its user knows them.

use std::{collections::BTreeMap, ops::RangeInclusive};

use quorate_protocol::{
    ProcessId,
    ecast::Position,
    group::{Mark, SeatId},
};
use quorate_world::Chance;

use crate::check::locks::LockChange;

/// A request to a process.
#[derive(Debug)]
pub(super) enum PendingRequest {
    Join(u64),
    Leave(u64),
    /// The group, and the numbers of the messages.
    Send(u64, RangeInclusive<u64>),
    /// The group, the view, and the deliveries at the time of the request.
    Flush(u64, Option<u64>, BTreeMap<ProcessId, u64>),
    /// The group, whether the process leaves it after the save, and the deliveries at the time of the
    /// request.
    Save(u64, bool, BTreeMap<ProcessId, u64>),
    Kept(u64, Mark),
}

impl PendingRequest {
    pub(super) fn group(&self) -> u64 {
        match self {
            PendingRequest::Join(group)
            | PendingRequest::Leave(group)
            | PendingRequest::Send(group, _)
            | PendingRequest::Flush(group, ..)
            | PendingRequest::Save(group, ..)
            | PendingRequest::Kept(group, _) => *group,
        }
    }
}

/// The status of a process in a group.
#[derive(Default)]
pub(super) struct GroupStatus {
    pub(super) inside: bool,
    /// Whether a request to join, or to leave, is open.
    pub(super) moving: bool,
    /// Whether a request to quit is open.
    pub(super) quits: bool,
    /// Whether the process leaves once its last checkpoint is kept.
    pub(super) closing: bool,
    /// Number of messages that the user has requested from the process.
    pub(super) words: u64,
    /// Number of messages that the user had requested before the process joined.
    pub(super) since: u64,
    /// The place of the safe message that the process's next messages follow.
    pub(super) follows: Position,
    /// The seats of the process's members.
    pub(super) seats: Vec<SeatId>,
    /// The last seat that the process assigned.
    last: u32,
    /// Bytes of updates that the process's host has received and not applied.
    pub(super) inbox: usize,
    /// The process's open claims since it joined, each with its lock and its number.
    claims: Vec<(u8, u64)>,
    /// The number of all claims that the process has made.
    claimed: u32,
}

impl GroupStatus {
    /// Whether the process is a member, with no open request to join, leave or quit.
    pub(super) fn is_settled(&self) -> bool {
        self.inside && !self.moving && !self.quits
    }

    pub(super) fn may_join(&self) -> bool {
        !self.inside && !self.moving && !self.quits
    }

    /// Whether the process is a member or joins, and has no open request to quit.
    pub(super) fn may_quit(&self) -> bool {
        (self.inside || self.moving) && !self.quits
    }

    /// Notes that the process is a member.
    pub(super) fn enter(&mut self) {
        (self.inside, self.moving, self.since) = (true, false, self.words);
        (self.seats, self.last) = (vec![SeatId(0)], 0);
        self.claims.clear();
    }

    /// Returns the change of a lock for the next message: the release of a claimed lock, or a claim.
    pub(super) fn lock_change(&mut self, chance: &mut Chance) -> LockChange {
        if !self.claims.is_empty() && chance.happens(0.6) {
            let (lock, number) = self.claims.swap_remove(chance.index(self.claims.len()));
            return LockChange::Release { lock, number };
        }
        self.claimed += 1;
        let (lock, seat) = (chance.below(2) as u8, self.seats[chance.index(self.seats.len())]);
        let number = seat.number(self.claimed);
        self.claims.push((lock, number));
        LockChange::Claim { lock, number }
    }

    /// Notes that the process is no longer in the group.
    pub(super) fn quit(&mut self) {
        (self.inside, self.moving, self.quits, self.closing) = (false, false, false, false);
        self.inbox = 0;
    }

    /// Adds a member at this process, or removes one.
    pub(super) fn stack(&mut self, chance: &mut Chance) {
        if self.seats.len() > 1 && (self.seats.len() == 4 || chance.below(2) == 0) {
            self.seats.remove(chance.index(self.seats.len()));
        } else {
            self.last += 1;
            self.seats.push(SeatId(self.last));
        }
    }
}
