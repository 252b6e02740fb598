//! Session guarantees: the promises to a client about its own operations on a key.
//!
//! A read counts as a violation of a guarantee only if it breaks the guarantee in *every* order of the writes
//! that respects real time. A value is certainly older than a second value if its write finished before the
//! write of the second value began. Writes of unknown outcome promise their client nothing.
//!
//! The operations of a client on a key are a sequence, even if the clock shows the same instant for two of
//! them. Overlapping operations of one client are not ordered.

use rustc_hash::FxHashMap;

use crate::history::{BEGINNING, FOREVER, KeyHistory, NOTHING, Verb};
use crate::operation::Nanos;

/// Numbers of reads that broke a session guarantee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionViolations {
    /// Reads that returned a value certainly older than an earlier write of the same client.
    pub read_your_writes: u64,
    /// Reads that returned a value certainly older than an earlier read of the same client.
    pub monotonic_reads: u64,
}

/// The latest values of a key that a client wrote and read. A stream keeps this state from piece to piece.
#[derive(Clone, Copy, Debug)]
struct ClientTimes {
    /// End of the client's last operation.
    finish: Nanos,
    /// Latest start of a write of this client.
    written: Nanos,
    /// Latest start of a write whose value this client read.
    read: Nanos,
}

/// The sessions of all clients of one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    clients: FxHashMap<u64, ClientTimes>,
}

impl Sessions {
    /// Counts the violations in `key`, whose operations all come after the operations that were counted
    /// earlier.
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
            let seen = self.clients.entry(step.client).or_insert(ClientTimes {
                finish: BEGINNING,
                written: BEGINNING,
                read: BEGINNING,
            });
            if step.finish == FOREVER || write_start == FOREVER {
                continue; // a write of unknown outcome, or a value that nobody wrote
            }
            if step.start < seen.finish {
                continue; // overlaps the client's last operation
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
