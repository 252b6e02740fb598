//! Seats: the numbers of the members that a process has in one group.
//!
//! In the protocol a process acts as one member, however many members of the group it has: the process gets
//! one copy of a message, and sends one receipt. Seats distinguish the members of a process, and change with
//! views like the list of processes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::ProcessId;

/// The number of a member in its process. A process's first seat is 0, and the process never uses a seat's
/// number again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SeatId(pub u32);

impl SeatId {
    /// Returns a number for an item that the member counts, such as a claim or a query. No other member of
    /// the process gives this number.
    pub fn number(self, count: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(count)
    }

    /// Returns the seat whose member gave this number.
    pub fn of_number(number: u64) -> SeatId {
        SeatId((number >> 32) as u32)
    }
}

/// Upper bound of a process's members of one group.
pub const SEATS_MAX: usize = 1024;

/// The seats of each process whose seats are not just seat 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seats(BTreeMap<ProcessId, Vec<SeatId>>);

/// The seats of a process that submitted no list.
const FIRST: &[SeatId] = &[SeatId(0)];

impl Seats {
    /// Returns the seats of `process`, if it is a member, in order.
    pub fn of(&self, process: ProcessId) -> &[SeatId] {
        self.0.get(&process).map_or(FIRST, |seats| seats)
    }

    /// Stores the list that `process` submitted. Returns whether the list differs from the former one. An
    /// empty, too long or unordered list, which no correct process sends, is ignored.
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

    /// Forgets the seats of `process`. If the process comes back, it begins with seat 0.
    pub(super) fn forget(&mut self, process: ProcessId) {
        self.0.remove(&process);
    }

    /// Forgets the seats of all processes that are not members.
    pub(super) fn keep(&mut self, mut is_member: impl FnMut(ProcessId) -> bool) {
        self.0.retain(|process, _| is_member(*process));
    }
}
