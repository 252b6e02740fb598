//! Locks of transactions (003 §VI.A.4), and the requests that wait for them.
//!
//! **Promise.** Until a transaction ends, no other request changes the keys that it touched, or sees the keys
//! that it changed. If transactions end, every waiting request is granted in the end. A request that would
//! wait for itself is refused.
//!
//! A request touches some keys, or everything. Several reads may hold a key at the same time; a write must be
//! the only holder of its keys. A transaction holds the keys that its requests touched until it ends. A plain
//! request holds nothing, since it is executed in one step, but it waits for keys that transactions hold.
//!
//! **Order.** Requests wait in the order in which they came. No request overtakes an earlier request with
//! which it conflicts, so readers do not starve a writer. There is one exception: an earlier request may wait
//! for a transaction, directly or through other requests. A later request of that transaction overtakes the
//! earlier request, which has to wait for the end of the transaction anyway.
//!
//! **Deadlocks.** A waiting request waits for the transactions that hold conflicting keys, and for the
//! earlier requests that it may not overtake. Both sets are fixed when the request begins to wait. If a
//! waiting request has to wait for a further transaction later, the reason is that this transaction was
//! granted a lock, and at that moment it waits for nothing. So only a request that begins to wait can close a
//! circle of waiting transactions, and one check suffices when the wait begins. The check finds whether one
//! of the transactions that hold conflicting keys waits for the asking transaction. The order of the queue
//! closes no circle, because the asking transaction overtakes the requests that wait for it. A transaction
//! whose request would close a circle is aborted.

use std::collections::{BTreeMap, VecDeque};

use super::id::TransactionId;

/// The keys that a request touches, and whether it shares them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LockRequest {
    /// The keys. Empty if the request touches everything.
    pub(super) keys: Vec<u64>,
    /// Whether no other request may touch these keys at the same time.
    pub(super) exclusive: bool,
}

impl LockRequest {
    fn conflicts(&self, other: &LockRequest) -> bool {
        let all = self.keys.is_empty() || other.keys.is_empty();
        (self.exclusive || other.exclusive) && (all || self.keys.iter().any(|key| other.keys.contains(key)))
    }
}

/// Locks that transactions hold, and requests that wait for locks.
#[derive(Debug)]
pub(super) struct Locks<R> {
    held: BTreeMap<TransactionId, Vec<LockRequest>>,
    /// The waiting requests, in the order in which they came.
    waiting: VecDeque<Waiter<R>>,
    /// The number of requests that have begun to wait.
    waited: u64,
}

#[derive(Debug)]
struct Waiter<R> {
    /// The request's number among all requests that have begun to wait.
    number: u64,
    by: Option<TransactionId>,
    touch: LockRequest,
    /// The numbers of earlier conflicting requests that this request overtakes, because they already waited
    /// for this request's transaction when this request came.
    overtakes: Vec<u64>,
    request: R,
}

impl<R> Waiter<R> {
    /// Whether this request has to wait for an earlier request.
    fn is_behind(&self, earlier: &Waiter<R>) -> bool {
        earlier.number < self.number
            && earlier.touch.conflicts(&self.touch)
            && !self.overtakes.contains(&earlier.number)
    }
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LockOutcome<R> {
    /// The request may be executed.
    Granted(R),
    /// The request waits, and [`Locks::next`] returns it once it may be executed.
    Waits,
    /// The request would wait for itself, directly or through other requests.
    Deadlock(R),
    /// Too many requests are already waiting.
    Full(R),
}

impl<R> Default for Locks<R> {
    fn default() -> Self {
        Locks { held: BTreeMap::new(), waiting: VecDeque::new(), waited: 0 }
    }
}

impl<R> Locks<R> {
    /// Whether no transaction holds a lock and no request waits, so that every request is granted.
    pub(super) fn are_free(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    /// Asks for the locks of a request, which belongs to a transaction or is plain. A plain request that
    /// would have to wait is refused unless `may_wait` is set.
    pub(super) fn ask(
        &mut self,
        by: Option<TransactionId>,
        touch: LockRequest,
        may_wait: bool,
        request: R,
    ) -> LockOutcome<R> {
        let number = self.waited + 1;
        let mut waiter = Waiter { number, by, touch, overtakes: Vec::new(), request };
        if self.is_blocked(&waiter)
            && let Some(transaction) = by
        {
            let for_us = self.waiting_for(transaction);
            if self.holders(by, &waiter.touch).any(|holder| for_us.values().any(|by| *by == Some(holder))) {
                return LockOutcome::Deadlock(waiter.request);
            }
            let ahead = self.waiting.iter().filter(|earlier| waiter.is_behind(earlier));
            let ahead = ahead.map(|earlier| earlier.number).filter(|number| for_us.contains_key(number));
            waiter.overtakes = ahead.collect();
        }
        if !self.is_blocked(&waiter) {
            self.hold(by, waiter.touch);
            return LockOutcome::Granted(waiter.request);
        }
        if by.is_none() && (!may_wait || self.waiting.len() >= WAITING_MAX) {
            return LockOutcome::Full(waiter.request);
        }
        self.waited = number;
        self.waiting.push_back(waiter);
        LockOutcome::Waits
    }

    /// Releases the locks of a transaction that has ended. Returns its waiting request, if it has one.
    pub(super) fn release(&mut self, transaction: TransactionId) -> Option<R> {
        self.held.remove(&transaction);
        let place = self.waiting.iter().position(|waiter| waiter.by == Some(transaction))?;
        self.waiting.remove(place).map(|waiter| waiter.request)
    }

    /// Removes and returns the first waiting request that may be executed.
    pub(super) fn next(&mut self) -> Option<R> {
        let place = self.waiting.iter().position(|waiter| !self.is_blocked(waiter))?;
        let waiter = self.waiting.remove(place).expect("the waiting request was found at this place");
        self.hold(waiter.by, waiter.touch);
        Some(waiter.request)
    }

    /// Returns the waiting requests.
    pub(super) fn requests(&self) -> impl Iterator<Item = &R> {
        self.waiting.iter().map(|waiter| &waiter.request)
    }

    fn hold(&mut self, by: Option<TransactionId>, touch: LockRequest) {
        if let Some(transaction) = by {
            let held = self.held.entry(transaction).or_default();
            if !held.contains(&touch) {
                held.push(touch);
            }
        }
    }

    /// Whether a request has to wait.
    fn is_blocked(&self, waiter: &Waiter<R>) -> bool {
        self.holders(waiter.by, &waiter.touch).next().is_some()
            || self.waiting.iter().any(|earlier| waiter.is_behind(earlier))
    }

    /// Returns the other transactions that hold keys in conflict with a request.
    fn holders<'a>(
        &'a self,
        by: Option<TransactionId>,
        touch: &'a LockRequest,
    ) -> impl Iterator<Item = TransactionId> + 'a {
        let others = self.held.iter().filter(move |(other, _)| Some(**other) != by);
        others.filter(|(_, held)| held.iter().any(|it| it.conflicts(touch))).map(|(other, _)| *other)
    }

    /// Returns the numbers of the requests that wait for this transaction, directly or through other
    /// requests. Each comes with the transaction to which the request belongs.
    fn waiting_for(&self, transaction: TransactionId) -> BTreeMap<u64, Option<TransactionId>> {
        let holds = |by: TransactionId, waiter: &Waiter<R>| {
            let held = self.held.get(&by).map(Vec::as_slice).unwrap_or_default();
            waiter.by != Some(by) && held.iter().any(|it| it.conflicts(&waiter.touch))
        };
        let first = self.waiting.iter().filter(|waiter| holds(transaction, waiter));
        let mut open: Vec<&Waiter<R>> = first.collect();
        let mut found: BTreeMap<_, _> = open.iter().map(|waiter| (waiter.number, waiter.by)).collect();
        while let Some(ahead) = open.pop() {
            for waiter in &self.waiting {
                let waits = waiter.is_behind(ahead) || ahead.by.is_some_and(|by| holds(by, waiter));
                if waits && found.insert(waiter.number, waiter.by).is_none() {
                    open.push(waiter);
                }
            }
        }
        found
    }
}

/// The maximum number of plain requests that wait. Further plain requests are refused.
const WAITING_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::SessionId;

    fn id(number: u64) -> TransactionId {
        TransactionId { session: SessionId(1), number }
    }

    fn read(keys: &[u64]) -> LockRequest {
        LockRequest { keys: keys.to_vec(), exclusive: false }
    }

    fn write(keys: &[u64]) -> LockRequest {
        LockRequest { keys: keys.to_vec(), exclusive: true }
    }

    /// Asks for the locks of a request. If `by` is 0, the request is plain. Otherwise it belongs to the
    /// transaction with this number. `name` identifies the request.
    fn ask(locks: &mut Locks<u32>, by: u64, touch: LockRequest, name: u32) -> &'static str {
        match locks.ask((by > 0).then(|| id(by)), touch, true, name) {
            LockOutcome::Granted(_) => "granted",
            LockOutcome::Waits => "waits",
            LockOutcome::Deadlock(_) => "deadlock",
            LockOutcome::Full(_) => "full",
        }
    }

    fn all_next(locks: &mut Locks<u32>) -> Vec<u32> {
        std::iter::from_fn(|| locks.next()).collect()
    }

    #[test]
    fn readers_share_and_writers_are_alone() {
        let mut locks = Locks::default();
        assert_eq!(ask(&mut locks, 1, read(&[1]), 0), "granted");
        assert_eq!(ask(&mut locks, 2, read(&[1, 2]), 0), "granted");
        assert_eq!(ask(&mut locks, 0, read(&[1]), 0), "granted");
        assert_eq!(ask(&mut locks, 0, write(&[3]), 0), "granted");
        assert_eq!(ask(&mut locks, 0, write(&[1]), 10), "waits");
        assert_eq!(ask(&mut locks, 0, write(&[]), 11), "waits", "everything is touched by others, too");
        assert_eq!(ask(&mut locks, 3, read(&[2]), 12), "waits", "behind one that touches everything");
        assert_eq!(locks.release(id(1)), None);
        assert_eq!(all_next(&mut locks), [], "2 still holds 1");
        locks.release(id(2));
        assert_eq!(all_next(&mut locks), [10, 11, 12]);
        locks.release(id(3));
        assert!(locks.are_free());
    }

    #[test]
    fn a_deadlock_is_found_by_the_request_that_closes_the_circle() {
        let mut locks = Locks::default();
        for number in 1..=3 {
            assert_eq!(ask(&mut locks, number, write(&[number]), 0), "granted");
        }
        assert_eq!(ask(&mut locks, 1, write(&[2]), 1), "waits");
        assert_eq!(ask(&mut locks, 2, write(&[3]), 2), "waits");
        assert_eq!(ask(&mut locks, 3, read(&[1]), 3), "deadlock");
        locks.release(id(3));
        assert_eq!(all_next(&mut locks), [2]);
        locks.release(id(2));
        assert_eq!(all_next(&mut locks), [1]);
    }

    #[test]
    fn two_readers_that_both_want_to_write_do_not_wait_for_each_other() {
        let mut locks = Locks::default();
        assert_eq!(ask(&mut locks, 1, read(&[1]), 0), "granted");
        assert_eq!(ask(&mut locks, 2, read(&[1]), 0), "granted");
        assert_eq!(ask(&mut locks, 1, write(&[1]), 1), "waits");
        assert_eq!(ask(&mut locks, 2, write(&[1]), 2), "deadlock");
    }

    #[test]
    fn a_transaction_overtakes_only_requests_that_wait_for_it() {
        let mut locks = Locks::default();
        assert_eq!(ask(&mut locks, 1, read(&[1]), 0), "granted");
        assert_eq!(ask(&mut locks, 0, write(&[1]), 10), "waits");
        assert_eq!(ask(&mut locks, 0, read(&[1]), 11), "waits", "a writer is not starved");
        assert_eq!(ask(&mut locks, 1, write(&[1]), 0), "granted", "the others wait for it");
        locks.release(id(1));
        assert_eq!(all_next(&mut locks), [10, 11]);
    }

    #[test]
    fn a_transaction_overtakes_requests_behind_a_request_that_waits_for_it() {
        let mut locks = Locks::default();
        assert_eq!(ask(&mut locks, 1, write(&[1]), 0), "granted");
        assert_eq!(ask(&mut locks, 0, write(&[1, 2]), 10), "waits", "for 1");
        assert_eq!(ask(&mut locks, 0, read(&[2]), 11), "waits", "behind the writer, and so for 1");
        assert_eq!(ask(&mut locks, 1, write(&[2]), 0), "granted");
        locks.release(id(1));
        assert_eq!(all_next(&mut locks), [10, 11]);
    }

    #[test]
    fn a_transaction_overtakes_a_plain_request_that_waits_for_it_by_way_of_another_transaction() {
        let mut locks = Locks::default();
        assert_eq!(ask(&mut locks, 1, write(&[1]), 0), "granted");
        assert_eq!(ask(&mut locks, 2, write(&[2]), 0), "granted");
        assert_eq!(ask(&mut locks, 0, write(&[2, 3]), 10), "waits", "for 2");
        assert_eq!(ask(&mut locks, 2, write(&[1]), 2), "waits", "for 1");
        assert_eq!(ask(&mut locks, 1, write(&[3]), 0), "granted", "the plain one waits for 2, and 2 for 1");
        assert_eq!(ask(&mut locks, 1, write(&[2]), 1), "deadlock");
        // The refused transaction is aborted, and the second transaction goes on.
        assert_eq!(locks.release(id(1)), None);
        assert_eq!(all_next(&mut locks), [2]);
        locks.release(id(2));
        assert_eq!(all_next(&mut locks), [10]);
    }

    #[test]
    fn a_transaction_does_not_overtake_requests_that_wait_for_others() {
        let mut locks = Locks::default();
        assert_eq!(ask(&mut locks, 1, write(&[1]), 0), "granted");
        assert_eq!(ask(&mut locks, 2, write(&[2]), 0), "granted");
        assert_eq!(ask(&mut locks, 0, write(&[2, 3]), 10), "waits", "for 2");
        assert_eq!(ask(&mut locks, 1, write(&[3]), 1), "waits", "behind the plain one");
        assert_eq!(ask(&mut locks, 2, write(&[1]), 2), "deadlock", "1 waits for 2 by way of the plain one");
        locks.release(id(2));
        assert_eq!(all_next(&mut locks), [10, 1]);
    }

    /// A transaction overtakes only the requests that waited for it when its own request came. These stay the
    /// overtaken requests, even if they waited for the transaction only through another request that is gone
    /// later.
    #[test]
    fn the_overtaken_requests_are_settled_when_a_request_begins_to_wait() {
        let mut locks = Locks::default();
        for number in [1, 3, 4, 5] {
            assert_eq!(ask(&mut locks, number, write(&[number]), 0), "granted");
        }
        assert_eq!(ask(&mut locks, 2, write(&[1, 9]), 2), "waits", "for 1");
        assert_eq!(ask(&mut locks, 4, write(&[5, 9]), 4), "waits", "for 5, and behind 2");
        assert_eq!(ask(&mut locks, 5, write(&[1]), 5), "waits", "for 1");
        assert_eq!(ask(&mut locks, 1, write(&[3, 9]), 1), "waits", "for 3, and behind nobody");
        locks.release(id(2));
        assert_eq!(all_next(&mut locks), []);
        locks.release(id(3));
        assert_eq!(all_next(&mut locks), [1]);
        locks.release(id(1));
        assert_eq!(all_next(&mut locks), [5]);
        locks.release(id(5));
        assert_eq!(all_next(&mut locks), [4]);
    }

    #[test]
    fn waiting_requests_are_bounded() {
        let mut locks = Locks::default();
        assert_eq!(ask(&mut locks, 1, write(&[]), 0), "granted");
        for name in 0..WAITING_MAX as u32 {
            assert_eq!(ask(&mut locks, 0, read(&[]), name), "waits");
        }
        assert_eq!(ask(&mut locks, 0, read(&[]), 0), "full");
        assert_eq!(ask(&mut locks, 2, read(&[]), 0), "waits", "transactions are counted elsewhere");
    }
}
