//! Submissions leave in the order of the requests: data may overtake control and the reverse, but each class
//! keeps its order.

use std::collections::{BTreeMap, VecDeque};

use quorate_protocol::ProcessId;
use quorate_world::Violation;

/// The hashes of the requested, unsent submissions of each process, by class.
#[derive(Debug, Default)]
pub(crate) struct SubmissionsCheck(BTreeMap<(ProcessId, bool), VecDeque<u64>>);

impl SubmissionsCheck {
    /// Records that a process got a request to submit a body with this hash, as data or as control.
    pub(crate) fn asked(&mut self, who: ProcessId, data: bool, content: u64) {
        self.0.entry((who, data)).or_default().push_back(content);
    }

    /// Records that a process sends a submission for the first time.
    pub(crate) fn sent(&mut self, who: ProcessId, content: u64) -> Result<(), Violation> {
        let next = |asked: &&mut VecDeque<u64>| asked.front() == Some(&content);
        let lanes = self.0.range_mut((who, false)..=(who, true)).map(|(_, asked)| asked);
        let Some(lane) = lanes.into_iter().find(next) else {
            return Err(Violation::new(
                "submit-ordered",
                format!(
                    "process {who} sent a submission out of turn: its user asked for other messages first"
                ),
            ));
        };
        lane.pop_front();
        Ok(())
    }
}
