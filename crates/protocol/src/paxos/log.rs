//! Values of slots, and the kept part of their sequence.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Slot;
use crate::id::Peer;

/// The value of a slot. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlotValue {
    /// Users' proposals, in order.
    Payloads(Arc<[Bytes]>),
    /// The members from the next slot on. This is a stop command: alone in its slot, with nothing proposed
    /// after it until it is chosen.
    Members(Arc<[Peer]>),
}

impl SlotValue {
    /// Returns the approximate memory of the value in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            SlotValue::Payloads(payloads) => {
                64 + payloads.iter().map(|payload| 32 + payload.len()).sum::<usize>()
            }
            SlotValue::Members(members) => {
                64 + members.iter().map(|peer| 48 + peer.address.len()).sum::<usize>()
            }
        }
    }
}

/// The values of all slots after `start`, without gaps.
#[derive(Debug)]
pub(super) struct Log {
    start: Slot,
    values: VecDeque<SlotValue>,
    bytes: usize,
}

impl Log {
    pub(super) fn new(start: Slot) -> Log {
        Log { start, values: VecDeque::new(), bytes: 0 }
    }

    /// Returns the slot before the first slot kept.
    pub(super) fn start(&self) -> Slot {
        self.start
    }

    /// Returns the last slot held; `start` if no slot is held.
    pub(super) fn last(&self) -> Slot {
        Slot(self.start.0 + self.values.len() as u64)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn value(&self, slot: Slot) -> Option<&SlotValue> {
        let index = slot.0.checked_sub(self.start.0 + 1)?;
        self.values.get(usize::try_from(index).ok()?)
    }

    /// Returns the values after `start`, up to `last` inclusive.
    pub(super) fn range(&self, start: Slot, last: Slot) -> Vec<SlotValue> {
        assert!(self.start <= start && last <= self.last(), "the slots ({start}, {last}] are in the log");
        let skip = (start.0 - self.start.0) as usize;
        let take = last.0.saturating_sub(start.0) as usize;
        self.values.iter().skip(skip).take(take).cloned().collect()
    }

    /// Returns the furthest slot, at most `limit`, such that the values after `start`, up to and including
    /// that slot, take about `bytes` bytes. At least one value is included.
    pub(super) fn reach(&self, start: Slot, limit: Slot, bytes: usize) -> Slot {
        let mut slot = start;
        let mut total = 0;
        while slot < limit {
            total += self.value(slot.next()).map_or(0, SlotValue::bytes);
            if total > bytes && slot > start {
                break;
            }
            slot = slot.next();
        }
        slot
    }

    pub(super) fn push(&mut self, value: SlotValue) {
        self.bytes += value.bytes();
        self.values.push_back(value);
    }

    /// Removes all slots after `last`, the newest first.
    pub(super) fn truncate(&mut self, last: Slot) {
        while self.last() > last {
            let value = self.values.pop_back().expect("the log ends behind its start");
            self.bytes -= value.bytes();
        }
    }

    /// Forgets everything up to `through`.
    pub(super) fn collect(&mut self, through: Slot) {
        while self.start < through {
            let value = self.values.pop_front().expect("the collected slots are in the log");
            self.bytes -= value.bytes();
            self.start = self.start.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(byte: u8, length: usize) -> SlotValue {
        SlotValue::Payloads(Arc::from([Bytes::from(vec![byte; length])]))
    }

    #[test]
    fn a_log_keeps_a_range_and_counts_its_bytes() {
        let mut log = Log::new(Slot(10));
        for byte in 1..=5 {
            log.push(value(byte, 100));
        }
        assert_eq!(log.last(), Slot(15));
        assert_eq!(log.value(Slot(10)), None);
        assert_eq!(log.value(Slot(11)), Some(&value(1, 100)));
        assert_eq!(log.range(Slot(12), Slot(14)), [value(3, 100), value(4, 100)]);
        assert_eq!(log.reach(Slot(10), Slot(15), 400), Slot(12));
        assert_eq!(log.reach(Slot(10), Slot(15), 1), Slot(11), "one value always fits");
        log.truncate(Slot(13));
        log.collect(Slot(12));
        assert_eq!((log.start(), log.last(), log.bytes()), (Slot(12), Slot(13), value(3, 100).bytes()));
    }
}
