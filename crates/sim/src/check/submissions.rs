//! Submissions leave in the order in which they were asked for: one class may overtake the other, and nothing its own.

use std::collections::{BTreeMap, VecDeque};

use quorate_protocol::ProcessId;
use quorate_world::Violation;

/// What each process was asked to submit and has not sent, by class.
#[derive(Debug, Default)]
pub(crate) struct SubmissionsCheck(BTreeMap<(ProcessId, bool), VecDeque<u64>>);

impl SubmissionsCheck {
    /// A process was asked to submit something with this hash, as data or as control.
    pub(crate) fn asked(&mut self, who: ProcessId, data: bool, content: u64) {
        self.0.entry((who, data)).or_default().push_back(content);
    }

    /// A process sends something for the first time.
    pub(crate) fn sent(&mut self, who: ProcessId, content: u64) -> Result<(), Violation> {
        let next = |asked: &&mut VecDeque<u64>| asked.front() == Some(&content);
        let lanes = self.0.range_mut((who, false)..=(who, true)).map(|(_, asked)| asked);
        let Some(lane) = lanes.into_iter().find(next) else {
            return Err(Violation::new("submit-ordered", format!("{who} sends what it was not to send yet")));
        };
        lane.pop_front();
        Ok(())
    }
}
