//! Calls that are not answered.
//!
//! Numbers rise, most calls end in about the order in which they began, and all have the same time to end in. So the orders
//! that are needed (by number, by end, those to be sent) are rows to which calls are added behind and from which they leave in
//! front. A row may still name calls that have ended elsewhere; it drops them when they come to its front, or when they are most of it.

use std::collections::VecDeque;

use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::{
    seam::CommandId,
    service::{Kind, Part, Scope, SessionId},
    time::Time,
};

/// A call that is not answered.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) command: CommandId,
    pub(super) asked: Asked,
    /// When it is given up.
    pub(super) end: Time,
    /// The session in which it was sent.
    pub(super) session: Option<SessionId>,
    /// Attempts that may have taken effect.
    pub(super) attempts: u32,
    /// Whether the replica that is asked has been sent it.
    pub(super) is_sent: bool,
    /// Others that asked the same under the same key meanwhile.
    pub(super) also: Vec<CommandId>,
}

/// What is asked.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// Never a told read: that is decided when it is sent.
    pub(super) kind: Kind,
    pub(super) scope: Option<Box<Scope>>,
    pub(super) request: Bytes,
}

impl Asked {
    /// The transaction to which it belongs.
    pub(super) fn transaction(&self) -> Option<u64> {
        Some(self.scope.as_ref()?.part?.transaction)
    }

    /// Its place in a transaction.
    pub(super) fn part_mut(&mut self) -> Option<&mut Part> {
        self.scope.as_mut()?.part.as_mut()
    }

    /// Whether replicas may be told of it.
    pub(super) fn may_be_told(&self) -> bool {
        self.kind == Kind::Read && self.transaction().is_none()
    }

    /// About, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let scope = self.scope.as_ref().map_or(0, |scope| 8 * scope.keys.len());
        self.request.len() + scope
    }
}

/// Calls that are not answered, by number.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Looked up, never walked.
    table: FxHashMap<u64, Pending>,
    /// In rising order.
    numbers: VecDeque<u64>,
    /// Those that are not sent, in rising order.
    unsent: VecDeque<u64>,
    /// When calls are given up, in the order of time.
    ends: VecDeque<(Time, u64)>,
    /// How many are reads of which replicas may be told.
    reads: usize,
    /// Requests of calls that were sent, in bytes.
    in_flight_bytes: usize,
}

impl Calls {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(super) fn reads(&self) -> usize {
        self.reads
    }

    pub(super) fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes
    }

    pub(super) fn get(&self, number: u64) -> Option<&Pending> {
        self.table.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Pending> {
        self.table.get_mut(&number)
    }

    /// The numbers of those that are parts of transactions, and no commits.
    pub(super) fn parts(&self) -> Vec<(u64, u64)> {
        let part = |number: &u64| {
            let asked = &self.table.get(number)?.asked;
            let transaction = asked.transaction().filter(|_| asked.kind != Kind::Commit)?;
            Some((*number, transaction))
        };
        self.numbers.iter().filter_map(part).collect()
    }

    /// The lowest number.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.numbers.front().copied()
    }

    /// A call begins, and is to be sent. It ends no earlier than those that began before it.
    pub(super) fn begin(&mut self, number: u64, pending: Pending) {
        assert!(!pending.is_sent, "a call begins before it is sent");
        self.reads += usize::from(pending.asked.may_be_told());
        self.ends.push_back((pending.end, number));
        assert!(self.table.insert(number, pending).is_none(), "a number is used once at a time");
        put(&mut self.numbers, number);
        put(&mut self.unsent, number);
    }

    /// A call ends.
    pub(super) fn end(&mut self, number: u64) -> Option<Pending> {
        let pending = self.table.remove(&number)?;
        self.reads -= usize::from(pending.asked.may_be_told());
        if pending.is_sent {
            self.in_flight_bytes -= pending.asked.bytes();
        }
        let Calls { table, numbers, unsent, ends, .. } = self;
        drop_ended(numbers, table.len(), |number| table.contains_key(number));
        drop_ended(unsent, table.len(), |number| table.get(number).is_some_and(|pending| !pending.is_sent));
        drop_ended(ends, table.len(), |(end, number)| {
            table.get(number).is_some_and(|pending| pending.end == *end)
        });
        Some(pending)
    }

    /// The next call to be sent.
    pub(super) fn next_unsent(&mut self) -> Option<(u64, &mut Pending)> {
        let number = *self.unsent.front()?;
        Some((number, self.table.get_mut(&number).expect("what is to be sent is not answered")))
    }

    /// The next call to be sent has been.
    pub(super) fn sent(&mut self) {
        let number = self.unsent.pop_front().expect("one was to be sent");
        let pending = self.table.get_mut(&number).expect("what is to be sent is not answered");
        pending.is_sent = true;
        self.in_flight_bytes += pending.asked.bytes();
        let Calls { table, unsent, .. } = self;
        drop_ended(unsent, table.len(), |number| table.get(number).is_some_and(|pending| !pending.is_sent));
    }

    /// A call is to be sent again.
    pub(super) fn unsend(&mut self, number: u64) {
        let pending = self.table.get_mut(&number).expect("it is not answered");
        if std::mem::take(&mut pending.is_sent) {
            self.in_flight_bytes -= pending.asked.bytes();
            put(&mut self.unsent, number);
        }
    }

    /// All are to be sent again.
    pub(super) fn unsend_all(&mut self) {
        let Calls { table, numbers, unsent, .. } = self;
        numbers.retain(|number| table.contains_key(number));
        unsent.clone_from(numbers);
        for number in numbers {
            table.get_mut(number).expect("the others were dropped").is_sent = false;
        }
        self.in_flight_bytes = 0;
    }

    /// When the first call is given up.
    pub(super) fn first_end(&self) -> Option<(Time, u64)> {
        self.ends.front().copied()
    }
}

/// Puts a number into a row; behind the others, unless it is of an earlier call.
fn put(row: &mut VecDeque<u64>, number: u64) {
    if row.back().is_none_or(|last| *last < number) {
        return row.push_back(number);
    }
    if let Err(place) = row.binary_search(&number) {
        row.insert(place, number);
    }
}

/// Drops what has ended at the front of a row, and everywhere once it is most of the row.
fn drop_ended<T>(row: &mut VecDeque<T>, calls: usize, lives: impl Fn(&T) -> bool) {
    while row.pop_front_if(|it| !lives(it)).is_some() {}
    if row.len() > 2 * calls + ROW_SPARE {
        row.retain(lives);
    }
}

/// A row may be so much longer than twice the calls.
const ROW_SPARE: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(end: u64) -> Pending {
        Pending {
            command: CommandId(0),
            asked: Asked { kind: Kind::Write, scope: None, request: Bytes::from_static(b"request") },
            end: Time(end),
            session: None,
            attempts: 0,
            is_sent: false,
            also: Vec::new(),
        }
    }

    fn unsent(calls: &mut Calls) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some((number, _)) = calls.next_unsent() {
            numbers.push(number);
            calls.sent();
        }
        numbers
    }

    #[test]
    fn calls_are_sent_in_the_order_of_their_numbers() {
        let mut calls = Calls::default();
        (1..=4).for_each(|number| calls.begin(number, pending(10 + number)));
        calls.end(2);
        assert_eq!(unsent(&mut calls), [1, 3, 4]);
        assert_eq!(calls.in_flight_bytes(), 21);
        calls.unsend(3);
        calls.unsend(3);
        // One of long ago that is asked for again.
        calls.begin(2, pending(15));
        assert_eq!((calls.oldest(), calls.in_flight_bytes()), (Some(1), 14));
        assert_eq!(unsent(&mut calls), [2, 3]);
        calls.unsend_all();
        calls.end(1);
        assert_eq!(unsent(&mut calls), [2, 3, 4]);
        assert_eq!(calls.first_end(), Some((Time(13), 3)), "the first two are over, and 2 began anew");
    }

    #[test]
    fn a_call_that_does_not_end_keeps_no_others_in_memory() {
        let mut calls = Calls::default();
        calls.begin(0, pending(0));
        for number in 1..100_000 {
            calls.begin(number, pending(number));
            calls.sent();
            calls.end(number);
            let longest = calls.numbers.len().max(calls.ends.len()).max(calls.unsent.len());
            assert!(longest <= 2 * (calls.len() + 1) + ROW_SPARE, "{longest} after {number}");
        }
        assert_eq!((calls.oldest(), calls.first_end()), (Some(0), Some((Time(0), 0))));
    }
}
