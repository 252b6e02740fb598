//! Locks: tokens by name, which move among the members of a group in its order.
//!
//! **Promise.** At every place of the order each lock has at most one holder. Claims are granted in their
//! order. A holder that leaves, or is dropped, loses its locks with the first view without it, and the next
//! claims are granted there. Each grant has a *fencing number*, larger than the fencing numbers of all
//! earlier grants of that lock, even in earlier groups of this name that have ended. So the protected
//! resource can refuse a former holder that does not know yet that it lost the lock.
//!
//! **Source.** 000 §6: "others use tokens to implement locking"; here the tokens are built in. Fencing
//! numbers are ours: a member that is cut off counts its locks as held until it notices
//! ([`Event::InTouch`](super::Event::InTouch)), up to two seconds later.
//!
//! **Shape.** [`Locks`] is a function of ordered claims, releases and views, the same at all members, and
//! part of a joiner's state. It knows nothing of users: each member looks for its own claims among the
//! grants.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::{Place, SeatId, View};
use crate::{ecast::Position, id::ProcessId};

/// The locks of a group, by name. Each has a queue of claims, of which the first holds the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locks(BTreeMap<String, VecDeque<Claim>>);

/// A claim, identified by its member's process and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The process of the member that made the claim.
    pub member: ProcessId,
    /// The number of the claim, which its member [draws](SeatId::number) and never uses again.
    pub number: u64,
}

impl Claim {
    fn is_of(&self, view: &View) -> bool {
        view.has(self.member, SeatId::of_number(self.number))
    }
}

/// The grant of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The claim that is granted.
    pub claim: Claim,
    /// The grant's fencing number. It is larger than the fencing numbers of all earlier grants of this lock.
    pub fence: u64,
}

/// Upper bound of a lock's name, in bytes.
pub const LOCK_NAME_BYTES_MAX: usize = 256;

/// The largest index in a pack at which locks change. A pack of claims and releases has at most some
/// thousands of updates, so no correct member makes a claim or a release at a larger index. All members
/// refuse such an update.
const INDEX_MAX: u32 = (1 << LATE_INDEX_BITS) - 1;
/// Number of bits of a fencing number that hold the index in a pack: `EARLY_INDEX_BITS` before position
/// [`LATE`], and `LATE_INDEX_BITS` from there on.
const EARLY_INDEX_BITS: u32 = 24;
const LATE_INDEX_BITS: u32 = 16;
/// The position from which a fencing number has its highest bit set, and more bits for the position than
/// before. At a million messages a second, these bits suffice for about 4 years.
const LATE: u64 = 1 << 39;
const LATE_POSITIONS: u64 = u64::MAX >> (LATE_INDEX_BITS + 1);

/// Returns the fencing number of a grant at this place of the order. Later places have larger numbers.
fn fence(at: Position, index: u32) -> u64 {
    match at.0.checked_sub(LATE) {
        None => at.0 << EARLY_INDEX_BITS | u64::from(index),
        Some(late) => 1 << 63 | late.min(LATE_POSITIONS) << LATE_INDEX_BITS | u64::from(index),
    }
}

/// Returns the position and the index of a place, if locks may change at this place.
fn changes(place: Place) -> Option<(Position, u32)> {
    match place {
        Place::Ordered(at, index) if index <= INDEX_MAX => Some((at, index)),
        _ => None,
    }
}

impl Locks {
    /// Adds a claim at this place of the order. Returns the grant if the lock was free. A claim outside the
    /// order, or with too long a name, is not from a correct member, and all members ignore it.
    pub fn claim(&mut self, place: Place, name: &str, claim: Claim) -> Option<Grant> {
        let (at, index) = changes(place)?;
        if name.len() > LOCK_NAME_BYTES_MAX {
            return None;
        }
        let queue = match self.0.get_mut(name) {
            Some(queue) => queue,
            None => self.0.entry(name.to_owned()).or_default(),
        };
        queue.push_back(claim);
        (queue.len() == 1).then(|| Grant { claim, fence: fence(at, index) })
    }

    /// Removes a claim, granted or waiting. Returns the grant of the next claim, if there is one.
    pub fn release(&mut self, place: Place, name: &str, claim: Claim) -> Option<Grant> {
        let (at, index) = changes(place)?;
        let queue = self.0.get_mut(name)?;
        let found = queue.iter().position(|it| *it == claim)?;
        queue.remove(found);
        let next = queue.front().copied();
        if next.is_none() {
            self.0.remove(name);
        }
        next.filter(|_| found == 0).map(|claim| Grant { claim, fence: fence(at, index) })
    }

    /// Applies a new view. Claims of processes that are not in the view are void. Earlier claims of processes
    /// that join with the view are void, too, because they date from an earlier membership. Returns the
    /// grants that follow.
    pub fn view(&mut self, view: &View) -> Vec<Grant> {
        let mut grants = Vec::new();
        self.0.retain(|_, queue| {
            let before = queue.front().copied();
            queue.retain(|claim| claim.is_of(view) && !view.joined.contains(&claim.member));
            let holder = queue.front().copied();
            grants.extend(
                holder
                    .filter(|_| holder != before)
                    .map(|claim| Grant { claim, fence: fence(view.number, 0) }),
            );
            !queue.is_empty()
        });
        grants
    }

    /// Returns the process that holds a lock.
    pub fn holder(&self, name: &str) -> Option<ProcessId> {
        Some(self.0.get(name)?.front()?.member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        group::{StateTransfer, ViewMember},
        id::{Incarnation, Peer},
    };

    fn process(node: u64) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(0) }
    }

    fn claim(node: u64, number: u64) -> Claim {
        Claim { member: process(node), number }
    }

    fn view(number: u64, nodes: &[u64]) -> View {
        let entry = |node: &u64| ViewMember {
            peer: Peer { id: process(*node), address: String::new() },
            transfer: StateTransfer::Complete,
        };
        let members = nodes.iter().map(entry).collect();
        View { number: Position(number), members, ..View::default() }
    }

    fn at(position: u64, index: u32) -> Place {
        Place::Ordered(Position(position), index)
    }

    fn granted(grants: impl IntoIterator<Item = Grant>) -> Vec<(u64, u64)> {
        grants.into_iter().map(|grant| (grant.claim.member.node, grant.claim.number)).collect()
    }

    #[test]
    fn a_lock_moves_in_the_order_of_the_claims() {
        let mut locks = Locks::default();
        assert_eq!(granted(locks.claim(at(5, 0), "l", claim(1, 1))), [(1, 1)]);
        assert_eq!(locks.claim(at(5, 1), "l", claim(2, 1)), None);
        assert_eq!(locks.claim(at(6, 0), "l", claim(1, 2)), None);
        assert_eq!(
            granted(locks.claim(at(6, 1), "other", claim(2, 2))),
            [(2, 2)],
            "each name is a lock of its own"
        );
        // A claim that is withdrawn while it waits takes the lock from nobody.
        assert_eq!(locks.release(at(7, 0), "l", claim(2, 1)), None);
        assert_eq!(locks.holder("l"), Some(process(1)));
        assert_eq!(granted(locks.release(at(8, 0), "l", claim(1, 1))), [(1, 2)]);
        assert_eq!(locks.release(at(9, 0), "l", claim(1, 1)), None, "a release that comes twice");
        assert_eq!(locks.release(at(10, 0), "l", claim(1, 2)), None);
        assert_eq!((locks.holder("l"), locks.holder("other")), (None, Some(process(2))));
        assert_eq!(locks.release(at(11, 0), "other", claim(2, 2)), None);
        assert_eq!(locks, Locks::default(), "a lock that nobody claims takes no room");
    }

    #[test]
    fn a_process_outside_the_view_holds_no_lock() {
        let mut locks = Locks::default();
        for (index, who) in (0..).zip([1, 2, 3]) {
            locks.claim(at(5, index), "l", claim(who, 1));
        }
        locks.claim(at(6, 0), "m", claim(3, 2));
        assert_eq!(granted(locks.view(&view(7, &[1, 2, 3]))), []);
        assert_eq!(
            granted(locks.view(&view(8, &[3, 4]))),
            [(3, 1)],
            "and the first that is still there is next"
        );
        assert_eq!(locks.holder("m"), Some(process(3)));
        assert_eq!(granted(locks.view(&view(9, &[4]))), []);
        assert_eq!(locks, Locks::default());
    }

    #[test]
    fn a_member_that_comes_back_has_lost_its_claims() {
        let mut locks = Locks::default();
        locks.claim(at(5, 0), "l", claim(1, 1));
        locks.claim(at(5, 1), "l", claim(2, 1));
        let back = View { joined: vec![process(1)], ..view(7, &[2, 1]) };
        assert_eq!(granted(locks.view(&back)), [(2, 1)], "out and in with one view, or in with a checkpoint");
    }

    #[test]
    fn a_released_seat_holds_no_lock() {
        let mut locks = Locks::default();
        let [first, second] = [0, 1].map(|seat| SeatId(seat).number(1));
        locks.claim(at(5, 0), "l", claim(1, second));
        locks.claim(at(5, 1), "l", claim(1, first));
        let mut stacked = view(6, &[1]);
        stacked.seats.take(process(1), &[SeatId(0), SeatId(1)]);
        assert_eq!(granted(locks.view(&stacked)), []);
        assert_eq!(granted(locks.view(&view(7, &[1]))), [(1, first)], "its process is still there");
    }

    #[test]
    fn fencing_numbers_grow() {
        let mut locks = Locks::default();
        let mut fences = Vec::new();
        fences.extend(locks.claim(at(5, 0), "l", claim(1, 1)));
        locks.claim(at(5, 1), "l", claim(2, 1));
        fences.extend(locks.release(at(5, 2), "l", claim(1, 1)));
        locks.claim(at(5, 3), "l", claim(3, 1));
        fences.extend(locks.view(&view(6, &[3])));
        // All members have left, and with them the fencing numbers of the lock are forgotten.
        let mut anew = Locks::default();
        fences.extend(anew.claim(at(8, 0), "l", claim(4, 1)));
        let fences: Vec<u64> = fences.into_iter().map(|grant| grant.fence).collect();
        assert!(fences.len() == 4 && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    }

    #[test]
    fn fencing_numbers_grow_in_the_longest_life_of_a_domain() {
        let mut fences = Vec::new();
        for position in [1, LATE - 1, LATE, LATE + 1, 1 << 40, (1 << 40) + 1, LATE + LATE_POSITIONS] {
            for index in [0, 1, INDEX_MAX] {
                let mut locks = Locks::default();
                fences.extend(locks.claim(at(position, index), "l", claim(1, 1)));
            }
        }
        let fences: Vec<u64> = fences.into_iter().map(|grant| grant.fence).collect();
        assert!(fences.len() == 21 && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
        // Locks are still granted at the highest position.
        let mut locks = Locks::default();
        assert!(locks.claim(at(u64::MAX, 0), "l", claim(1, 1)).is_some());
    }

    #[test]
    fn claims_that_no_correct_member_makes_are_ignored() {
        let mut locks = Locks::default();
        assert_eq!(locks.claim(at(5, INDEX_MAX + 1), "l", claim(1, 1)), None);
        assert_eq!(locks.claim(Place::Soft(1), "l", claim(1, 1)), None);
        assert_eq!(locks.claim(at(5, 0), &"l".repeat(LOCK_NAME_BYTES_MAX + 1), claim(1, 1)), None);
        assert_eq!(locks, Locks::default());
        locks.claim(at(5, 0), "l", claim(1, 1));
        assert_eq!(locks.release(Place::Soft(1), "l", claim(1, 1)), None);
        assert_eq!(locks.release(at(6, INDEX_MAX + 1), "l", claim(1, 1)), None);
        assert_eq!(locks.holder("l"), Some(process(1)));
    }
}
