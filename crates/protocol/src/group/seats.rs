//! Seats: the members of one group that a process has.
//!
//! A process is one party of the protocol however many members it has: one copy of a message reaches it, and it gives one receipt. Its
//! members are told apart by their seats, which change with views like the list of processes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::ProcessId;

/// A member's seat in its process. The first is 0; its process never uses one again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SeatId(pub u32);

impl SeatId {
    /// The member's name for something that it counts, which no other member of its process uses: such as a claim, or a question.
    pub fn number(self, count: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(count)
    }

    /// The seat whose member has used this name.
    pub fn of_number(number: u64) -> SeatId {
        SeatId((number >> 32) as u32)
    }
}

/// No process has more members of one group.
pub const SEATS_MAX: usize = 1024;

/// The seats of processes that have other ones than the first alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seats(BTreeMap<ProcessId, Vec<SeatId>>);

/// Of a process that said nothing about seats.
const FIRST: &[SeatId] = &[SeatId(0)];

impl Seats {
    /// Those of `process`, if it is a member, in their order.
    pub fn of(&self, process: ProcessId) -> &[SeatId] {
        self.0.get(&process).map_or(FIRST, |seats| seats)
    }

    /// `process` says which it has. Says whether that is news; none, too many, or out of order is said by no correct process.
    pub(super) fn take(&mut self, process: ProcessId, seats: &[SeatId]) -> bool {
        let fits = !seats.is_empty() && seats.len() <= SEATS_MAX && seats.is_sorted_by(|a, b| a < b);
        if !fits || seats == self.of(process) {
            return false;
        }
        if seats == FIRST {
            self.0.remove(&process);
        } else {
            self.0.insert(process, seats.to_vec());
        }
        true
    }

    /// Forgets the others.
    pub(super) fn keep(&mut self, mut is_member: impl FnMut(ProcessId) -> bool) {
        self.0.retain(|process, _| is_member(*process));
    }
}
