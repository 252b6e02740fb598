//! One log: everybody learns the same, adds it up to the same, and only what was asked for is in it.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_protocol::ProcessId;
use quorate_world::Violation;
use xxhash_rust::xxh3::xxh3_64;

use super::GhostLog;
use crate::system::paxos::replica::{chained, opened};

/// The log as it was first learned, and what its users asked for.
#[derive(Debug, Default)]
pub(crate) struct LogCheck {
    ghost: GhostLog<Vec<u64>>,
    /// What the log adds up to behind each slot.
    chains: BTreeMap<u64, u64>,
    /// Entries asked for, by their author.
    asked: BTreeMap<ProcessId, u64>,
    /// Entries in the log, by their author.
    appended: BTreeMap<ProcessId, u64>,
}

impl LogCheck {
    /// The last slot that anybody has learned.
    pub(crate) fn end(&self) -> u64 {
        self.ghost.end()
    }

    /// How far a life has learned.
    pub(crate) fn learned_through(&self, life: u64) -> u64 {
        self.ghost.learned_through(life)
    }

    /// A user asked for one more entry.
    pub(crate) fn asked(&mut self, author: ProcessId) {
        *self.asked.entry(author).or_default() += 1;
    }

    /// A life learned a slot, behind which its log adds up to `chain`.
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
                    let what = format!("{proposer} never proposed the entry {number} at {slot}");
                    return Err(Violation::new("valid", what));
                }
            }
        }
        self.adds_up(life, slot, chain)
    }

    /// A life installed a snapshot, behind which its log adds up to `chain`.
    pub(crate) fn installed(&mut self, life: u64, slot: u64, chain: u64) -> Result<(), Violation> {
        self.ghost.installed(life, slot)?;
        self.adds_up(life, slot, chain)
    }

    fn chain(&self, slot: u64) -> u64 {
        self.chains.get(&slot).copied().unwrap_or(0)
    }

    fn adds_up(&self, life: u64, slot: u64, chain: u64) -> Result<(), Violation> {
        if self.chain(slot) != chain {
            return Err(Violation::new("agreement", format!("life {life} adds up to another log at {slot}")));
        }
        Ok(())
    }

    /// All that the process `id` was asked for as `author` is in the log.
    pub(crate) fn terminated(&self, id: ProcessId, author: ProcessId) -> Result<(), Violation> {
        let of = |entries: &BTreeMap<ProcessId, u64>| entries.get(&author).copied().unwrap_or(0);
        let (asked, appended) = (of(&self.asked), of(&self.appended));
        if appended != asked {
            let what = format!("{id} was asked for {asked} entries, and {appended} are in the log");
            return Err(Violation::new("terminated", what));
        }
        Ok(())
    }
}
