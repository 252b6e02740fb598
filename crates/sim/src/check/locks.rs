//! Locks of a group, judged at each member. The check computes each next holder from the delivered messages,
//! and compares the fencing number of each grant.
//!
//! A member has [`Locks`], as a program would, and for each lock a queue of claims that this file keeps by
//! itself. Both are part of the member's state, so they travel with it, and all members of a view must have
//! equal locks and queues. Fencing numbers are compared over the whole life of a group's name ([`Fences`]),
//! also across times at which the group was empty.

use std::collections::BTreeMap;

use quorate_protocol::{
    ProcessId,
    ecast::Position,
    group::{Claim, Grant, Locks, Place, SeatId, View},
};
use quorate_world::Violation;
use serde::{Deserialize, Serialize};

use crate::mutation::Mutation;

/// A change of a lock, carried by a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LockChange {
    Claim { lock: u8, number: u64 },
    Release { lock: u8, number: u64 },
}

/// The locks of a group at one member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct GroupLocks {
    locks: Locks,
    /// The claims of each lock, the holder's first.
    queues: BTreeMap<u8, Vec<Claim>>,
}

fn name(lock: u8) -> String {
    format!("lock {lock}")
}

impl GroupLocks {
    /// Applies a message at a place of the order. Returns the grants that follow, by lock.
    pub(crate) fn take(
        &mut self,
        (at, index): OrderPlace,
        sender: ProcessId,
        lock_change: LockChange,
        mutation: Option<Mutation>,
    ) -> Result<Vec<(u8, Grant)>, Violation> {
        let before = self.holders();
        let repeats = mutation == Some(Mutation::FenceRepeated);
        let place = Place::Ordered(at, if repeats { 0 } else { index });
        let (lock, granted) = match lock_change {
            LockChange::Claim { lock, number } => {
                let claim = Claim { member: sender, number };
                self.queues.entry(lock).or_default().push(claim);
                (lock, self.locks.claim(place, &name(lock), claim))
            }
            LockChange::Release { lock, number } => {
                let claim = Claim { member: sender, number };
                self.queues.entry(lock).or_default().retain(|other| *other != claim);
                (lock, self.locks.release(place, &name(lock), claim))
            }
        };
        self.judge(&before, granted.into_iter().map(|grant| (lock, grant)).collect())
    }

    /// Begins a view. Returns the grants that follow, by lock.
    pub(crate) fn view(
        &mut self,
        view: &View,
        mutation: Option<Mutation>,
    ) -> Result<Vec<(u8, Grant)>, Violation> {
        let before = self.holders();
        let seated: Vec<(ProcessId, SeatId)> = view.places().collect();
        for queue in self.queues.values_mut() {
            queue.retain(|claim| {
                let seat = SeatId::of_number(claim.number);
                seated.contains(&(claim.member, seat)) && !view.joined.contains(&claim.member)
            });
        }
        let lock_of = |grant: &Grant| {
            let queue = self.queues.iter().find(|(_, queue)| queue.first() == Some(&grant.claim));
            queue.map(|(lock, _)| *lock)
        };
        let mut granted = Vec::new();
        let keeps = mutation == Some(Mutation::LockOutlivesHolder);
        let grants = if keeps { Vec::new() } else { self.locks.view(view) };
        for grant in grants {
            let lock = lock_of(&grant).ok_or_else(|| {
                Violation::new(
                    "locks",
                    format!(
                        "view {} granted {grant:?}, but this claim is not the first of any lock",
                        view.number
                    ),
                )
            })?;
            granted.push((lock, grant));
        }
        self.judge(&before, granted)
    }

    fn holders(&self) -> BTreeMap<u8, Claim> {
        self.queues.iter().filter_map(|(lock, queue)| Some((*lock, *queue.first()?))).collect()
    }

    /// Compares the grants of [`Locks`] with the grants that follow from this file's own queues.
    fn judge(
        &mut self,
        before: &BTreeMap<u8, Claim>,
        granted: Vec<(u8, Grant)>,
    ) -> Result<Vec<(u8, Grant)>, Violation> {
        let due: BTreeMap<u8, Claim> =
            self.holders().into_iter().filter(|(lock, claim)| before.get(lock) != Some(claim)).collect();
        let told: BTreeMap<u8, Claim> = granted.iter().map(|(lock, grant)| (*lock, grant.claim)).collect();
        if due != told || told.len() != granted.len() {
            return Err(Violation::new(
                "locks",
                format!(
                    "a member granted the locks {granted:?}, but the claims that became first are {due:?}"
                ),
            ));
        }
        for (lock, queue) in &self.queues {
            let (holder, due) = (self.locks.holder(&name(*lock)), queue.first().map(|claim| claim.member));
            if holder != due {
                let what =
                    format!("{} is held by {holder:?}, but the first claim is that of {due:?}", name(*lock));
                return Err(Violation::new("locks", what));
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        Ok(granted)
    }
}

/// A place in the order: a position, and the index of a message at this position.
type OrderPlace = (Position, u32);

/// The grants of all locks that any member reported, by group, lock and place.
#[derive(Debug, Default)]
pub(crate) struct Fences(BTreeMap<(u64, u8), BTreeMap<OrderPlace, Grant>>);

impl Fences {
    /// Records that a member grants a lock at a place. All members report the same claim and number there,
    /// and numbers grow with the place.
    pub(crate) fn granted(
        &mut self,
        (group, lock): (u64, u8),
        at: OrderPlace,
        grant: &Grant,
    ) -> Result<(), Violation> {
        let grants = self.0.entry((group, lock)).or_default();
        let same = grants.entry(at).or_insert_with(|| grant.clone());
        let is_same = same == grant;
        let before = grants.range(..at).next_back().map(|(_, grant)| grant.fence);
        let behind = grants.range(at..).nth(1).map(|(_, grant)| grant.fence);
        let grows =
            before.is_none_or(|fence| fence < grant.fence) && behind.is_none_or(|fence| grant.fence < fence);
        if is_same && grows {
            return Ok(());
        }
        let what = format!(
            "in group {group} a member granted {grant:?} of {} at place {at:?}; other members granted {:?} \
             at this place, and the fencing numbers of the neighbouring grants are {before:?} (earlier) \
             and {behind:?} (later)",
            name(lock),
            grants.get(&at)
        );
        Err(Violation::new("fences", what))
    }
}
