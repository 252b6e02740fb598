//! The progress of a view change at a member.

use std::collections::BTreeMap;

use crate::{
    id::ProcessId,
    time::{Duration, Time},
};

/// The progress of a view change at a member. Between changes, `limit` and the cut are `None`.
#[derive(Debug, Default)]
pub(super) struct ChangeProgress {
    /// The last number of each stream that may be delivered during a change: the reported number, or the cut.
    limit: Option<BTreeMap<ProcessId, u64>>,
    cut: Option<BTreeMap<ProcessId, u64>>,
    /// Whether this member has confirmed that it holds all of the cut.
    repaired: bool,
    /// Time since which this member's soft messages wait for the next view.
    changing_since: Option<Time>,
    /// Time since which this member waits for the survivors.
    waiting_since: Time,
    /// Whether the change ends now, so that no message has to wait.
    pub(super) installing: bool,
    /// Number of requests for repair in this change.
    attempts: usize,
    /// For each sender, the number of lost soft messages that preceded a safe message which was delivered.
    missing: BTreeMap<ProcessId, u64>,
}

impl ChangeProgress {
    /// Begins a change, or restarts it. This member reports that it holds the streams up to these numbers.
    pub(super) fn prepare(&mut self, reported: BTreeMap<ProcessId, u64>, now: Time) {
        (self.limit, self.cut, self.repaired) = (Some(reported), None, false);
        (self.waiting_since, self.attempts) = (now, 0);
        // A suspicion during a change restarts the change, and this member's soft messages keep waiting.
        self.changing_since.get_or_insert(now);
    }

    /// Notes the cut: for each stream, the last number that the view delivers.
    pub(super) fn set_cut(&mut self, ends: BTreeMap<ProcessId, u64>, now: Time) {
        (self.limit, self.cut) = (Some(ends.clone()), Some(ends));
        self.waiting_since = now;
    }

    /// Returns the cut, once it is known.
    pub(super) fn cut(&self) -> Option<&BTreeMap<ProcessId, u64>> {
        self.cut.as_ref()
    }

    /// Takes the cut at the end of its view.
    pub(super) fn take_cut(&mut self) -> Option<BTreeMap<ProcessId, u64>> {
        self.cut.take()
    }

    /// Returns the end of a stream in the cut, if the cut is known and names the stream.
    pub(super) fn end_of(&self, sender: ProcessId) -> Option<u64> {
        self.cut.as_ref().and_then(|cut| cut.get(&sender)).copied()
    }

    /// Whether this member has reported its streams, and no view was installed since.
    pub(super) fn has_reported(&self) -> bool {
        self.limit.is_some()
    }

    /// Returns the last number of a stream that may be delivered now.
    pub(super) fn limit_of(&self, sender: ProcessId) -> u64 {
        self.limit.as_ref().map_or(u64::MAX, |limit| limit.get(&sender).copied().unwrap_or(0))
    }

    /// Whether this member has confirmed that it holds all of the cut.
    pub(super) fn is_repaired(&self) -> bool {
        self.repaired
    }

    /// Notes that this member holds all of the cut. Returns whether it has to confirm that now.
    pub(super) fn confirm_repair(&mut self) -> bool {
        !std::mem::replace(&mut self.repaired, true)
    }

    /// Chooses the member that a request for repair goes to. Repeated requests go to other members.
    pub(super) fn choose(&self, holders: &[ProcessId]) -> Option<ProcessId> {
        (!holders.is_empty()).then(|| holders[self.attempts % holders.len()])
    }

    /// Handles a tick, after which requests for repair are repeated.
    pub(super) fn tick(&mut self) {
        self.attempts += 1;
    }

    /// Whether this member has waited for the survivors for at least `time`.
    pub(super) fn has_waited(&self, time: Duration, now: Time) -> bool {
        now.since(self.waiting_since) >= time
    }

    /// Restarts the time that this member waits for the survivors.
    pub(super) fn forgive(&mut self, now: Time) {
        self.waiting_since = now;
    }

    /// Notes the number of lost soft predecessors of a delivered message.
    pub(super) fn add_missing(&mut self, sender: ProcessId, count: u64) {
        self.missing.insert(sender, count);
    }

    /// Ends the change with a view. Returns the lost soft predecessors in the view before.
    pub(super) fn end(&mut self) -> BTreeMap<ProcessId, u64> {
        self.limit = None;
        std::mem::take(&mut self.missing)
    }

    /// Returns the time for which this member's soft messages waited for the view that begins now.
    pub(super) fn waited(&mut self, now: Time) -> Duration {
        self.changing_since.take().map_or(Duration::ZERO, |since| now.since(since))
    }
}
