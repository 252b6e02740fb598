//! Calls that are not yet answered.
//!
//! Numbers rise, most calls end in about the order in which they began, and all calls may take equally long.
//! So calls are kept in three queues: by number, by the time at which they are given up, and unsent calls by
//! number. Calls are added at the back and leave at the front. A queue may still contain calls that have
//! ended. It drops ended calls when they reach its front, or when they are more than half of its entries.

use std::collections::VecDeque;

use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::{
    seam::CommandId,
    service::{Kind, Part, Scope, SessionId},
    time::Time,
};

/// An unanswered call.
#[derive(Debug)]
pub(super) struct ClientCall {
    pub(super) command: CommandId,
    pub(super) asked: CallContent,
    /// The time at which the client gives the call up.
    pub(super) end: Time,
    /// The session in which the call was sent.
    pub(super) session: Option<SessionId>,
    /// The number of attempts that may have taken effect.
    pub(super) attempts: u32,
    /// Whether the call was sent to the replica that the client asks now.
    pub(super) is_sent: bool,
    /// Further commands with the same key and request, which get the same fate as this call.
    pub(super) also: Vec<CommandId>,
}

/// The content of a call, which stays the same in all attempts.
#[derive(Clone, Debug)]
pub(super) struct CallContent {
    /// The kind; never [`Kind::AnnouncedRead`], because the client chooses that only when it sends the call.
    pub(super) kind: Kind,
    pub(super) scope: Option<Box<Scope>>,
    pub(super) request: Bytes,
}

impl CallContent {
    /// Returns the transaction to which the call belongs.
    pub(super) fn transaction(&self) -> Option<u64> {
        Some(self.scope.as_ref()?.part?.transaction)
    }

    /// Returns the call's place in a transaction.
    pub(super) fn part_mut(&mut self) -> Option<&mut Part> {
        self.scope.as_mut()?.part.as_mut()
    }

    /// Whether the client may announce this call, a read, to all replicas.
    pub(super) fn may_be_announced(&self) -> bool {
        self.kind == Kind::Read && self.transaction().is_none()
    }

    /// Returns the approximate memory of the call, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let scope = self.scope.as_ref().map_or(0, |scope| 8 * scope.keys.len());
        self.request.len() + scope
    }
}

/// Calls that are not yet answered, by number.
#[derive(Debug, Default)]
pub(super) struct OpenCalls {
    /// The calls. This map is never iterated, so its order does not matter.
    table: FxHashMap<u64, ClientCall>,
    /// The numbers of all open calls, ascending.
    numbers: VecDeque<u64>,
    /// The numbers of unsent calls, ascending.
    unsent: VecDeque<u64>,
    /// The times at which calls are given up, ascending.
    ends: VecDeque<(Time, u64)>,
    /// The number of reads that the client may announce to all replicas.
    reads: usize,
    /// The size of the requests that were sent and not yet answered, in bytes.
    in_flight_bytes: usize,
}

impl OpenCalls {
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

    pub(super) fn get(&self, number: u64) -> Option<&ClientCall> {
        self.table.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut ClientCall> {
        self.table.get_mut(&number)
    }

    /// Returns the numbers of the calls that belong to transactions and are not commits, each with its
    /// transaction.
    pub(super) fn parts(&self) -> Vec<(u64, u64)> {
        let part = |number: &u64| {
            let asked = &self.table.get(number)?.asked;
            let transaction = asked.transaction().filter(|_| asked.kind != Kind::Commit)?;
            Some((*number, transaction))
        };
        self.numbers.iter().filter_map(part).collect()
    }

    /// Returns the lowest number of the calls that have not ended.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.numbers.front().copied()
    }

    /// Adds a call that has yet to be sent. The call must not time out before calls that were added earlier.
    pub(super) fn begin(&mut self, number: u64, pending: ClientCall) {
        assert!(!pending.is_sent, "a call begins before it is sent");
        self.reads += usize::from(pending.asked.may_be_announced());
        self.ends.push_back((pending.end, number));
        assert!(self.table.insert(number, pending).is_none(), "a number is used once at a time");
        put(&mut self.numbers, number);
        put(&mut self.unsent, number);
    }

    /// Removes a call that has ended.
    pub(super) fn end(&mut self, number: u64) -> Option<ClientCall> {
        let pending = self.table.remove(&number)?;
        self.reads -= usize::from(pending.asked.may_be_announced());
        if pending.is_sent {
            self.in_flight_bytes -= pending.asked.bytes();
        }
        let OpenCalls { table, numbers, unsent, ends, .. } = self;
        drop_ended(numbers, table.len(), |number| table.contains_key(number));
        drop_ended(unsent, table.len(), |number| table.get(number).is_some_and(|pending| !pending.is_sent));
        drop_ended(ends, table.len(), |(end, number)| {
            table.get(number).is_some_and(|pending| pending.end == *end)
        });
        Some(pending)
    }

    /// Returns the next call to send.
    pub(super) fn next_unsent(&mut self) -> Option<(u64, &mut ClientCall)> {
        let number = *self.unsent.front()?;
        Some((number, self.table.get_mut(&number).expect("an unsent call is not answered")))
    }

    /// Records that the next call was sent.
    pub(super) fn sent(&mut self) {
        let number = self.unsent.pop_front().expect("a call was waiting to be sent");
        let pending = self.table.get_mut(&number).expect("an unsent call is not answered");
        pending.is_sent = true;
        self.in_flight_bytes += pending.asked.bytes();
        let OpenCalls { table, unsent, .. } = self;
        drop_ended(unsent, table.len(), |number| table.get(number).is_some_and(|pending| !pending.is_sent));
    }

    /// Records that a call must be sent again.
    pub(super) fn mark_unsent(&mut self, number: u64) {
        let pending = self.table.get_mut(&number).expect("the call is not answered");
        if std::mem::take(&mut pending.is_sent) {
            self.in_flight_bytes -= pending.asked.bytes();
            put(&mut self.unsent, number);
        }
    }

    /// Records that all calls must be sent again.
    pub(super) fn unsend_all(&mut self) {
        let OpenCalls { table, numbers, unsent, .. } = self;
        numbers.retain(|number| table.contains_key(number));
        unsent.clone_from(numbers);
        for number in numbers {
            table.get_mut(number).expect("numbers without a call were dropped").is_sent = false;
        }
        self.in_flight_bytes = 0;
    }

    /// Returns the earliest time at which a call is given up, and the number of that call.
    pub(super) fn first_end(&self) -> Option<(Time, u64)> {
        self.ends.front().copied()
    }
}

/// Inserts a number into an ascending queue: at the back, unless larger numbers are there already.
fn put(row: &mut VecDeque<u64>, number: u64) {
    if row.back().is_none_or(|last| *last < number) {
        return row.push_back(number);
    }
    if let Err(place) = row.binary_search(&number) {
        row.insert(place, number);
    }
}

/// Drops ended calls at the front of a queue, and all ended calls once they are more than half of the queue.
fn drop_ended<T>(row: &mut VecDeque<T>, calls: usize, lives: impl Fn(&T) -> bool) {
    while row.pop_front_if(|it| !lives(it)).is_some() {}
    if row.len() > 2 * calls + ROW_SPARE {
        row.retain(lives);
    }
}

/// Number of entries by which a queue may exceed twice the number of calls.
const ROW_SPARE: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(end: u64) -> ClientCall {
        ClientCall {
            command: CommandId(0),
            asked: CallContent { kind: Kind::Write, scope: None, request: Bytes::from_static(b"request") },
            end: Time(end),
            session: None,
            attempts: 0,
            is_sent: false,
            also: Vec::new(),
        }
    }

    fn unsent(calls: &mut OpenCalls) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some((number, _)) = calls.next_unsent() {
            numbers.push(number);
            calls.sent();
        }
        numbers
    }

    #[test]
    fn calls_are_sent_in_the_order_of_their_numbers() {
        let mut calls = OpenCalls::default();
        (1..=4).for_each(|number| calls.begin(number, pending(10 + number)));
        calls.end(2);
        assert_eq!(unsent(&mut calls), [1, 3, 4]);
        assert_eq!(calls.in_flight_bytes(), 21);
        calls.mark_unsent(3);
        calls.mark_unsent(3);
        // The user repeats an old call, whose number is smaller than the numbers of calls in the queue.
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
        let mut calls = OpenCalls::default();
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
