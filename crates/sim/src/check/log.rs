//! One log: all replicas learn the same entries and the same running hash of them, and the log contains only
//! requested entries.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_protocol::ProcessId;
use quorate_world::Violation;
use xxhash_rust::xxh3::xxh3_64;

use super::GhostLog;
use crate::system::paxos::replica::{chained, opened};

/// The log's entries, in the order in which some replica first learned them, and the number of entries that
/// the users requested.
#[derive(Debug, Default)]
pub(crate) struct LogCheck {
    ghost: GhostLog<Vec<u64>>,
    /// The running hash of the log after each slot.
    chains: BTreeMap<u64, u64>,
    /// Number of requested entries, by author.
    asked: BTreeMap<ProcessId, u64>,
    /// Number of entries in the log, by author.
    appended: BTreeMap<ProcessId, u64>,
}

impl LogCheck {
    /// Returns the last slot that any life has learned.
    pub(crate) fn end(&self) -> u64 {
        self.ghost.end()
    }

    /// Returns the last slot that a life has learned.
    pub(crate) fn learned_through(&self, life: u64) -> u64 {
        self.ghost.learned_through(life)
    }

    /// Records that a user requested one more entry.
    pub(crate) fn asked(&mut self, author: ProcessId) {
        *self.asked.entry(author).or_default() += 1;
    }

    /// Records that a life learned a slot, after which the running hash of its log is `chain`.
    pub(crate) fn learned(
        &mut self,
        life: u64,
        slot: u64,
        payloads: &[Bytes],
        chain: u64,
    ) -> Result<(), Violation> {
        let value = payloads.iter().map(|payload| xxh3_64(payload)).collect();
        if self.ghost.learned(life, slot, value)? {
            let before = self.chain(slot - 1);
            self.chains.insert(slot, chained(before, slot, payloads));
            for payload in payloads {
                let (proposer, number) = opened(payload);
                let next = self.appended.entry(proposer).or_insert(0);
                *next += u64::from(number == *next);
                if number >= self.asked.get(&proposer).copied().unwrap_or(0) {
                    let what = format!(
                        "process {proposer} never proposed entry {number}, which the log has at slot \
                         {slot}"
                    );
                    return Err(Violation::new("valid", what));
                }
            }
        }
        self.adds_up(life, slot, chain)
    }

    /// Records that a life installed a snapshot, after which the running hash of its log is `chain`.
    pub(crate) fn installed(&mut self, life: u64, slot: u64, chain: u64) -> Result<(), Violation> {
        self.ghost.installed(life, slot)?;
        self.adds_up(life, slot, chain)
    }

    fn chain(&self, slot: u64) -> u64 {
        self.chains.get(&slot).copied().unwrap_or(0)
    }

    fn adds_up(&self, life: u64, slot: u64, chain: u64) -> Result<(), Violation> {
        if self.chain(slot) != chain {
            return Err(Violation::new(
                "agreement",
                format!(
                    "the sum of the log up to slot {slot} differs between process life {life} and the \
                     first life that learned this slot"
                ),
            ));
        }
        Ok(())
    }

    /// Checks that the log contains all entries that the user of the process `id` requested under the author
    /// id `author`.
    pub(crate) fn terminated(&self, id: ProcessId, author: ProcessId) -> Result<(), Violation> {
        let of = |entries: &BTreeMap<ProcessId, u64>| entries.get(&author).copied().unwrap_or(0);
        let (asked, appended) = (of(&self.asked), of(&self.appended));
        if appended != asked {
            let what = format!(
                "process {id} was asked to append {asked} entries, but the log has only {appended} of them"
            );
            return Err(Violation::new("terminated", what));
        }
        Ok(())
    }
}
