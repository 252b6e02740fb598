//! Session guarantees: what a client may expect from its own operations on a key.
//!
//! Both count a read only if it breaks the guarantee in *every* order of the writes that respects real time: a value is
//! certainly older than another if its write finished before the other's began. Writes of unknown outcome promise
//! their client nothing.
//!
//! A client is a sequence: its operations on a key follow one another, also where the clock shows the same instant. Operations
//! of one client that overlap are not ordered among themselves.

use rustc_hash::FxHashMap;

use crate::history::{BEGINNING, FOREVER, KeyHistory, NOTHING, Verb};
use crate::operation::Nanos;

/// Reads that broke a session guarantee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionViolations {
    /// Reads that returned a value certainly older than what the same client had written before.
    pub read_your_writes: u64,
    /// Reads that returned a value certainly older than what the same client had read before.
    pub monotonic_reads: u64,
}

/// What a client has seen of a key. It outlives the pieces in which a stream is checked.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// When the last operation finished.
    finish: Nanos,
    /// The latest start of an own write.
    written: Nanos,
    /// The latest start of a write whose value was read.
    read: Nanos,
}

/// The sessions of all clients of one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    clients: FxHashMap<u64, Seen>,
}

impl Sessions {
    /// Goes on with the operations of `key`, all of which follow what was seen before.
    pub(crate) fn observe(&mut self, key: &KeyHistory) -> SessionViolations {
        let mut writes = vec![(FOREVER, FOREVER); key.numbers()];
        if key.from_nothing {
            writes[NOTHING as usize] = (BEGINNING, BEGINNING);
        }
        for step in key.steps.iter().filter(|step| step.verb == Verb::Write) {
            writes[step.value as usize] = (step.start, step.finish);
        }
        let mut order: Vec<u32> = Vec::new();
        if !key.steps.is_sorted_by_key(|step| (step.start, step.finish)) {
            order.extend((0u32..).zip(&key.steps).map(|(index, _)| index));
            order.sort_by_key(|&index| (key.steps[index as usize].start, key.steps[index as usize].finish));
        }
        let steps = (0..key.steps.len())
            .map(|position| &key.steps[order.get(position).map_or(position, |index| *index as usize)]);

        let mut violations = SessionViolations::default();
        for step in steps {
            let (write_start, write_finish) = writes[step.value as usize];
            let seen = self.clients.entry(step.client).or_insert(Seen {
                finish: BEGINNING,
                written: BEGINNING,
                read: BEGINNING,
            });
            if step.finish == FOREVER || write_start == FOREVER {
                continue; // an unknown write, or a value nobody wrote
            }
            if step.start < seen.finish {
                continue; // not in sequence
            }
            seen.finish = step.finish;
            if step.verb == Verb::Write {
                seen.written = seen.written.max(step.start);
            } else {
                violations.read_your_writes += u64::from(write_finish < seen.written);
                violations.monotonic_reads += u64::from(write_finish < seen.read);
                seen.read = seen.read.max(write_start);
            }
        }
        violations
    }
}
