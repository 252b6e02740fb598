//! Outcomes of messages, to be written to the log.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::ecast::{Outcome, Position, entry::LogEntry};

/// Outcomes on their way into the log.
#[derive(Default)]
pub(super) struct Stability {
    /// Positions that became stable since the last log entry, as runs `(first, count)`.
    runs: Vec<(u64, u32)>,
    others: Vec<(u64, Outcome)>,
    /// Proposed entries that are not learned yet, in order.
    proposed: VecDeque<Bytes>,
}

impl Stability {
    /// Notes the outcome of the message at this position.
    pub(super) fn note(&mut self, at: Position, outcome: Outcome) {
        match outcome {
            Outcome::Stable => match self.runs.last_mut() {
                Some((first, count)) if *first + u64::from(*count) == at.0 => *count += 1,
                _ => self.runs.push((at.0, 1)),
            },
            other => self.others.push((at.0, other)),
        }
    }

    /// Whether an outcome waits to be proposed.
    pub(super) fn has_news(&self) -> bool {
        !self.runs.is_empty() || !self.others.is_empty()
    }

    /// Returns the outcomes since the last call, as a log entry.
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

    /// Notes that the log has chosen `entry`, so that it is not proposed again.
    pub(super) fn logged(&mut self, entry: &Bytes) {
        if let Some(index) = self.proposed.iter().position(|proposed| proposed == entry) {
            self.proposed.remove(index);
        }
    }

    /// Returns entries that may have been lost on their way into the log.
    pub(super) fn unlogged(&self) -> &VecDeque<Bytes> {
        &self.proposed
    }
}
