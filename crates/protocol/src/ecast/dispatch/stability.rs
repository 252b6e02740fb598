//! What became of messages, as the log is to know it.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::ecast::{Outcome, Position, entry::LogEntry};

/// Outcomes on their way into the log.
#[derive(Default)]
pub(super) struct Stability {
    /// Stable since the last log entry about it: positions, and how many follow each other.
    runs: Vec<(u64, u32)>,
    others: Vec<(u64, Outcome)>,
    /// Entries that were proposed and not learned yet, in order.
    proposed: VecDeque<Bytes>,
}

impl Stability {
    /// The log is to know what became of the message at this position.
    pub(super) fn note(&mut self, at: Position, outcome: Outcome) {
        match outcome {
            Outcome::Stable => match self.runs.last_mut() {
                Some((first, count)) if *first + u64::from(*count) == at.0 => *count += 1,
                _ => self.runs.push((at.0, 1)),
            },
            other => self.others.push((at.0, other)),
        }
    }

    /// Whether anything is to be proposed.
    pub(super) fn has_news(&self) -> bool {
        !self.runs.is_empty() || !self.others.is_empty()
    }

    /// What has become of messages since the last call, as a log entry.
    pub(super) fn entry(&mut self) -> Option<Bytes> {
        if !self.has_news() {
            return None;
        }
        let entry = LogEntry::encode_stable(&self.runs, &self.others);
        self.runs.clear();
        self.others.clear();
        self.proposed.push_back(entry.clone());
        Some(entry)
    }

    /// The log has chosen `entry`: if it was proposed here, it need not be proposed again.
    pub(super) fn logged(&mut self, entry: &Bytes) {
        if let Some(index) = self.proposed.iter().position(|proposed| proposed == entry) {
            self.proposed.remove(index);
        }
    }

    /// Entries that may have been lost on their way into the log.
    pub(super) fn unlogged(&self) -> &VecDeque<Bytes> {
        &self.proposed
    }
}
