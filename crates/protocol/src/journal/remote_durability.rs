//! The memory of other processes' journals, by which a process recognises an older copy of its own journal.
//!
//! **Promise.** A process does not continue from a journal that lacks a record, if it had reported this
//! record to a process that it now meets. Such a journal is an older copy of a directory that was put back,
//! for instance from a snapshot of a machine. The copy is consistent in itself, so the process alone cannot
//! notice. The process would break promises that it has forgotten: a router would accept ballots below its
//! promise, and a storage process would lack messages that the routers no longer keep.
//!
//! **How.** Each [`Start`] of a process from its directory has a number and a random mark. The directory
//! keeps the numbers and marks, and the journal position at which each start began ([`StartHistory`]). From
//! time to time a process reports to its peers its start, and the record up to which its journal is durable
//! ([`DurabilityReport`]). The peers remember the last report of each node ([`RemoteDurability`]), also in
//! their own journals. When two processes greet each other, each sends its memory of the other, and the other
//! compares it with its starts. In an older copy, the reported start is missing or has another mark, or the
//! next start came before the reported record. Then the process sends nothing more, and ends. A process sends
//! reports only after that comparison, so that no peer believes an older copy. It sends no report in its
//! first moments either, because a peer without a memory would believe the report before the process meets a
//! peer that remembers more. However often such a copy is started, and whatever is written to it, its starts
//! give it away.
//!
//! **Limits.** A copy is as good as its original until the original has reported more. No process notices the
//! loss of records that became durable after the last report, or whose report a peer forgot in a crash
//! because the peer had not yet written it. A process with an older copy continues while it can meet only
//! peers that never heard of more. Copies of all directories that were taken and put back together agree with
//! one another, and no process is left that remembers more.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    id::{Incarnation, ProcessId},
    seam::Ticket,
    wire::{Wire, WireError, put_process, take_process, take_u32},
};

/// A start of a process from its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The number of the start in its directory, counted from 1.
    pub number: u32,
    /// A random mark. Two starts with the same number but different marks belong to a directory and its copy.
    pub mark: u64,
    /// The last record in the journal when the start began.
    pub began: Ticket,
}

/// A process's report about its journal: the process's start, and the last durable record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Wire)]
pub struct DurabilityReport {
    /// The number of the start.
    pub start: u32,
    /// The mark of the start.
    pub mark: u64,
    /// The last durable record; 0 if there is none.
    pub durable: Ticket,
}

/// The last starts of a process from its directory, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartHistory(VecDeque<Start>);

/// Number of starts that are kept. A peer's memory of an earlier start is no evidence.
pub const STARTS_MAX: usize = 64;

impl StartHistory {
    /// Returns the history that a directory kept, or `None` if these starts cannot follow one another.
    pub fn of(starts: impl IntoIterator<Item = Start>) -> Option<StartHistory> {
        let starts: VecDeque<Start> = starts.into_iter().collect();
        let follows = |(one, next): (&Start, &Start)| {
            one.number.checked_add(1) == Some(next.number) && one.began <= next.began
        };
        let fits = starts.len() <= STARTS_MAX && starts.iter().zip(starts.iter().skip(1)).all(follows);
        fits.then_some(StartHistory(starts))
    }

    /// Returns the starts in order.
    pub fn iter(&self) -> impl Iterator<Item = &Start> {
        self.0.iter()
    }

    /// Adds a start that began with `began` as the journal's last record.
    pub fn begin(&mut self, mark: u64, began: Ticket) {
        if self.0.len() == STARTS_MAX {
            self.0.pop_front();
        }
        let number = self.0.back().map_or(1, |last| last.number.saturating_add(1));
        self.0.push_back(Start { number, mark, began });
    }

    /// Returns the report of the last start, if `durable` is the last durable record.
    pub fn report(&self, durable: Ticket) -> DurabilityReport {
        let Some(Start { number, mark, .. }) = self.0.back() else { return DurabilityReport::default() };
        DurabilityReport { start: *number, mark: *mark, durable }
    }

    /// Whether a directory with these starts contains the reported record, as far as its starts show.
    pub fn holds(&self, report: DurabilityReport) -> bool {
        let (Some(first), Some(last)) = (self.0.front(), self.0.back()) else { return true };
        if report.durable == Ticket(0) || report.start < first.number {
            return true;
        }
        if report.start > last.number {
            return false;
        }
        let at = (report.start - first.number) as usize;
        let is_kept = self.0.get(at + 1).is_none_or(|next| next.began >= report.durable);
        self.0[at].mark == report.mark && is_kept
    }
}

/// For each node, the last report of its latest incarnation that sent a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteDurability(BTreeMap<u64, (Incarnation, DurabilityReport)>);

/// Maximum number of remembered nodes. Further nodes are ignored until there is room.
const NODES_MAX: usize = 1024;

impl RemoteDurability {
    /// Records a report of `process`. Returns whether the report is new. A process without a disk reports
    /// nothing.
    pub fn record(&mut self, process: ProcessId, report: DurabilityReport) -> bool {
        let known = self.0.get(&process.node);
        let is_news = known != Some(&(process.incarnation, report)) && report.durable > Ticket(0);
        let learns = is_news && (known.is_some() || self.0.len() < NODES_MAX);
        if learns {
            self.0.insert(process.node, (process.incarnation, report));
        }
        learns
    }

    /// Returns the last report of `process`, or the default if there was none.
    pub fn last_report(&self, process: ProcessId) -> DurabilityReport {
        match self.0.get(&process.node) {
            Some((incarnation, report)) if *incarnation == process.incarnation => *report,
            _ => DurabilityReport::default(),
        }
    }

    /// Whether no report is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Wire for RemoteDurability {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.0.len() as u32);
        for (&node, &(incarnation, report)) in &self.0 {
            put_process(out, ProcessId { node, incarnation });
            report.encode(out);
        }
    }

    fn decode(input: &mut Bytes) -> Result<RemoteDurability, WireError> {
        let count = take_u32(input)? as usize;
        if count > NODES_MAX {
            return Err(WireError::Length { length: count as u64, limit: NODES_MAX as u64 });
        }
        let mut report = BTreeMap::new();
        for _ in 0..count {
            let ProcessId { node, incarnation } = take_process(input)?;
            report.insert(node, (incarnation, DurabilityReport::decode(input)?));
        }
        Ok(RemoteDurability(report))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(node: u64, incarnation: u128) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(incarnation) }
    }

    /// Returns starts that each begin 10 records after the previous one.
    fn starts(marks: std::ops::Range<u64>) -> StartHistory {
        let mut starts = StartHistory::default();
        marks.for_each(|mark| starts.begin(mark, Ticket(mark * 10)));
        starts
    }

    #[test]
    fn the_newest_directory_holds_every_reported_record() {
        let mut starts = StartHistory::default();
        let mut report = vec![DurabilityReport::default()];
        for mark in 0..3 * STARTS_MAX as u64 {
            starts.begin(mark, Ticket(mark * 10));
            report.extend([1, 10].map(|more| starts.report(Ticket(mark * 10 + more))));
            assert!(report.iter().all(|report| starts.holds(*report)), "start {mark}");
        }
        assert_eq!(StartHistory::of(starts.iter().copied()), Some(starts));
    }

    #[test]
    fn an_older_copy_never_holds_later_reports_after_any_number_of_starts() {
        for taken_in in 1..6 {
            // The copy is taken after this start and some of its records. Later starts of the original report
            // more records.
            let original = starts(0..6);
            let later = original.report(Ticket(55));
            let since_that_start = starts(0..taken_in).report(Ticket(taken_in * 10 - 1));
            let mut copy = starts(0..taken_in);
            for start in 0..2 * STARTS_MAX as u64 {
                copy.begin(1_000 + start, Ticket(taken_in * 10 - 5 + 100 * start));
                if copy.0.front().is_some_and(|first| first.number <= 1) {
                    assert!(!copy.holds(since_that_start), "taken in {taken_in}, started {start} times");
                    assert!(!copy.holds(later), "taken in {taken_in}, started {start} times");
                }
                assert!(copy.holds(starts(0..taken_in).report(Ticket(taken_in * 10 - 5))), "that is in it");
            }
        }
        assert!(starts(0..0).holds(starts(0..3).report(Ticket(5))), "nothing is said by none");
    }

    #[test]
    fn a_start_history_with_gaps_or_reversals_is_refused() {
        let start = |number, began| Start { number, mark: 0, began: Ticket(began) };
        assert!(StartHistory::of([start(3, 5), start(4, 5)]).is_some());
        assert_eq!(StartHistory::of([start(3, 5), start(5, 5)]), None);
        assert_eq!(StartHistory::of([start(3, 5), start(4, 4)]), None);
        assert_eq!(StartHistory::of((1..100).map(|number| start(number, 5))), None);
    }

    #[test]
    fn a_report_keeps_its_bytes() {
        let report = DurabilityReport { start: 2, mark: 3, durable: Ticket(4) };
        let mut out = BytesMut::new();
        report.encode(&mut out);
        assert_eq!(out, &[2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0][..]);
        assert_eq!(DurabilityReport::decode(&mut out.freeze()), Ok(report));
    }

    #[test]
    fn the_last_report_of_each_node_is_remembered() {
        let report = |mark, durable| DurabilityReport { start: 1, mark, durable: Ticket(durable) };
        let mut remote_durability = RemoteDurability::default();
        assert!(!remote_durability.record(process(1, 1), report(1, 0)), "it has no disk");
        assert!(remote_durability.is_empty() && remote_durability.record(process(1, 1), report(1, 7)));
        assert!(!remote_durability.record(process(1, 1), report(1, 7)), "that is known");
        assert_eq!(remote_durability.last_report(process(1, 1)), report(1, 7));
        assert_eq!(remote_durability.last_report(process(2, 1)), DurabilityReport::default(), "another node");
        assert_eq!(
            remote_durability.last_report(process(1, 2)),
            DurabilityReport::default(),
            "another incarnation has a journal of its own"
        );
        for node in 0..NODES_MAX as u64 {
            remote_durability.record(process(node, 9), report(2, 1));
        }
        assert!(!remote_durability.record(process(5_000, 9), report(1, 1)), "there is no room");
        assert!(remote_durability.record(process(3, 9), report(2, 900)), "for those that are known there is");
        let mut out = BytesMut::new();
        remote_durability.encode(&mut out);
        let bytes = out.freeze();
        assert_eq!(RemoteDurability::decode(&mut bytes.clone()), Ok(remote_durability));
        for end in (0..bytes.len()).step_by(7) {
            RemoteDurability::decode(&mut bytes.slice(..end)).unwrap_err();
        }
        let mut more = bytes.to_vec();
        more[..4].copy_from_slice(&(NODES_MAX as u32 + 1).to_le_bytes());
        assert!(matches!(RemoteDurability::decode(&mut more.into()), Err(WireError::Length { .. })));
    }
}
