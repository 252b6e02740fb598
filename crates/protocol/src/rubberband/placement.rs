//! The ring: the replicas of each range, and the replica that answers for it.

use smallvec::SmallVec;

use super::{
    config::{Config, StorageState},
    range::{Range, Segment},
};
use crate::{ecast::Destinations, id::ProcessId};

/// The share of one process in a message's ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The process.
    pub process: ProcessId,
    /// The parts of the message's ranges that the process holds; for a read, the parts that the process
    /// reads.
    pub held: Vec<Range>,
    /// The parts for which the process answers.
    pub answers: Vec<Range>,
}

impl Config {
    /// Returns the ranges that `process` replicates.
    pub fn ranges_of(&self, process: ProcessId) -> Vec<Range> {
        let held = self.segments().iter().filter(|segment| segment.replicas.contains(&process));
        held.map(|segment| segment.range).collect()
    }

    /// Returns the range of the segment that contains `key`.
    pub(super) fn segment_of(&self, key: u64) -> Range {
        let behind = self.segments().partition_point(|segment| segment.range.low <= key);
        self.segments()[behind - 1].range
    }

    /// Returns the replicas of a segment that have all its rows and may be reached.
    pub fn complete<'a>(&'a self, segment: &'a Segment) -> impl Iterator<Item = ProcessId> + 'a {
        segment.replicas.iter().copied().filter(|replica| self.is_complete(*replica))
    }

    fn is_complete(&self, process: ProcessId) -> bool {
        matches!(self.storage.get(&process), Some(StorageState::Active))
    }

    /// Whether `process` gets the writes to its ranges, because it is complete, or importing, or away while
    /// it keeps its place on the ring.
    fn takes_writes(&self, process: ProcessId) -> bool {
        let takes = |state: &StorageState| {
            matches!(
                state,
                StorageState::Active | StorageState::Receiving { .. } | StorageState::Away { on_ring: true }
            )
        };
        self.storage.get(&process).is_some_and(takes)
    }

    /// Whether each segment that a process in `risked` replicates has a complete replica outside `risked` and
    /// `died`.
    pub(super) fn survives_loss_of(&self, risked: &[ProcessId], died: &[ProcessId]) -> bool {
        let further = |process: &ProcessId| !risked.contains(process) && !died.contains(process);
        let concerned = |segment: &&Segment| segment.replicas.iter().any(|replica| risked.contains(replica));
        self.segments().iter().filter(concerned).all(|segment| self.complete(segment).any(|it| further(&it)))
    }

    /// Returns the segments that `range` touches.
    fn touched(&self, range: Range) -> impl Iterator<Item = &Segment> {
        let first = self.segments().partition_point(|segment| segment.range.high < range.low);
        self.segments()[first..].iter().take_while(move |segment| segment.range.low <= range.high)
    }

    /// Returns the number of segments that `range` touches.
    pub fn count_segments(&self, range: Range) -> usize {
        self.touched(range).count()
    }

    /// Whether a segment's rows are lost: no replica has them, and none will have them again, because an
    /// operator declared the last such replica lost.
    pub(super) fn is_lost(&self, segment: &Segment) -> bool {
        let waits = |replica| {
            let has_rows = |state: &StorageState| {
                matches!(
                    state,
                    StorageState::Active | StorageState::Unreachable | StorageState::Away { on_ring: true }
                )
            };
            self.storage.get(replica).is_some_and(has_rows)
        };
        !segment.replicas.iter().any(waits)
    }

    /// Whether a segment that `ranges` touch is lost.
    pub(super) fn any_lost(&self, ranges: &[Range]) -> bool {
        ranges.iter().any(|range| self.touched(*range).any(|segment| self.is_lost(segment)))
    }

    /// Returns all replicas of `ranges` that are members.
    pub(super) fn replicas_of(&self, ranges: &[Range]) -> Vec<ProcessId> {
        let mut replicas: Vec<ProcessId> = ranges
            .iter()
            .flat_map(|range| self.touched(*range))
            .flat_map(|segment| segment.replicas.iter().copied())
            .filter(|replica| self.storage.contains_key(replica))
            .collect();
        replicas.sort_unstable();
        replicas.dedup();
        replicas
    }

    /// Returns the destinations of a write to `ranges`: every replica of every segment, and one group per
    /// segment.
    ///
    /// # Errors
    ///
    /// The first range that has no complete replica, or an unreachable one.
    pub fn write_destinations(&self, ranges: &[Range]) -> Result<Destinations, Range> {
        let mut found = Destinations::default();
        for range in ranges {
            for segment in self.touched(*range) {
                let unreachable = |replica| self.storage.get(replica) == Some(&StorageState::Unreachable);
                if segment.replicas.iter().any(unreachable) {
                    return Err(segment.range);
                }
                let mut group = 0u64;
                for replica in segment.replicas.iter().copied().filter(|replica| self.takes_writes(*replica))
                {
                    let index = match found.processes.iter().position(|known| *known == replica) {
                        Some(index) => index,
                        None => {
                            found.processes.push(replica);
                            found.processes.len() - 1
                        }
                    };
                    if self.is_complete(replica) {
                        group |= 1 << index;
                    }
                }
                if group == 0 {
                    return Err(segment.range);
                }
                if !found.groups.contains(&group) {
                    found.groups.push(group);
                }
            }
        }
        Ok(found)
    }

    /// Splits a write's ranges over all replicas; `offset` selects, for each segment, the replica that
    /// answers.
    ///
    /// # Errors
    ///
    /// The first range that has no complete replica.
    pub fn assign_write(&self, ranges: &[Range], offset: u32) -> Result<Vec<Assignment>, Range> {
        let mut assignments: Vec<Assignment> = Vec::new();
        for range in ranges {
            for segment in self.touched(*range) {
                let part =
                    range.intersect(segment.range).expect("a touched segment shares keys with the range");
                let complete: SmallVec<[ProcessId; 4]> = self.complete(segment).collect();
                if complete.is_empty() {
                    return Err(segment.range);
                }
                let answers = complete[offset as usize % complete.len()];
                for replica in segment.replicas.iter().copied().filter(|replica| self.takes_writes(*replica))
                {
                    let place = place_of(&mut assignments, replica);
                    place.held.push(part);
                    if replica == answers {
                        place.answers.push(part);
                    }
                }
            }
        }
        assignments.sort_unstable_by_key(|assignment| assignment.process);
        Ok(assignments)
    }

    /// Splits a read's ranges over the processes that read them: `offset` selects one replica of each
    /// segment. So reads with one offset divide the table evenly, and each process gets the same small share
    /// of every such read, which makes a shared scan cheap.
    ///
    /// # Errors
    ///
    /// The first range that has no complete replica.
    pub fn assign_read(&self, ranges: &[Range], offset: u32) -> Result<Vec<Assignment>, Range> {
        let mut assignments: Vec<Assignment> = Vec::new();
        for range in ranges {
            for segment in self.touched(*range) {
                let part =
                    range.intersect(segment.range).expect("a touched segment shares keys with the range");
                let process = self.reader(segment, offset).ok_or(segment.range)?;
                let place = place_of(&mut assignments, process);
                place.held.push(part);
                place.answers.push(part);
            }
        }
        assignments.sort_unstable_by_key(|assignment| assignment.process);
        Ok(assignments)
    }

    /// Returns the processes of [`Config::assign_read`], in id order.
    pub fn readers(&self, ranges: &[Range], offset: u32) -> Result<SmallVec<[ProcessId; 4]>, Range> {
        let mut readers = SmallVec::new();
        for range in ranges {
            for segment in self.touched(*range) {
                let process = self.reader(segment, offset).ok_or(segment.range)?;
                if !readers.contains(&process) {
                    readers.push(process);
                }
            }
        }
        readers.sort_unstable();
        Ok(readers)
    }

    /// Returns the replica that serves reads of a segment with this offset.
    fn reader(&self, segment: &Segment, offset: u32) -> Option<ProcessId> {
        let count = self.complete(segment).count();
        self.complete(segment).nth(offset as usize % count.max(1))
    }
}

fn place_of(assignments: &mut Vec<Assignment>, process: ProcessId) -> &mut Assignment {
    let index = match assignments.iter().position(|assignment| assignment.process == process) {
        Some(index) => index,
        None => {
            assignments.push(Assignment { process, held: Vec::new(), answers: Vec::new() });
            assignments.len() - 1
        }
    };
    &mut assignments[index]
}

#[cfg(test)]
mod tests;
